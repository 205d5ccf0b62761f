//! A GPU that is registers and nothing else, with their real ways: masked
//! writes, bits that the hardware keeps to itself, contexts that come and go.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use gen8::regs;
use gen8::switched::{GEN8, GEN9, Kept, Switched, Table};
use gpu_bus::Gpu;

use crate::sync::lock;

/// One engine's registers.
pub struct ModelGpu {
    table: &'static Table,
    values: Mutex<HashMap<u32, u32>>,
}

impl Default for ModelGpu {
    fn default() -> Self {
        Self::new(&GEN8)
    }
}

impl ModelGpu {
    pub fn new(table: &'static Table) -> Self {
        Self {
            table,
            values: Mutex::default(),
        }
    }

    fn listed(&self, offset: u32) -> Option<Switched> {
        let others = || GEN9.find(offset).or_else(|| GEN8.find(offset));
        self.table.find(offset).or_else(others)
    }

    fn values(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        lock(&self.values)
    }

    /// The bits of a register that a guest can rely on.
    pub fn found(&self, offset: u32) -> u32 {
        let momentary = self.listed(offset).map_or(0, |s| s.momentary());
        self.read32(offset) & !momentary
    }

    /// The hardware changes a register by itself, where it does such things.
    pub fn change_by_itself(&self, register: &Switched, value: u32) {
        let bits = match register.row.change {
            gen8::switched::Change::Hardware { bits, .. } => bits,
            _ => 0,
        };
        let mut values = self.values();
        let held = values.entry(register.offset()).or_insert(0);
        *held = *held & !bits | value & bits;
    }

    /// The engine is reset.
    pub fn reset(&self) {
        let mut values = self.values();
        values.clear();
        for register in self.table.registers() {
            values.insert(register.offset(), register.row.reset);
        }
    }

    /// What a context holds now, of registers listed and others.
    pub fn save_context(&self, offsets: &[u32]) -> Vec<u32> {
        offsets.iter().map(|o| self.read32(*o)).collect()
    }

    /// The context's values replace what was there.
    pub fn load_context(&self, offsets: &[u32], saved: &[u32]) {
        let mut values = self.values();
        for (offset, value) in offsets.iter().zip(saved) {
            values.insert(*offset, *value);
        }
    }
}

/// The registers of the context that a test looks at.
pub fn context_offsets(table: &Table, engine: gen8::Engine) -> Vec<u32> {
    let listed = table
        .registers()
        .filter(|s| s.row.engine == engine && s.row.kept == Kept::InContext);
    let mut offsets: Vec<u32> = listed.map(|s| s.offset()).collect();
    // Some that no list has.
    offsets.extend(gen8::regs::GEN8.context(engine).take(3));
    offsets
}

impl Gpu for ModelGpu {
    fn read32(&self, offset: u32) -> u32 {
        *self.values().get(&offset).unwrap_or(&0)
    }

    fn write32(&self, offset: u32, value: u32) {
        let listed = self.listed(offset);
        let masked = listed.map_or_else(|| regs::masked(offset), |s| s.row.masked);
        // Bits that are the hardware's say or clear themselves.
        let own = listed.map_or(0, |s| s.momentary());
        let mut values = self.values();
        let held = values.entry(offset).or_insert(0);
        let new = if masked {
            regs::apply_masked(*held, value)
        } else {
            value
        };
        *held = *held & own | new & !own;
    }

    fn read64(&self, _offset: u32) -> u64 {
        0
    }

    fn write64(&self, _offset: u32, _value: u64) {}
}
