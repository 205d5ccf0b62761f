//! `vgpuctl demo`: simulated guests share the GPU and check every result.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use gen8::Engine;
use guest_driver::{Driver, Frames};
use serde::Serialize;
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};

use crate::ratio::as_f64;

/// Simulated guests share the GPU and check every result.
#[derive(clap::Args)]
pub struct Args {
    /// Guests.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    guests: u32,

    /// Requests of each guest, spread over its engines.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    requests: u32,

    /// Where to write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The frames that a guest's driver may use: above the first MiB.
const FIRST_FRAME: u64 = 256;

/// What a guest showed.
#[derive(Default)]
struct Report {
    /// Requests finished, by engine.
    finished: [u64; Engine::COUNT],
    /// First few results that were wrong, in words.
    wrong: Vec<String>,
    mismatches: u64,
    exits: u64,
    latencies: Vec<Duration>,
}

/// The JSON.
#[derive(Serialize)]
struct Figures {
    guests: u32,
    requests: u64,
    verified: u64,
    mismatches: u64,
    mmio_exits: u64,
    latency_us_p50: f64,
    latency_us_p99: f64,
}

/// Runs it.
///
/// # Errors
/// When the host cannot be simulated, a guest's driver gives up, or a result
/// was wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let host = SimHost::start(SimHostConfig::default())?;
    let done = AtomicU64::new(0);
    let total = u64::from(args.guests) * u64::from(args.requests);
    let started = Instant::now();
    let reports = std::thread::scope(|scope| {
        let guests: Vec<_> = (1..=args.guests)
            .map(|number| {
                let (host, done) = (&host, &done);
                scope.spawn(move || {
                    guest(host, number, args.requests, done)
                        .with_context(|| format!("guest {number}"))
                })
            })
            .collect();
        while !guests
            .iter()
            .all(std::thread::ScopedJoinHandle::is_finished)
        {
            std::thread::sleep(Duration::from_millis(100));
            progress(done.load(Relaxed), total, started.elapsed());
        }
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        guests
            .into_iter()
            .map(|g| g.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    table(&reports, started.elapsed());
    let figures = figures(args.guests, &reports);
    println!(
        "{} of {} results verified, latency p50 {:.1} µs, p99 {:.1} µs, {:.1} exits a request",
        figures.verified,
        figures.requests,
        figures.latency_us_p50,
        figures.latency_us_p99,
        ratio(figures.mmio_exits, figures.requests),
    );
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    for wrong in reports.iter().flat_map(|r| &r.wrong) {
        eprintln!("{wrong}");
    }
    anyhow::ensure!(
        figures.mismatches == 0,
        "{} of {} results are wrong",
        figures.mismatches,
        figures.requests
    );
    Ok(())
}

/// One guest from boot to its last request.
fn guest(host: &SimHost, number: u32, requests: u32, done: &AtomicU64) -> anyhow::Result<Report> {
    let config = SimGuestConfig::default();
    let guest = SimGuest::start(host, &config)?;
    let last = u64::try_from(config.frames)?;
    let mut driver = Driver::start(&guest, Frames::new(FIRST_FRAME, last), number.into())?;
    let mut report = Report::default();
    let mut left = requests;
    let mut under_way = 0;
    let mut turn = Engine::ALL.into_iter().cycle();
    while left > 0 || under_way > 0 {
        // Engines in turn, until none takes more.
        let mut refused = 0;
        while left > 0 && refused < Engine::COUNT {
            let Some(engine) = turn.next() else { break };
            if driver.submit(engine)? {
                left -= 1;
                under_way += 1;
                refused = 0;
            } else {
                refused += 1;
            }
        }
        for finished in driver.wait()? {
            under_way -= 1;
            done.fetch_add(1, Relaxed);
            report.finished[finished.engine.index()] += 1;
            report.latencies.push(finished.latency);
            if let Err(e) = finished.result {
                report.mismatches += 1;
                if report.wrong.len() < 3 {
                    report.wrong.push(format!("guest {number}: {e}"));
                }
            }
        }
    }
    if let Some(reason) = guest.failure() {
        anyhow::bail!("vgpud dropped the vGPU: {reason}");
    }
    report.exits = driver.exits();
    Ok(report)
}

fn progress(done: u64, total: u64, elapsed: Duration) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let per_second = rate(done, elapsed);
        // A progress line that cannot be written is no reason to stop.
        let _ = write!(err, "\r{done}/{total} requests, {per_second:.0} a second ");
        let _ = err.flush();
    }
}

fn table(reports: &[Report], elapsed: Duration) {
    println!(
        "{:>5} {:>8} {:>8} {:>8} {:>8} {:>6} {:>9} {:>9} {:>9}",
        "guest", "rcs0", "bcs0", "vcs0", "vecs0", "wrong", "p50 µs", "p99 µs", "a second"
    );
    for (number, r) in (1..).zip(reports) {
        let [rcs, bcs, vcs, vecs] = r.finished;
        let mut sorted = r.latencies.clone();
        sorted.sort_unstable();
        println!(
            "{number:>5} {rcs:>8} {bcs:>8} {vcs:>8} {vecs:>8} {:>6} {:>9.1} {:>9.1} {:>9.0}",
            r.mismatches,
            percentile(&sorted, 50),
            percentile(&sorted, 99),
            rate(r.finished.iter().sum(), elapsed),
        );
    }
}

fn figures(guests: u32, reports: &[Report]) -> Figures {
    let mut latencies: Vec<_> = reports.iter().flat_map(|r| r.latencies.clone()).collect();
    latencies.sort_unstable();
    let requests = reports.iter().flat_map(|r| r.finished).sum();
    let mismatches = reports.iter().map(|r| r.mismatches).sum();
    Figures {
        guests,
        requests,
        verified: requests - mismatches,
        mismatches,
        mmio_exits: reports.iter().map(|r| r.exits).sum(),
        latency_us_p50: percentile(&latencies, 50),
        latency_us_p99: percentile(&latencies, 99),
    }
}

/// In microseconds, of sorted durations.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e6)
}

fn rate(n: u64, elapsed: Duration) -> f64 {
    as_f64(n) / elapsed.as_secs_f64().max(1e-9)
}

fn ratio(a: u64, b: u64) -> f64 {
    as_f64(a) / as_f64(b.max(1))
}
