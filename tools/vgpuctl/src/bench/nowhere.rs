//! Surroundings of a device that cost nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_memory::GuestMemory;
use vgpu_device::{Bar, BarSink, Clock, Full, GgttTable, GpuPort, InterruptSink, Seams};
use vgpu_ring::Request;

/// A device's surroundings of which only memory is real.
pub fn seams(memory: Arc<dyn GuestMemory>, ggtt: Arc<dyn GgttTable>) -> Seams {
    let nowhere = Arc::new(Nowhere::default());
    Seams {
        memory,
        ggtt,
        port: nowhere.clone(),
        interrupts: nowhere.clone(),
        clock: nowhere.clone(),
        bars: nowhere,
        kept: Arc::new(vgpu_device::Unkept),
    }
}

/// Surroundings that cost nothing. Time passes a microsecond a look.
#[derive(Default)]
pub struct Nowhere(AtomicU64);

impl GgttTable for Nowhere {
    fn load(&self, _index: u32) -> u64 {
        0
    }
    fn store(&self, _index: u32, _entry: u64) {}
}

impl GpuPort for Nowhere {
    fn send(&self, _request: Request) -> Result<(), Full> {
        Ok(())
    }
}

impl InterruptSink for Nowhere {
    fn msi(&self, _address: u64, _data: u32) {}
    fn intx(&self, _level: bool) {}
}

impl Clock for Nowhere {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
    fn alarm(&self, _at_ns: u64) {}
}

impl BarSink for Nowhere {
    fn map(&self, _bar: Bar, _base: u64, _len: u64) {}
    fn unmap(&self, _bar: Bar, _base: u64, _len: u64) {}
}
