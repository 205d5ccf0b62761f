//! Shares by weight, whatever batches cost.

use proptest::prelude::*;

use super::*;

fn part(simulation: &Simulation, vgpu: u64) -> f64 {
    simulation.total(vgpu).as_secs_f64() / simulation.now.as_secs_f64()
}

#[test]
fn short_and_long_batches_get_the_same() {
    for slots in [1, 2] {
        let mut s = Simulation::new(slots);
        let long = s.guest(weight(100), Load::steady(ms(1)));
        let short = s.guest(weight(100), Load::steady(us(50)));
        s.run(ms(1000));
        assert!((part(&s, long) - 0.5).abs() < 0.003, "{}", part(&s, long));
        assert!((part(&s, short) - 0.5).abs() < 0.003);
    }
}

#[test]
fn one_to_three() {
    let mut s = Simulation::new(2);
    let light = s.guest(weight(100), Load::steady(us(300)));
    let heavy = s.guest(weight(300), Load::steady(us(200)));
    s.run(ms(1000));
    assert!((part(&s, light) - 0.25).abs() < 0.003);
    assert!((part(&s, heavy) - 0.75).abs() < 0.003);
}

#[test]
fn a_batch_of_a_second_is_paid_for() {
    for slots in [1, 2] {
        let mut s = Simulation::new(slots);
        let load = Load {
            batches: vec![ms(1000), us(50)],
            ..Load::steady(ms(1))
        };
        let long = s.guest(weight(100), load);
        let short = s.guest(weight(100), Load::steady(us(50)));
        // In the second after the long batch the other has the engine.
        s.run(ms(5000));
        let first = s.ran.iter().find(|r| r.length() == ms(1000)).unwrap();
        let (from, to) = (first.end, first.end + ms(990));
        assert!(s.service(short, from, to) > ms(988));
        s.run(ms(60_000));
        assert!((part(&s, long) - 0.5).abs() < 0.02, "{}", part(&s, long));
    }
}

#[test]
fn a_debt_outlasts_the_pauses_of_those_it_is_owed_to() {
    // The other hears of its batch before it submits the next, and the
    // engine is not kept idle for it meanwhile.
    let mut s = Simulation::new(1);
    let load = Load {
        batches: [vec![ms(100)], vec![us(50); 1000]].concat(),
        ..Load::steady(us(50))
    };
    let long = s.guest(weight(100), load);
    let short = s.guest(weight(100), Load::steady(us(50)).sleeping(1, us(1)));
    s.run(ms(2));
    s.run(ms(200));
    let (after, end) = (ms(101), ms(190));
    // Its pauses go to the debtor, one short batch each.
    let (a, b) = (s.service(long, after, end), s.service(short, after, end));
    assert!(b >= a, "{a:?} {b:?}");
    assert!(s.service(short, after, ms(200)) >= ms(49));
}

#[test]
fn weights_change_from_now_on() {
    let mut s = Simulation::new(2);
    let a = s.guest(weight(100), Load::steady(us(100)));
    let b = s.guest(weight(100), Load::steady(us(100)));
    s.run(ms(500));
    s.policy.set_share(b, weight(400), s.now);
    s.run(ms(1000));
    assert!(s.service(a, ms(0), ms(500)).abs_diff(ms(250)) < ms(3));
    assert!(s.service(a, ms(500), ms(1000)).abs_diff(ms(100)) < ms(3));
}

fn guests() -> impl Strategy<Value = Vec<(u16, u32, Vec<u64>)>> {
    let batches = prop::collection::vec(prop_oneof![20..200_u64, 200..5000_u64], 1..6);
    prop::collection::vec((1..1000_u16, 100..4000_u32, batches), 2..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The lag between any two that always have work is bounded by the
    /// longest batch and the slice, at every moment.
    #[test]
    fn nobody_falls_behind(guests in guests(), slots in 1..3_usize) {
        let mut s = Simulation::new(slots);
        let mut bounds = Vec::new();
        for (w, slice_us, batches) in &guests {
            let share = Share { weight: *w, slice_us: *slice_us, ..Share::default() };
            let batches: Vec<Duration> = batches.iter().copied().map(us).collect();
            let load = Load { batches, ..Load::steady(us(1)) };
            let by_weight = |d: Duration| d.as_secs_f64() / f64::from(*w);
            let slots = u32::try_from(slots).unwrap();
            bounds.push((
                // What goes on without knowing that it is long: one batch
                // for each slot.
                by_weight(share.slice() + load.longest() * slots),
                // What is thought to be long, behind one that runs.
                by_weight(load.longest() * (slots - 1)),
            ));
            s.guest(share, load);
        }
        s.run(ms(1000));
        let mut had = vec![0.0; guests.len()];
        for ran in s.ran.clone() {
            let i = usize::try_from(ran.vgpu).unwrap();
            had[i] += ran.length().as_secs_f64() / f64::from(guests[i].0);
            for (j, has) in had.iter().enumerate() {
                let (lead, bound) = (had[i] - has, bounds[i].0 + bounds[j].1);
                prop_assert!(
                    lead <= bound * 1.0001,
                    "{i} leads {j} by {lead}, allowed {bound}"
                );
            }
        }
    }
}
