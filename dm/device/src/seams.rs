//! What the device needs from its surroundings, as traits.
//!
//! The device calls these while it holds its own lock, so that what leaves
//! it is in the order the guest caused it. An implementation must not call
//! back into the device and must not wait for another process.

use std::fmt;

use vgpu_ring::Request;

/// Entries of the guest's global page table: 8 MiB of them map 4 GiB.
pub const GGTT_ENTRIES: u32 = 1 << 20;

/// The guest's global page table. Entries keep every bit the guest wrote;
/// their address bits are guest-physical.
pub trait GgttTable: Send + Sync {
    /// The entry; 0 when `index` is not below [`GGTT_ENTRIES`].
    fn load(&self, index: u32) -> u64;
    /// Replaces the entry; does nothing when `index` is not below
    /// [`GGTT_ENTRIES`].
    fn store(&self, index: u32, entry: u64);
}

/// The request did not fit; the same one can be tried again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the submit ring is full")]
pub struct Full;

/// The way to the daemon that owns the GPU.
pub trait GpuPort: Send + Sync {
    /// Hands over one request, in order.
    ///
    /// # Errors
    /// [`Full`] when there is no room now; the device keeps the request.
    fn send(&self, request: Request) -> Result<(), Full>;

    /// Hands over one request like [`GpuPort::send`]: the one with which
    /// `count` have been handed over. Who keeps what a successor needs notes
    /// that at the moment from which vgpud will see the request.
    ///
    /// # Errors
    /// As [`GpuPort::send`]; nothing is noted then.
    fn hand_over(&self, request: Request, _count: u64) -> Result<(), Full> {
        self.send(request)
    }
}

/// Words that outlive the device, for its successor to go on from: see
/// [`crate::kept`]. Stores are seen in the order in which they are made.
pub trait Kept: Send + Sync {
    /// Whether anything is kept at all.
    fn keeps(&self) -> bool {
        true
    }
    /// A word; 0 past the end of [`vgpu_ring::layout::KEPT_WORDS`] and where
    /// nothing was stored.
    fn load(&self, index: usize) -> u64;
    /// Sets a word; does nothing past the end.
    fn store(&self, index: usize, value: u64);
    /// Something outside of these words is about to be changed: a test can end
    /// the device here, as it can at each store.
    fn about_to(&self) {}
}

/// Keeps nothing: the device is lost with its process.
#[derive(Clone, Copy, Debug)]
pub struct Unkept;

impl Kept for Unkept {
    fn keeps(&self) -> bool {
        false
    }

    fn load(&self, _index: usize) -> u64 {
        0
    }

    fn store(&self, _index: usize, _value: u64) {}
}

impl Kept for vgpu_ring::KeptPart {
    fn load(&self, index: usize) -> u64 {
        Self::load(self, index)
    }

    fn store(&self, index: usize, value: u64) {
        Self::store(self, index, value);
    }
}

/// The guest's interrupts.
pub trait InterruptSink: Send + Sync {
    /// Sends a message-signalled interrupt with exactly the address and data
    /// the guest programmed: under Xen a vector of 0 names a pirq in the
    /// address (Linux `arch/x86/pci/xen.c:xen_msi_compose_msg`).
    fn msi(&self, address: u64, data: u32);
    /// Sets the level of the device's INTA line.
    fn intx(&self, level: bool);
}

/// Monotonic time, and the device's alarm.
pub trait Clock: Send + Sync {
    /// Nanoseconds since any fixed moment.
    fn now_ns(&self) -> u64;
    /// The device wants [`crate::Device::tick`] at `at_ns` or soon after.
    /// Called when the wish becomes earlier than it was.
    fn alarm(&self, at_ns: u64);
}

/// One of the device's two memory windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bar {
    /// BAR0: registers, and the global page table from 8 MiB on.
    Registers,
    /// BAR2: the aperture, memory through the global page table.
    Aperture,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registers => "BAR0",
            Self::Aperture => "BAR2",
        })
    }
}

/// Where the windows appear in the guest's address space.
pub trait BarSink: Send + Sync {
    /// The window answers at `[base, base + len)` from now on. It was not
    /// mapped before.
    fn map(&self, bar: Bar, base: u64, len: u64);
    /// The window no longer answers at `[base, base + len)`, where it was.
    fn unmap(&self, bar: Bar, base: u64, len: u64);
    /// The window, which does not answer, no longer has the address it had:
    /// something else may be put there.
    fn moved(&self, _bar: Bar) {}
}
