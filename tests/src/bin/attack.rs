//! Attacks vgpud with so many commands, and says what came of it.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use gen8::Platform;
use guest_driver::Random;
use vgpu_tests::attack::Tally;
use vgpu_tests::{Attack, Bytes, panics};

/// Bytes that a round takes its choices from.
const ROUND: usize = 16 << 10;
const SAY: Duration = Duration::from_secs(10);

/// A hostile guest with a hostile device model, at vgpud on a software GPU,
/// with honest guests beside it.
#[derive(Parser)]
struct Args {
    /// Commands that vgpud has to audit and let through, and as many that
    /// the GPU has to run.
    #[arg(long, default_value_t = 1_000_000)]
    commands: u64,
    /// Where choices begin; printed, so that a failure can be repeated.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The GPU.
    #[arg(long, default_value = "bdw", value_parser = ["bdw", "kbl"])]
    gpu: String,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let gpu = Platform::named(&args.gpu).context("a GPU that has no data")?;
    println!("seed {}, {gpu}", args.seed);
    panics::count_all();
    let start = Instant::now();
    let mut said = start;
    let mut random = Random::new(args.seed);
    let mut attack = Attack::new(gpu);
    let mut data = vec![0; ROUND];
    let mut rounds: u64 = 0;
    loop {
        for chunk in data.chunks_mut(8) {
            let bytes = random.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        attack.round(&mut Bytes::new(&data));
        rounds += 1;
        let tally = attack.tally();
        let enough = tally.scanned.min(tally.executed) >= args.commands;
        if enough || said.elapsed() >= SAY {
            said = Instant::now();
            say(&tally, rounds, start.elapsed());
        }
        if enough {
            break;
        }
    }
    attack.end_life();
    anyhow::ensure!(panics::seen() == 0, "a thread panicked");
    say(&attack.tally(), rounds, start.elapsed());
    println!("seed {}: nothing broke", args.seed);
    Ok(())
}

fn say(tally: &Tally, rounds: u64, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let millions = |n: u64| to_f64(n) / 1e6;
    println!(
        "{seconds:.0} s, {rounds} rounds, {} loads: {:.3} M commands written, {:.3} M audited and let through, \
         {:.3} M run ({:.0}/s); {} elements done, {} refused, {} failed, {} resets; {} intruders, {} dropped; \
         {} traps sprung; {:.1} M accesses judged; neighbour checked {} times; at most {} own pages, {} KiB for one",
        tally.deeds.loads,
        millions(tally.deeds.written),
        millions(tally.scanned),
        millions(tally.executed),
        to_f64(tally.executed) / seconds,
        tally.deeds.done,
        tally.refused,
        tally.deeds.failed,
        tally.deeds.resets,
        tally.lives,
        tally.dropped,
        tally.sprung,
        millions(tally.accesses),
        tally.neighbour,
        tally.most_pages,
        tally.most_kib,
    );
}

/// Counts are far below 2^53.
fn to_f64(n: u64) -> f64 {
    let high = u32::try_from(n >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(n & 0xffff_ffff).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}
