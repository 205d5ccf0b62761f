//! `vgpuctl bench`: how fast single parts are, without Xen.

mod aperture;
mod eventfd;
mod fairness;
mod mmio;
mod nowhere;
mod ring;
mod shadow;
mod spread;
mod switch;

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
    Aperture(aperture::Args),
    Fairness(fairness::Args),
    Switch(switch::Args),
    Shadow(shadow::Args),
}

/// Runs it.
///
/// # Errors
/// When the system refuses what the bench needs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.bench {
        Bench::Ring(args) => ring::run(args),
        Bench::Mmio(args) => mmio::run(args),
        Bench::Aperture(args) => aperture::run(args),
        Bench::Fairness(args) => fairness::run(args),
        Bench::Switch(args) => switch::run(args),
        Bench::Shadow(args) => shadow::run(args),
    }
}
