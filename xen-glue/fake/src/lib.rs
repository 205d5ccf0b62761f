//! An in-process hypervisor with Xen's page layouts and rules.
//!
//! [`FakeXen`] implements `xen_glue::Hypervisor`, so a device model runs on
//! it unchanged: dm_ops arrive as the bytes of `struct xen_dm_op`, requests
//! go through a shared page of `struct ioreq`, guest memory is mapped for
//! real (from a memfd, with an error for each frame that is not there).
//! [`Vcpu`] is the guest's side: it blocks in an access until the device
//! model answers, as a vCPU does.
//!
//! The rules are those of Xen 4.17 (common/ioreq.c, arch/x86/hvm/dm.c,
//! arch/x86/mm/p2m.c), whose later releases keep them.

#![forbid(unsafe_code)]

mod dm_op;
mod domain;
mod events;
mod firmware;
mod gate;
mod grants;
mod host;
mod interrupts;
mod memory;
mod mortal;
mod privcmd;
mod ranges;
mod reservation;
mod server;
mod vcpu;

pub use domain::{Domain, DomainConfig, Stopped};
pub use events::FakeEventChannels;
pub use firmware::{Bar, BarKind, FirmwareError, MmioHole, place_bars};
pub use host::{FakeXen, FakeXenError};
pub use interrupts::Interrupt;
pub use memory::FrameKind;
pub use mortal::{Killed, MortalPrivcmd};
pub use privcmd::FakePrivcmd;
pub use vcpu::{RawIoreq, Vcpu};
