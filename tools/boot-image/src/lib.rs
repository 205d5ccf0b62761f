//! What small systems boot from: initial RAM disks and a kernel's modules.
//!
//! Used by the lab for dom0 and its guests, and by `stub-image` for the device
//! model's own domain. The same input gives the same bytes.

#![forbid(unsafe_code)]

mod cpio;
mod modules;
mod pack;

pub use cpio::Archive;
pub use modules::ModuleTree;
pub use pack::{gzip, unpacked};
