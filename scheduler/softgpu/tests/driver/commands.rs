//! MI commands and PIPE_CONTROL.

use crate::rig::{Context, END, Rig, batch, halves, low, mi, store};
use gen8::cmd::alu::{self, encode};
use gen8::cmd::pipe_control as pc;
use gen8::{Engine, irq, ring};
use gpu_bus::Gpu;

const RCS: Engine = Engine::Rcs;
const BATCH: u64 = 0x20_0000;
const DATA: u64 = 0xffff_8000_0000_0000 | 0x7000_0000_0000 | 0x1000;

/// A rig with a batch page and a data page in the context's tables.
struct Bench {
    r: Rig,
    c: Context,
    e: Engine,
    code: u64,
    data: u64,
}

fn bench(e: Engine) -> Bench {
    let mut r = Rig::new();
    let c = r.context(e, 1);
    let code = r.map_fresh(BATCH, 4)[0];
    // Addresses come in canonical form: bit 47 repeated upwards.
    let data = r.map_fresh(DATA & 0xffff_ffff_ffff, 1)[0];
    Bench {
        r,
        c,
        e,
        code,
        data,
    }
}

impl Bench {
    /// Runs commands as a user's batch.
    fn user(&mut self, commands: &[u32]) {
        let mut all = commands.to_vec();
        all.push(END);
        self.r.put_batch(self.code, &all);
        self.r.run(self.e, &mut self.c, &batch(BATCH));
    }

    fn at(&self, o: u64) -> u32 {
        self.r.peek_bus(self.data + o)
    }

    fn gpr(&self, n: u32) -> u32 {
        self.e.mmio_base() + ring::GPR0 + 8 * n
    }
}

fn with(header: u32, register: u32, address: u64) -> [u32; 4] {
    let [lo, hi] = halves(address);
    [header, register, lo, hi]
}

fn srm(register: u32, to: u64) -> [u32; 4] {
    with(mi(0x24, 2), register, to)
}

#[test]
fn stores_of_both_widths() {
    for e in Engine::ALL {
        let mut b = bench(e);
        let [lo, hi] = halves(DATA + 8);
        let mut cmds = store(false, DATA, 0x11).to_vec();
        cmds.extend([mi(0x20, 3 | 1 << 21), lo, hi, 0x22, 0x33]);
        b.user(&cmds);
        assert_eq!([0, 4, 8, 12].map(|o| b.at(o)), [0x11, 0, 0x22, 0x33]);
    }
}

#[test]
fn registers_move_to_and_from_memory() {
    for e in Engine::ALL {
        let mut b = bench(e);
        let (g0, g1) = (b.gpr(0), b.gpr(1));
        b.r.poke_bus(b.data + 16, 0xfeed);
        let mut cmds = vec![mi(0x22, 3), g0, 1, g0 + 4, 2];
        cmds.extend(srm(g0, DATA));
        cmds.extend(srm(g0 + 4, DATA + 4));
        cmds.extend(with(mi(0x29, 2), g1, DATA + 16));
        cmds.extend([mi(0x2a, 1), g1, g1 + 4]);
        cmds.extend(srm(g1 + 4, DATA + 8));
        b.user(&cmds);
        assert_eq!([0, 4, 8].map(|o| b.at(o)), [1, 2, 0xfeed]);
    }
}

#[test]
fn math_adds_in_registers() {
    for e in Engine::ALL {
        let mut b = bench(e);
        let (g0, g1, g2) = (b.gpr(0), b.gpr(1), b.gpr(2));
        let mut cmds = vec![mi(0x22, 7), g0, u32::MAX, g0 + 4, 0, g1, 1, g1 + 4, 0];
        cmds.extend([
            mi(0x1a, 3),
            encode(alu::LOAD, alu::SRCA, 0),
            encode(alu::LOAD, alu::SRCB, 1),
            encode(alu::ADD, 0, 0),
            encode(alu::STORE, 2, alu::ACCU),
        ]);
        cmds.extend(srm(g2, DATA));
        cmds.extend(srm(g2 + 4, DATA + 4));
        b.user(&cmds);
        assert_eq!((b.at(0), b.at(4)), (0, 1));
    }
}

#[test]
fn memory_copies_a_dword() {
    let mut b = bench(RCS);
    b.r.poke_bus(b.data + 4, 0x77);
    let [dlo, dhi] = halves(DATA + 8);
    let [slo, shi] = halves(DATA + 4);
    b.user(&[mi(0x2e, 3), dlo, dhi, slo, shi]);
    assert_eq!(b.at(8), 0x77);
}

#[test]
fn batches_chain_and_nest() {
    let mut b = bench(RCS);
    let frame = |b: &Bench, n: u64| b.r.frame(BATCH + n * 4096);
    // Page 1: second level, which chains to page 2, whose end returns to
    // page 0; that chains to page 3.
    let second: Vec<u32> = store(false, DATA, 1)
        .into_iter()
        .chain(batch(BATCH + 0x2000))
        .collect();
    let (one, two, three) = (frame(&b, 1), frame(&b, 2), frame(&b, 3));
    b.r.put_batch(one, &second);
    let mut third = store(false, DATA + 4, 2).to_vec();
    third.push(END);
    b.r.put_batch(two, &third);
    let mut last = store(false, DATA + 12, 4).to_vec();
    last.push(END);
    b.r.put_batch(three, &last);
    let mut cmds = batch(BATCH + 0x1000).to_vec();
    cmds[0] |= 1 << 22;
    cmds.extend(store(false, DATA + 8, 3));
    cmds.extend(batch(BATCH + 0x3000));
    cmds.extend(store(false, DATA + 16, 5));
    b.user(&cmds);
    assert_eq!([0, 4, 8, 12, 16].map(|o| b.at(o)), [1, 2, 3, 4, 0]);
}

#[test]
fn commands_across_pages_and_skipped_packets() {
    let mut b = bench(RCS);
    // Fill a page but for two dwords, so that the store straddles.
    let mut cmds = vec![0; 1022];
    cmds[0] = 0x7805_0000 | 200; // 3D state, 202 dwords
    cmds[1..202].fill(0xffff_ffff);
    cmds[300] = 0x7001_0000 | 500; // media, 502 dwords
    cmds[301..802].fill(0xffff_ffff);
    cmds.extend(store(false, DATA, 5));
    cmds.push(END);
    let frames: Vec<u64> = (0..2).map(|n| b.r.frame(BATCH + n * 4096)).collect();
    b.r.put_batch(frames[0], &cmds[..1024]);
    b.r.put_batch(frames[1], &cmds[1024..]);
    b.r.run(RCS, &mut b.c, &batch(BATCH));
    assert_eq!(b.at(0), 5);
}

#[test]
fn the_jump_sees_what_was_written() {
    let mut b = bench(RCS);
    // The batch writes the command it then jumps to.
    let next = BATCH + 256;
    let mut cmds = store(false, next, END).to_vec();
    cmds.extend(batch(next));
    b.r.put_batch(b.code + 256, &[0xffff_ffff]);
    b.user(&cmds);
    assert_eq!(b.r.gpu.counters().engines[0].errors, 0);
}

fn pipe_control(flags: u32, address: u64, value: u64) -> [u32; 6] {
    let ([al, ah], [vl, vh]) = (halves(address), halves(value));
    [0x7a00_0004, flags, al, ah, vl, vh]
}

#[test]
fn pipe_control_post_sync() {
    let mut b = bench(RCS);
    let page = u64::from(b.r.global(1));
    let mut cmds = vec![mi(0x22, 1), 0x2350, 99];
    cmds.extend(pipe_control(
        pc::POST_SYNC_QW | pc::GGTT,
        page,
        0x1_0000_0002,
    ));
    cmds.extend(pipe_control(pc::POST_SYNC_DEPTH, DATA, 0));
    cmds.extend(pipe_control(pc::POST_SYNC_TIMESTAMP, DATA + 8, 0));
    cmds.extend(pipe_control(pc::POST_SYNC_QW | pc::STORE_INDEX, 0xd0, 7));
    cmds.extend(pipe_control(pc::LRI_POST_SYNC, 0x2608, 0x55));
    cmds.extend(srm(0x2608, DATA + 16));
    cmds.extend(pipe_control(pc::NOTIFY, 0, 0));
    let before = b.r.gpu.read64(0x2358);
    b.r.gpu.write32(irq::MASTER, 0);
    b.r.emit(&mut b.c, &cmds);
    b.r.submit(RCS, &b.c);
    b.r.wait("notify", |r| r.gpu.read32(0x2608) == 0x55);
    b.r.wait_idle(RCS);
    assert_eq!((b.r.peek(low(page)), b.r.peek(low(page) + 4)), (2, 1));
    assert_eq!((b.at(0), b.at(4)), (99, 0));
    let t = u64::from(b.at(8)) | u64::from(b.at(12)) << 32;
    assert!(before <= t && t <= b.r.gpu.read64(0x2358));
    assert_eq!(b.r.peek(b.c.lrca + 0xd0), 7);
    assert_eq!(b.at(16), 0x55);
}

#[test]
fn flush_dw_post_sync() {
    for e in [Engine::Bcs, Engine::Vcs, Engine::Vecs] {
        let mut b = bench(e);
        let page = b.r.global(1);
        let [lo, hi] = halves(DATA);
        b.r.run(
            e,
            &mut b.c,
            &[
                mi(0x26, 2 | 1 << 14),
                page | 4,
                0,
                0x21,
                mi(0x26, 3 | 1 << 14),
                lo,
                hi,
                0x22,
                0x23,
                mi(0x26, 2 | 1 << 14 | 1 << 21),
                0x40,
                0,
                0x24,
                mi(0x26, 2 | 3 << 14),
                lo + 8,
                hi,
                0,
                mi(0x21, 1),
                0x50,
                0x25,
            ],
        );
        assert_eq!(b.r.peek(page), 0x21);
        assert_eq!((b.at(0), b.at(4)), (0x22, 0x23));
        assert_eq!(b.r.peek(b.c.lrca + 0x40), 0x24);
        assert_eq!(b.r.peek(b.c.lrca + 0x50), 0x25);
        assert_ne!(b.at(8), 0);
    }
}

#[test]
fn a_user_interrupt_arrives_after_the_store() {
    for e in Engine::ALL {
        let mut b = bench(e);
        let page = b.r.global(1);
        let (bank, shift) = e.irq_bank();
        // Only the user interrupt.
        b.r.gpu.write32(irq::GT_IER0 + bank * 0x10, 1 << shift);
        let mut cmds = store(true, u64::from(page), 1).to_vec();
        cmds.extend([mi(0x02, 0), 0]);
        b.r.emit(&mut b.c, &cmds);
        b.r.submit(e, &b.c);
        let iir = irq::GT_IIR0 + bank * 0x10;
        while b.r.gpu.read32(iir) & (1 << shift) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(b.r.peek(page), 1);
        assert_eq!(
            b.r.gpu.read32(irq::MASTER),
            irq::MASTER_ENABLE | e.master_bit()
        );
        assert_eq!(b.r.gpu.counters().bus.interrupts, 1);
    }
}

#[test]
fn each_semaphore_comparison() {
    // memory, inline, which of GT GTE LT LTE EQ NEQ pass
    let cases = [
        (5, 4, [true, true, false, false, false, true]),
        (4, 4, [false, true, false, true, true, false]),
        (3, 4, [false, false, true, true, false, true]),
    ];
    for (memory, inline, passes) in cases {
        for (op, pass) in (0u32..).zip(passes) {
            if !pass {
                continue;
            }
            let mut b = bench(RCS);
            b.r.poke_bus(b.data, memory);
            let [lo, hi] = halves(DATA);
            let mut cmds = vec![mi(0x1c, 2 | 1 << 15 | op << 12), inline, lo, hi];
            cmds.extend(store(false, DATA + 4, 1));
            b.user(&cmds);
            assert_eq!(b.at(4), 1);
        }
    }
    // One that waits raises the wait interrupt, then goes on.
    let mut b = bench(RCS);
    let [lo, hi] = halves(DATA);
    b.r.gpu.write32(irq::MASTER, 0);
    b.r.emit(
        &mut b.c,
        &[mi(0x1c, 2 | 1 << 15), 4, lo, hi, mi(0x02, 0), 0],
    );
    b.r.submit(RCS, &b.c);
    while b.r.gpu.read32(irq::GT_IIR0) & u32::from(irq::WAIT_SEMAPHORE) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(b.r.gpu.read32(irq::GT_IIR0) & 1, 0);
    b.r.poke_bus(b.data, 5);
    b.r.wait_idle(RCS);
}

#[test]
fn a_signal_ends_the_wait_of_the_context_it_names() {
    const SIGNALLED: u64 = DATA + 8;
    let waiter = RCS;
    let signaller = Engine::Bcs;
    let mut b = bench(waiter);
    let [lo, hi] = halves(DATA);
    let mut other = b.r.context(signaller, 1);
    b.r.gpu.write32(irq::MASTER, 0);
    b.r.emit(&mut b.c, &[mi(0x1c, 2 | 4 << 12), 1, lo, hi]);
    b.r.emit(&mut b.c, &store(false, SIGNALLED, 1));
    b.r.submit(waiter, &b.c);
    while b.r.gpu.read32(irq::GT_IIR0) & u32::from(irq::WAIT_SEMAPHORE) == 0 {
        std::thread::yield_now();
    }
    // Memory as it is waited for, and a signal to somebody else, to another
    // engine, to nobody: it stays. The signaller is through with each before
    // it is looked at.
    let signal = |target: u32, context: u32| [mi(0x1b, target << 15), context];
    b.r.emit(&mut other, &store(false, DATA, 1));
    for words in [
        signal(0, b.c.id + 32),
        signal(1, b.c.id),
        signal(2, b.c.id),
        signal(7, b.c.id),
    ] {
        b.r.run(signaller, &mut other, &words);
    }
    let executed = b.r.gpu.counters().engines[waiter.index()].commands;
    assert_eq!(b.at(8), 0);
    assert_eq!(b.r.get(waiter, ring::IPEHR) >> 23, 0x1c);
    // One of its own while memory is another, then one that counts.
    b.r.run(signaller, &mut other, &store(false, DATA, 2));
    b.r.run(signaller, &mut other, &signal(0, b.c.id));
    assert_eq!(b.at(8), 0);
    b.r.run(signaller, &mut other, &store(false, DATA, 1));
    b.r.run(signaller, &mut other, &signal(0, b.c.id));
    b.r.wait_idle(waiter);
    assert_eq!(b.at(8), 1);
    let after = b.r.gpu.counters().engines[waiter.index()].commands;
    assert!(after > executed);
}

#[test]
fn a_wait_for_a_signal_looks_at_memory_first() {
    let mut b = bench(RCS);
    b.r.poke_bus(b.data, 1);
    let [lo, hi] = halves(DATA);
    let mut words = vec![mi(0x1c, 2 | 4 << 12), 1, lo, hi];
    words.extend(store(false, DATA + 4, 1));
    b.user(&words);
    assert_eq!(b.at(4), 1);
}

#[test]
fn a_conditional_end_ends_unless_memory_is_greater() {
    for (memory, stored) in [(5, 0), (6, 1)] {
        let mut b = bench(Engine::Bcs);
        b.r.poke_bus(b.data, memory);
        let [lo, hi] = halves(DATA);
        let mut cmds = vec![mi(0x36, 2 | 1 << 21), 5, lo, hi];
        cmds.extend(store(false, DATA + 4, 1));
        b.user(&cmds);
        assert_eq!(b.at(4), stored);
    }
}

#[test]
fn the_spinner_of_igt_ends_when_told() {
    let mut b = bench(Engine::Vcs);
    let [lo, hi] = halves(DATA);
    b.r.poke_bus(b.data, 6);
    let mut cmds = vec![mi(0x05, 0)];
    cmds.resize(961, 0);
    cmds.extend([mi(0x36, 2 | 1 << 21), 5, lo, hi]);
    cmds.extend(batch(BATCH));
    b.r.put_batch(b.code, &cmds);
    b.r.emit(&mut b.c, &batch(BATCH));
    b.r.submit(Engine::Vcs, &b.c);
    // It has gone round often enough to yield.
    b.r.wait("rounds", |r| r.gpu.counters().engines[2].commands > 50_000);
    b.r.poke_bus(b.data, 0);
    b.r.wait_idle(Engine::Vcs);
    assert_eq!(b.r.gpu.counters().engines[2].errors, 0);
}

#[test]
fn predicates_gate_batches_and_commands() {
    let mut b = bench(RCS);
    let frame = b.r.frame(BATCH + 4096);
    let mut inner = store(false, DATA, 1).to_vec();
    inner.push(END);
    b.r.put_batch(frame, &inner);
    let gated = |c: &mut Vec<u32>| {
        let mut s = batch(BATCH + 4096);
        s[0] |= 1 << 22 | 1 << 15;
        c.extend(s);
    };
    // SRC0 != SRC1: the predicate is false, the batch does not start.
    let mut cmds = vec![mi(0x22, 3), 0x2400, 1, 0x2408, 2, mi(0x0c, 2 << 6 | 2)];
    gated(&mut cmds);
    // NOOP on result clear: the store does nothing.
    cmds.push(mi(0x01, 3));
    cmds.extend(store(false, DATA + 4, 1));
    cmds.push(mi(0x01, 0));
    cmds.extend(store(false, DATA + 8, 1));
    b.user(&cmds);
    assert_eq!([0, 4, 8].map(|o| b.at(o)), [0, 0, 1]);
    // Inverted it is true.
    let mut cmds = vec![mi(0x22, 3), 0x2400, 1, 0x2408, 2, mi(0x0c, 3 << 6 | 2)];
    gated(&mut cmds);
    b.user(&cmds);
    assert_eq!(b.at(0), 1);
}

#[test]
fn atomics_inline_and_from_registers() {
    let mut b = bench(Engine::Vecs);
    let (g0, g4) = (b.gpr(0), b.gpr(4));
    b.r.poke_bus(b.data, 10);
    b.r.poke_bus(b.data + 8, u32::MAX);
    let [lo, hi] = halves(DATA);
    let mut cmds = vec![
        mi(0x2f, 9 | 1 << 18 | 7 << 8),
        lo,
        hi,
        5,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    // 64-bit increment with the old value returned.
    cmds.extend([mi(0x2f, 1 | 1 << 16 | 0x25 << 8), lo + 8, hi]);
    cmds.extend(srm(g4, DATA + 16));
    // 32-bit subtract of GPR 0.
    cmds.extend([mi(0x22, 1), g0, 3, mi(0x2f, 1 | 8 << 8), lo, hi]);
    b.user(&cmds);
    assert_eq!(b.at(0), 12);
    assert_eq!((b.at(8), b.at(12)), (0, 1));
    assert_eq!(b.at(16), u32::MAX);
}

#[test]
fn cached_translations_go_when_asked() {
    let mut b = bench(RCS);
    let other = b.r.bus_page();
    let [flag_lo, flag_hi] = halves(DATA);
    // Warm the cache, wait for the remap, invalidate, store again.
    let mut cmds = store(false, BATCH + 0x3000, 1).to_vec();
    cmds.extend([mi(0x1c, 2 | 1 << 15 | 4 << 12), 1, flag_lo, flag_hi]);
    cmds.extend(pipe_control(pc::TLB_INVALIDATE, 0, 0));
    cmds.extend(store(false, BATCH + 0x3000, 2));
    let old = b.r.frame(BATCH + 0x3000);
    b.r.emit(&mut b.c, &cmds);
    b.r.submit(RCS, &b.c);
    b.r.wait("first store", |r| r.peek_bus(old) == 1);
    b.r.map(BATCH + 0x3000, other, true);
    b.r.poke_bus(b.data, 1);
    b.r.wait_idle(RCS);
    assert_eq!((b.r.peek_bus(old), b.r.peek_bus(other)), (1, 2));
}

#[test]
fn the_write_log_is_exact() {
    let mut b = bench(RCS);
    b.r.run(RCS, &mut b.c, &[0, 0]);
    let always = b.r.log.take();
    b.r.run(RCS, &mut b.c, &store(false, DATA, 1));
    let mut expect = always.clone();
    expect.push(b.data);
    expect.sort_unstable();
    assert_eq!(b.r.log.take(), expect);
    // The image's register page and the status page, nothing else.
    assert_eq!(always.len(), 2);
}

#[test]
fn counters_count() {
    let mut b = bench(RCS);
    let before = b.r.gpu.counters();
    b.user(&[0, 0, 0]);
    let after = b.r.gpu.counters();
    let of = |f: fn(&softgpu::EngineCounters) -> u64| f(&after.engines[0]) - f(&before.engines[0]);
    // Batch start, a padding NOOP, three NOOPs, the end.
    assert_eq!(of(|c| c.commands), 6);
    assert_eq!(of(|c| c.batches), 1);
    assert_eq!(of(|c| c.contexts), 1);
    assert!(of(|c| c.busy_ns) > 0);
    assert!(after.bus.mmio_writes >= before.bus.mmio_writes + 4);
}
