//! What a scan says of a batch against what the GPU does with it.

use gen8::cmd::{GEN8, mi_op};
use gen8::platform::BDW;
use gen8::{Engine, ring};
use guest_memory::GuestMemory;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vgpu_ring::Event;
use vgpu_sched::scan::{AddressSpace, ScanLimits, ScanMode, Scanner};
use vgpu_sched::vgpu::VgpuConfig;

use crate::driver::{Guest, Host, cmd};

const CODE: u64 = 1 << 20;
const DATA: u64 = 2 << 20;
const PAGES: u64 = 3;
const DWORDS: usize = 1024;

/// The batch's pages, as the context has them.
struct Code<'a> {
    guest: &'a Guest,
    gpa: u64,
}

impl AddressSpace for Code<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let within = (CODE..CODE + PAGES * 4096).contains(&address);
        within
            && self
                .guest
                .memory
                .read(self.gpa + address - CODE, bytes)
                .is_ok()
    }
}

/// One command, or what looks like one.
fn piece() -> impl Strategy<Value = Vec<u32>> {
    let registers = prop::sample::select(vec![
        0x2600, 0x2608, 0x2230, 0x209c, 0x24d0, 0x2400, 0xb118, 0x7004, 0x1_2600, 0x2_2600, 0x2080,
    ]);
    let address = prop_oneof![
        6 => (0u64..512).prop_map(|at| DATA + at * 8),
        1 => (0u64..512).prop_map(|at| CODE + at * 8),
    ];
    let page = 1..PAGES;
    prop_oneof![
        6 => (registers.clone(), any::<u32>()).prop_map(|(r, v)| cmd::load_register(r, v).to_vec()),
        4 => (address.clone(), any::<u32>(), any::<bool>()).prop_map(|(a, v, global)| {
            let mut words = cmd::store(a, v).to_vec();
            words[0] |= u32::from(global) << 22;
            words
        }),
        3 => (registers, address, any::<bool>()).prop_map(|(r, a, load)| {
            let op = if load { mi_op::LOAD_REGISTER_MEM } else { mi_op::STORE_REGISTER_MEM };
            let [low, high] = cmd::halves(a);
            vec![op << 23 | 2, r, low, high]
        }),
        // To a later page: no loops.
        2 => (page, prop::sample::select(vec![0, 1 << 22, 1 << 15]), any::<bool>()).prop_map(
            |(page, flags, own)| {
                let mut words = cmd::batch(CODE + page * 4096).to_vec();
                words[0] = words[0] & !(u32::from(!own) << 8) | flags;
                words
            }
        ),
        3 => (0u32..64, 0u32..5, any::<u32>()).prop_map(|(op, len, bits)| {
            let mut words = vec![op << 23 | bits & 0x0060_c100 | len];
            words.extend((0..=len).map(|i| bits.rotate_left(i)));
            words
        }),
        1 => Just(vec![cmd::BATCH_END]),
        1 => prop::collection::vec(Just(0), 1..40),
        1 => any::<u32>().prop_map(|w| vec![w]),
    ]
}

/// What the test made itself, or what cannot keep the engine for ever: no
/// waits, no batches elsewhere, no rectangles.
fn tame(words: &mut [u32]) {
    for i in 0..words.len() {
        let w = words[i];
        let starts = w >> 23 == mi_op::BATCH_BUFFER_START;
        let forward = (1..PAGES).any(|p| {
            words
                .get(i + 1)
                .is_some_and(|low| u64::from(*low) == CODE + p * 4096)
                && words.get(i + 2) == Some(&0)
                && i / DWORDS < usize::try_from(p).unwrap()
                && w & 0x7f == 1
        });
        let waits = w >> 23 == mi_op::SEMAPHORE_WAIT;
        if (starts && !forward) || waits || w >> 29 == 2 {
            words[i] = 0;
        }
    }
}

fn memory() -> impl Strategy<Value = Vec<u32>> {
    let page = prop::collection::vec(piece(), 0..60).prop_map(|pieces| {
        let mut words: Vec<u32> = pieces.concat();
        words.truncate(DWORDS - 1);
        words.push(cmd::BATCH_END);
        words.resize(DWORDS, 0);
        words
    });
    prop::collection::vec(page, 3).prop_map(|pages| {
        let mut words = pages.concat();
        tame(&mut words);
        words
    })
}

/// What a scan passes without a doubt the GPU runs without anything that
/// would have needed privilege.
#[test]
fn what_passes_needs_no_privilege() {
    let host = Host::new();
    let mut next = 0;
    let mut passed = 0;
    let mut found = 0;
    let config = ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let engines = prop::sample::select(Engine::ALL.to_vec());
    let run = |(words, engine): (Vec<u32>, Engine)| {
        next += 1;
        let config = VgpuConfig {
            id: next,
            scan: ScanMode::Off,
            ..VgpuConfig::default()
        };
        let mut guest = Guest::with(&host.scheduler, config, 128);
        let mut c = guest.context(engine, 1);
        let code = guest.pages(PAGES);
        let data = guest.pages(1);
        for page in 0..PAGES {
            // No batch changes itself.
            guest.map_read_only(&c, CODE + page * 4096, code + page * 4096);
        }
        guest.map(&c, DATA, data);
        guest.write_words(code, &words);
        let space = Code {
            guest: &guest,
            gpa: code,
        };
        let limits = ScanLimits {
            dwords: 1 << 20,
            places: 1 << 12,
        };
        let scanner = Scanner::new(&BDW, ScanMode::Note, limits);
        let report = scanner.scan(engine, &[], &space, &[CODE]);
        let counted = || host.gpu.counters().engines[engine.index()].unprivileged;
        let before = counted();
        guest.emit(&mut c, &cmd::batch(CODE));
        guest.submit(&c, None);
        let fault = loop {
            match guest.event() {
                Event::ContextDone { .. } => break false,
                Event::Fault { .. } => break true,
                _ => {}
            }
        };
        let ignored = counted() - before;
        if fault {
            guest.reset(1 << engine.index());
        }
        let clean = report.findings.is_empty() && !report.doubtful;
        prop_assert!(!clean || ignored == 0, "{report:?}, {ignored} ignored");
        passed += u32::from(clean);
        found += u32::from(ignored > 0);
        Ok(())
    };
    let run = std::cell::RefCell::new(run);
    TestRunner::new(config)
        .run(&(memory(), engines), |case| (run.borrow_mut())(case))
        .unwrap();
    // Both came up, or nothing was tested.
    assert!(passed > 5 && found > 20, "{passed} passed, {found} ignored");
}

#[test]
fn every_command_the_gpu_ignores_is_found() {
    let host = Host::new();
    for (n, row) in (1..).zip(GEN8.rows().filter(|c| c.value >> 29 == 0)) {
        for engine in row.engines.iter() {
            let ends = row.value >> 23 == mi_op::BATCH_BUFFER_END;
            let elsewhere = [mi_op::BATCH_BUFFER_START, mi_op::SEMAPHORE_WAIT];
            if ends || elsewhere.contains(&(row.value >> 23)) {
                continue;
            }
            let config = VgpuConfig {
                id: n * 8 + u64::try_from(engine.index()).unwrap(),
                scan: ScanMode::Note,
                ..VgpuConfig::default()
            };
            let mut guest = Guest::with(&host.scheduler, config, 128);
            let mut c = guest.context(engine, 1);
            let (code, data) = (guest.pages(1), guest.pages(1));
            guest.map(&c, CODE, code);
            guest.map(&c, DATA, data);
            let dwords = row.lengths.least();
            let mut words = vec![row.value | dwords.saturating_sub(2)];
            words.resize(usize::try_from(dwords).unwrap(), 0);
            words.push(cmd::BATCH_END);
            guest.write_words(code, &words);
            guest.emit(&mut c, &cmd::batch(CODE));
            let counted = || host.gpu.counters().engines[engine.index()].unprivileged;
            let before = counted();
            guest.submit(&c, None);
            let fault = loop {
                match guest.event() {
                    Event::ContextDone { .. } => break false,
                    Event::Fault { .. } => break true,
                    _ => {}
                }
            };
            if fault {
                guest.reset(1 << engine.index());
            }
            let noticed = guest.handle.inspect().noticed;
            assert!(
                counted() == before || !noticed.is_empty(),
                "{} on {engine:?}",
                row.name
            );
        }
    }
    // What ran last left the engine's registers alone.
    let hws = Engine::Rcs.mmio_base() + ring::HWS_PGA;
    assert_ne!(gpu_bus::Gpu::read32(&*host.gpu, hws), 0);
}
