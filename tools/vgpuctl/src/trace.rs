//! `vgpuctl trace`: what happened on the engines.

mod chrome;
mod line;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use vgpu_control::{ClientRequest, TraceEvent, TracePage};

use crate::daemon::Daemon;
use crate::top::Snapshot;

/// Shows what happened on the engines: a line an event, oldest first.
///
/// vgpud remembers the last 65536 events. Times are in seconds since it
/// started.
#[derive(clap::Args)]
pub struct Args {
    /// Goes on as new events come.
    #[arg(short, long)]
    follow: bool,

    /// How many of the last events [default: 100; all with --chrome].
    #[arg(short = 'n', value_name = "N")]
    events: Option<u64>,

    /// Writes them as Chrome trace JSON, which https://ui.perfetto.dev opens: a
    /// process an engine, a track a vGPU.
    #[arg(long, value_name = "FILE", conflicts_with = "follow")]
    chrome: Option<PathBuf>,

    #[command(flatten)]
    daemon: Daemon,
}

/// How long to wait for new events.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs it.
///
/// # Errors
/// When vgpud does not answer, or the file cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut reader = Reader::at_end(&args.daemon)?;
    let default = if args.chrome.is_some() { u64::MAX } else { 100 };
    reader.go_back(args.events.unwrap_or(default));
    if let Some(path) = &args.chrome {
        let events = reader.up_to_end()?;
        let text = serde_json::to_string(&chrome::document(&events, &names(&args.daemon)?))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{} events in {}", events.len(), path.display());
        return Ok(());
    }
    match print(&mut reader, args.follow) {
        // Nobody reads any more.
        Err(e) if broken_pipe(&e) => Ok(()),
        other => other,
    }
}

/// The guests' names by domain. Guests that are gone have none.
fn names(daemon: &Daemon) -> anyhow::Result<chrome::Names> {
    let vgpus = Snapshot::take(daemon)?.vgpus.into_iter();
    Ok(vgpus
        .filter_map(|v| Some((v.domid.into(), v.name?)))
        .collect())
}

fn broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}

fn print(reader: &mut Reader<'_>, follow: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    loop {
        let page = reader.next()?;
        if page.missed > 0 {
            writeln!(out, "{} events are lost", page.missed)?;
        }
        for event in &page.events {
            writeln!(out, "{}", line::render(event))?;
        }
        out.flush()?;
        // An event that is being written is only waited for to follow it.
        let nothing = page.events.is_empty() && page.missed == 0;
        if !follow && (nothing || reader.at >= reader.end) {
            return Ok(());
        }
        if nothing {
            std::thread::sleep(PAUSE);
        }
    }
}

/// A place in the trace.
struct Reader<'a> {
    daemon: &'a Daemon,
    vgpud: u32,
    at: u64,
    /// Behind the newest event when reading began.
    end: u64,
}

impl<'a> Reader<'a> {
    /// Behind the newest event.
    fn at_end(daemon: &'a Daemon) -> anyhow::Result<Self> {
        let page: TracePage = daemon.ask(&ClientRequest::Trace {
            cursor: u64::MAX,
            max: 0,
        })?;
        Ok(Self {
            daemon,
            vgpud: page.vgpud,
            at: page.next,
            end: page.next,
        })
    }

    fn go_back(&mut self, events: u64) {
        self.at = self.at.saturating_sub(events);
    }

    /// The next events. None when there are none yet.
    fn next(&mut self) -> anyhow::Result<TracePage> {
        let page: TracePage = self.daemon.ask(&ClientRequest::Trace {
            cursor: self.at,
            max: u32::MAX,
        })?;
        anyhow::ensure!(page.vgpud == self.vgpud, "vgpud was started anew");
        self.at = page.next;
        Ok(page)
    }

    /// All events up to the end.
    fn up_to_end(&mut self) -> anyhow::Result<Vec<TraceEvent>> {
        let mut events = Vec::new();
        while self.at < self.end {
            let before = self.at;
            events.extend(self.next()?.events);
            // An event that is being written: it is not waited for.
            if self.at == before {
                break;
            }
        }
        Ok(events)
    }
}
