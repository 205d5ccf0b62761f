//! The switch against a GPU that is storage, register by register.

mod model;
mod property;

use std::collections::BTreeMap;
use std::sync::Arc;

use gen8::{Engine, ring};
use gpu_bus::Gpu;

use super::*;
use crate::registers::Registers;
use model::ModelGpu;

fn gpu() -> (Arc<ModelGpu>, Registers) {
    let storage = Arc::new(ModelGpu::default());
    let gpu = Registers::new(Arc::clone(&storage) as Arc<dyn Gpu>);
    (storage, gpu)
}

fn two() -> [RegisterFile; 2] {
    [0, 1].map(|_| RegisterFile::new(Engine::Rcs))
}

fn cost(reads: u64, writes: u64) -> SwitchCost {
    SwitchCost { reads, writes }
}

#[test]
fn each_guest_finds_its_own_values_again() {
    for mode in SwitchMode::ALL {
        let (storage, gpu) = gpu();
        let [mut a, mut b] = two();
        let mut switcher = Switcher::new(Engine::Rcs, mode);
        a.write(0x2248, 0x1111);
        b.write(0x2248, 0x2222);
        switcher.switch(&gpu, None, &mut a);
        assert_eq!(storage.read32(0x2248), 0x1111, "{mode}");
        // It changes one by a command while it runs.
        let mut effects = Effects::new(Engine::Rcs);
        effects.load(0x209c, 0x0010_0010);
        storage.write32(0x209c, 0x0010_0010);
        switcher.ran(&mut a, &effects);
        switcher.switch(&gpu, Some(&mut a), &mut b);
        assert_eq!(storage.read32(0x2248), 0x2222, "{mode}");
        assert_eq!(storage.read32(0x209c), 0, "{mode}");
        switcher.switch(&gpu, Some(&mut b), &mut a);
        assert_eq!(storage.read32(0x2248), 0x1111, "{mode}");
        assert_eq!(storage.read32(0x209c), 0x10, "{mode}");
    }
}

#[test]
fn what_a_switch_costs_in_each_mode() {
    // 27 registers, 7 of them in the context.
    let n = 27;
    let expected = [
        (SwitchMode::FullReadBack, cost(4 * n, 2 * n)),
        (SwitchMode::NoReadBack, cost(2 * n + 2, 2 * n)),
        (SwitchMode::Merged, cost(n + 1, n)),
        (SwitchMode::DeltaPrevious, cost(0, 1)),
        (SwitchMode::DeltaImage, cost(0, 1)),
    ];
    for (mode, expected) in expected {
        let (_, gpu) = gpu();
        let [mut a, mut b] = two();
        let mut switcher = Switcher::new(Engine::Rcs, mode);
        switcher.switch(&gpu, None, &mut a);
        b.write(0x24d0, 0x7300);
        let before = gpu.accesses();
        let got = switcher.switch(&gpu, Some(&mut a), &mut b);
        let after = gpu.accesses();
        assert_eq!(got, expected, "{mode}");
        let counted = cost(after.reads - before.reads, after.writes - before.writes);
        assert_eq!(counted, expected, "{mode}");
        assert_eq!(switcher.baseline(true), cost(4 * n, 2 * n));
    }
}

#[test]
fn guests_that_agree_cost_nothing() {
    for mode in [SwitchMode::DeltaPrevious, SwitchMode::DeltaImage] {
        let (_, gpu) = gpu();
        let [mut a, mut b] = two();
        for file in [&mut a, &mut b] {
            file.write(0x24d0, 0x7300);
        }
        let mut switcher = Switcher::new(Engine::Rcs, mode);
        // All but the seven of the context.
        assert_eq!(switcher.switch(&gpu, None, &mut a), cost(0, 20));
        assert_eq!(switcher.switch(&gpu, Some(&mut a), &mut b), cost(0, 0));
        assert_eq!(switcher.switch(&gpu, Some(&mut b), &mut a), cost(0, 0));
    }
}

#[test]
fn only_what_the_gpu_alone_knows_is_read() {
    let (storage, gpu) = gpu();
    let [mut a, mut b] = two();
    let mut switcher = Switcher::new(Engine::Rcs, SwitchMode::DeltaImage);
    switcher.switch(&gpu, None, &mut a);
    // As i915's workaround: loaded from memory, with the value it had.
    let mut effects = Effects::new(Engine::Rcs);
    effects.unknown(0xb118);
    switcher.ran(&mut a, &effects);
    assert_eq!(switcher.switch(&gpu, Some(&mut a), &mut b), cost(1, 0));
    storage.write32(0xb118, 0x1234);
    switcher.ran(&mut b, &effects);
    assert_eq!(switcher.switch(&gpu, Some(&mut b), &mut a), cost(1, 1));
    assert_eq!(b.value(0xb118), Some(0x1234));
    // What the guest writes meanwhile is newer than what could be read.
    switcher.ran(&mut a, &effects);
    a.write(0xb118, 7);
    assert_eq!(switcher.switch(&gpu, Some(&mut a), &mut b), cost(0, 1));
    assert_eq!(a.value(0xb118), Some(7));
}

#[test]
fn what_batches_leave_outside_the_context_goes() {
    for mode in SwitchMode::ALL {
        let (storage, gpu) = gpu();
        let [mut a, mut b] = two();
        let mut switcher = Switcher::new(Engine::Rcs, mode);
        a.write(0x24d0, 0xb118);
        switcher.switch(&gpu, None, &mut a);
        for offset in [0x2094, 0x2158, 0x2364, 0xb118] {
            storage.write32(offset, 0x55);
        }
        let mut effects = Effects::new(Engine::Rcs);
        effects.user_batch();
        switcher.ran(&mut a, &effects);
        let spent = switcher.switch(&gpu, Some(&mut a), &mut b);
        if mode == SwitchMode::DeltaImage {
            // The slot lets batches write L3SQCREG4, which is a guest's own.
            assert_eq!(spent, cost(1, 5));
        }
        for offset in [0x2094, 0x2158, 0x2364] {
            assert_eq!(storage.read32(offset), 0, "{mode} {offset:#x}");
        }
        assert_eq!(storage.read32(0xb118), 0x4040_0000, "{mode}");
        assert_eq!(a.value(0xb118), Some(0x55), "{mode}");
    }
}

#[test]
fn after_a_reset_everything_is_written_once() {
    let (_, gpu) = gpu();
    let [mut a, mut b] = two();
    let mut switcher = Switcher::new(Engine::Rcs, SwitchMode::DeltaImage);
    switcher.switch(&gpu, None, &mut a);
    switcher.reset();
    a.reset();
    assert_eq!(switcher.switch(&gpu, None, &mut b), cost(0, 20));
    assert_eq!(switcher.switch(&gpu, Some(&mut b), &mut a), cost(0, 0));
}

#[test]
fn what_vgpud_needs_no_guest_can_set() {
    for mode in SwitchMode::ALL {
        let (storage, gpu) = gpu();
        let [mut a, mut b] = two();
        let mut switcher = Switcher::new(Engine::Rcs, mode);
        a.write(0x229c, 0);
        a.write(0x2098, 0);
        a.write(0x209c, 0x140);
        a.write(0x24d0, 0x2230);
        a.write(0x24d4, 0x7300);
        switcher.switch(&gpu, None, &mut a);
        assert_eq!(storage.read32(0x229c), ring::MODE_RUN_LIST);
        assert_eq!(storage.read32(0x2098), u32::MAX);
        assert_eq!(storage.read32(0x209c), 0x40);
        assert_eq!(storage.read32(0x24d0), 0x2094);
        assert_eq!(storage.read32(0x24d4), 0x7300);
        // And it keeps what it wrote.
        switcher.switch(&gpu, Some(&mut a), &mut b);
        let values: BTreeMap<String, u32> = a.view().into_iter().collect();
        assert_eq!(values["GFX_MODE"], 0);
        assert_eq!(values["MI_MODE"], 0x140);
        assert_eq!(values["FORCE_TO_NONPRIV0"], 0x2230);
    }
}

#[test]
fn a_context_without_state_gets_the_vgpus_values() {
    for mode in SwitchMode::ALL {
        let (storage, gpu) = gpu();
        let [mut a, mut b] = two();
        let mut switcher = Switcher::new(Engine::Rcs, mode);
        b.write(0x7300, 0x10);
        switcher.switch(&gpu, None, &mut a);
        // The context of the guest before leaves these.
        for offset in [0x2600, 0x7300, 0xe184, 0x20c8] {
            storage.write32(offset, 0xffff_0042);
        }
        switcher.switch(&gpu, Some(&mut a), &mut b);
        let spent = switcher.clear_context(&gpu, &mut b);
        assert!(spent.writes > 100 && spent.reads == 0, "{spent:?}");
        for offset in [0x2600, 0xe184, 0x20c8] {
            assert_eq!(storage.read32(offset), 0, "{mode} {offset:#x}");
        }
        assert_eq!(storage.read32(0x7300), 0x10, "{mode}");
    }
}

#[test]
fn a_prologue_does_what_a_switch_would() {
    let (storage, gpu) = gpu();
    let [mut a, mut b] = two();
    let mut switcher = Switcher::new(Engine::Rcs, SwitchMode::DeltaImage);
    b.write(0x24d0, 0x7300);
    b.write(0x209c, 0x40);
    switcher.switch(&gpu, None, &mut a);
    let mut effects = Effects::new(Engine::Rcs);
    effects.load(0x209c, 0x0011_0010);
    let pairs = switcher.prologue(&a, &effects, &b).unwrap();
    assert_eq!(pairs, [(0x209c, 0x0050_0040), (0x24d0, 0x7300)]);
    let words = prologue_commands(&pairs);
    assert_eq!(words[..2], [0x0080_0000, 0x1100_0003]);
    assert_eq!(words[2..], [0x209c, 0x0050_0040, 0x24d0, 0x7300]);
    assert!(prologue_commands(&[]).is_empty());
    storage.write32(0x209c, 0x0011_0010);
    for (offset, raw) in &pairs {
        storage.write32(*offset, *raw);
    }
    // Written while it was on its way: waits.
    b.write(0x2248, 9);
    switcher.handed_over(&mut a, &effects, &mut b, &pairs);
    assert_eq!(a.value(0x209c), Some(0x10));
    assert!(b.has_pending());
    assert_eq!(switcher.resume(&gpu, &mut b), cost(0, 1));
    assert!(!b.has_pending());
    assert_eq!(switcher.switch(&gpu, Some(&mut b), &mut a), cost(0, 3));
    assert_eq!(storage.read32(0x209c), 0x10);
}

#[test]
fn no_prologue_where_a_register_must_be_read() {
    let (_, gpu) = gpu();
    let [mut a, b] = two();
    let mut effects = Effects::new(Engine::Rcs);
    for mode in SwitchMode::ALL {
        let mut switcher = Switcher::new(Engine::Rcs, mode);
        switcher.switch(&gpu, None, &mut a);
        let none = switcher.prologue(&a, &effects, &b);
        assert_eq!(none.is_some(), mode == SwitchMode::DeltaImage, "{mode}");
    }
    let mut switcher = Switcher::new(Engine::Rcs, SwitchMode::DeltaImage);
    switcher.switch(&gpu, None, &mut a);
    effects.user_batch();
    let pairs = switcher.prologue(&a, &effects, &b).unwrap();
    assert_eq!(pairs.len(), 3, "what batches leave behind");
    effects.unknown(0xb118);
    assert_eq!(switcher.prologue(&a, &effects, &b), None);
    // Whatever was in it, a constant replaced it.
    effects.load(0xb118, 5);
    assert!(switcher.prologue(&a, &effects, &b).is_some());
}
