//! Our own carrier: a guest's pages and its vGPU's state over a connection,
//! from vgpud to vgpud.
//!
//! Sections of [`stream`](crate::stream), one after another. Pages come in
//! sections of a few, in any order, a later one in place of an earlier; then
//! the state; then `end`, with what was sent in numbers. The target confirms
//! when it has all of it, and only then is the guest the target's.

mod bucket;
mod incoming;
mod outgoing;
mod pages;

use crate::stream::Name;

pub use bucket::Bucket;
pub use incoming::{Incoming, ReceiveError, confirm, receive};
pub use outgoing::{Outgoing, Sent};
pub use pages::{MAX_PAGES, PagesError};

/// The end of what the source sends.
const END: Name = Name::of("end");
/// That the target has it all.
const DONE: Name = Name::of("done");
/// The version of all bodies here.
const VERSION: u16 = 1;

#[cfg(test)]
mod tests;
