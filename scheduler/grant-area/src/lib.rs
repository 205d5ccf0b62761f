//! The shared area of a vGPU whose device model runs in a stub domain.
//!
//! It is that of [`vgpu_ring`], over other means: pages that the stub domain
//! grants to dom0 in a memfd's place, event channels in an eventfd's. Beside it
//! there is a [`Control`], a pipe for the messages that go over a socket on one
//! host.
//!
//! ```text
//! stub domain                                dom0
//! GrantedArea::create ─┐
//! GrantedControl::… ───┴─ Offer ─ xenstore ─ MappedArea::open, MappedControl::open
//! pages, unbound ports                       maps, binds
//! ```
//!
//! What is offered is a **region** each: pages that hold a link page and what
//! the region is for, a directory of the references to them, and a port. The
//! offer names the first page of the directory; the rest is found from there.
//!
//! ```text
//! directory page  dword 0: reference of the next page, 0 in the last
//!                 dwords 1 to 1023: references of the region's pages
//! link page       qwords: magic, version, pages; life of each side
//! ```
//!
//! A side's **life** is a word whose lowest byte is 1 while it is there. Its
//! kernel clears the byte and signals the other side when the process ends,
//! however that comes about. When a stub domain is destroyed nobody is left to
//! do that: who waits for it watches xenstore too.
//!
//! dom0 trusts nothing of the offer: numbers have bounds, references and ports
//! are Xen's to check, the link page and the area's header are copied and
//! compared. What the stub domain can do is change the contents, at any time,
//! which is what the rings are made for. Pages it let go of stay while dom0
//! maps them, so no access of dom0's ever faults; and as long as dom0 maps them
//! a destroyed domain is not quite gone, so dom0 lets go when it is told of
//! the end.

#![forbid(unsafe_code)]

mod area;
mod channel;
mod control;
mod error;
mod lent;
mod life;
mod offer;
mod region;

pub use area::{GrantedArea, Lifeline, MappedArea};
pub use control::{Control, GrantedControl, MappedControl};
pub use error::GrantAreaError;
pub use lent::{LentArea, Loan};
pub use life::Life;
pub use offer::{MAX_PAGES, Offer, OfferError, RegionOffer};
