//! What plans cost, and what they cost who knows the future.

use super::*;

fn n(pages: u64) -> f64 {
    f64::from(pages.count_ones())
}

/// The expected cost of a history under the plans that `plan` makes. It is
/// told of each round before it plans the next.
pub fn cost(history: &History, costs: &Costs, mut plan: impl FnMut(Option<Seen>) -> Plan) -> f64 {
    let (mut waiting, mut dirty, mut before) = (0_u64, 0_u64, 0_u64);
    let mut seen = None;
    let mut sum = 0.0;
    for &(touched, changed) in &history.rounds {
        let plan = plan(seen);
        let looked_at = if plan.background { waiting } else { 0 };
        let found = looked_at & dirty;
        sum += costs.background * (n(looked_at) * costs.verify_ns + n(found) * costs.send_ns);
        seen = Some(Seen {
            waiting: waiting.count_ones(),
            touched: (waiting & touched).count_ones(),
            verified: looked_at.count_ones(),
            changed: found.count_ones(),
            sampled: found.count_ones(),
            before: if plan.background {
                before.count_ones()
            } else {
                0
            },
            again: (before & found).count_ones(),
        });
        before = found;
        waiting &= !looked_at;
        dirty &= !looked_at;
        waiting |= touched;
        dirty |= changed;
        sum += costs.stop_chance
            * match plan.at_stop {
                AtStop::Send => n(waiting) * costs.send_ns,
                AtStop::Verify => n(waiting) * costs.verify_ns + n(dirty) * costs.send_ns,
            };
    }
    sum
}

/// The least that any plans could have cost: for each round in which the last
/// background work could have been, the least up to it.
pub fn best(history: &History, costs: &Costs) -> f64 {
    let rounds = &history.rounds;
    // With `last`, pages wait that were touched from round `last` on.
    let since = |last: usize, now: usize| {
        let touched = &rounds[last..now];
        touched.iter().fold((0, 0), |(w, d), (t, c)| (w | t, d | c))
    };
    let mut least = vec![f64::MAX; rounds.len() + 1];
    least[0] = 0.0;
    for now in 0..rounds.len() {
        // To do it now, from the best of all there is.
        let work = (0..=now)
            .filter(|&last| least[last] < f64::MAX)
            .map(|last| {
                let (waiting, dirty) = since(last, now);
                least[last]
                    + costs.background * (n(waiting) * costs.verify_ns + n(dirty) * costs.send_ns)
            });
        let done = work.fold(f64::MAX, f64::min);
        least[now] = least[now].min(done);
        for (last, least) in least.iter_mut().enumerate().take(now + 1) {
            let (waiting, dirty) = since(last, now + 1);
            let send = n(waiting) * costs.send_ns;
            let verify = n(waiting) * costs.verify_ns + n(dirty) * costs.send_ns;
            if *least < f64::MAX {
                *least += costs.stop_chance * send.min(verify);
            }
        }
    }
    least.into_iter().fold(f64::MAX, f64::min)
}
