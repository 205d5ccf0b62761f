//! What becomes of `xl save`, `xl restore` and `xl migrate` of a guest with a
//! vGPU.
//!
//! libxl drives them by commands to QEMU, which pass the guest's QMP proxy
//! ([`Plug`]). The vGPU's state stands behind QEMU's in its save file
//! (`docs/migration-format.md`); the guest's memory is libxc's affair, which
//! has to be told what was written behind Xen's back ([`tracker`]).

mod arrival;
mod file;
mod migrant;
mod plug;
mod record;
mod saved;
mod sender;
#[cfg(test)]
mod tests;
mod times;
mod toolstack;
mod tracker;

use vgpu_migrate::stream::Name;

pub use arrival::{loaded, submitted};
pub use migrant::Migrant;
pub use plug::Plug;
pub use record::Record;
pub use saved::Arriving;
pub use tracker::look_ahead;

/// What the guest waited for at the source.
const TIMES: Name = Name::of("times");
