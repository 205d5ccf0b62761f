//! `vgpuctl bench`: how fast single parts are, without Xen.

mod aperture;
mod bare;
mod density;
mod eventfd;
mod fairness;
mod gtt;
mod migrate;
mod mmio;
mod nowhere;
mod ring;
mod scan;
mod shadow;
mod spread;
mod switch;
mod verify;

use clap::Subcommand;
use serde::Serialize;

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
    Density(density::Args),
    Gtt(gtt::Args),
    Migrate(migrate::Args),
    Scan(scan::Args),
    Switch(switch::Args),
    Shadow(shadow::Args),
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
        Bench::Aperture(args) => aperture::run(args),
        Bench::Fairness(args) => fairness::run(args),
        Bench::Density(args) => density::run(args),
        Bench::Gtt(args) => gtt::run(args),
        Bench::Migrate(args) => migrate::run(args),
        Bench::Scan(args) => scan::run(args),
        Bench::Switch(args) => switch::run(args),
        Bench::Shadow(args) => shadow::run(args),
        Bench::Verify(args) => verify::run(args),
    }
}

/// Prints a report as JSON for programs, or as text for people.
fn show<R: Serialize>(
    json: bool,
    report: &R,
    text: impl FnOnce(&R) -> String,
) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{}", text(report));
    }
    Ok(())
}
