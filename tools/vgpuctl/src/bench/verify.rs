//! `vgpuctl bench verify`: how fast pages are held against what the target
//! has, in memory that no cache holds, beside reading and copying the same
//! memory.

mod buffers;
mod methods;
mod speed;

use std::collections::BTreeMap;

use serde::Serialize;
use vgpu_migrate::Method;

use super::spread::{HEADING, Spread};
use crate::table;
use buffers::Buffers;
use methods::{MEMCPY, READ, READ_TOGETHER, WAYS};

pub use methods::frames;
pub use speed::Speed;

/// Finding changed pages, beside reading and copying the same memory.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Rounds. Each measures every way once, in turn.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Size of the memory in MiB. Several times the last cache's, or it is
    /// not memory that is measured.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    mib: u32,
}

/// The JSON.
#[derive(Serialize)]
struct Figures {
    rounds: u32,
    mib: u32,
    /// What a migration uses when nothing else is said.
    default: &'static str,
    /// By how many threads work at once.
    threads: BTreeMap<usize, BTreeMap<&'static str, Figure>>,
    /// Which part of the time so many threads had a processor each. Below 1,
    /// others were at work too, and what threads take from one another shows
    /// less.
    processor_share: BTreeMap<usize, Spread>,
}

/// One way's speed: of pages looked at, not of bytes moved.
#[derive(Clone, Copy, Serialize)]
struct Figure {
    gb_s: Spread,
    /// By a plain read in the same round.
    vs_read: Spread,
    /// By the fastest read in the same round. A plain read of one page after
    /// another waits for memory at each new page; from eight in turn it does
    /// not.
    vs_fastest_read: Spread,
    /// By a copy to other memory in the same round.
    vs_memcpy: Spread,
}

/// Runs it.
///
/// # Errors
/// When the kernel gives no random bytes.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let figures = measure(args.rounds, args.mib)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    for (count, ways) in &figures.threads {
        println!("{count} thread{}", if *count == 1 { "" } else { "s" });
        let share = figures.processor_share.get(count);
        let share = share.map(|share| share.row("processor share"));
        let rows = ways.iter().flat_map(|(name, figure)| {
            [
                figure.gb_s.row(&format!("{name}, GB/s")),
                figure.vs_read.row("  by a read"),
                figure.vs_fastest_read.row("  by the fastest read"),
                figure.vs_memcpy.row("  by a copy"),
            ]
        });
        print!("{}", table::render(HEADING, rows.chain(share)));
    }
    println!(
        "{} rounds over {} MiB; the default is {}",
        figures.rounds, figures.mib, figures.default
    );
    Ok(())
}

fn measure(rounds: u32, mib: u32) -> anyhow::Result<Figures> {
    let mut buffers = Buffers::new(mib)?;
    let mut threads = BTreeMap::new();
    let mut processor_share = BTreeMap::new();
    for count in [1, 2] {
        let mut speeds: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        let mut shares = Vec::new();
        // The first round warms up and does not count.
        for round in 0..=rounds {
            for (name, way) in WAYS {
                let speed = buffers.time(count, way)?;
                if round > 0 {
                    speeds.entry(name).or_default().push(speed.gb_s);
                    shares.push(speed.share);
                }
            }
        }
        threads.insert(count, figures(&speeds));
        processor_share.insert(count, Spread::of(shares));
    }
    Ok(Figures {
        rounds,
        mib,
        default: Method::default().name(),
        threads,
        processor_share,
    })
}

/// Each way's figures from its speeds, round by round.
fn figures(speeds: &BTreeMap<&'static str, Vec<f64>>) -> BTreeMap<&'static str, Figure> {
    let of = |name| speeds.get(name).map_or(&[][..], Vec::as_slice);
    let faster = |(a, b): (&f64, &f64)| a.max(*b);
    let fastest: Vec<f64> = (of(READ).iter().zip(of(READ_TOGETHER)))
        .map(faster)
        .collect();
    let by = |speeds: &[f64], of: &[f64]| {
        Spread::of(speeds.iter().zip(of).map(|(a, b)| a / b).collect())
    };
    let figure = |speeds: &Vec<f64>| Figure {
        gb_s: Spread::of(speeds.clone()),
        vs_read: by(speeds, of(READ)),
        vs_fastest_read: by(speeds, &fastest),
        vs_memcpy: by(speeds, of(MEMCPY)),
    };
    speeds
        .iter()
        .map(|(name, speeds)| (*name, figure(speeds)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there() {
        let json = serde_json::to_value(measure(1, 1).unwrap()).unwrap();
        assert_eq!(json["default"], Method::default().name());
        for threads in ["1", "2"] {
            for (name, _) in WAYS {
                let figure = &json["threads"][threads][name];
                for key in ["gb_s", "vs_read", "vs_fastest_read", "vs_memcpy"] {
                    for part in ["median", "min", "max"] {
                        let value = figure[key][part].as_f64().unwrap();
                        assert!(value > 0.0, "{threads} {name} {key}");
                    }
                }
            }
        }
    }
}
