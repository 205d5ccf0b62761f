//! From counts at two moments to rates between them.

use serde::Serialize;
use vgpu_config::Share;
use vgpu_control::{EngineSample, LaneSample, State, VgpuSample};
use vgpu_sched::histogram::percentile;

use super::snapshot::Snapshot;
use crate::ratio::as_f64;

/// What happened between two snapshots.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Seconds between them.
    pub seconds: f64,
    /// Engines.
    pub engines: Vec<EngineRates>,
    /// vGPUs by domain.
    pub vgpus: Vec<VgpuRates>,
}

/// An engine's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineRates {
    /// Its name.
    pub name: String,
    /// Percent of the time it had something to run.
    pub busy_percent: f64,
    /// Switches between vGPUs by register accesses, a second.
    pub switches_per_second: f64,
    /// Switches between vGPUs by commands, a second.
    pub handovers_per_second: f64,
    /// Percent of the time in switches.
    pub switch_percent: f64,
    /// vGPUs that wait now.
    pub waiting: u64,
    /// The vGPU that runs now.
    pub running: Option<u64>,
    /// The vGPU whose registers it holds now.
    pub owner: Option<u64>,
    /// Resets since vgpud started.
    pub resets: u64,
    /// Why it is out of use.
    pub dead: Option<String>,
}

/// A vGPU's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VgpuRates {
    /// The guest.
    pub domid: u16,
    /// Its name.
    pub name: Option<String>,
    /// How it is.
    pub state: State,
    /// What it gets.
    pub share: Share,
    /// Percent of each engine's time it had, in the engines' order.
    pub busy_percent: Vec<f64>,
    /// Their sum.
    pub total_percent: f64,
    /// Half of its requests waited this long at most, in microseconds; none
    /// when no request got to an engine.
    pub wait_us_p50: Option<f64>,
    /// 99 of 100 requests.
    pub wait_us_p99: Option<f64>,
    /// Requests that ended well, a second.
    pub requests_per_second: f64,
    /// Switches to it in either way, a second.
    pub switches_per_second: f64,
    /// Register accesses that its switches did without, in percent of those
    /// that saving, restoring and reading back everything takes; none
    /// without a switch.
    pub accesses_saved_percent: Option<f64>,
    /// Bytes copied from and to the guest, a second.
    pub copied_bytes_per_second: f64,
    /// Requests that ran on past the slice while others waited.
    pub overruns: u64,
    /// Times it waited for its cap's sake.
    pub throttled: u64,
    /// Requests that failed.
    pub failed: u64,
}

impl Rates {
    /// Between `before` and `now`; `None` when they cannot be compared: they
    /// are of different vgpuds or no time has passed.
    pub fn between(before: &Snapshot, now: &Snapshot) -> Option<Self> {
        let ns = now.at_ns.checked_sub(before.at_ns).filter(|ns| *ns > 0)?;
        if before.vgpud != now.vgpud {
            return None;
        }
        let span = Span(as_f64(ns) / 1e9);
        let nothing = EngineSample::default();
        let engines = now.engines.iter().enumerate().map(|(i, e)| {
            let before = before.engines.get(i).unwrap_or(&nothing);
            engine(span, before, e)
        });
        let vgpus = now.vgpus.iter().map(|v| {
            let same = |b: &&VgpuSample| b.domid == v.domid && continues(b, v);
            // A vGPU that came meanwhile began with zeros.
            let lanes = before.vgpus.iter().find(same);
            let since = lanes.map_or(before.at_ns, |b| b.at_ns);
            let span = Span(as_f64(v.at_ns.saturating_sub(since)) / 1e9);
            let lanes = lanes.map_or(&[][..], |b| &b.lanes);
            vgpu(span, lanes, v, now.engines.len())
        });
        Some(Self {
            seconds: round(span.0),
            engines: engines.collect(),
            vgpus: vgpus.collect(),
        })
    }
}

/// Whether `now` goes on where `before` was, not another vGPU of the same
/// domain.
fn continues(before: &VgpuSample, now: &VgpuSample) -> bool {
    before.lanes.iter().all(|b| {
        let lane = now.lanes.iter().find(|n| n.engine == b.engine);
        lane.is_some_and(|n| n.completed >= b.completed && n.bytes_copied >= b.bytes_copied)
    })
}

/// Three places are more than a rate means.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Seconds.
#[derive(Clone, Copy)]
struct Span(f64);

impl Span {
    fn per_second(self, before: u64, now: u64) -> f64 {
        if self.0 > 0.0 {
            round(as_f64(now.saturating_sub(before)) / self.0)
        } else {
            0.0
        }
    }

    /// Of nanoseconds. Two clocks are read apart, so a hair above 100 is 100.
    fn percent(self, before: u64, now: u64) -> f64 {
        round((self.per_second(before, now) / 1e7).min(100.0))
    }
}

fn engine(span: Span, before: &EngineSample, now: &EngineSample) -> EngineRates {
    EngineRates {
        name: now.name.clone(),
        busy_percent: span.percent(before.busy_ns, now.busy_ns),
        switches_per_second: span.per_second(before.switches, now.switches),
        handovers_per_second: span.per_second(before.handovers, now.handovers),
        switch_percent: span.percent(before.switch_ns, now.switch_ns),
        waiting: now.waiting,
        running: now.running,
        owner: now.owner,
        resets: now.resets,
        dead: now.dead.clone(),
    }
}

fn vgpu(span: Span, before: &[LaneSample], now: &VgpuSample, engines: usize) -> VgpuRates {
    let nothing = LaneSample::default();
    let lanes: Vec<(&LaneSample, &LaneSample)> = now
        .lanes
        .iter()
        .map(|n| {
            let b = before.iter().find(|b| b.engine == n.engine);
            (b.unwrap_or(&nothing), n)
        })
        .collect();
    let more = |count: fn(&LaneSample) -> u64| -> u64 {
        let each = lanes.iter().map(|(b, n)| count(n).saturating_sub(count(b)));
        each.fold(0, u64::saturating_add)
    };
    let mut busy_percent = vec![0.0; engines];
    for (b, n) in &lanes {
        if let Some(busy) = busy_percent.get_mut(usize::from(n.engine)) {
            *busy = span.percent(b.busy_ns, n.busy_ns);
        }
    }
    let waits = waits(&lanes);
    let wait_us = |percent| percentile(&waits, percent).map(|ns| as_f64(ns) / 1e3);
    let saved = more(|l| l.switch_accesses_saved);
    let needed = saved.saturating_add(more(|l| l.switch_accesses));
    VgpuRates {
        domid: now.domid,
        name: now.name.clone(),
        state: now.state,
        share: now.share,
        total_percent: round(busy_percent.iter().sum()),
        busy_percent,
        wait_us_p50: wait_us(50),
        wait_us_p99: wait_us(99),
        requests_per_second: span.per_second(0, more(|l| l.completed)),
        switches_per_second: span.per_second(
            0,
            more(|l| l.switches).saturating_add(more(|l| l.handovers)),
        ),
        accesses_saved_percent: (needed > 0).then(|| round(as_f64(saved) * 100.0 / as_f64(needed))),
        copied_bytes_per_second: span.per_second(0, more(|l| l.bytes_copied)),
        overruns: more(|l| l.overruns),
        throttled: more(|l| l.throttled),
        failed: more(|l| l.failed),
    }
}

/// Waits of all lanes between two samples, by bucket.
fn waits(lanes: &[(&LaneSample, &LaneSample)]) -> Vec<(u64, u64)> {
    let mut sum = std::collections::BTreeMap::<u64, u64>::new();
    for (before, now) in lanes {
        let before: std::collections::BTreeMap<u64, u64> = before.waits.iter().copied().collect();
        for (longest, count) in &now.waits {
            let new = count.saturating_sub(before.get(longest).copied().unwrap_or(0));
            if new > 0 {
                let all = sum.entry(*longest).or_default();
                *all = all.saturating_add(new);
            }
        }
    }
    sum.into_iter().collect()
}
