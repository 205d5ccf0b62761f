//! Where copies of batches go.

use guest_memory::{GuestMemory, VecMemory};

use super::rig::Rig;
use super::*;

/// Names so many batches in the ring, each a store and an end.
fn name(memory: &VecMemory, rig: &Rig, batches: u32, value: u32) {
    for (at, word) in (0u64..).zip([0x1040_0002, 5 << 12, 0, value, 0x0500_0000]) {
        let batch = u64::from(BATCH) << 12;
        memory.write_u32(batch + at * 4, word).unwrap();
    }
    for n in 0..batches {
        for (at, word) in (0u64..).zip([0x1880_0001, BATCH << 12, 0, 0]) {
            let ring = 0x2000 + u64::from(n) * 16;
            memory.write_u32(ring + at * 4, word).unwrap();
        }
    }
    rig.set(lrc::RING_TAIL, batches * 16);
}

fn work(rig: &Rig, shadow: &mut Shadow) -> Box<Workload> {
    match rig.prepare(shadow).unwrap() {
        Element::Work(work) => work,
        Element::Empty => panic!("nothing to run"),
    }
}

/// A driver names the same batches over and over: from the second time on no
/// entry is written and no page taken.
#[test]
fn the_same_batches_go_to_the_same_place() {
    let memory = Arc::new(VecMemory::new(PAGES));
    let rig = Rig::new(Arc::clone(&memory) as _);
    let mut shadow = Shadow::default();
    name(&memory, &rig, 3, 7);
    let first = work(&rig, &mut shadow);
    assert!(first.cost.ptes > 3);
    drop(first);
    let (pages, counts) = (rig.pages.used(), rig.windows.counts());
    for value in 0..4 {
        name(&memory, &rig, 3, value);
        assert_eq!(work(&rig, &mut shadow).cost.ptes, 0);
        assert_eq!(rig.pages.used(), pages);
        assert_eq!(rig.windows.counts().windows, counts.windows);
    }
    // What is kept is bounded, and goes with the shadow.
    name(&memory, &rig, 60, 1);
    drop(work(&rig, &mut shadow));
    assert!(rig.pages.used() <= pages + 16);
    drop(shadow);
    rig.windows.forget_vgpu(1);
    assert_eq!(rig.windows.counts().windows, 0);
}

/// While a workload holds a copy, another one gets a place of its own.
#[test]
fn a_copy_at_the_gpu_stays_as_it_is() {
    let memory = Arc::new(VecMemory::new(PAGES));
    let rig = Rig::new(Arc::clone(&memory) as _);
    let mut shadow = Shadow::default();
    let copy = |work: &Workload| {
        let windows = work.windows();
        let mut batches = windows.filter(|p| matches!(p.key().what, What::Batch { .. }));
        batches.next().unwrap().address()
    };
    name(&memory, &rig, 1, 1);
    let one = work(&rig, &mut shadow);
    name(&memory, &rig, 1, 2);
    let mut other = Shadow::default();
    let two = work(&rig, &mut other);
    assert_ne!(copy(&one), copy(&two));
    let stays = copy(&one);
    drop((one, two));
    assert_eq!(copy(&work(&rig, &mut shadow)), stays);
}
