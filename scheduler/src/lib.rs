//! The part of vgpud that owns the GPU.
//!
//! Guests' execlist loads come in, audited work goes to the GPU, and what
//! the guest may see of it comes back. See README.md for the way of one
//! submission, the threads and the order of locks.

#![forbid(unsafe_code)]

pub mod dma;
pub mod registers;
mod sync;
pub mod windows;
