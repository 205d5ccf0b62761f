//! What tests across crates share: a guest that does anything, a neighbour
//! that must not notice, and the checks of both.

#![forbid(unsafe_code)]

mod actions;
mod arena;
pub mod attack;
mod bytes;
mod commands;
mod layout;
mod neighbour;
pub mod panics;
mod rings;
mod seams;
mod stage;

pub use actions::act;
pub use arena::Arena;
pub use attack::Attack;
pub use bytes::Bytes;
pub use layout::{BATCH_VA, CONTEXTS, DATA_VA, Place, Request, WINDOW_PAGES, write_context};
pub use neighbour::Neighbour;
pub use rings::HostileRing;
pub use seams::{Surroundings, drive_device, restore_device};
pub use stage::{Stage, wait_until};
