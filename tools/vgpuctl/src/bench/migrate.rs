//! `vgpuctl bench migrate`: a vGPU's memory from one simulated host to
//! another, by several methods.
//!
//! The pages, the writes to them and the looks at them are real, the clock is
//! not: see docs/migration.md.

mod machine;
mod methods;
mod pattern;
mod rates;
mod vgpu;
mod world;

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
    let mut runs = Vec::new();
    for &size in sizes {
        runs.append(&mut of_size(size, speeds, rates)?);
    }
    let summary = summary(&runs);
    Ok(Report {
        rates,
        runs,
        summary,
    })
}

/// Up to this, the guest has a whole vGPU. Above, only what it writes is
/// emulated: the time goes into the writes themselves.
const VGPU_MB: u32 = 512;

fn of_size(mem_mb: u32, speeds: &[u32], rates: [Rates; 2]) -> anyhow::Result<Vec<Run>> {
    let pages = mem_mb * 256;
    let emulated = mem_mb > VGPU_MB;
    let mut machine: Box<dyn Machine> = if emulated {
        Box::new(Emulated::new(pages))
    } else {
        Box::new(Vgpu::new(pages)?)
    };
    let mut target = vec![[0; PAGE_SIZE]; usize::try_from(pages)?];
    let mut bench = Bench {
        machine: &mut *machine,
        target: &mut target,
        rates,
        engine: if emulated { "emulated" } else { "softgpu" },
    };
    let mut runs = Vec::new();
    for &gbit in speeds {
        for pattern in Pattern::ALL {
            for way in Way::ALL {
                let run = bench.run(gbit, pattern, way);
                runs.push(run.with_context(|| {
                    format!(
                        "{mem_mb} MB, {gbit} Gb/s, {}, {}",
                        pattern.name(),
                        way.name()
                    )
                })?);
            }
        }
    }
    Ok(runs)
}

fn summary(runs: &[Run]) -> Vec<Summary> {
    let mut keys: Vec<_> = (runs.iter().map(|run| (run.mem_mb, run.gbit, run.method))).collect();
    keys.dedup();
    let mut seen = Vec::new();
    for key in keys {
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    let of = |(mem_mb, gbit, method): (u32, u32, &'static str)| {
        let these = || {
            let these = runs
                .iter()
                .filter(move |run| (run.mem_mb, run.gbit, run.method) == (mem_mb, gbit, method));
            these
        };
        let count = these().map(|_| 1.0).sum::<f64>().max(1.0);
        let mean = |f: fn(&Run) -> f64| these().map(f).sum::<f64>() / count;
        let all = f64::from(mem_mb) * 256.0;
        Summary {
            mem_mb,
            gbit,
            method,
            mean_downtime_ms: mean(|run| run.downtime_ms),
            max_downtime_ms: these().map(|run| run.downtime_ms).fold(0.0, f64::max),
            mean_total_ms: mean(|run| run.total_ms),
            stop_pages_by_all: mean(|run| as_f64(run.stop_pages)) / all,
            missed: these().map(|run| run.missed).sum(),
        }
    };
    seen.into_iter().map(of).collect()
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
