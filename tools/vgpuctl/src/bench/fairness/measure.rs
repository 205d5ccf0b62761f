//! One vGPU alone and many, in turn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use gen8::Engine;
use serde::Serialize;
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use vgpu_sched::histogram;

use super::crowd::{Crowd, Disturbed, Sample};
use super::load::{BLIT_NS_PER_KIB, COMMAND_NS, Load, Plan};
use super::rogues::{self, Mischief};
use crate::bench::spread::Spread;

/// No need to measure a spinner for longer.
const LONG: Duration = Duration::from_millis(2500);
/// How often a measurement that was disturbed is tried.
const ATTEMPTS: u32 = 4;

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: u32,
    /// All windows by this much.
    pub scale: f64,
    /// Of hosts with a spinner.
    pub run_limit: Duration,
}

impl Effort {
    /// How long so many vGPUs are measured: each is to have some dozens of
    /// slices.
    pub fn window(&self, count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let least = Duration::from_millis(300);
        least
            .max(Duration::from_millis(20) * count)
            .mul_f64(self.scale)
    }

    /// How long they work before that.
    pub fn lead(count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Duration::from_millis(40) + Duration::from_millis(2) * count
    }

    /// What a plan for so many takes.
    pub fn of_plan(&self, count: usize) -> Duration {
        let round = self.window(count) + Self::lead(count) + self.window(1) + Self::lead(1);
        round * self.rounds
    }
}

/// A host on whose engines time is not the CPUs'.
pub fn host(run_limit: Option<Duration>, reads_all: bool) -> anyhow::Result<SimHost> {
    SimHost::start(SimHostConfig {
        run_limit,
        reads_all,
        command_cost_ns: COMMAND_NS,
        blit_cost_ns_per_kib: BLIT_NS_PER_KIB,
        ..SimHostConfig::default()
    })
}

/// What a plan showed.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Work done, by what one vGPU alone does.
    pub throughput_vs_one: Spread,
    /// Work done by one vGPU alone, by the engine's time: what is lost between
    /// its batches is missing.
    pub utilization_one: Spread,
    /// Likewise by all.
    pub utilization: Spread,
    /// Jain's index of time on the engine by weight.
    pub jain: Spread,
    /// From ready to the engine.
    pub wait_us_p50: Spread,
    /// Likewise.
    pub wait_us_p99: Spread,
    /// Results that were not what they should be.
    pub mismatches: u64,
}

/// Measures a plan.
pub fn plan(plan: &Plan, effort: &Effort) -> anyhow::Result<Figures> {
    let figures = plan_of(plan, effort, &SimGuestConfig::default(), &mut |_| ())?;
    ensure!(
        figures.mismatches == 0,
        "{} wrong results",
        figures.mismatches
    );
    Ok(figures)
}

/// Has a look at guests that worked.
type Look<'a> = &'a mut dyn FnMut(&[SimGuest]);

/// Measures a plan with guests of a kind, and has a look at them after the
/// last round.
pub fn plan_of(
    plan: &Plan,
    effort: &Effort,
    kind: &SimGuestConfig,
    look: Look<'_>,
) -> anyhow::Result<Figures> {
    let mischief = plan.spinner.then_some(Mischief::Spins);
    Ok(together(plan, mischief, effort, kind, look)?.0)
}

/// What many do beside a rogue, by what one vGPU alone does, and how many
/// times the rogue did its mischief.
pub fn beside_rogue(
    count: u32,
    mischief: Mischief,
    effort: &Effort,
) -> anyhow::Result<(Spread, u64)> {
    let plan = Plan::equal(count);
    let kind = SimGuestConfig::default();
    let (figures, times) = together(&plan, Some(mischief), effort, &kind, &mut |_| ())?;
    Ok((figures.throughput_vs_one, times))
}

/// One alone and all together, in turn; again if others on this machine
/// disturbed it.
fn together(
    plan: &Plan,
    mischief: Option<Mischief>,
    effort: &Effort,
    kind: &SimGuestConfig,
    look: Look<'_>,
) -> anyhow::Result<(Figures, u64)> {
    let mut attempt = 1;
    let mut effort = *effort;
    loop {
        match undisturbed(plan, mischief, &effort, kind, look) {
            Err(e) if e.is::<Disturbed>() && attempt < ATTEMPTS => {
                attempt += 1;
                effort.run_limit *= 2;
            }
            result => return result,
        }
    }
}

fn undisturbed(
    plan: &Plan,
    mischief: Option<Mischief>,
    effort: &Effort,
    kind: &SimGuestConfig,
    look: Look<'_>,
) -> anyhow::Result<(Figures, u64)> {
    // Only what never ends needs a limit.
    let limit = (mischief == Some(Mischief::Spins)).then_some(effort.run_limit);
    let reads_all = mischief == Some(Mischief::FloodsUnbounded);
    let (alone, crowded) = (host(None, false)?, host(limit, reads_all)?);
    let (mut rounds, mut times) = (Rounds::default(), 0);
    Crowd::with(&alone, std::slice::from_ref(&plan.one), kind, |one| {
        Crowd::with(&crowded, &plan.all, kind, |all| {
            for _ in 0..effort.rounds {
                let alone = one.measure(Effort::lead(1), effort.window(1))?;
                // Nothing to compare with.
                ensure!(utilization(&plan.all, &alone) > 0.0, Disturbed);
                let (together, did) = beside(&crowded, all, mischief, effort, plan.all.len())?;
                times += did;
                rounds.add(&plan.all, &alone, &together);
            }
            look(all.guests());
            Ok(())
        })
    })?;
    Ok((rounds.figures(), times))
}

/// What one of many does while the others are idle, by what one alone does.
pub fn idle_neighbours(idle: u32, effort: &Effort) -> anyhow::Result<Spread> {
    let (alone, crowded) = (host(None, false)?, host(None, false)?);
    let load = [Load::steady()];
    let kind = SimGuestConfig::default();
    let mut ratios = Vec::new();
    // The idle ones have drivers, which wait for work.
    let idle: Vec<Load> = (0..idle).map(|_| Load::steady()).collect();
    Crowd::with(&alone, &load, &kind, |one| {
        Crowd::with(&crowded, &idle, &kind, |_| {
            Crowd::with(&crowded, &load, &kind, |busy| {
                for _ in 0..effort.rounds + 2 {
                    let alone = one.measure(Effort::lead(1), effort.window(1))?;
                    let beside = busy.measure(Effort::lead(1), effort.window(1))?;
                    ratios.push(throughput(&load, &alone, &beside));
                }
                Ok(())
            })
        })
    })?;
    Ok(Spread::of(ratios))
}

/// A measurement of a crowd while a rogue is at it.
fn beside(
    host: &SimHost,
    crowd: &Crowd<'_>,
    mischief: Option<Mischief>,
    effort: &Effort,
    count: usize,
) -> anyhow::Result<(Sample, u64)> {
    let lead = Effort::lead(count);
    let mut window = effort.window(count);
    if mischief == Some(Mischief::Spins) {
        // A spinner's turns are long and rare; some are to be in the window.
        let all = u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1);
        let turns = effort.run_limit * all * 3;
        window = window.max(turns.min(LONG).mul_f64(effort.scale.min(1.0)));
    }
    let Some(mischief) = mischief else {
        return Ok((crowd.measure(lead, window)?, 0));
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let rogue = scope.spawn(|| rogues::run(host, mischief, &stop));
        let sample = crowd.measure(lead, window);
        stop.store(true, Relaxed);
        let rogue = rogue.join();
        let times = rogue.unwrap_or_else(|p| std::panic::resume_unwind(p))?;
        Ok((sample?, times))
    })
}

#[derive(Default)]
struct Rounds {
    throughput: Vec<f64>,
    one: Vec<f64>,
    all: Vec<f64>,
    jain: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    mismatches: u64,
}

impl Rounds {
    fn add(&mut self, loads: &[Load], alone: &Sample, together: &Sample) {
        self.throughput.push(throughput(loads, alone, together));
        self.one.push(utilization(loads, alone));
        self.all.push(utilization(loads, together));
        self.jain.push(jain_of(loads, together));
        let guests = alone.guests.iter().chain(&together.guests);
        self.mismatches = guests.map(|g| g.mismatches).sum();
        let mut waits = BTreeMap::new();
        for &(ns, n) in together.guests.iter().flat_map(|g| &g.waits) {
            *waits.entry(ns).or_insert(0) += n;
        }
        let waits: Vec<(u64, u64)> = waits.into_iter().collect();
        let us = |percent| {
            let ns = histogram::percentile(&waits, percent).unwrap_or(0);
            as_f64(ns) / 1000.0
        };
        self.p50.push(us(50));
        self.p99.push(us(99));
    }

    fn figures(self) -> Figures {
        Figures {
            throughput_vs_one: Spread::of(self.throughput),
            utilization_one: Spread::of(self.one),
            utilization: Spread::of(self.all),
            jain: Spread::of(self.jain),
            wait_us_p50: Spread::of(self.p50),
            wait_us_p99: Spread::of(self.p99),
            mismatches: self.mismatches,
        }
    }
}

/// The engines that some of `loads` use.
fn engines(loads: &[Load]) -> impl Iterator<Item = usize> {
    let uses = |e: &Engine| {
        let mut streams = loads.iter().flat_map(|l| &l.streams);
        streams.any(|s| s.engine == *e)
    };
    Engine::ALL.into_iter().filter(uses).map(Engine::index)
}

/// Work a second by that of one alone: the mean over the engines in use.
fn throughput(loads: &[Load], alone: &Sample, together: &Sample) -> f64 {
    let ratios: Vec<f64> = engines(loads)
        .map(|e| rate(together, e) / rate(alone, e).max(1e-9))
        .collect();
    mean(&ratios)
}

/// Work by time: the mean over the engines that `loads` use.
fn utilization(loads: &[Load], sample: &Sample) -> f64 {
    let rates: Vec<f64> = engines(loads).map(|e| rate(sample, e)).collect();
    mean(&rates)
}

/// Work done on an engine, by time.
fn rate(sample: &Sample, engine: usize) -> f64 {
    let work: u64 = sample.guests.iter().map(|g| g.work_ns[engine]).sum();
    as_f64(work) / (sample.elapsed.as_secs_f64() * 1e9)
}

/// Jain's index of the engine on which it is worst.
fn jain_of(loads: &[Load], sample: &Sample) -> f64 {
    engines(loads)
        .map(|engine| {
            let users = loads.iter().zip(&sample.guests);
            let shares: Vec<f64> = users
                .filter(|(l, _)| l.streams.iter().any(|s| s.engine.index() == engine))
                .map(|(l, did)| as_f64(did.busy_ns[engine]) / f64::from(l.share.weight))
                .collect();
            jain(&shares)
        })
        .fold(1.0, f64::min)
}

/// 1 when all are equal, 1/n when one has everything.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: Vec<f64> = shares.iter().map(|s| s * s).collect();
    if sum > 0.0 {
        sum * sum / (mean(&squares) * count(shares) * count(shares))
    } else {
        0.0
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / count(values).max(1.0)
}

fn count(values: &[f64]) -> f64 {
    u32::try_from(values.len()).map_or(0.0, f64::from)
}

/// Nanoseconds here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "values below 2^53")]
const fn as_f64(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_for_equals_and_a_part_for_one_of_many() {
        assert_eq!(jain(&[2.0, 2.0, 2.0]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[]), 0.0);
        assert!((jain(&[1.0, 3.0]) - 0.8).abs() < 1e-9);
    }
}
