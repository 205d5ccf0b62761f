//! `vgpuctl bench migrate`: a vGPU's memory from one simulated host to
//! another, by several methods.
//!
//! The pages, the writes to them and the looks at them are real, the clock is
//! not: see docs/precopy.md.

mod machine;
mod methods;
mod pattern;
mod rates;
mod vgpu;
mod world;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Context;
use guest_memory::PAGE_SIZE;
use serde::Serialize;

use crate::ratio::as_f64;
use crate::table;
use machine::{Emulated, Machine};
use methods::{Bench, Run, Way};
use pattern::Pattern;
use rates::Rates;
use vgpu::Vgpu;

/// Migration between two simulated hosts: downtime, bytes, pages, misses.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Sizes of graphics memory in MB.
    #[arg(long, value_name = "MB", value_delimiter = ',', default_values_t = [128, 512, 2048],
          value_parser = clap::value_parser!(u32).range(16..=4096))]
    mem: Vec<u32>,

    /// Speeds of the way to the target in Gb/s.
    #[arg(long, value_name = "GBIT", value_delimiter = ',', default_values_t = [1, 10, 25],
          value_parser = clap::value_parser!(u32).range(1..=400))]
    gbit: Vec<u32>,

    /// Only a small memory at one speed, in less than a second.
    #[arg(long)]
    quick: bool,
}

/// The JSON.
#[derive(Serialize)]
struct Report {
    /// What a page costs a processor, by one thread and by two.
    rates: [Rates; 2],
    runs: Vec<Run>,
    summary: Vec<Summary>,
}

/// All patterns of one memory and speed together.
#[derive(Serialize)]
struct Summary {
    mem_mb: u32,
    gbit: u32,
    method: &'static str,
    mean_downtime_ms: f64,
    max_downtime_ms: f64,
    mean_total_ms: f64,
    /// Pages sent while the guest stood still, by those of stop-and-copy.
    stop_pages_by_all: f64,
    missed: u64,
}

/// Runs it.
///
/// # Errors
/// When a guest cannot be simulated, or a page differs that nobody wrote.
pub fn run(args: &Args) -> anyhow::Result<()> {
    super::show(args.json, &measure(args)?, text)
}

fn measure(args: &Args) -> anyhow::Result<Report> {
    let (sizes, speeds, measured): (&[u32], &[u32], _) = if args.quick {
        (&[16], &[10], 2048)
    } else {
        (&args.mem, &args.gbit, 65536)
    };
    let rates = [Rates::measure(1, measured)?, Rates::measure(2, measured)?];
    let runs = all(sizes, speeds, rates)?;
    let summary = summary(&runs);
    Ok(Report {
        rates,
        runs,
        summary,
    })
}

/// Every size at every speed, two at a time: the clock is not the machine's,
/// so they do not disturb one another. The longest first.
fn all(sizes: &[u32], speeds: &[u32], rates: [Rates; 2]) -> anyhow::Result<Vec<Run>> {
    let mut jobs: Vec<_> = (sizes.iter().rev())
        .flat_map(|&size| speeds.iter().map(move |&gbit| (size, gbit)))
        .collect();
    jobs.reverse();
    let jobs = Mutex::new(jobs);
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || -> anyhow::Result<Vec<Run>> {
        let mut runs = Vec::new();
        while let Some((size, gbit)) = next() {
            runs.append(&mut of(size, gbit, rates)?);
        }
        Ok(runs)
    };
    let (mut runs, more) = thread::scope(|scope| {
        let other = scope.spawn(work);
        (work(), other.join())
    });
    let more = more.map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    let runs = runs.as_mut().map_err(|e| anyhow::anyhow!("{e:#}"))?;
    runs.append(&mut more?);
    // Within a size and a speed they are in order.
    runs.sort_by_key(|run| (run.mem_mb, run.gbit));
    Ok(std::mem::take(runs))
}

/// Whether the guest has a whole vGPU. Else what it writes is emulated, with
/// the same bytes: with much memory and long migrations, the time would go
/// into the writes themselves.
const fn whole_vgpu(mem_mb: u32, gbit: u32) -> bool {
    mem_mb <= 512 && mem_mb <= 128 * gbit
}

fn of(mem_mb: u32, gbit: u32, rates: [Rates; 2]) -> anyhow::Result<Vec<Run>> {
    let pages = mem_mb * 256;
    let whole = whole_vgpu(mem_mb, gbit);
    let mut machine: Box<dyn Machine> = if whole {
        Box::new(Vgpu::new(pages)?)
    } else {
        Box::new(Emulated::new(pages))
    };
    let mut target = vec![[0; PAGE_SIZE]; usize::try_from(pages)?];
    let mut bench = Bench {
        machine: &mut *machine,
        target: &mut target,
        rates,
        engine: if whole { "softgpu" } else { "emulated" },
    };
    let mut runs = Vec::new();
    for pattern in Pattern::ALL {
        for way in Way::ALL {
            let run = bench.run(gbit, pattern, way);
            let (pattern, way) = (pattern.name(), way.name());
            let run = run.with_context(|| format!("{mem_mb} MB, {gbit} Gb/s, {pattern}, {way}"));
            runs.push(run?);
        }
    }
    Ok(runs)
}

fn summary(runs: &[Run]) -> Vec<Summary> {
    let mut by_key: BTreeMap<_, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        let way = Way::ALL.iter().position(|way| way.name() == run.method);
        let key = (run.mem_mb, run.gbit, way);
        by_key.entry(key).or_default().push(run);
    }
    let of = |these: Vec<&Run>| {
        let first = these.first()?;
        let count = these.iter().map(|_| 1.0).sum::<f64>();
        let mean = |f: fn(&Run) -> f64| these.iter().map(|run| f(run)).sum::<f64>() / count;
        let all = f64::from(first.mem_mb) * 256.0;
        Some(Summary {
            mem_mb: first.mem_mb,
            gbit: first.gbit,
            method: first.method,
            mean_downtime_ms: mean(|run| run.downtime_ms),
            max_downtime_ms: these.iter().map(|run| run.downtime_ms).fold(0.0, f64::max),
            mean_total_ms: mean(|run| run.total_ms),
            stop_pages_by_all: mean(|run| as_f64(run.stop_pages)) / all,
            missed: these.iter().map(|run| run.missed).sum(),
        })
    };
    by_key.into_values().filter_map(of).collect()
}

fn text(report: &Report) -> String {
    let ms = |value: f64| format!("{value:.1}");
    let rows = report.runs.iter().map(|run| {
        [
            run.mem_mb.to_string(),
            run.gbit.to_string(),
            run.pattern.to_owned(),
            run.method.to_owned(),
            ms(run.downtime_ms),
            ms(run.total_ms),
            ms(as_f64(run.bytes) / 1e6),
            run.stop_candidates.to_string(),
            run.stop_pages.to_string(),
            run.missed.to_string(),
            run.false_positives.to_string(),
        ]
    });
    let heading = [
        "MB",
        "Gb/s",
        "pattern",
        "method",
        "downtime, ms",
        "total, ms",
        "MB sent",
        "candidates",
        "sent at stop",
        "missed",
        "in vain",
    ];
    let mut text = table::render(heading, rows);
    text.push('\n');
    let rows = report.summary.iter().map(|s| {
        [
            s.mem_mb.to_string(),
            s.gbit.to_string(),
            s.method.to_owned(),
            ms(s.mean_downtime_ms),
            ms(s.max_downtime_ms),
            ms(s.mean_total_ms),
            format!("{:.1} %", s.stop_pages_by_all * 100.0),
            s.missed.to_string(),
        ]
    });
    let heading = [
        "MB",
        "Gb/s",
        "method",
        "mean downtime, ms",
        "most",
        "mean total, ms",
        "pages at stop",
        "missed",
    ];
    text.push_str(&table::render(heading, rows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_is_there_and_none_misses_a_page() {
        let args = Args {
            json: true,
            mem: Vec::new(),
            gbit: Vec::new(),
            quick: true,
        };
        let json = serde_json::to_value(measure(&args).unwrap()).unwrap();
        let runs = json["runs"].as_array().unwrap();
        assert_eq!(runs.len(), Pattern::ALL.len() * Way::ALL.len());
        for run in runs {
            for key in [
                "mem_mb",
                "gbit",
                "downtime_ms",
                "total_ms",
                "bytes",
                "stop_pages",
                "false_positives",
            ] {
                assert!(run[key].as_f64().is_some(), "{key}: {run}");
            }
            assert_eq!(run["missed"], 0, "{run}");
            // Every page and the state go at least once.
            assert!(run["bytes"].as_u64().unwrap() > 14 << 20, "{run}");
        }
        let of = |method: &str| {
            let mut runs = runs.iter().filter(|run| run["method"] == method);
            runs.next().unwrap()["stop_pages"].as_u64().unwrap()
        };
        assert_eq!(of("stop_and_copy"), 4096);
        assert!(of("published") < 4096 && of("ours") < 4096);
    }
}
