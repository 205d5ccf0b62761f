//! Serves one guest's accesses to its virtual GPU.
//!
//! [`Server`] ties three things together: the device (`vgpu-device`, which
//! knows no hypervisor), Xen's ioreq protocol (`xen-glue`, on real Xen or
//! `fake-xen`), and the rings to vgpud (`vgpu-ring`). It owns one thread for
//! each vCPU and one for vgpud's events and the device's alarm. No request
//! ever waits for another process.

#![forbid(unsafe_code)]

mod access;
mod alarm;
mod events;
mod keeper;
mod outside;
mod pause;
mod protection;
mod saving;
mod server;
mod spin;
mod successor;
mod table;
mod vcpu;
mod windows;

pub use keeper::PageKeeper;
pub use pause::NotStill;
pub use protection::{ProtectionState, StillProtected};
pub use saving::OtherDevice;
pub use server::{AttachError, Server, ServerConfig, Statistics};
pub use table::TableState;
pub use vgpu_confine::Seccomp;
pub use windows::TableStays;
