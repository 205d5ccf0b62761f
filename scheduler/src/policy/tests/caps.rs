//! Caps.

use proptest::prelude::*;

use super::*;

fn cap(cap: u8) -> Share {
    Share {
        cap,
        ..Share::default()
    }
}

#[test]
fn a_cap_holds_though_nobody_else_wants_the_engine() {
    let mut s = Simulation::new(2);
    let capped = s.guest(cap(20), Load::steady(us(300)));
    s.run(ms(10_000));
    let had = s.total(capped);
    assert!(had.abs_diff(ms(2000)) < ms(30), "{had:?}");
}

#[test]
fn what_a_cap_leaves_is_others() {
    let mut s = Simulation::new(2);
    let capped = s.guest(cap(10), Load::steady(us(500)));
    let free = s.guest(weight(100), Load::steady(us(500)));
    s.run(ms(5000));
    assert!(s.total(capped).abs_diff(ms(500)) < ms(20));
    assert!(s.total(free) > ms(4470));
}

#[test]
fn an_overrun_is_paid_at_the_rate_of_the_cap() {
    let mut s = Simulation::new(1);
    let load = Load {
        batches: vec![ms(1000), ms(1), ms(1)],
        ..Load::steady(ms(1))
    };
    let capped = s.guest(cap(50), load);
    s.run(ms(1900));
    assert_eq!(s.total(capped), ms(1000));
    s.run(ms(20_000));
    assert!(s.total(capped) <= ms(10_000) + ms(1000));
    assert!(s.total(capped) >= ms(8500), "{:?}", s.total(capped));
}

#[test]
fn when_all_are_over_their_caps_there_is_a_time_to_ask_again() {
    let mut policy = Policy::new();
    policy.set_share(1, cap(10), ms(0));
    policy.ready(1, ms(0));
    assert_eq!(policy.take(ms(0)), Some(1));
    policy.ready(1, ms(0));
    policy.charge(1, ms(15), ms(15));
    assert_eq!(policy.take(ms(15)), None);
    assert_eq!(policy.waiting(), 1);
    // Its debt, and a full bucket for another like it.
    let at = policy.wake_at(ms(15)).unwrap();
    assert!(at > ms(140) && at <= ms(160), "{at:?}");
    assert_eq!(policy.take(at - us(1)), None);
    assert_eq!(policy.take(at), Some(1));
    assert_eq!(policy.wake_at(at), None);
    // Without a cap it may go on at once.
    policy.ready(1, at);
    policy.charge(1, ms(500), at);
    assert_eq!(policy.take(at), None);
    policy.set_share(1, cap(0), at);
    assert_eq!(policy.take(at), Some(1));
}

#[test]
fn a_withdrawn_one_asks_for_no_time() {
    let mut policy = Policy::new();
    policy.set_share(1, cap(1), ms(0));
    policy.ready(1, ms(0));
    assert_eq!(policy.take(ms(0)), Some(1));
    policy.charge(1, ms(100), ms(100));
    policy.ready(1, ms(100));
    assert_eq!(policy.take(ms(100)), None);
    policy.withdraw(1);
    assert_eq!((policy.wake_at(ms(100)), policy.waiting()), (None, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In any window a capped one has its part of the window and one bucket
    /// at most, and what a batch is longer than thought.
    #[test]
    fn a_cap_holds_over_every_window(
        percent in 1..100_u8,
        batches in prop::collection::vec(20..8000_u64, 1..6),
        others in 0..3_u64,
        slots in 1..3_usize,
        burst in 0..50_usize,
    ) {
        let mut s = Simulation::new(slots);
        let batches: Vec<Duration> = batches.into_iter().map(us).collect();
        let load = Load { batches, ..Load::steady(us(1)) };
        let longest = load.longest() * u32::try_from(slots).unwrap();
        let capped = s.guest(cap(percent), load.sleeping(burst, us(700)));
        for i in 0..others {
            s.guest(weight(100), Load::steady(us(100 + 300 * i)));
        }
        s.run(ms(2000));
        let part = |d: Duration| d * percent.into() / 100;
        for from in (0..1700).step_by(37) {
            for length in [100, 300, 1000] {
                let (from, to) = (ms(from), ms((from + length).min(2000)));
                let had = s.service(capped, from, to);
                let allowed = part(to - from) + part(ms(100)) + longest;
                prop_assert!(had <= allowed, "{had:?} of {allowed:?} from {from:?}");
            }
        }
        // And it gets what the cap leaves it, if it has enough to do.
        if others == 0 && burst == 0 {
            prop_assert!(s.total(capped) + longest >= part(ms(2000)));
        }
    }
}
