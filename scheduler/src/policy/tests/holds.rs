//! Keeping the engine free.

use proptest::prelude::*;

use super::*;

/// The parts of the engine that one with long batches and one that pauses
/// after each get.
fn parts(slots: usize, long: Duration, short: Duration, pause: Duration) -> (f64, f64) {
    let mut s = Simulation::new(slots);
    let a = s.guest(weight(100), Load::steady(long));
    let b = s.guest(weight(100), Load::steady(short).sleeping(1, pause));
    s.run(ms(4000));
    let part = |v| s.total(v).as_secs_f64() / s.now.as_secs_f64();
    (part(a), part(b))
}

#[test]
fn a_pause_is_no_chance_for_long_work_of_a_debtor() {
    for slots in [1, 2] {
        let (a, b) = parts(slots, ms(20), us(50), us(20));
        // Half of the time each, pauses included.
        assert!((0.48..0.53).contains(&a), "{slots}: {a} {b}");
        assert!((0.32..0.37).contains(&b), "{slots}: {a} {b}");
    }
}

#[test]
fn for_who_is_away_for_long_nothing_is_held() {
    for slots in [1, 2] {
        let (a, b) = parts(slots, ms(20), us(50), ms(5));
        assert!(a + b > 0.999, "{slots}: {a} {b}");
    }
}

/// Guests with two workloads each at most, both long; drivers take a while to
/// hear of an end, and now and then too long. The heavier one's next must still
/// find room behind its own.
#[test]
fn weights_hold_for_drivers_slow_to_answer() {
    for answer in [ms(1), ms(10), ms(30)] {
        let mut s = Simulation::new(2);
        let load = || Load::steady(ms(80)).driven(2, answer).sleeping(8, ms(82));
        let a = s.guest(weight(100), load());
        let b = s.guest(weight(300), load());
        s.run(ms(40_000));
        let ratio = s.total(b).as_secs_f64() / s.total(a).as_secs_f64();
        assert!((2.8..3.2).contains(&ratio), "{answer:?}: {ratio}");
    }
}

#[test]
fn short_work_fills_pauses() {
    for slots in [1, 2] {
        let (a, b) = parts(slots, us(100), us(300), us(60));
        assert!(a + b > 0.999, "{slots}: {a} {b}");
        assert!(b > 0.45, "{slots}: {a} {b}");
    }
}

#[test]
fn who_does_not_come_back_is_not_waited_for() {
    let mut policy = Policy::new();
    let mut now = ms(0);
    // 2 pauses for 100 µs after each; then 1 runs for long.
    for _ in 0..20 {
        policy.ready(2, now);
        assert_eq!(policy.take(now), Some(2));
        now += us(100);
        policy.charge(2, us(100), now);
        now += us(100);
    }
    policy.ready(1, now);
    assert_eq!(policy.take(now), Some(1));
    policy.ready(2, now);
    policy.ready(1, now);
    now += ms(50);
    policy.charge(1, ms(50), now);
    assert_eq!(policy.take(now), Some(2));
    // Behind what runs now goes nobody.
    assert_eq!(policy.take(now), None);
    assert_eq!(policy.wake_at(now), None);
    now += us(100);
    policy.charge(2, us(100), now);
    assert_eq!(policy.take(now), None);
    let until = policy.wake_at(now).unwrap();
    // A part of what the other would take.
    assert_eq!(until, now + us(3125));
    assert_eq!(policy.take(until - us(1)), None);
    assert_eq!(policy.take(until), Some(1));
    assert_eq!(policy.wake_at(until), None);
}

#[test]
fn one_sleep_does_not_undo_it() {
    let mut s = Simulation::new(1);
    s.guest(weight(100), Load::steady(ms(50)));
    let b = s.guest(weight(100), Load::steady(us(50)).sleeping(1, us(50)));
    s.run(ms(500));
    let mut before = s.total(b);
    // Away for a while, as between two frames, again and again.
    for round in 1..10 {
        s.pause(b, ms(20));
        s.run(ms(500 + round * 200));
        let had = s.total(b);
        assert!(had - before > ms(25), "{round}: {:?}", had - before);
        before = had;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whoever pauses briefly gets its part in spite of long batches next to
    /// it, if it uses its time.
    #[test]
    fn pauses_cost_no_more_than_themselves(
        long in 5_000..100_000_u64,
        short in 20..1000_u64,
        pause in 1..400_u64,
        slots in 1..3_usize,
    ) {
        let (a, b) = parts(slots, us(long), us(short), us(pause));
        let (short, pause) = (us(short).as_secs_f64(), us(pause).as_secs_f64());
        let busy = short / (short + pause);
        prop_assert!(b > 0.9 * 0.5 * busy, "{a} {b} {busy}");
        prop_assert!(a > 0.45, "{a} {b} {busy}");
    }
}

#[test]
fn nothing_long_goes_behind_one_that_never_paused_yet() {
    let mut policy = Policy::new();
    policy.ready(2, ms(0));
    assert_eq!(policy.take(ms(0)), Some(2));
    policy.ready(1, ms(0));
    policy.ready(2, ms(0));
    assert_eq!(policy.take(ms(0)), Some(1));
    policy.charge(2, us(50), us(50));
    policy.ready(1, us(50));
    policy.charge(1, ms(50), ms(51));
    // Both slots are its own for some time.
    let mut now = ms(51);
    assert_eq!(policy.take(now), Some(2));
    for _ in 0..500 {
        assert_eq!(policy.take(now), None);
        policy.ready(2, now);
        assert_eq!(policy.take(now), Some(2));
        now += us(50);
        policy.charge(2, us(50), now);
    }
}
