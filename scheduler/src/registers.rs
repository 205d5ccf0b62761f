//! The GPU's registers, each access counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpu_bus::Gpu;

/// How often registers were accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Accesses {
    /// Reads.
    pub reads: u64,
    /// Writes, page-table entries among them.
    pub writes: u64,
}

/// A GPU whose accesses are counted. The one place that touches it.
pub struct Registers {
    gpu: Arc<dyn Gpu>,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Registers {
    /// Counts from here.
    #[must_use]
    pub fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self {
            gpu,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    /// Reads a register.
    #[must_use]
    pub fn read32(&self, offset: u32) -> u32 {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.gpu.read32(offset)
    }

    /// Writes a register.
    pub fn write32(&self, offset: u32, value: u32) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.gpu.write32(offset, value);
    }

    /// Writes a page-table entry.
    pub fn write64(&self, offset: u32, value: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.gpu.write64(offset, value);
    }

    /// Begins accesses that are counted together, when they are over.
    #[must_use]
    pub const fn series(&self) -> Series<'_> {
        Series {
            registers: self,
            reads: 0,
            writes: 0,
        }
    }

    /// Accesses so far.
    #[must_use]
    pub fn accesses(&self) -> Accesses {
        Accesses {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
        }
    }
}

/// Accesses that are counted together: counting each would take longer than
/// all else that a switch does besides them.
pub struct Series<'a> {
    registers: &'a Registers,
    reads: u64,
    writes: u64,
}

impl Series<'_> {
    /// Reads a register.
    #[must_use]
    pub fn read32(&mut self, offset: u32) -> u32 {
        self.reads += 1;
        self.registers.gpu.read32(offset)
    }

    /// Writes a register.
    pub fn write32(&mut self, offset: u32, value: u32) {
        self.writes += 1;
        self.registers.gpu.write32(offset, value);
    }

    /// Accesses of this series so far.
    #[must_use]
    pub const fn accesses(&self) -> Accesses {
        Accesses {
            reads: self.reads,
            writes: self.writes,
        }
    }
}

impl Drop for Series<'_> {
    fn drop(&mut self) {
        let Self {
            registers,
            reads,
            writes,
        } = self;
        registers.reads.fetch_add(*reads, Ordering::Relaxed);
        registers.writes.fetch_add(*writes, Ordering::Relaxed);
    }
}
