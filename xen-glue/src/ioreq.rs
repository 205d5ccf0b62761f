//! Requests from guest vCPUs: the shared page, and carrying them out.

mod execute;
mod page;
mod pages;
mod slot;
mod vcpu;

pub use execute::{IoHandler, execute};
pub use page::{IoreqError, IoreqPage, IoreqState};
pub use pages::{IoreqPages, PagesError};
pub use slot::Slot;
pub use vcpu::{VcpuIoreqs, VcpuIoreqsError};

use std::ops::RangeInclusive;

use guest_memory::Gfn;

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

impl IoRequest {
    /// The frames that a write by address touches; none of any other request.
    pub(crate) fn frames_written(&self) -> RangeInclusive<u64> {
        if self.kind != IoKind::Copy || self.read {
            return RangeInclusive::new(1, 0);
        }
        let size = u64::from(self.size);
        let span = size.saturating_mul(u64::from(self.count.saturating_sub(1)));
        let first = if self.df {
            self.addr.saturating_sub(span)
        } else {
            self.addr
        };
        let last = first.saturating_add(span).saturating_add(size.max(1) - 1);
        let (first, last) = (Gfn::containing(first).0, Gfn::containing(last).0);
        // Xen cuts a repetition at a page, so it is two frames at most.
        first..=last.min(first.saturating_add(1))
    }
}
