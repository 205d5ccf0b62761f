//! Requests from guest vCPUs: the shared page, and carrying them out.

mod execute;
mod page;
mod vcpu;

pub use execute::{IoHandler, execute};
pub use page::{IoreqError, IoreqPage, IoreqState};
pub use vcpu::{VcpuIoreqs, VcpuIoreqsError};

use crate::Port;

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoKind {
    /// An I/O port; the address is the port and does not move with `count`.
    Pio,
    /// A guest-physical address, of a range we mapped or a write-protected
    /// frame.
    Copy,
    /// PCI configuration space: SBDF in the high dword of the address,
    /// register in the low one. Does not move with `count`.
    PciConfig,
    /// The guest set its clock; nothing to do.
    TimeOffset,
    /// Frames left the guest: forget foreign mappings, then answer.
    Invalidate,
    /// A kind this code does not know.
    Other(u8),
}

impl IoKind {
    fn from_raw(raw: u8) -> Self {
        match u32::from(raw) {
            xen_sys::IOREQ_TYPE_PIO => Self::Pio,
            xen_sys::IOREQ_TYPE_COPY => Self::Copy,
            xen_sys::IOREQ_TYPE_PCI_CONFIG => Self::PciConfig,
            xen_sys::IOREQ_TYPE_TIMEOFFSET => Self::TimeOffset,
            xen_sys::IOREQ_TYPE_INVALIDATE => Self::Invalidate,
            _ => Self::Other(raw),
        }
    }
}

/// A copy of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRequest {
    /// The slot it came in.
    pub vcpu: u32,
    /// What it is about.
    pub kind: IoKind,
    /// Port, guest-physical address, or SBDF and register.
    pub addr: u64,
    /// The value to write; or with `data_is_ptr` the guest-physical address
    /// to read it from or write it to.
    pub data: u64,
    /// Repetitions, for string instructions; else 1.
    pub count: u32,
    /// Bytes of each, 1, 2, 4 or 8.
    pub size: u32,
    /// True for a read of the device.
    pub read: bool,
    /// String instructions go down.
    pub df: bool,
    /// `data` is an address.
    pub data_is_ptr: bool,
    /// The event channel port on Xen's side.
    pub vp_eport: Port,
}
