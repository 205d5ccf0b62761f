//! The device's surroundings on Xen.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use vgpu_device::{Full, GpuPort, InterruptSink};
use vgpu_ring::{AreaWords, EventBell, Producer, PushError, Request};
use xen_glue::DeviceModel;

/// Interrupts by device-model operations.
pub(crate) struct Interrupts {
    pub(crate) dm: DeviceModel,
    /// PCI slot on bus 0.
    pub(crate) slot: u8,
    /// Operations Xen refused. A guest can cause that by what it programs.
    pub(crate) refused: AtomicU64,
}

impl Interrupts {
    fn note(&self, result: Result<(), xen_glue::DeviceModelError>) {
        if let Err(e) = result {
            self.refused.fetch_add(1, Relaxed);
            log::debug!("{e}");
        }
    }
}

impl InterruptSink for Interrupts {
    fn msi(&self, address: u64, data: u32) {
        self.note(self.dm.inject_msi(address, data));
    }

    fn intx(&self, level: bool) {
        // Line 0 is INTA.
        self.note(self.dm.set_pci_intx_level(self.slot, 0, level));
    }
}

/// The submit ring.
pub(crate) struct SubmitRing(pub(crate) Mutex<Producer<Request, AreaWords, EventBell>>);

impl GpuPort for SubmitRing {
    fn send(&self, request: Request) -> Result<(), Full> {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ring.push(request) {
            Ok(()) => Ok(()),
            Err(PushError::Full) => Err(Full),
            Err(PushError::Broken(e)) => {
                // vgpud is gone or mad; the guest sees a GPU that hangs.
                log::debug!("submit {e}");
                Err(Full)
            }
        }
    }
}
