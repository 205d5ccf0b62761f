//! `vgpuctl bench gtt`: entries of the global page table, written so that a
//! workload can run, and whether the engine waited for them.
//!
//! Guests with the guest driver's contexts submit in virtual time on one
//! engine, which vgpud's policy gives to one after another. Each request is
//! prepared by vgpud's own code, so the windows are those of real workloads,
//! placed, evicted and counted by the real cache. The models see the same
//! order of turns.
//!
//! vgpud prepares a workload when it is submitted, before its turn. That makes
//! preloading implicit: there is nothing to predict, and an entry is late only
//! when the engine was idle already.

mod models;
mod timeline;

use std::collections::BTreeMap;

use gpu_bus::GGTT_ENTRIES;
use serde::Serialize;

use self::models::{Slots, Sum};
use self::timeline::{Timeline, Turn};
use crate::ratio::as_f64;
use crate::table;

/// Entries of the global page table written per switch.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Numbers of vGPUs.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 15, 40],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    counts: Vec<u32>,

    /// Workloads.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    workloads: u32,

    /// What all vGPUs together want of the engine's time, in percent. Above
    /// 100 they take turns in almost the same order always, below it the one
    /// that comes next is anybody's guess.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=1000))]
    wanted: u32,
}

/// What a way of sharing did.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    /// Entries written, per switch.
    ptes_per_switch: f64,
    /// Entries written when the engine was free for them already.
    late_loads: u64,
    /// Switches for which every entry was there in time.
    preload_hit_rate: f64,
    switches: u64,
}

impl From<Sum> for Figures {
    fn from(sum: Sum) -> Self {
        let per_switch = |n: u64| round(as_f64(n) / as_f64(sum.switches.max(1)));
        Self {
            ptes_per_switch: per_switch(sum.ptes),
            late_loads: sum.late,
            preload_hit_rate: per_switch(sum.ready),
            switches: sum.switches,
        }
    }
}

/// Three places are more than there are turns for.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// With so many vGPUs.
#[derive(Serialize)]
struct Count {
    /// Our windows.
    windows: Figures,
    /// Our windows in a table so small that a quarter of them has room.
    windows_in_a_quarter: Figures,
    /// Each vGPU has a part of the table for itself.
    partition: Figures,
    /// Four slots with a last-successor predictor.
    slots: Figures,
    /// Pages that one guest maps in its own table.
    pages_mapped: u64,
    /// Pages of the windows that all need.
    pages_of_windows: u32,
}

/// The JSON.
#[derive(Serialize)]
struct Report {
    workloads: u32,
    wanted: u32,
    by_count: BTreeMap<u32, Count>,
    /// Of our windows, over all numbers of vGPUs.
    preload_hit_rate: f64,
}

/// Runs it.
///
/// # Errors
/// When vgpud refuses a workload.
pub fn run(args: &Args) -> anyhow::Result<()> {
    super::show(args.json, &measure(args)?, text)
}

fn measure(args: &Args) -> anyhow::Result<Report> {
    let mut by_count = BTreeMap::new();
    let (mut ready, mut switches) = (0, 0);
    for &count in &args.counts {
        let (figures, sum) = of(count, args)?;
        ready += sum.ready;
        switches += sum.switches;
        by_count.insert(count, figures);
    }
    Ok(Report {
        workloads: args.workloads,
        wanted: args.wanted,
        by_count,
        preload_hit_rate: round(as_f64(ready) / as_f64(switches.max(1))),
    })
}

fn of(count: u32, args: &Args) -> anyhow::Result<(Count, Sum)> {
    let mut timeline = Timeline::new(count, args.wanted, GGTT_ENTRIES - 2)?;
    let mapped: Vec<u64> = timeline
        .mapped()
        .into_iter()
        .map(u64::try_from)
        .collect::<Result<_, _>>()?;
    let pages_mapped = mapped.first().copied().unwrap_or(0);
    let mut slots = Slots::new(mapped);
    let (mut windows, mut partition) = (Sum::default(), Sum::default());
    timeline.run(args.workloads, |turn: Turn| {
        let switched = turn.before != Some(turn.guest);
        windows.add(switched, turn.ptes, turn.late);
        // What a guest maps was written when it mapped it.
        partition.add(switched, 0, 0);
        slots.turn(turn.before, turn.guest);
    })?;
    let pages_of_windows = timeline.used();
    let mut small = Timeline::new(count, args.wanted, (pages_of_windows / 4).max(least(count)))?;
    let mut quarter = Sum::default();
    small.run(args.workloads, |turn| {
        quarter.add(turn.before != Some(turn.guest), turn.ptes, turn.late);
    })?;
    let figures = Count {
        windows: windows.into(),
        windows_in_a_quarter: quarter.into(),
        partition: partition.into(),
        slots: slots.sum.into(),
        pages_mapped,
        pages_of_windows,
    };
    Ok((figures, windows))
}

/// Pages that hold what so many vGPUs can have in use at once: a context of
/// the render engine, a ring, the page of its timeline.
const fn least(count: u32) -> u32 {
    count * 32
}

fn text(report: &Report) -> String {
    let rows = report.by_count.iter().flat_map(|(count, c)| {
        let each = [
            ("windows", &c.windows),
            ("windows, a quarter fits", &c.windows_in_a_quarter),
            ("partition", &c.partition),
            ("four slots", &c.slots),
        ];
        each.map(|(name, f)| {
            [
                count.to_string(),
                name.to_owned(),
                format!("{:.2}", f.ptes_per_switch),
                f.late_loads.to_string(),
                format!("{:.3}", f.preload_hit_rate),
            ]
        })
    });
    let heading = ["vGPUs", "", "entries/switch", "late", "ready in time"];
    let mut text = table::render(heading, rows);
    text.push_str(&format!(
        "\n{} workloads of the guest driver on the render engine, in virtual time, cold start\n\
         included; together the vGPUs want {} % of it. Windows are vgpud's own code; partition and slots are models that write no\n\
         more than a guest maps ({} pages here; gScale copied 114688 entries).\n",
        report.workloads,
        report.wanted,
        report
            .by_count
            .values()
            .map(|c| c.pages_mapped)
            .max()
            .unwrap_or(0),
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_write_no_more_than_slots() {
        let args = Args {
            json: true,
            counts: vec![2, 15],
            workloads: 2000,
            wanted: 80,
        };
        let report = measure(&args).unwrap();
        let json = serde_json::to_value(&report).unwrap();
        for count in ["2", "15"] {
            let figure = |way: &str, key: &str| json["by_count"][count][way][key].as_f64().unwrap();
            for key in ["ptes_per_switch", "late_loads"] {
                assert!(
                    figure("windows", key) <= figure("slots", key),
                    "{count} {key} {json}"
                );
                assert_eq!(figure("partition", key), 0.0);
            }
        }
        assert!(json["preload_hit_rate"].as_f64().unwrap() > 0.9);
    }

    #[test]
    fn a_trace_is_the_same_every_time() {
        let args = Args {
            json: true,
            counts: Vec::new(),
            workloads: 500,
            wanted: 150,
        };
        let of = || serde_json::to_value(of(3, &args).unwrap().0).unwrap();
        assert_eq!(of(), of());
    }
}
