//! Runs in a guest: GPU work through its i915, every result checked.
//!
//! Keeps some requests in flight on one engine or on all. Each request works
//! on a buffer of its own for a while; when it is done, the whole buffer is
//! compared with what it has to hold. Prints one line of JSON a second and a
//! last one at the end, which is after `--seconds` or at SIGTERM or SIGINT.
//! Ends with 0 if every buffer was right, 1 if one was not, 2 if the driver
//! refused something.

mod load;
mod run;
mod slot;
mod uapi;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};
use gen8::Engine;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use load::{Blit, Load, Store};
use run::Run;
use uapi::I915;

/// GPU work through i915, every result checked.
#[derive(Parser)]
#[command(name = "gpu-work", version)]
struct Args {
    /// The engine.
    #[arg(long, value_enum, default_value_t = On::Bcs)]
    engine: On,
    /// When to end; without it, at SIGTERM.
    #[arg(long)]
    seconds: Option<u64>,
    /// Work of a request: how often it goes through its buffer.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    passes: u32,
    /// Size of a blitter surface, KiB: a power of two from 8 to 8192.
    #[arg(long, default_value_t = 64)]
    surface: usize,
    /// Cells of each kind that other engines work on, up to 65536.
    #[arg(long, default_value_t = 256)]
    cells: usize,
    /// Requests in flight on each engine, each with a buffer of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    buffers: u32,
    /// Contexts that the requests take turns in. A driver hands requests of
    /// one context to the GPU as one.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    contexts: u32,
    /// The device, instead of the first of /dev/dri/renderD128 and card0.
    #[arg(long)]
    device: Option<PathBuf>,
    /// Makes the patterns other ones.
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum On {
    Rcs,
    Bcs,
    Vcs,
    Vecs,
    All,
}

impl On {
    fn engines(self) -> Vec<Engine> {
        match self {
            Self::Rcs => vec![Engine::Rcs],
            Self::Bcs => vec![Engine::Bcs],
            Self::Vcs => vec![Engine::Vcs],
            Self::Vecs => vec![Engine::Vecs],
            Self::All => vec![Engine::Rcs, Engine::Bcs, Engine::Vcs, Engine::Vecs],
        }
    }
}

fn main() -> ExitCode {
    match work(&Args::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gpu-work: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The device: the one named, or the first that is there.
fn open(device: Option<&PathBuf>) -> anyhow::Result<I915> {
    let usual = ["/dev/dri/renderD128", "/dev/dri/card0"].map(PathBuf::from);
    let candidates: &[PathBuf] = device.map_or(&usual, std::slice::from_ref);
    let path = candidates
        .iter()
        .find(|p| p.exists())
        .with_context(|| format!("none of {candidates:?} is there: is i915 bound?"))?;
    I915::open(path).with_context(|| format!("cannot open {}", path.display()))
}

/// Does the work; how many buffers were wrong.
fn work(args: &Args) -> anyhow::Result<u64> {
    let pixels = args.surface.saturating_mul(1024 / 4);
    ensure!(
        pixels.is_power_of_two() && (Blit::MIN_PIXELS..=Blit::MAX_PIXELS).contains(&pixels),
        "--surface is {}, allowed: a power of two from {} to {}",
        args.surface,
        Blit::MIN_PIXELS / 256,
        Blit::MAX_PIXELS / 256
    );
    ensure!(
        (1..=65536).contains(&args.cells),
        "--cells is {}, allowed: 1 to 65536",
        args.cells
    );
    // Blocked first: a signal that comes from now on is kept for us.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().context("cannot block signals")?;
    let signals =
        SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK).context("cannot take signals")?;

    let mut run = Run::new(open(args.device.as_ref())?, args.contexts)?;
    for engine in args.engine.engines() {
        let loads = (0..args.buffers).map(|buffer| -> Box<dyn Load> {
            let seed = load::mix([args.seed, engine.mmio_base(), buffer, 3]);
            if engine == Engine::Bcs {
                Box::new(Blit::new(seed, pixels, args.passes))
            } else {
                Box::new(Store::new(engine, seed, args.cells, args.passes))
            }
        });
        run.add(engine, loads.collect())?;
    }
    run.until(&signals, args.seconds.map(Duration::from_secs))
}
