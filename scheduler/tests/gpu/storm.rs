//! Many guests at once, each on a thread of its own: work, endless work and
//! resets, refusals, comings and goings.

use std::sync::Arc;

use gen8::Engine;
use vgpu_ring::FaultReason;

use crate::driver::{Host, cmd};

const GUESTS: u64 = 6;
const LIVES: u32 = 3;
const ROUNDS: u32 = 100;

/// A small generator, so that a failure can be repeated.
fn next(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

fn life(host: &Host, id: u64, random: &mut u32) {
    let mut guest = host.guest(id, 256);
    let mut contexts: Vec<_> = Engine::ALL
        .into_iter()
        .map(|e| {
            let c = guest.context(e, 1);
            let code = guest.pages(1);
            guest.map(&c, 1 << 20, code);
            guest.write_words(code, &cmd::batch(1 << 20));
            (c, guest.global_page())
        })
        .collect();
    for round in 1..=ROUNDS {
        let which = usize::try_from(next(random) % 4).unwrap();
        let (c, (gpa, address)) = &mut contexts[which];
        let engines = 1 << which;
        match next(random) % 8 {
            0 => {
                // Endless, until the reset; then the ring starts anew.
                guest.emit(c, &cmd::batch(1 << 20));
                guest.submit(c, None);
                guest.reset(engines);
                guest.rewind(c);
            }
            1 => {
                guest.emit(c, &cmd::load_register(0x2230, 1));
                assert_eq!(guest.fails(c).0, FaultReason::Refused);
                guest.reset(engines);
                guest.rewind(c);
            }
            _ => {
                let value = u32::try_from(id).unwrap() << 16 | round;
                guest.emit(c, &cmd::store_global(*address, value));
                guest.run(c);
                assert_eq!(guest.read(*gpa), value);
            }
        }
    }
    // Gone with work in flight.
    let (c, _) = &mut contexts[0];
    guest.emit(c, &cmd::batch(1 << 20));
    guest.submit(c, None);
    let memory = Arc::downgrade(&guest.memory);
    drop(guest);
    assert!(memory.upgrade().is_none());
}

#[test]
fn guests_come_work_fail_and_go_without_harm_to_each_other() {
    let host = Host::new();
    let before = host.scheduler.inspect();
    std::thread::scope(|scope| {
        for id in 1..=GUESTS {
            let host = &host;
            scope.spawn(move || {
                let mut random = u32::try_from(id).unwrap().wrapping_mul(0x9e37_79b9);
                for _ in 0..LIVES {
                    life(host, id, &mut random);
                }
            });
        }
    });
    let after = host.scheduler.inspect();
    assert!(after.vgpus.is_empty());
    assert_eq!(after.own_pages, before.own_pages);
    assert_eq!(after.chunks, before.chunks);
    assert_eq!(after.windows.windows, before.windows.windows);
    assert!(
        after
            .engines
            .iter()
            .all(|e| e.running.is_none() && e.dead.is_none())
    );
}
