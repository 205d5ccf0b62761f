//! `vgpuctl bench switch`: what it costs to give the engines' registers to
//! another guest, in each mode, for guests of one kind and of two.

mod bytes;
mod figures;
mod flat;
mod recording;
mod rotation;

use std::collections::BTreeMap;

use gen8::switched::{GEN8, GEN9, Table};
use serde::Serialize;
use vgpu_sched::switch::SwitchMode;

use crate::table;
use bytes::Bytes;
use figures::{Costs, ModeFigures};
use recording::Recording;
use rotation::Rotation;

/// Registers of the engines given to another guest.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// vGPUs that take turns.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=256))]
    vgpus: u32,

    /// Rounds. Each measures every mode once.
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,

    /// Switches of every engine in a round.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    switches: u32,

    /// What a register read costs, in nanoseconds. It waits for the GPU's
    /// answer: 1400 to 2900 cycles at 3 GHz, by what GVT-g gained when it
    /// dropped them.
    #[arg(long, default_value_t = 700, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    read_ns: u32,

    /// What a register write costs, in nanoseconds. It is posted; writes
    /// follow one another at 50 to 300 ns.
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    write_ns: u32,

    /// Requests of each of two guests on the software GPU that count bytes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    requests: u32,
}

/// Guests of one generation that take turns.
struct Pair {
    name: &'static str,
    first: &'static str,
    second: &'static str,
}

/// A generation and its guests.
struct Generation {
    table: &'static Table,
    pairs: [Pair; 2],
    /// Pages of a render context that GVT-g copies in and out with each
    /// workload (Linux `gvt/scheduler.c:populate_shadow_context`).
    context_pages: u32,
}

const fn pairs(one: &'static str, other: &'static str) -> [Pair; 2] {
    [
        Pair {
            name: "same_os",
            first: one,
            second: one,
        },
        Pair {
            name: "mixed",
            first: one,
            second: other,
        },
    ]
}

static GENERATIONS: [Generation; 2] = [
    Generation {
        table: &GEN8,
        pairs: pairs("gen8-bookworm-6.1", "gen8-trixie-6.12"),
        context_pages: 17,
    },
    Generation {
        table: &GEN9,
        pairs: pairs("gen9-bookworm-6.1", "gen9-buster-4.19"),
        context_pages: 20,
    },
];

type Modes = BTreeMap<String, ModeFigures>;

/// The JSON.
#[derive(Serialize)]
struct Figures {
    vgpus: u32,
    rounds: u32,
    switches: u32,
    read_ns: u32,
    write_ns: u32,
    /// By generation, pair and mode.
    #[serde(flatten)]
    generations: BTreeMap<&'static str, BTreeMap<&'static str, Modes>>,
}

/// Runs it.
///
/// # Errors
/// When a recording is no good, or the software GPU fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let bytes = bytes::measure(args.requests)?;
    let figures = measure(args, &bytes)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    print(&figures)
}

fn measure(args: &Args, bytes: &Bytes) -> anyhow::Result<Figures> {
    let costs = Costs {
        read_ns: args.read_ns,
        write_ns: args.write_ns,
    };
    let mut generations = BTreeMap::new();
    for generation in &GENERATIONS {
        let mut by_pair = BTreeMap::new();
        for pair in &generation.pairs {
            let recordings =
                [pair.first, pair.second].map(|name| Recording::load(name, generation.table));
            let [first, second] = recordings;
            let recordings = [first?, second?];
            let modes = pair_figures(args, costs, generation, &recordings, bytes);
            by_pair.insert(pair.name, modes);
        }
        generations.insert(generation.table.name, by_pair);
    }
    Ok(Figures {
        vgpus: args.vgpus,
        rounds: args.rounds,
        switches: args.switches,
        read_ns: args.read_ns,
        write_ns: args.write_ns,
        generations,
    })
}

fn pair_figures(
    args: &Args,
    costs: Costs,
    generation: &Generation,
    recordings: &[Recording; 2],
    bytes: &Bytes,
) -> Modes {
    let mut samples = SwitchMode::ALL.map(|mode| {
        let rotation = Rotation::new(generation.table, recordings, args.vgpus, mode);
        (rotation, figures::Samples::default())
    });
    // The first round warms up and does not count.
    for round in 0..=args.rounds {
        for (rotation, sample) in &mut samples {
            let cost = rotation.turn(args.switches);
            if round > 0 {
                sample.add(&cost);
            }
        }
    }
    let mut baseline = None;
    let mut modes = Modes::new();
    for (rotation, sample) in samples {
        let mode = rotation.mode();
        let mut figures = sample.figures(costs);
        figures.bytes(mode, bytes, generation.context_pages);
        let baseline = *baseline.get_or_insert(figures.accesses());
        figures.compare(baseline);
        modes.insert(mode.name().replace('-', "_"), figures);
    }
    modes
}

fn print(figures: &Figures) -> anyhow::Result<()> {
    for generation in &GENERATIONS {
        for pair in &generation.pairs {
            let name = generation.table.name;
            let modes = figures.generations.get(name).and_then(|g| g.get(pair.name));
            println!("{name}, {}: {} and {}", pair.name, pair.first, pair.second);
            let heading = ModeFigures::HEADING;
            let rows = SwitchMode::ALL.into_iter().filter_map(|mode| {
                let key = mode.name().replace('-', "_");
                Some(modes?.get(&key)?.row(mode.name()))
            });
            println!("{}", table::render(heading, rows));
        }
    }
    for generation in &GENERATIONS {
        let [_, Pair { first, second, .. }] = &generation.pairs;
        for file in [first, second] {
            if let Some(how) = Recording::load(file, generation.table)?.derived {
                println!("{file} is derived {how}.");
            }
        }
    }
    println!(
        "\nA switch of every engine once, {} vGPUs in turn, a workload between; in brackets the\n\
         render engine alone. Engines change hands each for itself. Accesses are counted, their\n\
         time is modelled: {} ns a read, {} ns a write. CPU time is our own code's, median of {}\n\
         rounds of {} switches, over a GPU that costs nothing. Bytes a switch: in delta modes\n\
         counted on the software Gen8 GPU, one workload on each engine; in the others modelled,\n\
         every window written anew and the render context copied in and out as GVT-g does.",
        figures.vgpus, figures.read_ns, figures.write_ns, figures.rounds, figures.switches
    );
    Ok(())
}

#[cfg(test)]
mod tests;
