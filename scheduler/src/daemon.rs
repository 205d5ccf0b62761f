//! The daemon around the scheduler: guests come, are served and go.
//!
//! Threads: one that accepts clients and one for each client; for each guest
//! a worker that takes requests off the submit ring, a supervisor that
//! watches its QEMU and its device model, and the QMP proxy. A guest ends
//! with its QEMU. When its device model ends before that, or hangs, another
//! one takes its place and the guest notices nothing. When they die again and
//! again, or one breaks the rings, the guest loses its vGPU and nobody else
//! anything: what its vCPUs wait for is answered with all ones and the ioreq
//! server goes, so reads of the device give all ones from then on.
//!
//! vgpud may end, or be killed, while guests run: `records` has what the next
//! one needs, and `adopt` takes them over.

mod adopt;
mod claim;
mod client;
mod device_model;
mod dm;
mod events;
mod extents;
mod guest;
mod migration;
mod platform;
mod process;
mod reclaim;
mod records;
mod registry;
mod replace;
mod saving;
mod seat;
mod server;
mod stub;
mod supervisor;
mod table;
#[cfg(test)]
mod tests;
mod top;
mod translate;
mod worker;
mod xen;

pub use dm::{Confine, DmCommand};
pub use records::Records;
pub use replace::{Bounds, OnCrashLoop};
pub use server::{Daemon, Host, Limits, Places};
pub use stub::{StubConfig, Stubs, Xl};
pub use xen::XenPlatform;
