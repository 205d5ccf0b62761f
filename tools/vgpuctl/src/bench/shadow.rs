//! `vgpuctl bench shadow`: what it costs to follow a guest's page tables, in
//! each mode, by vgpud's own code. The trap is the one thing that is not
//! real: it is counted, and its time is an option.

mod guest;
mod patterns;

use std::collections::BTreeMap;

use serde::Serialize;
use vgpu_sched::ppgtt::{Costs, ShadowConfig, ShadowMode};

use super::spread::Spread;
use crate::table;
use guest::{Bill, Guest};
use patterns::Pattern;

/// Following a guest's page tables.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Rounds. Each measures every pattern in every mode once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Submissions of a round, besides those by which the modes come to know
    /// the pattern.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    submissions: u32,

    /// What a trapped write costs, in nanoseconds. The default is what an
    /// exit costs on hardware when the device model polls; Xen under
    /// emulation, as in the lab, takes 400000 polling and 1200000 sleeping.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    trap_ns: u32,

    /// What protecting a page costs, or ending that, in nanoseconds.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    protect_ns: u32,
}

/// One mode under one pattern.
#[derive(Clone, Copy, Serialize)]
struct ModeFigures {
    /// Writes trapped in a round.
    traps: u64,
    /// Table pages compared in a round.
    compares: u64,
    /// Pages protected or freed in a round.
    changes: u64,
    /// All of it by each entry the guest wrote.
    ns_per_write: f64,
    /// What a submission takes longer.
    added_latency_us: f64,
}

/// A pattern.
#[derive(Serialize)]
struct PatternFigures {
    /// Entries the guest wrote in a round.
    writes: u64,
    /// Adaptive's time by that of the better of the others.
    adaptive_vs_better: f64,
    #[serde(flatten)]
    modes: BTreeMap<&'static str, ModeFigures>,
}

/// The JSON.
#[derive(Serialize)]
struct Figures {
    rounds: u32,
    submissions: u32,
    tables: u64,
    trap_ns: u32,
    protect_ns: u32,
    patterns: BTreeMap<&'static str, PatternFigures>,
}

/// Runs it.
///
/// # Errors
/// When the tables cannot be shadowed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let figures = measure(args, false)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    print(&figures);
    Ok(())
}

/// `counted`: a comparison costs what the default says, and nothing else that
/// the clock would have to tell costs anything.
fn measure(args: &Args, counted: bool) -> anyhow::Result<Figures> {
    let costs = Costs {
        trap_ns: args.trap_ns,
        protect_ns: args.protect_ns,
        ..Costs::default()
    };
    let mut patterns = BTreeMap::new();
    for pattern in Pattern::ALL {
        let figures = pattern_figures(args, costs, pattern, counted)?;
        patterns.insert(pattern.name(), figures);
    }
    Ok(Figures {
        rounds: args.rounds,
        submissions: args.submissions,
        tables: guest::TABLES,
        trap_ns: args.trap_ns,
        protect_ns: args.protect_ns,
        patterns,
    })
}

fn pattern_figures(
    args: &Args,
    costs: Costs,
    pattern: Pattern,
    counted: bool,
) -> anyhow::Result<PatternFigures> {
    let config = |mode| ShadowConfig {
        mode,
        costs,
        fixed_costs: counted,
    };
    let mut guests = Vec::new();
    for mode in ShadowMode::ALL {
        let mut guest = Guest::new(config(mode), pattern)?;
        // A page is protected after it was not written for as long as some
        // traps would take. That happens once in a guest's life.
        let know = 20 * (costs.trap_ns + costs.protect_ns) / costs.compare_ns;
        guest.run(know.max(1000))?;
        guests.push((mode, guest, Vec::new()));
    }
    for _ in 0..args.rounds {
        for (_, guest, bills) in &mut guests {
            bills.push(guest.run(args.submissions)?);
        }
    }
    let mut modes = BTreeMap::new();
    let mut writes = 0;
    for (mode, _, bills) in guests {
        let of = |f: &dyn Fn(&Bill) -> f64| Spread::of(bills.iter().map(f).collect()).median;
        let middle = |f: fn(&Bill) -> u64| {
            let mut values: Vec<u64> = bills.iter().map(f).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        writes = middle(|b| b.writes);
        let figures = ModeFigures {
            traps: middle(|b| b.traps),
            compares: middle(|b| b.compares),
            changes: middle(|b| b.changes),
            ns_per_write: of(&|b| b.ns(costs, counted) / number(b.writes.max(1))),
            added_latency_us: of(&|b| b.submitting_ns / 1000.0 / f64::from(args.submissions)),
        };
        modes.insert(mode.name(), figures);
    }
    let ns = |mode: ShadowMode| modes.get(mode.name()).map_or(0.0, |m| m.ns_per_write);
    let better = ns(ShadowMode::Strict).min(ns(ShadowMode::Lazy));
    Ok(PatternFigures {
        writes,
        adaptive_vs_better: ns(ShadowMode::Adaptive) / better.max(f64::MIN_POSITIVE),
        modes,
    })
}

/// A count as a factor.
fn number(count: u64) -> f64 {
    // Counts of a bench fit 32 bits.
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

fn print(figures: &Figures) {
    for (name, pattern) in &figures.patterns {
        println!("{name}: {} entries written", pattern.writes);
        let rows = ShadowMode::ALL.into_iter().filter_map(|mode| {
            let m = pattern.modes.get(mode.name())?;
            Some([
                mode.name().into(),
                m.traps.to_string(),
                m.compares.to_string(),
                m.changes.to_string(),
                format!("{:.0}", m.ns_per_write),
                format!("{:.2}", m.added_latency_us),
            ])
        });
        let heading = [
            "",
            "traps",
            "compares",
            "changes",
            "ns per write",
            "µs per submission",
        ];
        print!("{}", table::render(heading, rows));
        println!(
            "  adaptive by the better of the others: {:.2}\n",
            pattern.adaptive_vs_better
        );
    }
    println!(
        "{} submissions that reach {} table pages, median of {} rounds. Traps, comparisons and\n\
         changes of protection are counted. ns per write: {} ns a trap and {} ns a change, which\n\
         are options, and the measured time of vgpud's code, by the entries written. Its part\n\
         at the submission is the added latency.",
        figures.submissions, figures.tables, figures.rounds, figures.trap_ns, figures.protect_ns
    );
}

#[cfg(test)]
mod tests;
