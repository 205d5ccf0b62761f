//! The device's surroundings on Xen.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use vgpu_device::{Bar, BarSink, Full, GgttTable, GpuPort, InterruptSink};
use vgpu_ring::{AreaWords, EventBell, Producer, PushError, Request};
use xen_glue::{DeviceModel, IoreqServer};

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

/// Windows as MMIO ranges of the ioreq server.
pub(crate) struct Windows {
    pub(crate) server: Arc<IoreqServer>,
    /// What Xen has, for BAR0 and BAR2: it refuses a range that overlaps
    /// another, and what was refused must not be unmapped.
    mapped: Mutex<[bool; 2]>,
}

impl Windows {
    pub(crate) fn new(server: Arc<IoreqServer>) -> Self {
        Self {
            server,
            mapped: Mutex::default(),
        }
    }

    fn change(&self, bar: Bar, map: bool, base: u64, len: u64) {
        // The device maps only what does not wrap, and len is not 0.
        let range = base..=base.saturating_add(len - 1);
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let state = match bar {
            Bar::Registers => &mut mapped[0],
            Bar::Aperture => &mut mapped[1],
        };
        let result = match (map, *state) {
            (true, _) => self.server.map_mmio(&range),
            (false, true) => self.server.unmap_mmio(&range),
            (false, false) => return,
        };
        match result {
            Ok(()) => {
                *state = map;
                log::debug!(
                    "{bar} {range:x?} {}",
                    if map { "mapped" } else { "unmapped" }
                );
            }
            Err(e) => log::debug!("{bar}: {e}"),
        }
    }
}

impl BarSink for Windows {
    fn map(&self, bar: Bar, base: u64, len: u64) {
        self.change(bar, true, base, len);
    }

    fn unmap(&self, bar: Bar, base: u64, len: u64) {
        self.change(bar, false, base, len);
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

/// The guest's page table in the shared area.
pub(crate) struct Table(pub(crate) vgpu_ring::GgttTable);

impl GgttTable for Table {
    fn load(&self, index: u32) -> u64 {
        self.0.load(index)
    }

    fn store(&self, index: u32, entry: u64) {
        self.0.store(index, entry);
    }
}
