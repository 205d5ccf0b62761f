//! `vgpuctl bench density`: how many vGPUs one GPU carries.
//!
//! Simulated guests as in `bench fairness`, small ones, that all keep working
//! and check every result. One vGPU alone on a host of its own is measured in
//! turn with the many, round by round.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use sim_host::{SimGuest, SimGuestConfig};

use super::fairness::load::Plan;
use super::fairness::measure::{self, Effort};
use super::spread::Spread;
use crate::ratio::as_f64;
use crate::table;

/// Up to 256 vGPUs that all work: throughput, fairness, waits, memory.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Numbers of vGPUs.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 7, 15, 40, 64, 128, 256],
          value_parser = clap::value_parser!(u32).range(1..=512))]
    counts: Vec<u32>,

    /// Rounds. Each measures one vGPU and many, in turn.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// All windows of time by this much, in percent.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    scale: u32,
}

/// Frames of a guest: 4 MiB.
const FRAMES: usize = 1024;

/// With so many vGPUs.
#[derive(Serialize)]
struct Figures {
    /// Work done, by what one vGPU alone does.
    throughput_vs_one: Spread,
    /// Jain's index of time on the engine.
    jain: Spread,
    /// Work done by one vGPU alone, and by all, by the engine's time.
    utilization_one: Spread,
    utilization: Spread,
    /// From ready to the engine.
    wait_us_p50: Spread,
    wait_us_p99: Spread,
    /// What vgpud holds for each, by its own count.
    kib_per_vgpu: f64,
    /// What the process grew by for each: vgpud, the device model, the
    /// guest's own memory and its driver.
    rss_kib_per_vgpu: f64,
    /// Threads of the process for each.
    threads_per_vgpu: f64,
    /// Results that were not what they should be.
    mismatches: u64,
    /// Entries of the global table written per switch of the engine, and of
    /// these those that an idle engine waited for.
    ptes_per_switch: f64,
    late_ptes_per_switch: f64,
}

/// The JSON.
#[derive(Serialize)]
struct Report {
    rounds: u32,
    guest_kib: usize,
    by_count: BTreeMap<u32, Figures>,
}

/// Runs it.
///
/// # Errors
/// When the host cannot be simulated, or a guest's driver gives up.
pub fn run(args: &Args) -> anyhow::Result<()> {
    super::show(args.json, &measure(args)?, text)
}

fn measure(args: &Args) -> anyhow::Result<Report> {
    let mut by_count = BTreeMap::new();
    for &count in &args.counts {
        by_count.insert(count, of(count, args)?);
    }
    Ok(Report {
        rounds: args.rounds,
        guest_kib: FRAMES * 4,
        by_count,
    })
}

/// What guests hold and did.
#[derive(Default)]
struct Sum {
    kib: u64,
    switches: u64,
    ptes: u64,
    late: u64,
}

impl Sum {
    fn of(guests: &[SimGuest]) -> Self {
        let mut sum = Self::default();
        for guest in guests.iter().map(SimGuest::scheduled) {
            sum.kib += u64::try_from(guest.memory.total_kib).unwrap_or(0);
            for c in guest.engines.iter().map(|e| e.counters) {
                sum.switches += c.switches + c.handovers;
                sum.ptes += c.ptes_written;
                sum.late += c.ptes_late;
            }
        }
        sum
    }
}

fn of(count: u32, args: &Args) -> anyhow::Result<Figures> {
    let effort = Effort {
        rounds: args.rounds,
        scale: f64::from(args.scale) / 100.0,
        run_limit: Duration::ZERO,
    };
    let kind = SimGuestConfig {
        frames: FRAMES,
        ..SimGuestConfig::default()
    };
    let before = process();
    let (mut sum, mut after) = (Sum::default(), before);
    let seen = measure::plan_of(&Plan::equal(count), &effort, &kind, &mut |guests| {
        sum = Sum::of(guests);
        after = process();
    })?;
    // One more is alone.
    let all = f64::from(count + 1);
    let more = |after: u64, before: u64| round(as_f64(after.saturating_sub(before)) / all);
    let per_switch = |n: u64| round(as_f64(n) / as_f64(sum.switches.max(1)));
    Ok(Figures {
        throughput_vs_one: seen.throughput_vs_one,
        utilization_one: seen.utilization_one,
        utilization: seen.utilization,
        jain: seen.jain,
        wait_us_p50: seen.wait_us_p50,
        wait_us_p99: seen.wait_us_p99,
        kib_per_vgpu: round(as_f64(sum.kib) / f64::from(count)),
        rss_kib_per_vgpu: more(after.rss_kib, before.rss_kib),
        threads_per_vgpu: more(after.threads, before.threads),
        mismatches: seen.mismatches,
        ptes_per_switch: per_switch(sum.ptes),
        late_ptes_per_switch: per_switch(sum.late),
    })
}

/// More places mean nothing.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// What this process has.
#[derive(Clone, Copy, Default)]
struct Process {
    rss_kib: u64,
    threads: u64,
}

/// From the kernel (proc(5), `/proc/self/status`); zeros when it does not say.
fn process() -> Process {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Process {
        rss_kib: field("VmRSS:").unwrap_or(0),
        threads: field("Threads:").unwrap_or(0),
    }
}

fn text(report: &Report) -> String {
    let span = |s: &Spread| format!("{:.3} ({:.3} to {:.3})", s.median, s.min, s.max);
    let rows = report.by_count.iter().map(|(count, f)| {
        [
            count.to_string(),
            span(&f.throughput_vs_one),
            span(&f.jain),
            format!("{:.0}", f.wait_us_p99.median),
            format!("{:.0}", f.kib_per_vgpu),
            format!("{:.0}", f.rss_kib_per_vgpu),
            format!("{:.2}", f.ptes_per_switch),
            f.mismatches.to_string(),
        ]
    });
    let heading = [
        "vGPUs",
        "throughput, one alone = 1",
        "Jain's index",
        "wait p99, µs",
        "KiB each",
        "RSS each",
        "entries/switch",
        "wrong",
    ];
    let mut text = table::render(heading, rows);
    text.push_str(&format!(
        "\n{} rounds. Guests of {} KiB that fill 128 KiB at a time and check each result. RSS is\n\
         that of the whole process: vgpud, device models, guests and their memory.\n",
        report.rounds, report.guest_kib
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there_and_no_result_is_wrong() {
        let args = Args {
            json: true,
            counts: vec![1, 5],
            rounds: 1,
            scale: 20,
        };
        let json = serde_json::to_value(measure(&args).unwrap()).unwrap();
        for count in ["1", "5"] {
            let of = &json["by_count"][count];
            for key in ["throughput_vs_one", "jain", "wait_us_p99"] {
                assert!(of[key]["median"].as_f64().is_some(), "{count} {key}: {of}");
            }
            assert!(of["kib_per_vgpu"].as_f64().unwrap() > 0.0, "{of}");
            assert_eq!(of["mismatches"], 0);
        }
    }
}
