//! A GPU that is storage, with masked registers.

use std::collections::HashMap;
use std::sync::Mutex;

use gen8::switched::{GEN8, GEN9};
use gpu_bus::Gpu;

use crate::sync::lock;

#[derive(Default)]
pub struct Storage(Mutex<HashMap<u32, u32>>);

fn masked(offset: u32) -> bool {
    let listed = GEN9.find(offset).or_else(|| GEN8.find(offset));
    listed.map_or_else(|| gen8::regs::masked(offset), |s| s.row.masked)
}

impl Gpu for Storage {
    fn read32(&self, offset: u32) -> u32 {
        *lock(&self.0).get(&offset).unwrap_or(&0)
    }

    fn write32(&self, offset: u32, value: u32) {
        let mut map = lock(&self.0);
        let held = map.entry(offset).or_insert(0);
        *held = if masked(offset) {
            gen8::regs::apply_masked(*held, value)
        } else {
            value
        };
    }

    fn read64(&self, _offset: u32) -> u64 {
        0
    }

    fn write64(&self, _offset: u32, _value: u64) {}
}
