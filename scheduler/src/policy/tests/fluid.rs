//! Against the ideal: an engine that everyone uses at once, each at the rate
//! of its weight.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Arrival {
    at: Duration,
    length: Duration,
}

struct Job {
    weight: f64,
    arrivals: Vec<Arrival>,
}

/// What each has had of the ideal engine at each of `moments`, in seconds.
fn ideal(jobs: &[Job], moments: &[Duration]) -> Vec<Vec<f64>> {
    let mut changes: Vec<Duration> = jobs
        .iter()
        .flat_map(|j| j.arrivals.iter().map(|a| a.at))
        .chain(moments.iter().copied())
        .collect();
    changes.sort();
    let mut had = vec![0.0; jobs.len()];
    let mut out = Vec::new();
    let mut now = 0.0;
    let mut changes = changes.into_iter().peekable();
    while let Some(change) = changes.next() {
        let until = change.as_secs_f64();
        while until - now > 1e-12 {
            let arrived = |j: &Job| -> f64 {
                j.arrivals
                    .iter()
                    .filter(|a| a.at.as_secs_f64() <= now + 1e-12)
                    .map(|a| a.length.as_secs_f64())
                    .sum()
            };
            let left: Vec<f64> = jobs
                .iter()
                .zip(&had)
                .map(|(j, h)| (arrived(j) - h).max(0.0))
                .collect();
            let busy = |i: usize| left[i] > 1e-12;
            let weight: f64 = (0..jobs.len())
                .filter(|&i| busy(i))
                .map(|i| jobs[i].weight)
                .sum();
            // Until the next change, or until one has no work left.
            let step = (0..jobs.len())
                .filter(|&i| busy(i))
                .map(|i| left[i] * weight / jobs[i].weight)
                .fold(until - now, f64::min);
            for i in 0..jobs.len() {
                if busy(i) {
                    had[i] += step * jobs[i].weight / weight;
                }
            }
            now += step;
        }
        if moments.contains(&change) && changes.peek() != Some(&change) {
            out.push(had.clone());
        }
    }
    out
}

/// The policy with the same arrivals: who ran when.
fn real(jobs: &[Job]) -> Vec<(usize, Duration, Duration)> {
    let mut policy = Policy::new();
    let mut events: Vec<(Duration, usize)> = Vec::new();
    for (i, job) in jobs.iter().enumerate() {
        let share = weight(num(job.weight));
        policy.set_share(i.try_into().unwrap(), share, ms(0));
        events.extend(job.arrivals.iter().map(|a| (a.at, i)));
    }
    events.sort();
    let mut events = events.into_iter().peekable();
    let mut waiting = vec![0_usize; jobs.len()];
    let mut next = vec![0_usize; jobs.len()];
    let mut now = ms(0);
    let mut ran = Vec::new();
    loop {
        while let Some((_, i)) = events.next_if(|(at, _)| *at <= now) {
            waiting[i] += 1;
            policy.ready(i.try_into().unwrap(), now);
        }
        let Some(vgpu) = policy.take(now) else {
            let Some(&(at, _)) = events.peek() else {
                return ran;
            };
            now = at;
            continue;
        };
        let i = usize::try_from(vgpu).unwrap();
        let length = jobs[i].arrivals[next[i]].length;
        next[i] += 1;
        waiting[i] -= 1;
        let end = now + length;
        if waiting[i] > 0 {
            policy.ready(vgpu, now);
        }
        // Arrivals while it runs.
        while let Some((at, j)) = events.next_if(|(at, _)| *at < end) {
            waiting[j] += 1;
            policy.ready(j.try_into().unwrap(), at);
        }
        ran.push((i, now, end));
        policy.charge(vgpu, length, end);
        now = end;
    }
}

fn num(weight: f64) -> u16 {
    (1..1000).find(|w| f64::from(*w) >= weight).unwrap()
}

fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let arrivals = prop::collection::vec((0..3000_u64, 20..2000_u64), 1..40);
    prop::collection::vec((1..500_u16, arrivals), 1..6).prop_map(|jobs| {
        jobs.into_iter()
            .map(|(weight, arrivals)| {
                let mut at = ms(0);
                let arrivals = arrivals
                    .into_iter()
                    .map(|(gap, length)| {
                        at += us(gap);
                        Arrival {
                            at,
                            length: us(length),
                        }
                    })
                    .collect();
                Job {
                    weight: weight.into(),
                    arrivals,
                }
            })
            .collect()
    })
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?}", self.weight, self.arrivals)
    }
}

#[test]
fn the_ideal_engine_is_shared_by_weight() {
    let job = |weight, at, length| Job {
        weight,
        arrivals: vec![Arrival {
            at: ms(at),
            length: ms(length),
        }],
    };
    let jobs = [job(100.0, 0, 10), job(300.0, 4, 12)];
    let had = ideal(&jobs, &[ms(4), ms(8), ms(20), ms(30)]);
    let near = |a: &[f64], b: [f64; 2]| a.iter().zip(b).all(|(a, b)| (a * 1e3 - b).abs() < 1e-6);
    assert!(near(&had[0], [4.0, 0.0]));
    assert!(near(&had[1], [5.0, 3.0]));
    assert!(near(&had[2], [8.0, 12.0]));
    assert!(near(&had[3], [10.0, 12.0]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whenever a batch ends, nobody is further behind the ideal than one
    /// turn of each of the others takes.
    #[test]
    fn nobody_is_far_behind_the_ideal(jobs in jobs()) {
        let ran = real(&jobs);
        let moments: Vec<Duration> = ran.iter().map(|r| r.2).collect();
        let should = ideal(&jobs, &moments);
        let turns: f64 = jobs
            .iter()
            .map(|j| j.arrivals.iter().map(|a| a.length).max().unwrap().as_secs_f64() + 0.001)
            .sum();
        let mut has = vec![0.0; jobs.len()];
        for ((i, start, end), should) in ran.into_iter().zip(should) {
            has[i] += (end - start).as_secs_f64();
            for (j, (has, should)) in has.iter().zip(&should).enumerate() {
                prop_assert!(should - has <= turns, "{j} is {} behind, allowed {turns}", should - has);
            }
        }
    }
}
