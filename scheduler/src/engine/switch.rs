//! The plain switch between guests: saves, restores and reads back every
//! register of the list. The baseline that later switches are measured
//! against.

use std::sync::Mutex;

use gen8::switched::{self, NOPID, Switched};
use gen8::{Engine, ring};

use crate::registers::Registers;
use crate::sync::lock;

/// Register accesses of one switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCost {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl std::ops::AddAssign for SwitchCost {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

struct Value {
    register: &'static Switched,
    value: u32,
    /// The guest wrote it and the GPU does not hold it yet.
    pending: bool,
}

impl Value {
    fn put(&mut self, gpu: &Registers) {
        let value = granted(self.register, self.value);
        let raw = if self.register.masked {
            0xffff_0000 | value
        } else {
            value
        };
        gpu.write32(self.register.offset, raw);
        self.pending = false;
    }
}

/// One vGPU's values of one engine's registers of the switch list.
pub struct VgpuRegisters {
    values: Vec<Value>,
}

impl VgpuRegisters {
    /// Values as after an engine reset.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            values: switched::GEN8
                .iter()
                .filter(|s| s.engine == engine)
                .map(|register| Value {
                    register,
                    value: register.reset,
                    pending: false,
                })
                .collect(),
        }
    }

    /// The guest wrote `value`, masks applied. Returns whether it is one of
    /// these registers.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        let Some(v) = self.values.iter_mut().find(|v| v.register.offset == offset) else {
            return false;
        };
        v.value = value;
        v.pending = true;
        true
    }

    /// The guest reset the engine.
    pub fn reset(&mut self) {
        for v in &mut self.values {
            v.value = v.register.reset;
            v.pending = true;
        }
    }

    /// The values by name, for inspection.
    #[must_use]
    pub fn view(&self) -> Vec<(&'static str, u32)> {
        self.values
            .iter()
            .map(|v| (v.register.name, v.value))
            .collect()
    }
}

/// Whether a guest may open `offset` to its unprivileged batches on RCS by a
/// FORCE_TO_NONPRIV slot: what its privileged commands may write anyway.
#[must_use]
pub fn allowed_nonpriv(offset: u32) -> bool {
    gen8::access::may_write(Engine::Rcs, offset, None)
}

/// What the hardware gets for a guest's value. vgpud itself depends on some
/// of these registers.
fn granted(register: &Switched, value: u32) -> u32 {
    let base = register.engine.mmio_base();
    match register.offset.checked_sub(base) {
        Some(ring::MODE) => ring::MODE_RUN_LIST,
        // Events belong in the status buffer only.
        Some(ring::HWSTAM) => u32::MAX,
        Some(ring::MI_MODE) => value & 0xffff & !(ring::MI_MODE_STOP_RING | ring::MI_MODE_IDLE),
        Some(o)
            if o.checked_sub(ring::FORCE_TO_NONPRIV)
                .is_some_and(|o| o < ring::FORCE_TO_NONPRIV_SLOTS * 4) =>
        {
            // Bits 25:2 are the offset
            // (Linux gt/intel_engine_regs.h:RING_FORCE_TO_NONPRIV_ADDRESS_MASK).
            if allowed_nonpriv(value & 0x03ff_fffc) {
                value & 0x03ff_fffc
            } else {
                base + NOPID
            }
        }
        _ => value,
    }
}

/// Saves to `outgoing`, restores from `incoming`, reads back.
pub fn switch(
    gpu: &Registers,
    outgoing: Option<&Mutex<VgpuRegisters>>,
    incoming: &Mutex<VgpuRegisters>,
) -> SwitchCost {
    let mut cost = SwitchCost::default();
    if let Some(outgoing) = outgoing {
        for v in &mut lock(outgoing).values {
            let have = gpu.read32(v.register.offset);
            cost.reads += 1;
            // A value not granted is the guest's own affair: it keeps the one
            // it wrote. So does one that the GPU does not hold yet.
            if !v.pending && granted(v.register, v.value) == v.value {
                v.value = if v.register.masked {
                    have & 0xffff
                } else {
                    have
                };
            }
        }
    }
    for v in &mut lock(incoming).values {
        v.put(gpu);
        let _ = gpu.read32(v.register.offset);
        cost.writes += 1;
        cost.reads += 1;
    }
    cost
}

/// Writes what the owner of the engine wrote since it last ran.
pub fn apply_pending(gpu: &Registers, registers: &Mutex<VgpuRegisters>) {
    for v in lock(registers).values.iter_mut().filter(|v| v.pending) {
        v.put(gpu);
    }
}

/// Whether `offset` belongs to the switch list of an engine.
#[must_use]
pub fn engine_of(offset: u32) -> Option<Engine> {
    switched::find(offset).map(|s| s.engine)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use gen8::regs;
    use gpu_bus::Gpu;

    use super::*;

    /// A GPU that is storage, with masked registers.
    #[derive(Default)]
    struct Storage(Mutex<HashMap<u32, u32>>);

    impl Gpu for Storage {
        fn read32(&self, offset: u32) -> u32 {
            *lock(&self.0).get(&offset).unwrap_or(&0)
        }
        fn write32(&self, offset: u32, value: u32) {
            let mut map = lock(&self.0);
            let old = *map.get(&offset).unwrap_or(&0);
            let new = if regs::masked(offset) {
                regs::apply_masked(old, value)
            } else {
                value
            };
            map.insert(offset, new);
        }
        fn read64(&self, _offset: u32) -> u64 {
            0
        }
        fn write64(&self, _offset: u32, _value: u64) {}
    }

    fn two() -> (Arc<Storage>, Registers, [Mutex<VgpuRegisters>; 2]) {
        let storage = Arc::new(Storage::default());
        let gpu = Registers::new(Arc::clone(&storage) as Arc<dyn Gpu>);
        let registers = [0, 1].map(|_| Mutex::new(VgpuRegisters::new(Engine::Rcs)));
        (storage, gpu, registers)
    }

    #[test]
    fn each_guest_finds_its_own_values_again() {
        let (storage, gpu, [a, b]) = two();
        lock(&a).write(0x83a4, 0x1111);
        lock(&b).write(0x83a4, 0x2222);
        switch(&gpu, None, &a);
        assert_eq!(storage.read32(0x83a4), 0x1111);
        // The guest changes it by commands while it runs.
        storage.write32(0x83a4, 0xffff_3333);
        storage.write32(0x7300, 0x0010_0010);
        switch(&gpu, Some(&a), &b);
        assert_eq!(storage.read32(0x83a4), 0x2222);
        assert_eq!(storage.read32(0x7300), 0);
        switch(&gpu, Some(&b), &a);
        assert_eq!(storage.read32(0x83a4), 0x3333);
        assert_eq!(storage.read32(0x7300), 0x10);
    }

    #[test]
    fn the_plain_switch_touches_everything() {
        let (_storage, gpu, [a, b]) = two();
        let first = switch(&gpu, None, &a);
        assert_eq!((first.reads, first.writes), (22, 22));
        let second = switch(&gpu, Some(&a), &b);
        assert_eq!((second.reads, second.writes), (44, 22));
        assert_eq!(gpu.accesses().writes, 44);
    }

    #[test]
    fn what_vgpud_needs_no_guest_can_set() {
        let (storage, gpu, [a, b]) = two();
        lock(&a).write(0x229c, 0);
        lock(&a).write(0x2098, 0);
        lock(&a).write(0x24d0, 0x2230);
        lock(&a).write(0x24d4, 0x7300);
        switch(&gpu, None, &a);
        assert_eq!(storage.read32(0x229c), ring::MODE_RUN_LIST);
        assert_eq!(storage.read32(0x2098), u32::MAX);
        assert_eq!(storage.read32(0x24d0), 0x2000 + NOPID);
        assert_eq!(storage.read32(0x24d4), 0x7300);
        // And it keeps what it wrote.
        switch(&gpu, Some(&a), &b);
        let values: HashMap<u32, u32> = lock(&a)
            .values
            .iter()
            .map(|v| (v.register.offset, v.value))
            .collect();
        assert_eq!((values[&0x229c], values[&0x24d0]), (0, 0x2230));
    }
}
