//! Sleeping and waking.

use proptest::prelude::*;

use super::*;

#[test]
fn who_woke_is_next() {
    for slots in [1, 2] {
        let mut s = Simulation::new(slots);
        for _ in 0..20 {
            s.guest(weight(100), Load::steady(us(200)));
        }
        let interactive = s.guest(
            weight(100),
            Load::steady(us(20)).sleeping(1, us(15_901)).from(ms(5)),
        );
        s.run(ms(1000));
        let waits: Vec<Duration> = s
            .ran
            .iter()
            // Those there at the start have had their first turn by then.
            .filter(|r| r.vgpu == interactive && r.ready > ms(50))
            .map(|r| r.start - r.ready)
            .collect();
        assert!(waits.len() > 50);
        // What is loaded already, and no more.
        let loaded = us(200) * u32::try_from(slots).unwrap();
        assert!(waits.iter().all(|w| *w <= loaded), "{waits:?}");
    }
}

#[test]
fn sleep_saves_up_no_more_than_a_slice() {
    for sleep in [ms(10), ms(1000), ms(100_000)] {
        let mut s = Simulation::new(1);
        let stays = s.guest(weight(100), Load::steady(us(100)));
        let wakes = s.guest(weight(100), Load::steady(us(100)).from(sleep));
        s.run(sleep + ms(2));
        let (a, b) = (
            s.service(stays, sleep, s.now),
            s.service(wakes, sleep, s.now),
        );
        assert!(b <= a + ms(1) + us(200), "{sleep:?}: {a:?} {b:?}");
        s.run(sleep + ms(100));
        let b = s.service(wakes, sleep, s.now);
        assert!(b <= ms(50) + us(700) && b >= ms(50) - us(200), "{b:?}");
    }
}

/// How long `other` has the engine for itself after a debtor, 300 ms ahead of
/// it, was alone for so long.
fn ahead_after(alone: Duration) -> Duration {
    let mut policy = Policy::new();
    policy.ready(1, ms(0));
    assert_eq!(policy.take(ms(0)), Some(1));
    policy.ready(2, ms(0));
    let mut now = ms(300);
    policy.charge(1, ms(300), now);
    policy.withdraw(2);
    let back = now + alone;
    while now < back {
        policy.ready(1, now);
        assert_eq!(policy.take(now), Some(1));
        now += us(100);
        policy.charge(1, us(100), now);
    }
    policy.ready(1, now);
    policy.ready(2, now);
    let since = now;
    while policy.take(now) == Some(2) {
        policy.ready(2, now);
        now += us(100);
        policy.charge(2, us(100), now);
    }
    now - since
}

#[test]
fn a_debt_expires_while_nobody_minds() {
    let near = |a: Duration, b: Duration| a.abs_diff(b) <= ms(2);
    assert!(near(ahead_after(us(100)), ms(300)));
    assert!(near(ahead_after(ms(100)), ms(200)));
    assert!(near(ahead_after(ms(200)), ms(100)));
    for alone in [ms(300), ms(10_000)] {
        assert!(near(ahead_after(alone), ms(1)));
    }
}

#[test]
fn a_debt_expires_while_the_engine_is_idle() {
    for (idle, first) in [(ms(10), 2), (ms(400), 1)] {
        let mut policy = Policy::new();
        policy.ready(1, ms(0));
        policy.ready(2, ms(0));
        assert_eq!(policy.take(ms(0)), Some(1));
        policy.charge(1, ms(300), ms(300));
        policy.withdraw(2);
        let now = ms(300) + idle;
        policy.ready(1, now);
        policy.ready(2, now);
        assert_eq!(policy.take(now), Some(first), "{idle:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However it sleeps and wakes, nobody gets more than its part of the
    /// time it is up for, and a slice.
    #[test]
    fn nobody_gains_by_sleeping(
        batch in 20..500_u64,
        burst in 1..30_usize,
        sleep in 1..20_000_u64,
        others in 1..6_u64,
        slots in 1..3_usize,
    ) {
        let mut s = Simulation::new(slots);
        for i in 0..others {
            s.guest(weight(100), Load::steady(us(100 + 50 * i)));
        }
        let sleeper = s.guest(weight(100), Load::steady(us(batch)).sleeping(burst, us(sleep)));
        s.run(ms(1000));
        let fair = s.now.as_secs_f64() / f64::from(u32::try_from(others).unwrap() + 1);
        let had = s.total(sleeper).as_secs_f64();
        prop_assert!(had <= fair + 0.003, "{had} of {fair}");
        // The rest is shared evenly.
        let rest: Vec<f64> = (0..others).map(|v| s.total(v).as_secs_f64()).collect();
        let (least, most) = rest.iter().fold((f64::MAX, 0.0_f64), |(l, m), &r| (l.min(r), m.max(r)));
        prop_assert!(most - least < 0.004, "{rest:?}");
        // Who asks for little gets what it asks for: it never waits for more
        // than what is loaded.
        let demand = us(batch) * u32::try_from(burst).unwrap();
        if demand <= us(1000) && us(sleep) > (demand + us(1000)) * u32::try_from(others).unwrap() {
            let loaded = us(100 + 50 * others) * u32::try_from(slots).unwrap();
            for r in s.ran.iter().filter(|r| r.vgpu == sleeper && r.ready > ms(100)) {
                prop_assert!(r.taken - r.ready <= demand + loaded, "{r:?}");
            }
        }
    }
}
