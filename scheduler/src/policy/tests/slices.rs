//! How long one keeps the engine.

use super::*;
use crate::policy::simulation::Ran;

/// The lengths of runs of consecutive batches of one guest.
fn runs(ran: &[Ran]) -> Vec<(u64, Duration)> {
    let mut runs: Vec<(u64, Duration)> = Vec::new();
    for r in ran {
        match runs.last_mut() {
            Some((vgpu, sum)) if *vgpu == r.vgpu => *sum += r.length(),
            _ => runs.push((r.vgpu, r.length())),
        }
    }
    runs
}

#[test]
fn a_turn_is_a_slice() {
    for (slots, slice_us) in [(1, 1000), (2, 1000), (1, 250), (2, 4000)] {
        let mut s = Simulation::new(slots);
        for _ in 0..3 {
            let share = Share {
                slice_us,
                ..Share::default()
            };
            s.guest(share, Load::steady(us(50)));
        }
        s.run(ms(200));
        let runs = runs(&s.ran);
        // Until batches are known to be short, turns are short; the last is
        // cut by the end.
        let whole = &runs[6..runs.len() - 1];
        assert!(whole.len() > 10);
        for (_, length) in whole {
            assert_eq!(*length, us(slice_us.into()), "{slots} {slice_us}");
        }
    }
}

#[test]
fn who_is_alone_has_no_slices() {
    let mut s = Simulation::new(1);
    s.guest(weight(100), Load::steady(us(50)));
    let late = s.guest(weight(100), Load::steady(us(50)).from(ms(10)));
    s.run(ms(20));
    assert_eq!(runs(&s.ran)[0].1, ms(10));
    assert!(s.total(late) >= ms(5));
}

#[test]
fn a_turn_goes_past_its_slice_only_while_the_others_are_ahead() {
    let mut s = Simulation::new(1);
    let light = s.guest(weight(10), Load::steady(us(50)));
    let heavy = s.guest(weight(100), Load::steady(us(50)));
    s.run(ms(300));
    let mut had = [0.0, 0.0];
    for (vgpu, length) in runs(&s.ran) {
        let (i, w) = if vgpu == light { (0, 10.0) } else { (1, 100.0) };
        let before = had[i];
        had[i] += length.as_secs_f64() / w;
        let other = had[1 - i];
        assert!(length <= ms(1) || before + 0.001 / w <= other + 0.001 / w);
        // The light one's many batches do not put the heavy one off.
        assert!(vgpu != light || length <= us(150), "{length:?}");
    }
    assert!(s.total(heavy) > s.total(light) * 9);
}

#[test]
fn who_woke_does_not_wait_for_a_turn_to_end() {
    let long = Share {
        slice_us: 16_000,
        ..Share::default()
    };
    let mut s = Simulation::new(1);
    s.guest(long, Load::steady(us(100)));
    s.guest(long, Load::steady(us(100)));
    let woken = s.guest(long, Load::steady(us(50)).sleeping(1, us(3333)));
    s.run(ms(500));
    let waits: Vec<Duration> = s
        .ran
        .iter()
        // Nobody woke at the start.
        .filter(|r| r.vgpu == woken && r.ready > ms(0))
        .map(|r| r.start - r.ready)
        .collect();
    assert!(waits.len() > 100);
    assert!(waits.iter().all(|w| *w <= us(100)), "{waits:?}");
}
