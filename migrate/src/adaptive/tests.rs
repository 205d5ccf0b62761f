use proptest::prelude::*;

use super::*;

mod history;
mod oracle;

use history::{History, Kind};

/// The costs at so many gigabits a second.
fn at(gbit: f64) -> Costs {
    Costs {
        send_ns: 4096.0 * 8.0 / gbit,
        ..Costs::default()
    }
}

fn speeds() -> impl Strategy<Value = Costs> {
    prop_oneof![Just(1.0), Just(10.0), Just(25.0), Just(100.0)].prop_map(at)
}

/// What the decisions cost over a history, and how often they changed.
fn adaptive(history: &History, costs: &Costs) -> (f64, usize) {
    let mut region = Region::default();
    let mut plan = Regions::first(costs);
    let mut changes = 0;
    let cost = oracle::cost(history, costs, |seen| {
        if let Some(seen) = seen {
            let next = region.round(&seen, costs);
            changes += usize::from(next.at_stop != plan.at_stop);
            plan = next;
        }
        plan
    });
    (cost, changes)
}

fn fixed(history: &History, costs: &Costs, background: bool, at_stop: AtStop) -> f64 {
    let plan = Plan {
        background,
        at_stop,
        sampled: false,
    };
    oracle::cost(history, costs, |_| plan)
}

const FIXED: [(bool, AtStop); 4] = [
    (false, AtStop::Send),
    (false, AtStop::Verify),
    (true, AtStop::Send),
    (true, AtStop::Verify),
];

/// What a few rounds of the worst plan cost: what learning may cost.
fn lesson(costs: &Costs, rounds: f64) -> f64 {
    let page = costs.send_ns + costs.verify_ns;
    rounds * f64::from(history::PAGES) * page * (costs.stop_chance + costs.background)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Hardly more than who knows the future pays, and a lesson for each time
    /// that the guest takes up something else.
    #[test]
    fn little_is_lost_to_one_who_knows_the_future(
        kinds in proptest::collection::vec(history::kind(), 1..4),
        seed: u64,
        costs in speeds(),
    ) {
        let history = History::new(&kinds, seed);
        let (cost, changes) = adaptive(&history, &costs);
        let best = oracle::best(&history, &costs);
        prop_assert!(best <= cost * 1.000_001, "{best} {cost}");
        // Bursts are something else each time they come: twice in their rounds.
        let bursts = kinds.iter().filter(|kind| **kind == Kind::Burst).count();
        let phases = f64::from(u32::try_from(kinds.len() + bursts).unwrap());
        let most = best * 1.25 + lesson(&costs, 6.0 * phases);
        prop_assert!(cost <= most, "{kinds:?}: {cost:.0}, at best {best:.0}");
        prop_assert!(changes <= 8 * kinds.len(), "{kinds:?}: {changes} changes");
    }

    /// Nor to the plan that is best for all of a history, once chosen.
    #[test]
    fn little_is_lost_to_the_best_fixed_plan(
        kind in history::kind(),
        seed: u64,
        costs in speeds(),
    ) {
        let history = History::new(&[kind], seed);
        let (cost, _) = adaptive(&history, &costs);
        let fixed = FIXED.map(|(background, at_stop)| fixed(&history, &costs, background, at_stop));
        let best = fixed.into_iter().fold(f64::MAX, f64::min);
        let most = best * 1.1 + lesson(&costs, 6.0);
        prop_assert!(cost <= most, "{kind:?}: {cost:.0}, fixed {best:.0}");
    }

    /// Whatever is seen, a plan comes of it.
    #[test]
    fn nonsense_does_no_harm(
        seen in proptest::collection::vec(any::<[u32; 7]>(), 0..50),
        costs in speeds(),
    ) {
        let mut region = Region::default();
        for [waiting, touched, verified, changed, sampled, before, again] in seen {
            let seen = Seen { waiting, touched, verified, changed, sampled, before, again };
            region.round(&seen, &costs);
            for estimate in [region.touched, region.changed, region.sampled, region.again] {
                prop_assert!((0.0..=1.0).contains(&estimate.value()));
            }
        }
    }
}

/// A desktop is many kinds of memory at once; no single plan is good for all.
#[test]
fn no_fixed_plan_is_as_good_for_a_whole_guest() {
    for gbit in [1.0, 10.0, 25.0] {
        let costs = at(gbit);
        let histories: Vec<_> = (0..80)
            .map(|n: u64| {
                let kind = Kind::ALL[usize::try_from(n).unwrap() % Kind::ALL.len()];
                History::new(&[kind], n)
            })
            .collect();
        let ours: f64 = histories.iter().map(|h| adaptive(h, &costs).0).sum();
        for (background, at_stop) in FIXED {
            let theirs: f64 = (histories.iter())
                .map(|history| fixed(history, &costs, background, at_stop))
                .sum();
            assert!(
                ours < theirs,
                "{gbit} Gb/s, {background}, {at_stop:?}: {ours:.0}, {theirs:.0}"
            );
        }
    }
}

#[test]
fn plans_are_what_one_would_say() {
    let settled = |kind, gbit| {
        let history = History::new(&[kind], 1);
        let mut region = Region::default();
        let costs = at(gbit);
        let mut plan = Regions::first(&costs);
        oracle::cost(&history, &costs, |seen| {
            if let Some(seen) = seen {
                plan = region.round(&seen, &costs);
            }
            plan
        });
        plan
    };
    // All of it changes all the time: nothing is to be found out.
    let video = settled(Kind::Video, 10.0);
    assert_eq!((video.background, video.at_stop), (false, AtStop::Send));
    assert!(video.sampled);
    // Written often, changed seldom.
    let textures = settled(Kind::Streaming, 10.0);
    assert_eq!(textures.at_stop, AtStop::Verify);
    assert!(!textures.sampled);
    // Written by all means, and then left alone.
    let costs = Costs::default();
    let mut region = Region::default();
    let busy = Seen {
        waiting: 512,
        touched: 512,
        verified: 512,
        changed: 512,
        sampled: 512,
        before: 512,
        again: 512,
    };
    let plans: Vec<_> = (0..6).map(|_| region.round(&busy, &costs)).collect();
    assert!(!plans[5].background);
    let left = Seen {
        waiting: 512,
        ..Seen::default()
    };
    let plans: Vec<_> = (0..6).map(|_| region.round(&left, &costs)).collect();
    assert!(plans.iter().any(|plan| plan.background));
}

/// Verified twice in a while, whatever is seen.
#[test]
fn no_region_is_given_up() {
    let costs = Costs::default();
    let mut region = Region::default();
    let busy = Seen {
        waiting: 512,
        touched: 512,
        ..Seen::default()
    };
    let verified = Seen {
        verified: 512,
        changed: 512,
        before: 512,
        again: 512,
        ..busy
    };
    let mut plan = Regions::first(&costs);
    let mut looks = Vec::new();
    for round in 0..60 {
        if plan.background {
            looks.push(round);
        }
        let seen = if plan.background { verified } else { busy };
        plan = region.round(&seen, &costs);
    }
    let late = looks.iter().filter(|&&round| round >= 12).count();
    assert_eq!(late, 8, "{looks:?}");
}

#[test]
fn sampling_is_for_pages_that_mostly_changed() {
    let costs = Costs::default();
    assert!(sampling_pays(0.9, 0.9, &costs));
    assert!(!sampling_pays(0.3, 1.0, &costs));
    assert!(!sampling_pays(1.0, 0.3, &costs));
}

#[test]
fn costs_follow_what_is_measured() {
    let mut costs = Costs::default();
    for _ in 0..20 {
        costs.sent(1000, std::time::Duration::from_millis(33));
        costs.verified(1000, std::time::Duration::ZERO);
        costs.verified(0, std::time::Duration::from_secs(1));
    }
    assert!(
        (costs.send_ns - 33_000.0).abs() < 200.0,
        "{}",
        costs.send_ns
    );
    assert!((1.0..2.0).contains(&costs.verify_ns), "{}", costs.verify_ns);
}

#[test]
fn regions_are_apart() {
    assert_eq!(Regions::of(Gfn(511)), 0);
    assert_eq!(Regions::of(Gfn(512)), 1);
    let costs = Costs::default();
    let mut regions = Regions::default();
    let all = Seen {
        waiting: 512,
        touched: 512,
        verified: 512,
        changed: 512,
        sampled: 512,
        before: 512,
        again: 512,
    };
    for _ in 0..8 {
        regions.round(0, &all, &costs);
        regions.round(
            1,
            &Seen {
                touched: 0,
                changed: 0,
                ..all
            },
            &costs,
        );
    }
    assert_eq!(regions.round(0, &all, &costs).at_stop, AtStop::Send);
    assert_eq!(
        regions.round(1, &Seen::default(), &costs).at_stop,
        AtStop::Verify
    );
}
