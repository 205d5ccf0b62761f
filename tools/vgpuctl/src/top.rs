//! `vgpuctl top`: who uses the GPU now.

mod batch;
mod columns;
mod live;
mod order;
mod rates;
mod screen;
mod snapshot;
mod terminal;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::Context;

use crate::daemon::Daemon;
pub use snapshot::Snapshot;

/// Shows who uses the GPU, as it changes.
///
/// Keys: q quits, up and down scroll, and a letter sorts: b busy, d domain, n
/// name, r requests, s switches, w waits.
#[derive(clap::Args)]
pub struct Args {
    /// Seconds between two looks, 0.1 to 3600.
    #[arg(short = 'd', long = "delay", default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    delay: Duration,

    /// Prints blocks of text instead of a screen, for scripts.
    #[arg(short, long)]
    batch: bool,

    /// Prints a line of JSON for each look instead of a screen.
    #[arg(long)]
    json: bool,

    /// How many looks to print, and no screen. Without it, looks are printed
    /// until interrupted.
    #[arg(short = 'n', long = "count", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// What to sort by.
    #[arg(long, value_enum, default_value = "busy")]
    sort: order::Order,

    #[command(flatten)]
    daemon: Daemon,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let allowed = seconds.filter(|s| (0.1..=3600.0).contains(s));
    let allowed = allowed.and_then(|s| Duration::try_from_secs_f64(s).ok());
    allowed.ok_or_else(|| "allowed: 0.1 to 3600".into())
}

/// Runs it.
///
/// # Errors
/// When vgpud does not answer at first, or the terminal fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.json || args.batch || args.count.is_some() {
        let form = if args.json {
            batch::Form::Json
        } else {
            batch::Form::Text
        };
        return batch::run(args, form);
    }
    live::run(args).context("no screen can be shown here; try --batch")
}
