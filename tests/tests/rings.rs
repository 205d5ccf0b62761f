//! A device model that breaks its rings: vgpud drops that vGPU, says why,
//! and the others go on.

use guest_driver::Random;
use vgpu_ring::layout::index;
use vgpu_ring::{Message, Request};
use vgpu_tests::{Arena, HostileRing, panics, wait_until};

/// The reason for which vgpud drops a vGPU whose device model does `what`.
fn dropped_for(what: impl FnOnce(&mut HostileRing)) -> String {
    panics::count();
    let mut arena = Arena::new();
    let mut hostile = HostileRing::start(arena.host(), 1000);
    what(&mut hostile);
    let why = hostile.dropped();
    arena.neighbour().work();
    drop(hostile);
    arena.neighbour().work();
    assert_eq!(arena.host().scheduler().inspect().vgpus.len(), 1);
    assert_eq!(panics::seen(), 0);
    why
}

#[test]
fn a_producer_index_too_far_ahead() {
    let why = dropped_for(|ring| {
        ring.store(ring.submit_ring().indices + index::PRODUCER, 1025);
        ring.ring();
    });
    assert!(why.contains("producer index is 0x401"), "{why}");
}

#[test]
fn a_producer_index_that_went_back() {
    let why = dropped_for(|ring| {
        ring.push(Request::Ping { token: 1 }.encode());
        let place = ring.submit_ring();
        wait_until("the ping", || ring.link().handle().inspect().id == 1000);
        ring.store(place.indices + index::PRODUCER, u64::MAX);
        ring.ring();
    });
    assert!(why.contains("producer index is 0xffff"), "{why}");
}

#[test]
fn a_consumer_index_out_of_reach() {
    let why = dropped_for(|ring| {
        ring.store(ring.complete_ring().indices + index::CONSUMER, 5000);
        // An index is looked at when the ring seems full.
        for token in 0..1100 {
            ring.push(Request::Ping { token }.encode());
            if token % 100 == 99 {
                wait_until("the pings", || {
                    ring.taken() > token || ring.link().failure().is_some()
                });
            }
        }
    });
    assert!(why.contains("consumer index is 0x1388"), "{why}");
}

#[test]
fn messages_that_say_nothing() {
    for (slot, field) in [
        ([0, 0, 0, 0], "kind of request"),
        ([0x7f, 0, 0, 0], "kind of request"),
        ([u64::MAX; 4], "kind of request"),
        // Submit on engine 4; Reset of engine 4; a register beyond 8 MiB.
        ([0x0401, 1, 0, 0], "engine"),
        ([0x1002, 1, 0, 0], "engines"),
        ([0x0080_0000_0000_0003, 1, 0, 0], "register offset"),
        ([0x0000_2000_0000_0003, 1 << 32, 0, 0], "register value"),
    ] {
        let why = dropped_for(|ring| ring.push(slot));
        assert!(why.contains(field), "{why}");
    }
}

#[test]
fn loads_whose_numbers_go_back() {
    let why = dropped_for(|ring| {
        for seq in [5, 4] {
            let desc = [0x19, 0];
            ring.push(
                Request::Submit {
                    engine: 0,
                    seq,
                    desc,
                }
                .encode(),
            );
        }
    });
    assert!(why.contains("load 4 on rcs0 follows load 5"), "{why}");
}

#[test]
fn events_that_nobody_takes() {
    let why = dropped_for(|ring| {
        for token in 0..4000 {
            if ring.link().failure().is_some() {
                break;
            }
            ring.push(Request::Ping { token }.encode());
            wait_until("the ping to be taken", || {
                ring.taken() > token || ring.link().failure().is_some()
            });
        }
    });
    assert!(why.contains("events waiting"), "{why}");
}

#[test]
fn anything_at_all() {
    panics::count();
    let mut random = Random::new(7);
    let mut arena = Arena::new();
    for id in 0..60 {
        let data: Vec<u8> = (0..random.below(1500))
            .map(|_| random.next_u32().to_le_bytes()[0])
            .collect();
        HostileRing::start(arena.host(), 1000 + id).run(&data);
        arena.neighbour().work();
    }
    assert_eq!(arena.host().scheduler().inspect().vgpus.len(), 1);
    assert_eq!(panics::seen(), 0);
}
