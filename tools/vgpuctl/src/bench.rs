//! `vgpuctl bench`: how fast single parts are, without Xen.

mod eventfd;
mod mmio;
mod ring;
mod spread;
mod verify;

use clap::Subcommand;

/// Measures a part, without Xen.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Ring(ring::Args),
    Mmio(mmio::Args),
    Verify(verify::Args),
}

/// Runs it.
///
/// # Errors
/// When the system refuses what the bench needs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.bench {
        Bench::Ring(args) => ring::run(args),
        Bench::Mmio(args) => mmio::run(args),
        Bench::Verify(args) => verify::run(args),
    }
}
