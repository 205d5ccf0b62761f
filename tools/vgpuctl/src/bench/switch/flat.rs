//! A GPU whose accesses cost as good as nothing.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gen8::regs;
use gen8::switched::Table;
use gpu_bus::Gpu;

/// Bytes of register space it has.
const BYTES: u32 = 0x3_0000;

struct Register {
    value: AtomicU32,
    masked: bool,
}

/// Registers as plain storage, masked where they are.
pub struct FlatGpu(Vec<Register>);

impl FlatGpu {
    /// With a generation's registers.
    pub fn new(table: &Table) -> Self {
        let masked = |o| {
            table
                .find(o)
                .map_or_else(|| regs::masked(o), |s| s.row.masked)
        };
        let register = |offset| Register {
            value: AtomicU32::new(0),
            masked: masked(offset),
        };
        Self((0..BYTES).step_by(4).map(register).collect())
    }

    fn at(&self, offset: u32) -> Option<&Register> {
        self.0.get(usize::try_from(offset / 4).ok()?)
    }
}

impl Gpu for FlatGpu {
    fn read32(&self, offset: u32) -> u32 {
        self.at(offset).map_or(u32::MAX, |r| r.value.load(Relaxed))
    }

    fn write32(&self, offset: u32, value: u32) {
        let Some(register) = self.at(offset) else {
            return;
        };
        let new = if register.masked {
            regs::apply_masked(register.value.load(Relaxed), value)
        } else {
            value
        };
        register.value.store(new, Relaxed);
    }

    fn read64(&self, _offset: u32) -> u64 {
        u64::MAX
    }

    fn write64(&self, _offset: u32, _value: u64) {}
}
