//! BAR0 as the bus sees it.

use crate::rig::{Rig, low, mi, number, store};
use gen8::{Engine, irq, ring};
use gpu_bus::{BAR0_SIZE, GGTT_BASE, GGTT_ENTRIES, Gpu};

#[test]
fn what_is_not_there_reads_all_ones() {
    let r = Rig::new();
    for offset in [BAR0_SIZE, u32::MAX - 3, 0x2001, 0x2002] {
        assert_eq!(r.gpu.read32(offset), u32::MAX);
        r.gpu.write32(offset, 0);
    }
    for offset in [BAR0_SIZE, BAR0_SIZE - 4, 0x2004, u32::MAX] {
        assert_eq!(r.gpu.read64(offset), u64::MAX);
        r.gpu.write64(offset, 0);
    }
    // The reserved space between registers and table.
    r.gpu.write32(0x40_0000, 5);
    assert_eq!(r.gpu.read32(0x40_0000), 0);
    assert_eq!(r.gpu.read64(0x1f_fff8), 0);
}

#[test]
fn the_table_takes_halves_and_wholes() {
    let r = Rig::new();
    let last = GGTT_BASE + (GGTT_ENTRIES - 1) * 8;
    r.gpu.write64(last, 0x12_3456_7001);
    assert_eq!(r.gpu.read32(last), 0x3456_7001);
    assert_eq!(r.gpu.read32(last + 4), 0x12);
    r.gpu.write32(last + 4, 0x7f);
    assert_eq!(r.gpu.read64(last), 0x7f_3456_7001);
}

#[test]
fn registers_are_storage_masked_where_they_are() {
    let r = Rig::new();
    r.gpu.write32(0x1_0008, 77);
    assert_eq!(r.gpu.read32(0x1_0008), 77);
    r.gpu.write64(0x10_0000, 0x5_0000_0006);
    assert_eq!(r.gpu.read64(0x10_0000), 0x5_0000_0006);
    r.gpu.write32(0x7008, 0x00ff_0055);
    r.gpu.write32(0x7008, 0x000f_000a);
    assert_eq!(r.gpu.read32(0x7008), 0x5a);
    // Read-only ones stay as they are.
    let e = Engine::Rcs;
    for o in [ring::ESR, ring::EXECLIST_STATUS_HI] {
        r.put(e, o, u32::MAX);
        assert_eq!(r.get(e, o), 0);
    }
    assert_eq!(r.get(e, ring::INSTDONE), u32::MAX);
    assert_eq!(r.get(e, ring::CSB_PTR), 0x505);
}

#[test]
fn accesses_are_counted_by_class() {
    let r = Rig::new();
    r.gpu.set_register_cost(1_000, 1_000);
    let before = r.gpu.counters().bus;
    r.gpu.read32(0x2358);
    r.gpu.read64(0x2358);
    r.gpu.write32(0x4_0000, 1);
    r.gpu.read64(GGTT_BASE);
    r.gpu.write64(GGTT_BASE, 0);
    r.gpu.write32(GGTT_BASE + 4, 0);
    let after = r.gpu.counters().bus;
    assert_eq!(after.mmio_reads - before.mmio_reads, 2);
    assert_eq!(after.mmio_writes - before.mmio_writes, 1);
    assert_eq!(after.ggtt_reads - before.ggtt_reads, 1);
    assert_eq!(after.ggtt_writes - before.ggtt_writes, 2);
}

#[test]
fn a_driver_with_all_masked_is_left_alone() {
    let e = Engine::Vcs;
    let mut r = Rig::new();
    r.put(e, ring::IMR, u32::MAX);
    let mut c = r.context(e, 1);
    let at = r.global(1);
    let mut cmds = store(true, u64::from(at), 1).to_vec();
    cmds.extend([mi(0x02, 0), 0]);
    r.run(e, &mut c, &cmds);
    assert_eq!(r.gpu.read32(irq::GT_IIR0 + 0x10), 0);
    assert_eq!(r.gpu.counters().bus.interrupts, 0);
}

#[test]
fn no_edge_is_lost_while_a_handler_works() {
    // Many requests on all engines, each ending in a user interrupt; the
    // driver looks only when a message came.
    let mut r = Rig::new();
    let page = r.global(1);
    let mut contexts: Vec<_> = Engine::ALL.map(|e| (e, r.context(e, 2))).into();
    for n in 1..100 {
        for (e, c) in &mut contexts {
            let own = u64::from(page) + 4 * number(*e);
            let mut cmds = store(true, own, n).to_vec();
            cmds.extend([mi(0x02, 0), 0]);
            r.emit(c, &cmds);
            r.submit(*e, c);
        }
        for (e, _) in &contexts {
            r.wait_message("a completion", |r| {
                r.events[e.index()].last().is_some_and(|(s, _)| *s == 0x18)
            });
            r.events[e.index()].clear();
            assert_eq!(r.peek(page + 4 * low(number(*e))), n);
        }
    }
}
