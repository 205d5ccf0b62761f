//! Accesses of any size to the page table, the aperture and registers, and
//! what garbage does: nothing worse than garbage.

use std::sync::atomic::Ordering::SeqCst;

use crate::rig::Rig;
use gen8::platform::PLATFORMS;
use guest_memory::GuestMemory;
use proptest::prelude::*;
use vgpu_device::{Bar, Device, GgttTable};
use vgpu_ring::{Event, FaultReason};

const GGTT: u64 = 8 << 20;

#[test]
fn entries_are_written_in_any_pieces() {
    let rig = Rig::new();
    let device = &rig.device;
    device.write(Bar::Registers, GGTT + 8 * 5, 8, 0x1234_5001);
    assert_eq!(rig.table.load(5), 0x1234_5001);
    device.write(Bar::Registers, GGTT + 8 * 5 + 4, 4, 0x7f);
    device.write(Bar::Registers, GGTT + 8 * 5, 1, 0x83);
    assert_eq!(rig.table.load(5), 0x7f_1234_5083);
    let halves = device.read(Bar::Registers, GGTT + 8 * 5 + 4, 8);
    assert_eq!(halves, 0x6001_0000_007f);
    // The last entry, and what lies behind it.
    device.write(Bar::Registers, (16 << 20) - 8, 8, 7);
    assert_eq!(rig.table.load((1 << 20) - 1), 7);
    device.write(Bar::Registers, 16 << 20, 8, 9);
    assert_eq!(device.read(Bar::Registers, 16 << 20, 8), 0);
    let block: Vec<u8> = (0..40).collect();
    device.write_block(Bar::Registers, GGTT + 3, &block);
    let mut back = [0; 40];
    device.read_block(Bar::Registers, GGTT + 3, &mut back);
    assert_eq!(back[..], block);
}

#[test]
fn the_aperture_is_memory_through_the_table() {
    let rig = Rig::new();
    rig.table.store(200, 9 << 12 | 1);
    rig.table.store(201, 7 << 12 | 1);
    let at = 200 * 4096 + 4090;
    let data: Vec<u8> = (1..=12).collect();
    rig.device.write_block(Bar::Aperture, at, &data);
    let mut back = [0; 12];
    rig.memory.read(9 * 4096 + 4090, &mut back[..6]).unwrap();
    rig.memory.read(7 * 4096, &mut back[6..]).unwrap();
    assert_eq!(back[..], data);
    assert_eq!(
        rig.device.read(Bar::Aperture, at + 4, 4),
        u64::from(u32::from_le_bytes([5, 6, 7, 8]))
    );
    // No entry, no memory behind the entry, no aperture.
    rig.table.store(202, 0xf_ffff << 12 | 1);
    for offset in [203 * 4096, 202 * 4096, (256 << 20) - 4, u64::MAX] {
        rig.device.write(Bar::Aperture, offset, 8, 0);
        assert_eq!(rig.device.read(Bar::Aperture, offset, 8), u64::MAX);
    }
}

#[test]
fn an_access_finds_its_window() {
    let rig = Rig::new();
    assert_eq!(rig.device.locate(0xf100_0000), None);
    rig.enumerate();
    assert_eq!(
        rig.device.locate(0xf1ff_ffff),
        Some((Bar::Registers, 0xff_ffff))
    );
    assert_eq!(rig.device.locate(0xf200_0000), None);
    assert_eq!(
        rig.device.locate(0x8_0000_1000),
        Some((Bar::Aperture, 0x1000))
    );
    rig.device.config_write(4, 2, 0);
    assert_eq!(rig.device.locate(0xf100_0000), None);
    assert!(rig.world.windows.lock().unwrap().is_empty());
}

#[test]
fn parts_of_registers_are_written_alone() {
    let rig = Rig::new();
    let storage = 0x10_0010;
    rig.write(storage, 0x1122_3344);
    rig.device
        .write(Bar::Registers, u64::from(storage) + 1, 2, 0xabcd);
    assert_eq!(rig.read(storage), 0x11ab_cd44);
    // A masked register whose mask half is not written does not change.
    rig.write(0x20c0, 0x00ff_0055);
    rig.device.write(Bar::Registers, 0x20c0, 2, 0xffff);
    assert_eq!(rig.read(0x20c0), 0x55);
    // One byte of an identity register clears one byte.
    rig.start(gen8::Engine::Rcs);
    rig.device.handle_event(Event::Interrupt {
        engine: 0,
        bits: 0x101,
    });
    rig.device.write(Bar::Registers, 0x4_4309, 1, 0xff);
    assert_eq!(rig.read(0x4_4308), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Read(u32, usize),
    Write(u32, usize, u64),
    Config(u8, usize, u64),
    Aperture(u64, u64),
    Event(u8, u8, u64),
    Fault(u8, u8, u64),
    ResetDone(u8, u64),
    Time(u64),
    Full(bool),
    Migrate,
}

/// Offsets that have something behind them, and any others.
fn offset() -> impl Strategy<Value = u32> {
    let platforms = PLATFORMS.iter();
    let rows: Vec<u32> = platforms
        .flat_map(|p| p.registers.rows())
        .flat_map(|r| r.offsets().collect::<Vec<_>>())
        .collect();
    prop_oneof![
        6 => proptest::sample::select(rows),
        1 => 0..(16_u32 << 20),
        1 => (0x2000_u32..0x2800, 0..4_u32).prop_map(|(o, _)| o),
    ]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        any::<u64>(),
        Just(0x8000_0000),
        (0..8_u32).prop_map(crate::rig::context),
        (0..64_u32, any::<bool>()).prop_map(|(b, both)| {
            let bit = 1_u64 << b;
            if both { bit | bit << 16 } else { bit }
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let size = || proptest::sample::select(vec![1_usize, 2, 4, 8]);
    prop_oneof![
        4 => (offset(), size()).prop_map(|(o, s)| Step::Read(o, s)),
        8 => (offset(), size(), value()).prop_map(|(o, s, v)| Step::Write(o, s, v)),
        4 => (0..4_u32, value()).prop_map(|(e, v)| {
            let base = gen8::Engine::from_index(e as usize).unwrap().mmio_base();
            Step::Write(base + gen8::ring::ELSP, 4, v)
        }),
        2 => (any::<u8>(), size(), value()).prop_map(|(o, s, v)| Step::Config(o, s, v)),
        1 => (any::<u64>(), value()).prop_map(|(o, v)| Step::Aperture(o, v)),
        2 => (0..5_u8, 0..3_u8, 0..40_u64).prop_map(|(e, n, s)| Step::Event(e, n, s)),
        1 => (0..5_u8, 0..3_u8, 0..40_u64).prop_map(|(e, n, s)| Step::Fault(e, n, s)),
        1 => (any::<u8>(), 0..9_u64).prop_map(|(e, n)| Step::ResetDone(e, n)),
        1 => any::<u64>().prop_map(Step::Time),
        1 => any::<bool>().prop_map(Step::Full),
        1 => Just(Step::Migrate),
    ]
}

fn apply(rig: &mut Rig, s: &Step) {
    match *s {
        Step::Read(o, n) => drop(rig.device.read(Bar::Registers, o.into(), n)),
        Step::Write(o, n, v) => rig.device.write(Bar::Registers, o.into(), n, v),
        Step::Config(o, n, v) => {
            rig.device.config_write(o, n, v);
            rig.device.config_read(o, n);
        }
        Step::Aperture(o, v) => {
            rig.device.write(Bar::Aperture, o, 8, v);
            rig.device.read(Bar::Aperture, o, 8);
        }
        Step::Event(engine, element, seq) => rig.device.handle_event(Event::ContextDone {
            bits: 0,
            engine,
            element,
            seq,
        }),
        Step::Fault(engine, element, seq) => rig.device.handle_event(Event::Fault {
            engine,
            element,
            reason: FaultReason::Refused,
            ipehr: 1,
            seq,
        }),
        Step::ResetDone(engines, epoch) => {
            rig.device.handle_event(Event::ResetDone { engines, epoch });
        }
        Step::Time(t) => {
            rig.world.now.store(t, SeqCst);
            rig.device.tick();
        }
        Step::Full(full) => *rig.world.full.lock().unwrap() = full,
        Step::Migrate => {
            let saved = rig.device.save();
            rig.world.windows.lock().unwrap().clear();
            let again = Device::restore(&saved, rig.seams.clone()).expect("saved by us");
            assert_eq!(again.save(), saved);
            rig.device = again;
            rig.device.replay();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No sequence of accesses, events and migrations panics, holds more
    /// than so much, or makes a save that cannot be restored.
    #[test]
    fn garbage_does_no_harm(
        gpu in proptest::sample::select(&PLATFORMS[..]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut rig = Rig::on(gpu);
        for s in &steps {
            apply(&mut rig, s);
        }
        let view = rig.device.inspect();
        prop_assert!(view.backlog < 1000);
        prop_assert!(serde_json::to_string(&view).is_ok());
        apply(&mut rig, &Step::Migrate);
    }
}
