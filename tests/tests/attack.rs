//! A short form of the attack, of which `cargo run --release -p vgpu-tests
//! --bin attack` is the long one.

use gen8::Platform;
use gen8::platform::{BDW, KBL};
use guest_driver::Random;
use vgpu_tests::{Attack, Bytes, panics};

fn rounds(gpu: &'static Platform, seed: u64, count: u32, len: usize) {
    panics::count();
    let mut random = Random::new(seed);
    let mut attack = Attack::new(gpu);
    for _ in 0..count {
        let data: Vec<u8> = (0..len)
            .map(|_| random.next_u32().to_le_bytes()[0])
            .collect();
        attack.round(&mut Bytes::new(&data));
    }
    attack.end_life();
    let tally = attack.tally();
    // It got through, and did not only bounce off.
    assert!(tally.scanned > 1000 && tally.executed > 1000, "{tally:?}");
    assert!(tally.refused > 10 && tally.deeds.done > 10, "{tally:?}");
    assert!(tally.sprung > 0 && tally.neighbour > 1, "{tally:?}");
    assert_eq!(panics::seen(), 0);
}

#[test]
fn nothing_of_anybody_else_is_reached() {
    rounds(&BDW, 0xa77ac, 300, 8 << 10);
}

#[test]
fn nothing_of_anybody_else_is_reached_on_kaby_lake() {
    rounds(&KBL, 0xa77ad, 300, 8 << 10);
}

#[test]
fn short_lives_leave_nothing() {
    rounds(&BDW, 0x11fe, 500, 300);
}
