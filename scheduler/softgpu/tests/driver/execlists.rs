//! Run lists, context images and status events.

use crate::rig::{END, Rig, batch, desc, halves, low, mi, number, store};
use gen8::csb::Descriptor;
use gen8::{Engine, lrc, ring};
use gpu_bus::Gpu;

const LOOP_AT: u64 = 0x10_0000;

/// A batch that loops until the dword at the page after it is not zero:
/// MI_SEMAPHORE_WAIT polls in the context's tables.
fn semaphore(address: u64) -> [u32; 4] {
    let [lo, hi] = halves(address);
    // Equal to 1.
    [mi(0x1c, 2 | 1 << 15 | 4 << 12), 1, lo, hi]
}

#[test]
fn one_context_runs_and_says_so() {
    for e in Engine::ALL {
        let mut r = Rig::new();
        let mut c = r.context(e, 1);
        let at = r.global(1);
        r.run(e, &mut c, &store(true, u64::from(at), 0x1234));
        assert_eq!(r.peek(at), 0x1234);
        assert_eq!(r.take_events(e), [(0x1, 0), (0x18, c.id)]);
        assert_eq!(r.image(&c, lrc::RING_HEAD), c.tail);
        assert_eq!(r.image(&c, lrc::CONTEXT_CONTROL) & lrc::RESTORE_INHIBIT, 0);
        // The mirror tells the same.
        assert_eq!(r.get(e, ring::CSB_MIRROR + 8), 0x18);
        assert_eq!(r.get(e, ring::CSB_PTR) & 7, 1);
    }
}

#[test]
fn two_elements_run_in_order() {
    let e = Engine::Vcs;
    let mut r = Rig::new();
    let (mut a, mut b) = (r.context(e, 1), r.context(e, 1));
    let at = r.global(1);
    r.emit(&mut a, &store(true, u64::from(at), 1));
    r.emit(&mut b, &store(true, u64::from(at), 2));
    r.elsp(e, a.descriptor(), b.descriptor());
    r.wait_idle(e);
    assert_eq!(r.peek(at), 2);
    assert_eq!(r.take_events(e), [(0x1, 0), (0x14, a.id), (0x18, b.id)]);
}

#[test]
fn a_lite_restore_goes_on_from_the_head() {
    let e = Engine::Rcs;
    let mut r = Rig::new();
    let mut c = r.context(e, 1);
    let page = r.global(1);
    r.map_fresh(LOOP_AT, 1);
    r.emit(&mut c, &semaphore(LOOP_AT));
    r.emit(&mut c, &store(true, u64::from(page), 1));
    r.submit(e, &c);
    r.wait("start", |r| r.get(e, ring::EXECLIST_STATUS_HI) != 0);
    r.emit(&mut c, &store(true, u64::from(page) + 4, 2));
    r.submit(e, &c);
    r.wait("lite restore", |r| r.events[0].len() == 2);
    let head = r.get(e, ring::HEAD);
    assert_eq!(head, 0, "it still waits");
    assert_eq!(r.get(e, ring::TAIL), c.tail);
    // The tail in the image is the driver's: not overwritten.
    let frame = r.frame(LOOP_AT);
    r.poke_bus(frame, 1);
    r.wait_idle(e);
    assert_eq!((r.peek(page), r.peek(page + 4)), (1, 2));
    assert_eq!(desc(&r.take_events(e)), [0x1, 0x8002, 0x18]);
    assert_eq!(r.gpu.counters().engines[0].lite_restores, 1);
}

#[test]
fn force_restore_loads_the_image_anew() {
    let e = Engine::Rcs;
    let mut r = Rig::new();
    let mut c = r.context(e, 1);
    let (flag, out) = (LOOP_AT, LOOP_AT + 4096);
    let frames = r.map_fresh(LOOP_AT, 2);
    r.emit(&mut c, &[mi(0x22, 1), 0x2600, 5]);
    r.emit(&mut c, &semaphore(flag));
    let [lo, hi] = halves(out);
    r.emit(&mut c, &[mi(0x24, 2), 0x2600, lo, hi]);
    r.submit(e, &c);
    r.wait("register", |r| r.get(e, ring::GPR0) == 5);
    // The same tail: only the mark makes it load. The register survives.
    r.elsp(e, Descriptor(c.descriptor().0 | 4), Descriptor(0));
    r.wait("promotion", |r| r.events[0].len() == 2);
    r.poke_bus(frames[0], 1);
    r.wait_idle(e);
    assert_eq!(r.peek_bus(frames[1]), 5);
    assert_eq!(desc(&r.take_events(e)), [0x1, 0x8002, 0x18]);
    assert_eq!(r.gpu.counters().engines[0].contexts, 2);
}

#[test]
fn save_inhibit_keeps_the_old_registers() {
    let e = Engine::Vcs;
    let mut r = Rig::new();
    let mut c = r.context(e, 1);
    let at = r.global(1);
    r.run(e, &mut c, &[mi(0x22, 1), 0x1_2600, 1]);
    r.set_image(&c, lrc::CONTEXT_CONTROL, lrc::SAVE_INHIBIT);
    r.run(e, &mut c, &[mi(0x22, 1), 0x1_2600, 2]);
    r.set_image(&c, lrc::CONTEXT_CONTROL, 0);
    r.run(e, &mut c, &[mi(0x24, 2 | 1 << 22), 0x1_2600, at, 0]);
    assert_eq!(r.peek(at), 1);
}

#[test]
fn preemption_resumes_inside_a_batch() {
    let e = Engine::Bcs;
    let mut r = Rig::new();
    let (mut a, mut b) = (r.context(e, 1), r.context(e, 1));
    let at = r.global(1);
    let frames = r.map_fresh(LOOP_AT, 3);
    // A second-level batch waits; the first level then stores.
    let second = LOOP_AT + 4096;
    let mut first: Vec<u32> = batch(second).to_vec();
    first[0] |= 1 << 22;
    first.extend(store(false, LOOP_AT + 0x2800, 7));
    first.push(END);
    r.put_batch(frames[0], &first);
    let mut inner: Vec<u32> = vec![mi(0x22, 1), 0x2_2600, 0xabcd];
    inner.extend(semaphore(LOOP_AT + 0x2000));
    // GPR 0 must have survived the switch.
    let [lo, hi] = halves(LOOP_AT + 0x2804);
    inner.extend([mi(0x24, 2), 0x2_2600, lo, hi, END]);
    r.put_batch(frames[1], &inner);
    r.emit(&mut a, &batch(LOOP_AT));
    r.emit(&mut b, &[mi(0x22, 1), 0x2_2600, 5]);
    r.emit(&mut b, &store(true, u64::from(at), 9));
    r.submit(e, &a);
    r.wait("wait for the semaphore", |r| r.get(e, 0x600) == 0xabcd);
    r.submit(e, &b);
    r.wait_idle(e);
    assert_eq!(r.peek(at), 9);
    assert_eq!(r.take_events(e), [(0x1, 0), (0x2, a.id), (0x18, b.id)]);
    assert_eq!(r.image(&a, lrc::SBB_HEAD) & 1, 1);
    assert_eq!(r.peek_bus(frames[2] + 0x800), 0);
    r.poke_bus(frames[2], 1);
    r.submit(e, &a);
    r.wait_idle(e);
    assert_eq!(r.peek_bus(frames[2] + 0x800), 7);
    assert_eq!(r.peek_bus(frames[2] + 0x804), 0xabcd);
    assert_eq!(r.image(&a, lrc::BB_HEAD), 0);
}

#[test]
fn arbitration_off_delays_a_switch() {
    let e = Engine::Vecs;
    let mut r = Rig::new();
    let (mut a, mut b) = (r.context(e, 1), r.context(e, 1));
    let page = r.global(1);
    let frames = r.map_fresh(LOOP_AT, 1);
    r.emit(&mut a, &[mi(0x08, 0)]);
    r.emit(&mut a, &store(true, u64::from(page), 1));
    r.emit(&mut a, &semaphore(LOOP_AT));
    r.emit(&mut a, &store(true, u64::from(page) + 4, 2));
    r.emit(&mut a, &[mi(0x08, 1)]);
    r.emit(&mut a, &store(true, u64::from(page) + 8, 3));
    r.emit(&mut b, &store(true, u64::from(page) + 12, 4));
    r.submit(e, &a);
    r.wait("first store", |r| r.peek(page) == 1);
    r.submit(e, &b);
    assert_eq!(r.get(e, ring::EXECLIST_STATUS_LO) & 4, 4, "it waits");
    assert_eq!(r.peek(page + 12), 0);
    r.poke_bus(frames[0], 1);
    r.wait_idle(e);
    // At the command after arbitration came back the engine switched.
    assert_eq!(r.peek(page + 4), 2);
    assert_eq!(r.peek(page + 8), 0);
    assert_eq!(r.peek(page + 12), 4);
    assert_eq!(desc(&r.take_events(e)), [0x1, 0x2, 0x18]);
    r.submit(e, &a);
    r.wait_idle(e);
    assert_eq!(r.peek(page + 8), 3);
}

#[test]
fn contexts_keep_their_registers_apart() {
    let e = Engine::Rcs;
    let mut r = Rig::new();
    let (mut a, mut b) = (r.context(e, 1), r.context(e, 1));
    let at = u64::from(r.global(1));
    let srm = |reg: u32, to: u64| {
        let [lo, hi] = halves(to);
        [mi(0x24, 2 | 1 << 22), reg, lo, hi]
    };
    // CACHE_MODE_1 is masked, GPR 15 is not.
    r.run(e, &mut a, &[mi(0x22, 3), 0x2678, 0x77, 0x7004, 0x0010_0010]);
    let mut look: Vec<u32> = srm(0x2678, at).to_vec();
    look.extend(srm(0x7004, at + 4));
    // Its first load restores nothing: it finds what the other left.
    r.run(e, &mut b, &look);
    assert_eq!((r.peek(low(at)), r.peek(low(at) + 4)), (0x77, 0x10));
    r.run(e, &mut b, &[mi(0x22, 3), 0x2678, 0x55, 0x7004, 0x0010_0000]);
    r.run(e, &mut a, &look);
    assert_eq!((r.peek(low(at)), r.peek(low(at) + 4)), (0x77, 0x10));
    r.run(e, &mut b, &look);
    assert_eq!((r.peek(low(at)), r.peek(low(at) + 4)), (0x55, 0));
    // Without the mark of saved state the values are not believed.
    r.set_image(&a, lrc::PRIVATE, 0);
    r.run(e, &mut a, &look);
    assert_eq!(r.peek(low(at)), 0);
}

#[test]
fn the_context_clock_only_runs_with_it() {
    let e = Engine::Bcs;
    let mut r = Rig::new();
    let mut c = r.context(e, 1);
    let mut last = 0;
    for _ in 0..3 {
        r.run(e, &mut c, &[0, 0]);
        let now = r.image(&c, lrc::CTX_TIMESTAMP);
        assert!(now >= last);
        last = now;
    }
    let stopped = r.get(e, ring::CTX_TIMESTAMP);
    assert_eq!(r.get(e, ring::CTX_TIMESTAMP), stopped);
    let a = r.gpu.read64(e.mmio_base() + ring::TIMESTAMP);
    let b = r.gpu.read64(e.mmio_base() + ring::TIMESTAMP);
    assert!(b >= a && u64::from(last) <= b);
}

#[test]
fn restore_runs_indirect_and_per_context_commands() {
    let e = Engine::Rcs;
    let mut r = Rig::new();
    let mut c = r.context(e, 1);
    let page = r.global(1);
    let wa = r.global(2);
    // One cache line without an end, then a batch with one.
    let mut line = store(true, u64::from(page), 1).to_vec();
    line.resize(16, 0);
    line.extend([0xffff_ffff; 16]);
    r.poke(wa, &line);
    let mut per: Vec<u32> = store(true, u64::from(page) + 4, 2).to_vec();
    per.push(END);
    r.poke(wa + 4096, &per);
    r.set_image(&c, lrc::INDIRECT_CTX, wa | 1);
    r.set_image(&c, lrc::PER_CTX_BB, (wa + 4096) | 1);
    r.run(e, &mut c, &store(true, u64::from(page) + 8, 3));
    assert_eq!([0, 4, 8].map(|o| r.peek(page + o)), [1, 2, 3]);
}

#[test]
fn the_ring_wraps() {
    let e = Engine::Vcs;
    let mut r = Rig::new();
    let mut c = r.context(e, 1);
    let at = r.global(1);
    // 200 requests of 12 dwords pass the end of 1024 dwords twice, within
    // commands too.
    for n in 0..200 {
        let mut cmds: Vec<u32> = store(true, u64::from(at), n).to_vec();
        cmds.extend(store(true, u64::from(at) + 4, n + 1));
        cmds.extend([0; 4]);
        cmds.truncate(10);
        r.run(e, &mut c, &cmds);
        assert_eq!((r.peek(at), r.peek(at + 4)), (n, n + 1));
    }
}

#[test]
fn all_engines_run_at_once() {
    let mut r = Rig::new();
    let page = r.global(1);
    let frames = r.map_fresh(LOOP_AT, 1);
    let mut all = Vec::new();
    for e in Engine::ALL {
        let mut c = r.context(e, 1);
        let own = u64::from(page) + 4 * number(e);
        r.emit(&mut c, &store(true, own, 1));
        r.emit(&mut c, &semaphore(LOOP_AT));
        r.emit(&mut c, &store(true, own, 2));
        r.submit(e, &c);
        all.push(c);
    }
    r.wait("all wait", |r| (0..4).all(|i| r.peek(page + 4 * i) == 1));
    r.poke_bus(frames[0], 1);
    for e in Engine::ALL {
        r.wait_idle(e);
        assert_eq!(r.peek(page + 4 * low(number(e))), 2);
    }
}

#[test]
fn a_long_random_life_keeps_the_books() {
    // A driver that keeps one load pending at most, over three contexts; it
    // checks each event against its own books.
    let e = Engine::Bcs;
    let mut r = Rig::new();
    let at = r.global(1);
    let mut contexts: Vec<_> = (0..3).map(|_| r.context(e, 1)).collect();
    let mut wanted = [0u32; 3];
    let mut active: Vec<usize> = Vec::new();
    let mut pending: Option<Vec<usize>> = None;
    let mut seed = 12345u32;
    let mut random = move |n: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) % n
    };
    let mut loads = 0;
    while loads < 300 || pending.is_some() || !active.is_empty() {
        r.collect();
        for (status, context) in std::mem::take(&mut r.events[e.index()]) {
            if status & 3 != 0 {
                active = pending.take().expect("a promote without a load");
            } else {
                assert!(!active.is_empty(), "a completion without a context");
                let done = active.remove(0);
                assert_eq!(context, contexts[done].id);
                assert_eq!(status & 8 != 0, active.is_empty());
            }
        }
        if pending.is_some() || loads == 300 {
            std::thread::yield_now();
            continue;
        }
        let first = random(3) as usize;
        let second = (random(2) == 1).then(|| (first + 1) % 3);
        let list: Vec<usize> = [Some(first), second].into_iter().flatten().collect();
        for &i in &list {
            wanted[i] += 1;
            let cmds = store(true, u64::from(at) + 4 * i as u64, wanted[i]);
            let used = contexts[i]
                .tail
                .wrapping_sub(r.image(&contexts[i], lrc::RING_HEAD))
                % contexts[i].ring_size;
            if used < 3000 {
                r.emit(&mut contexts[i], &cmds);
            } else {
                wanted[i] -= 1;
            }
        }
        let d = |i: Option<&usize>| i.map_or(Descriptor(0), |i| contexts[*i].descriptor());
        r.elsp(e, d(list.first()), d(list.get(1)));
        pending = Some(list);
        loads += 1;
    }
    // Contexts that were preempted may have work left: run each to its end.
    for c in &contexts {
        r.submit(e, c);
        r.wait_idle(e);
        r.take_events(e);
        assert_eq!(r.image(c, lrc::RING_HEAD), c.tail);
    }
    assert_eq!([0, 1, 2].map(|i| r.peek(at + 4 * i)), wanted);
}
