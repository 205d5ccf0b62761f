//! Privilege, faults, stops and resets.

use crate::rig::{Context, END, Rig, batch, desc, halves, low, mi, store};
use gen8::{Engine, cmd, irq, lrc, ring};
use gpu_bus::{GGTT_BASE, Gpu};

const BATCH: u64 = 0x40_0000;

fn start(e: Engine) -> (Rig, Context, u64) {
    let mut r = Rig::new();
    let c = r.context(e, 1);
    let code = r.map_fresh(BATCH, 1)[0];
    (r, c, code)
}

/// A batch that jumps to itself for ever.
fn spin(r: &mut Rig, e: Engine, c: &mut Context, code: u64) {
    r.put_batch(code, &batch(BATCH));
    r.emit(c, &batch(BATCH));
    r.submit(e, c);
    let i = e.index();
    r.wait("spinning", |r| r.gpu.counters().engines[i].commands > 40);
}

/// The engine works as new.
fn works(r: &mut Rig, e: Engine) {
    r.enable(e);
    r.take_events(e);
    let mut c = r.context(e, 1);
    let at = r.global(1);
    r.run(e, &mut c, &store(true, u64::from(at), 42));
    assert_eq!(r.peek(at), 42);
    assert_eq!(desc(&r.take_events(e)), [0x1, 0x18]);
}

#[test]
fn an_unknown_command_stops_the_engine() {
    for e in Engine::ALL {
        let (mut r, mut c, code) = start(e);
        r.put_batch(code, &[0, 0x2000_0000, END]);
        r.emit(&mut c, &batch(BATCH));
        r.submit(e, &c);
        assert_eq!(r.wait_error(e), ring::ERROR_INSTRUCTION);
        assert_eq!(r.get(e, ring::ESR), ring::ERROR_INSTRUCTION);
        assert_eq!(r.get(e, ring::IPEHR), 0x2000_0000);
        assert_eq!(r.get(e, ring::ACTHD), low(BATCH) + 4);
        assert_eq!(r.get(e, ring::EXECLIST_STATUS_HI), c.id);
        assert_eq!(desc(&r.take_events(e)), [0x1]);
        // Acknowledged, it still stands until the reset.
        r.put(e, ring::EIR, 1);
        assert_eq!(r.get(e, ring::EIR), 0);
        r.put(e, ring::RESET_CTL, 0x0001_0001);
        assert_eq!(r.get(e, ring::RESET_CTL) & 3, 3);
        r.gpu.write32(ring::GDRST, e.reset_domain());
        assert_eq!(r.gpu.read32(ring::GDRST), 0);
        assert_eq!(r.get(e, ring::ESR), 0);
        assert_eq!(r.get(e, ring::EXECLIST_STATUS_HI), 0);
        works(&mut r, e);
    }
}

#[test]
fn the_error_interrupt_follows_the_masks() {
    let e = Engine::Rcs;
    for masked in [false, true] {
        let (r, mut c, code) = start(e);
        r.put(e, ring::EMR, if masked { u32::MAX } else { !1 });
        r.put_batch(code, &[0xffff_ffff]);
        r.gpu.write32(irq::MASTER, 0);
        r.emit(&mut c, &batch(BATCH));
        r.submit(e, &c);
        while r.get(e, ring::ESR) == 0 {
            std::thread::yield_now();
        }
        // The engine's lock orders the register before the rest.
        r.put(e, ring::RESET_CTL, 0x0001_0001);
        assert_eq!(r.get(e, ring::EIR), u32::from(!masked));
        let error = r.gpu.read32(irq::GT_IIR0) & u32::from(irq::ERROR);
        assert_eq!(error != 0, !masked);
    }
}

#[test]
fn a_command_longer_than_the_ring_has_left() {
    let e = Engine::Bcs;
    let (mut r, mut c, _) = start(e);
    r.emit(&mut c, &[mi(0x22, 99), 0, 0, 0]);
    r.submit(e, &c);
    assert_eq!(r.wait_error(e), ring::ERROR_INSTRUCTION);
}

#[test]
fn an_unmapped_address_is_a_fault() {
    let e = Engine::Vecs;
    let (mut r, mut c, _) = start(e);
    let at = 0x1234_5678_9000;
    r.emit(&mut c, &store(false, at, 1));
    r.submit(e, &c);
    assert_eq!(r.wait_error(e), ring::ERROR_PAGE_TABLE);
    let fault = r.gpu.read32(ring::FAULT);
    assert_eq!(fault, ring::FAULT_VALID | 4 << 12);
    assert_eq!(
        u64::from(r.gpu.read32(ring::FAULT_TLB_DATA0)),
        (at >> 12) & 0xffff_ffff
    );
    assert_eq!(r.gpu.read32(ring::FAULT_TLB_DATA1), low(at >> 44));
    r.gpu.write32(ring::FAULT, 0);
    r.gpu.write32(ring::GDRST, 1);
    works(&mut r, e);
}

#[test]
fn tables_and_images_that_reach_nothing() {
    let e = Engine::Rcs;
    // Root table outside memory; image not mapped; ring not mapped; global
    // entry outside memory; 32-bit addressing.
    for case in 0..5 {
        let (mut r, mut c, _) = start(e);
        r.emit(&mut c, &batch(BATCH));
        let mut d = c.descriptor();
        match case {
            0 => r.set_image(&c, lrc::PDP0_UDW, 0x7f),
            1 => d = d.with_lrca(0xffff_f000),
            2 => r.set_image(&c, lrc::RING_START, 0xfff0_0000),
            3 => r
                .gpu
                .write64(GGTT_BASE + (c.ring >> 12) * 8, 0x7f_ffff_f001),
            _ => d.0 &= !(3 << 3),
        }
        r.elsp(e, d, gen8::csb::Descriptor(0));
        assert_ne!(r.wait_error(e), 0, "case {case}");
        r.gpu.write32(ring::GDRST, 1);
        works(&mut r, e);
    }
}

#[test]
fn page_tables_that_name_themselves() {
    let e = Engine::Bcs;
    let (mut r, mut c, _) = start(e);
    // Every level is the root, so this address is the root itself.
    let root = r.root;
    r.ram_write(root, &(root | 3).to_le_bytes());
    r.run(e, &mut c, &store(false, 0x800, 5));
    assert_eq!(r.peek_bus(root + 0x800), 5);
}

#[test]
fn writes_to_read_only_pages_are_dropped() {
    let e = Engine::Bcs;
    let (mut r, mut c, _) = start(e);
    let frame = r.bus_page();
    r.map(0x5000, frame, false);
    r.run(e, &mut c, &store(false, 0x5000, 5));
    assert_eq!(r.peek_bus(frame), 0);
    assert_eq!(r.gpu.counters().engines[1].read_only_writes, 1);
    assert!(!r.log.pages().contains(&frame));
}

#[test]
fn users_cannot_reach_what_is_not_theirs() {
    let e = Engine::Rcs;
    let (mut r, mut c, code) = start(e);
    let page = r.global(1);
    // The same number in the context's own tables.
    let own = r.bus_page();
    r.map(u64::from(page), own, true);
    let mut cmds = store(true, u64::from(page), 6).to_vec();
    // Another engine's status page, the master interrupt, ARB_ON_OFF off,
    // a register of another context: all no-ops.
    cmds.extend([
        mi(0x22, 7),
        0x2_2080,
        1,
        irq::MASTER,
        0,
        0x2_2600,
        9,
        0x2_2230,
        0,
    ]);
    cmds.extend([mi(0x08, 0)]);
    // Its own register works.
    cmds.extend([mi(0x22, 1), 0x2600, 8]);
    let [lo, hi] = halves(u64::from(page) + 4);
    cmds.extend([mi(0x24, 2 | 1 << 22), 0x2600, lo, hi]);
    // A batch "in the global table" stays in its own tables.
    let mut nested = batch(BATCH + 0x800);
    nested[0] &= !(1 << 8);
    nested[0] |= 1 << 22;
    cmds.extend(nested);
    cmds.push(END);
    r.put_batch(code, &cmds);
    let mut inner = store(true, u64::from(page) + 8, 7).to_vec();
    inner.push(END);
    r.put_batch(code + 0x800, &inner);
    let hws = r.get(Engine::Bcs, ring::HWS_PGA);
    r.run(e, &mut c, &batch(BATCH));
    assert_eq!([0, 4, 8].map(|o| r.peek_bus(own + o)), [6, 8, 7]);
    assert_eq!([0, 4, 8].map(|o| r.peek(page + o)), [0; 3]);
    assert_eq!(r.get(Engine::Bcs, ring::HWS_PGA), hws);
    assert_eq!(r.get(Engine::Bcs, ring::GPR0), 0);
    assert_ne!(r.gpu.read32(irq::MASTER) & irq::MASTER_ENABLE, 0);
    assert_eq!(r.gpu.counters().engines[0].unprivileged, 5);
    // Until the driver puts a register on the list.
    r.put(e, ring::FORCE_TO_NONPRIV, 0xb118);
    r.put_batch(code, &[mi(0x22, 1), 0xb118, 3, END]);
    r.run(e, &mut c, &batch(BATCH));
    assert_eq!(r.gpu.read32(0xb118), 3);
}

#[test]
fn the_ring_may_but_cannot_submit_or_reset() {
    let e = Engine::Rcs;
    let (mut r, mut c, _) = start(e);
    r.run(
        e,
        &mut c,
        &[
            mi(0x22, 9),
            ring::GDRST,
            1,
            0x2_2230,
            0x19,
            0x209c,
            0x4100_4100,
            0xb118,
            4,
            0x2080,
            0,
        ],
    );
    assert_eq!(r.gpu.read32(0xb118), 4);
    assert_eq!(r.get(e, ring::MI_MODE) & !ring::MI_MODE_IDLE, 0x4000);
    assert_ne!(r.get(e, ring::HWS_PGA), 0);
    works(&mut r, e);
}

#[test]
fn a_spinning_batch_can_be_stopped_and_reset() {
    for e in Engine::ALL {
        let (mut r, mut c, code) = start(e);
        spin(&mut r, e, &mut c, code);
        r.put(e, ring::MI_MODE, 0x0100_0100);
        r.wait("stop", |r| {
            r.get(e, ring::MI_MODE) & ring::MI_MODE_IDLE != 0
        });
        // It can go on, too.
        r.put(e, ring::MI_MODE, 0x0100_0000);
        assert_eq!(r.get(e, ring::MI_MODE) & ring::MI_MODE_STOP_RING, 0);
        r.put(e, ring::RESET_CTL, 0x0001_0001);
        assert_eq!(r.get(e, ring::RESET_CTL), 3);
        r.put(e, ring::RESET_CTL, 0x0001_0000);
        assert_eq!(r.get(e, ring::RESET_CTL), 0);
        assert_eq!(r.get(e, ring::EXECLIST_STATUS_HI), c.id);
        r.gpu.write32(ring::GDRST, e.reset_domain());
        assert_eq!(r.gpu.read32(ring::GDRST), 0);
        assert_eq!(r.get(e, ring::MODE), 0);
        works(&mut r, e);
    }
}

#[test]
fn a_full_reset_stops_all_and_an_engine_reset_one() {
    let mut r = Rig::new();
    let code = r.map_fresh(BATCH, 1)[0];
    for e in Engine::ALL {
        let mut c = r.context(e, 1);
        spin(&mut r, e, &mut c, code);
    }
    r.gpu.write32(ring::GDRST, Engine::Vcs.reset_domain());
    assert_eq!(r.get(Engine::Vcs, ring::EXECLIST_STATUS_HI), 0);
    assert_ne!(r.get(Engine::Bcs, ring::EXECLIST_STATUS_HI), 0);
    works(&mut r, Engine::Vcs);
    r.gpu.write32(ring::GDRST, 1);
    for e in Engine::ALL {
        assert_eq!(r.get(e, ring::EXECLIST_STATUS_HI), 0);
        works(&mut r, e);
    }
}

#[test]
fn a_reset_takes_the_half_written_load_along() {
    let e = Engine::Vcs;
    let mut r = Rig::new();
    r.put(e, ring::ELSP, 1);
    r.gpu.write32(ring::GDRST, e.reset_domain());
    works(&mut r, e);
}

#[test]
fn a_held_engine_runs_later() {
    let e = Engine::Rcs;
    let (mut r, mut c, _) = start(e);
    let at = r.global(1);
    r.put(e, ring::MI_MODE, 0x0100_0100);
    r.emit(&mut c, &store(true, u64::from(at), 1));
    r.submit(e, &c);
    assert_ne!(r.get(e, ring::MI_MODE) & ring::MI_MODE_IDLE, 0);
    assert_eq!(r.get(e, ring::EXECLIST_STATUS_LO) & 4, 4);
    r.put(e, ring::MI_MODE, 0x0100_0000);
    r.wait_idle(e);
    assert_eq!(r.peek(at), 1);
}

#[test]
fn without_run_lists_the_port_is_dead() {
    let e = Engine::Rcs;
    let (r, c, _) = start(e);
    r.put(e, ring::MODE, ring::MODE_RUN_LIST << 16);
    r.submit(e, &c);
    assert_eq!(r.get(e, ring::EXECLIST_STATUS_LO), 0);
}

/// Numbers that look random and are the same each time.
fn noise(mut seed: u64) -> impl FnMut() -> u32 {
    move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        low(seed >> 16)
    }
}

/// Gives the engine a chance to end or to fail. It may also wait for ever:
/// a reset must be possible in any case.
fn settle(r: &Rig, e: Engine) {
    for _ in 0..500 {
        let idle =
            r.get(e, ring::EXECLIST_STATUS_HI) == 0 && r.get(e, ring::EXECLIST_STATUS_LO) == 0;
        if idle || r.get(e, ring::ESR) != 0 {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn each_command_with_wild_operands() {
    let mut random = noise(7);
    for e in Engine::ALL {
        let (mut r, _, code) = start(e);
        for command in cmd::all().filter(|c| c.engines.contains(e)) {
            for privileged in [false, true] {
                for _ in 0..6 {
                    let mut c = r.context(e, 1);
                    // Flags at random; short, so that most of it is there.
                    let dw0 = command.value | random() & !command.mask & !0xffe0;
                    let n = command.dwords(dw0);
                    let mut packet = vec![dw0];
                    for _ in 1..n.min(200) {
                        packet.push(match random() % 4 {
                            0 => low(BATCH) + random() % 4096,
                            1 => 0,
                            2 => random() % 0x3000,
                            _ => random(),
                        });
                    }
                    if privileged {
                        r.emit(&mut c, &packet);
                    } else {
                        packet.push(END);
                        r.put_batch(code, &packet);
                        r.emit(&mut c, &batch(BATCH));
                    }
                    r.submit(e, &c);
                    settle(&r, e);
                    r.gpu.write32(ring::GDRST, e.reset_domain());
                    assert_eq!(r.gpu.read32(ring::GDRST), 0, "{}", command.name);
                    r.enable(e);
                    r.gpu.write32(ring::FAULT, 0);
                    r.forget_globals(&c);
                }
            }
        }
        // A command may have unmapped or masked anything.
        let mut fresh = Rig::new();
        works(&mut fresh, e);
    }
}

#[test]
fn garbage_never_panics() {
    let mut random = noise(1);
    for e in Engine::ALL {
        let (mut r, _, code) = start(e);
        for round in 0..150 {
            let mut c = r.context(e, 1);
            let words: Vec<u32> = (0..1024)
                .map(|i| match (round + i) % 4 {
                    // Real opcodes with random flags and lengths.
                    0 => (random() % 0x40) << 23 | random() & 0x7f_ffff,
                    1 => 0x5000_0000 | random() & 0x0fff_ffff,
                    2 => random() % 64,
                    _ => random(),
                })
                .collect();
            r.put_batch(code, &words);
            r.emit(&mut c, &batch(BATCH + u64::from(random() % 900) * 4));
            let d = if round % 5 == 0 {
                gen8::csb::Descriptor(u64::from(random()) << 32 | u64::from(random()) | 1)
            } else {
                c.descriptor()
            };
            r.elsp(e, d, gen8::csb::Descriptor(0));
            settle(&r, e);
            r.gpu.write32(ring::GDRST, e.reset_domain());
            assert_eq!(r.gpu.read32(ring::GDRST), 0);
            r.enable(e);
            r.gpu.write32(ring::FAULT, 0);
        }
        works(&mut r, e);
    }
}

#[test]
fn dropping_the_gpu_stops_a_spinning_engine() {
    let (mut r, mut c, code) = start(Engine::Rcs);
    spin(&mut r, Engine::Rcs, &mut c, code);
    // This returns only when the engine's thread has ended.
    r.gpu.shutdown();
    // Registers still answer, and nothing runs.
    r.put(Engine::Rcs, ring::GPR0, 3);
    assert_eq!(r.get(Engine::Rcs, ring::GPR0), 3);
    r.submit(Engine::Bcs, &c);
    assert_eq!(r.get(Engine::Bcs, ring::EXECLIST_STATUS_LO) & 4, 4);
    assert_eq!(r.get(Engine::Bcs, ring::EXECLIST_STATUS_HI), 0);
}
