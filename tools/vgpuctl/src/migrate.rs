//! `vgpuctl migrate-status`: how a guest's migration goes.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use clap::ValueEnum;
use vgpu_control::{Ahead, ClientRequest, Failing, Migration, Phase, Step};

use crate::daemon::{Daemon, Refusal};

/// Shows how a guest's migration goes, or went: pages, how long the guest is
/// expected to stand still, and what it waited for.
#[derive(clap::Args)]
pub struct Args {
    /// The guest.
    domid: u16,

    /// As JSON.
    #[arg(long)]
    json: bool,

    /// One line that is kept up to date, until the guest is gone. It fails when
    /// vgpud ends, or the guest while no migration is under way.
    #[arg(long, conflicts_with = "json")]
    follow: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Makes a guest's next migration fail at a step, to see what becomes of the
/// guest then.
#[derive(clap::Args)]
pub struct FailArgs {
    /// The guest; 0 at the steps of the target, for whichever comes here next.
    domid: u16,

    /// The step.
    at: At,

    /// Kill the toolstack's process there, instead of refusing the step.
    #[arg(long)]
    kill: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Sets how long a guest may stand still when it is migrated away from here,
/// instead of what vgpud was started with.
#[derive(clap::Args)]
pub struct LimitArgs {
    /// The guest.
    domid: u16,

    /// Milliseconds.
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    milliseconds: u32,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Clone, Copy, ValueEnum)]
enum At {
    /// Before the first page is copied.
    Begin,
    /// When the guest stands still.
    Stop,
    /// When the vGPU's state is written.
    Save,
    /// At the target, before the vGPU is made.
    Load,
    /// At the target, before the guest runs.
    Start,
}

/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);

/// Runs `migrate-status`.
///
/// # Errors
/// When vgpud does not answer, or the domain has no vGPU, unless it is followed
/// and was migrated.
pub fn status(args: &Args) -> anyhow::Result<()> {
    let ask = || -> anyhow::Result<Migration> {
        let domid = args.domid;
        args.daemon.ask(&ClientRequest::MigrateStatus { domid })
    };
    let now = ask()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&now)?);
        return Ok(());
    }
    let mut out = std::io::stdout();
    if !args.follow {
        writeln!(out, "{}", line(&now))?;
        return Ok(());
    }
    let terminal = out.is_terminal();
    follow(&mut out, terminal, now, || {
        std::thread::sleep(EVERY);
        ask()
    })
}

/// Shows what `next` gives until it gives nothing more, which is how it has to
/// be when the guest was migrated.
fn follow(
    out: &mut impl Write,
    terminal: bool,
    mut shown: Migration,
    mut next: impl FnMut() -> anyhow::Result<Migration>,
) -> anyhow::Result<()> {
    // On a terminal the line replaces the one before.
    let (begin, end) = if terminal {
        ("\r\x1b[K", "")
    } else {
        ("", "\n")
    };
    write!(out, "{begin}{}{end}", line(&shown))?;
    out.flush()?;
    let error = loop {
        match next() {
            Ok(now) if now == shown => {}
            Ok(now) => {
                shown = now;
                write!(out, "{begin}{}{end}", line(&shown))?;
                out.flush()?;
            }
            Err(e) => break e,
        }
    };
    if terminal {
        writeln!(out)?;
    }
    // The last steps take less than there is between two looks.
    let migrated = matches!(
        shown.phase,
        Phase::Copying | Phase::Stopped | Phase::Saved | Phase::Arrived
    );
    if migrated && error.is::<Refusal>() {
        return Ok(());
    }
    Err(error)
}

/// Runs `migrate-fail`.
///
/// # Errors
/// When vgpud does not answer, or the domain has no vGPU.
pub fn fail(args: &FailArgs) -> anyhow::Result<()> {
    let at = match args.at {
        At::Begin => Step::Begin,
        At::Stop => Step::Stop,
        At::Save => Step::Save,
        At::Load => Step::Load,
        At::Start => Step::Start,
    };
    let how = if args.kill {
        Failing::Killed
    } else {
        Failing::Refused
    };
    let domid = args.domid;
    let _: serde_json::Value = args
        .daemon
        .ask(&ClientRequest::FailMigration { domid, at, how })?;
    Ok(())
}

/// Runs `migrate-limit`.
///
/// # Errors
/// When vgpud does not answer, or the domain has no vGPU.
pub fn limit(args: &LimitArgs) -> anyhow::Result<()> {
    let request = ClientRequest::LimitMigration {
        domid: args.domid,
        limit_ms: args.milliseconds,
    };
    let _: serde_json::Value = args.daemon.ask(&request)?;
    Ok(())
}

fn line(migration: &Migration) -> String {
    let phase = match migration.phase {
        Phase::None => "no migration",
        Phase::Copying => "copying",
        Phase::Stopped => "stopped",
        Phase::Saved => "saved",
        Phase::GivenUp => "given up, the guest goes on",
        Phase::Restored => "restored",
        Phase::Arrived => "arrived",
    };
    let mut line = phase.to_owned();
    // Writing to a string does not fail.
    let mut add = |text: std::fmt::Arguments<'_>| {
        let _ = line.write_fmt(text);
    };
    let pages = migration.copying;
    if migration.rounds > 0 {
        add(format_args!(
            ", {} looks, {} GPU pages sent again",
            migration.rounds, pages.named
        ));
    }
    if let Some(rate) = migration.send_rate {
        add(format_args!(", {} MiB/s", rate >> 20));
    }
    if let Some(predicted) = migration.predicted_ms {
        add(format_args!(
            ", {predicted:.0} ms of downtime expected for its vGPU, {:.0} allowed",
            migration.limit_ms
        ));
    }
    if let Some(Ahead { pages, expected_ms }) = migration.ahead {
        add(format_args!(
            "; if one began now, its work would leave {pages} pages for the end"
        ));
        if let Some(expected) = expected_ms {
            add(format_args!(
                ", {expected:.0} ms of downtime for its vGPU at the last rate"
            ));
        }
    }
    if !migration.downtime.is_empty() {
        let total: f64 = migration.downtime.iter().map(|(_, ms)| ms).sum();
        let parts = migration.downtime.iter();
        let parts: Vec<String> = parts
            .map(|(cause, ms)| format!("{} {ms:.1}", cause.name()))
            .collect();
        add(format_args!(
            ", stopped for {total:.0} ms: {}",
            parts.join(", ")
        ));
    }
    if let Some(failure) = &migration.failure {
        add(format_args!("; {failure}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use vgpu_control::{Cause, Pages};

    use super::*;

    #[test]
    fn the_end_of_a_guest_is_an_error_unless_it_was_migrated() {
        let end_after = |phases: &[Phase], end: fn() -> anyhow::Error| {
            let at = |phase| Migration {
                phase,
                ..Migration::default()
            };
            let mut phases = phases.iter().map(|&phase| at(phase));
            let mut out = Vec::new();
            let next = || phases.next().ok_or_else(end);
            let result = follow(&mut out, false, Migration::default(), next);
            let shown = String::from_utf8(out).unwrap();
            (shown, result.map_err(|e| e.to_string()))
        };
        let gone: fn() -> anyhow::Error = || Refusal("domid is 7".into()).into();
        let no_vgpud: fn() -> anyhow::Error = || anyhow::anyhow!("vgpud does not run");
        assert_eq!(
            end_after(&[Phase::Copying, Phase::Copying, Phase::Saved], gone),
            ("no migration\ncopying\nsaved\n".into(), Ok(()))
        );
        assert_eq!(end_after(&[Phase::Copying], gone).1, Ok(()));
        let gone_error = Err("domid is 7".to_owned());
        assert_eq!(end_after(&[], gone).1, gone_error);
        assert_eq!(
            end_after(&[Phase::Copying, Phase::GivenUp], gone).1,
            gone_error
        );
        let no_vgpud_error = Err("vgpud does not run".to_owned());
        assert_eq!(end_after(&[Phase::Saved], no_vgpud).1, no_vgpud_error);
    }

    #[test]
    fn one_line_tells_how_it_goes() {
        assert_eq!(line(&Migration::default()), "no migration");
        let migration = Migration {
            phase: Phase::Copying,
            rounds: 3,
            copying: Pages {
                named: 70,
                ..Pages::default()
            },
            send_rate: Some(100 << 20),
            predicted_ms: Some(61.7),
            limit_ms: 500.0,
            ..Migration::default()
        };
        assert_eq!(
            line(&migration),
            "copying, 3 looks, 70 GPU pages sent again, 100 MiB/s, \
             62 ms of downtime expected for its vGPU, 500 allowed"
        );
        let migration = Migration {
            ahead: Some(Ahead {
                pages: 40,
                expected_ms: Some(7.4),
            }),
            ..Migration::default()
        };
        assert_eq!(
            line(&migration),
            "no migration; if one began now, its work would leave 40 pages for the end, \
             7 ms of downtime for its vGPU at the last rate"
        );
        let migration = Migration {
            phase: Phase::GivenUp,
            downtime: vec![(Cause::Drain, 1.5), (Cause::NamePages, 0.25)],
            failure: Some("no room".into()),
            ..Migration::default()
        };
        assert_eq!(
            line(&migration),
            "given up, the guest goes on, stopped for 2 ms: drain 1.5, name pages 0.2; no room"
        );
    }
}
