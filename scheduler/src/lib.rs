//! The part of vgpud that owns the GPU.
//!
//! Guests' execlist loads come in, audited work goes to the GPU, and what
//! the guest may see of it comes back. See README.md for the way of one
//! submission, the threads and the order of locks.

#![forbid(unsafe_code)]

pub mod audit;
pub mod clock;
pub mod complaint;
pub mod counters;
pub mod dma;
pub mod engine;
pub mod events;
pub mod flights;
pub mod ggtt;
pub mod histogram;
pub mod inspect;
pub mod interrupt;
pub mod kept;
pub mod policy;
pub mod ppgtt;
pub mod qmp;
pub mod reading;
pub mod registers;
pub mod saved;
pub mod scan;
pub mod scheduler;
pub mod switch;
pub mod sync;
pub mod trace;
pub mod vgpu;
pub mod windows;
pub mod workload;
