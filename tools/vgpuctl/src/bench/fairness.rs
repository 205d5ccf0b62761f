//! `vgpuctl bench fairness`: how vGPUs share a GPU.
//!
//! Simulated guests with real drivers, real device models and vgpud's real
//! scheduler on the software GPU. Its engines are given a speed: a command
//! takes 2 µs, filling 1 KiB 4 µs, and the engine's thread sleeps most of
//! that. So an engine's time is not the CPUs' time, as on hardware, and what
//! is seen is what the scheduler does with it; work that is on its way
//! between guest and engine costs CPU time that the bench does not hide.
//!
//! Work is counted in engine time of what guests have got back and checked:
//! bytes filled and dwords stored, not requests. One vGPU alone on a host of
//! its own is measured in turn with the many, round by round. Guests sleep
//! until their interrupt, and keep two batches of each stream on their way.

mod crowd;
pub mod load;
pub mod measure;
mod rogues;
mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use self::load::Plan;
use self::measure::{Effort, Figures};
use self::rogues::Mischief;
use super::spread::Spread;
use crate::table;

/// How vGPUs share a GPU: throughput, fairness, waits, and what rogues do.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Numbers of vGPUs; 1, 2, 8, 40 and 64 by default, or 1, 8 and 64 when
    /// short.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=200))]
    counts: Option<Vec<u32>>,

    /// Rounds. Each measures one vGPU and many, in turn.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// About how long to measure in all, in seconds.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,

    /// Only a few seconds, and less to rely on.
    #[arg(long)]
    short: bool,

    /// How long a batch may run before vgpud resets it, beside a spinner, in
    /// milliseconds; twice as long each time this turns out to be too short
    /// for batches that end.
    #[arg(long, value_name = "MS", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(5..=10_000))]
    run_limit: u32,
}

/// The JSON.
#[derive(Serialize)]
struct Report {
    rounds: u32,
    command_cost_ns: u32,
    blit_cost_ns_per_kib: u32,
    run_limit_ms: u32,
    by_count: BTreeMap<u32, BTreeMap<&'static str, Figures>>,
    spinner: Rogue,
    flood: Rogue,
    /// The same when the ring is read as fast as it is filled.
    flood_unbounded: Rogue,
    death: Rogue,
    idle_neighbours: Idle,
}

/// Beside a rogue.
#[derive(Serialize)]
struct Rogue {
    vgpus: u32,
    /// Batches reset, requests answered, deaths.
    times: u64,
    /// What the others did, by what they should have done.
    others_share: Spread,
}

#[derive(Serialize)]
struct Idle {
    idle: u32,
    throughput_vs_alone: Spread,
}

/// vGPUs beside a rogue, the rogue among them.
const BESIDE: u32 = 8;
const IDLE: u32 = 63;

/// Runs it.
///
/// # Errors
/// When the host cannot be simulated, or a guest does not get what it should
/// or something else than it should.
pub fn run(args: &Args) -> anyhow::Result<()> {
    super::show(args.json, &measure(args)?, text)
}

fn counts(args: &Args) -> &[u32] {
    match &args.counts {
        Some(counts) => counts,
        None if args.short => &[1, 8, 64],
        None => &[1, 2, 8, 40, 64],
    }
}

fn effort(args: &Args) -> Effort {
    let rounds = args.rounds.unwrap_or(if args.short { 2 } else { 4 });
    let mut effort = Effort {
        rounds,
        scale: if args.short { 0.2 } else { 1.0 },
        run_limit: Duration::from_millis(args.run_limit.into()),
    };
    if let Some(seconds) = args.seconds {
        let size = |n: u32| usize::try_from(n).unwrap_or(0);
        let plans: Duration = counts(args)
            .iter()
            .map(|&n| effort.of_plan(size(n)) * 4)
            .sum();
        let all = plans + effort.of_plan(size(BESIDE)) * 4 + effort.of_plan(1) * 2;
        effort.scale *= f64::from(seconds) / all.as_secs_f64().max(0.1);
    }
    effort
}

fn measure(args: &Args) -> anyhow::Result<Report> {
    let effort = effort(args);
    let mut by_count = BTreeMap::new();
    for &count in counts(args) {
        let plans = [Plan::equal, Plan::mixed, Plan::bursty].map(|plan| plan(count));
        let spinner = (count > 1).then(|| Plan::spinner(count));
        let mut loads = BTreeMap::new();
        for plan in plans.iter().chain(&spinner) {
            let figures = measure::plan(plan, &effort)
                .with_context(|| format!("{count} vGPUs, load {}", plan.name))?;
            loads.insert(plan.name, figures);
        }
        by_count.insert(count, loads);
    }
    let beside = |mischief, part| -> anyhow::Result<Rogue> {
        let (share, times) = measure::beside_rogue(BESIDE - 1, mischief, &effort)
            .with_context(|| format!("beside a rogue that {}", mischief.does()))?;
        Ok(Rogue {
            times,
            vgpus: BESIDE,
            others_share: share.by(part),
        })
    };
    let others = f64::from(BESIDE - 1) / f64::from(BESIDE);
    Ok(Report {
        rounds: effort.rounds,
        command_cost_ns: load::COMMAND_NS,
        blit_cost_ns_per_kib: load::BLIT_NS_PER_KIB,
        run_limit_ms: args.run_limit,
        by_count,
        spinner: beside(Mischief::Spins, others)?,
        // These want no time of the engine, or not for long.
        flood: beside(Mischief::Floods, 1.0)?,
        flood_unbounded: beside(Mischief::FloodsUnbounded, 1.0)?,
        death: beside(Mischief::Dies, 1.0)?,
        idle_neighbours: Idle {
            idle: IDLE,
            throughput_vs_alone: measure::idle_neighbours(IDLE, &effort)?,
        },
    })
}

fn text(report: &Report) -> String {
    let span = |s: &Spread| format!("{:.3} ({:.3} to {:.3})", s.median, s.min, s.max);
    let use_of = |s: &Spread| format!("{:.3}", s.median);
    let us = |s: &Spread| format!("{:.0}", s.median);
    let rows = report.by_count.iter().flat_map(|(count, loads)| {
        loads.iter().map(move |(load, f)| {
            [
                count.to_string(),
                (*load).to_owned(),
                span(&f.throughput_vs_one),
                use_of(&f.utilization_one),
                use_of(&f.utilization),
                span(&f.jain),
                us(&f.wait_us_p50),
                us(&f.wait_us_p99),
            ]
        })
    });
    let heading = [
        "vGPUs",
        "load",
        "throughput, one alone = 1",
        "use alone",
        "together",
        "Jain's index",
        "wait p50, µs",
        "p99, µs",
    ];
    let mut text = table::render(heading, rows);
    text.push('\n');
    let row = |what: &str, r: &Rogue| [what.to_owned(), r.times.to_string(), span(&r.others_share)];
    let rows = [
        row("spins; batches reset", &report.spinner),
        row("floods its ring; requests answered", &report.flood),
        row(
            "the same, if all were read at once",
            &report.flood_unbounded,
        ),
        row("dies on the engine; times", &report.death),
    ];
    let heading = ["a rogue beside 7", "", "their share of what is fair"];
    text.push_str(&table::render(heading, rows));
    text.push_str(&format!(
        "\none vGPU beside {} idle ones, alone = 1: {}\n{} rounds; beside a spinner a batch may run for {} ms\n",
        report.idle_neighbours.idle,
        span(&report.idle_neighbours.throughput_vs_alone),
        report.rounds,
        report.run_limit_ms,
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there() {
        let args = Args {
            json: true,
            counts: Some(vec![1, 3]),
            rounds: Some(1),
            seconds: Some(1),
            short: true,
            run_limit: 500,
        };
        let json = serde_json::to_value(measure(&args).unwrap()).unwrap();
        let figure = |path: &str| {
            let found = json.pointer(path).unwrap_or(&serde_json::Value::Null);
            for part in ["median", "min", "max"] {
                assert!(found[part].as_f64().is_some(), "{path}: {found}");
            }
        };
        for (count, loads) in [
            (1, ["equal", "mixed", "bursty"].as_slice()),
            (3, &["equal", "mixed", "bursty", "spinner"]),
        ] {
            for load in loads {
                for key in ["throughput_vs_one", "jain", "wait_us_p50", "wait_us_p99"] {
                    figure(&format!("/by_count/{count}/{load}/{key}"));
                }
            }
        }
        for rogue in ["spinner", "flood", "flood_unbounded", "death"] {
            figure(&format!("/{rogue}/others_share"));
        }
        figure("/idle_neighbours/throughput_vs_alone");
        assert!(json["by_count"]["1"].get("spinner").is_none());
    }

    #[test]
    fn seconds_are_about_what_it_takes() {
        for seconds in [10, 1000] {
            let args = Args {
                json: false,
                counts: Some(vec![1, 64]),
                rounds: None,
                seconds: Some(seconds),
                short: false,
                run_limit: 50,
            };
            let effort = effort(&args);
            let most = effort.window(64) * effort.rounds * 4;
            assert!(most.as_secs_f64() < f64::from(seconds), "{most:?}");
        }
    }
}
