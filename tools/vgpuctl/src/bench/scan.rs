//! `vgpuctl bench scan`: what it costs to check commands.
//!
//! vgpud's audit over rings and privileged batches as i915 writes them, with
//! the real windows and copies, and its scan of a user's batch through the
//! context's own tables, beside a copy of the same bytes. And the share of both
//! in the time that a request takes which does nothing, from the guest's store
//! of the batch to the check of its result, on a simulated host; and that time
//! without the scan.

mod commands;

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, ensure};
use gen8::Engine;
use gpu_bus::GGTT_ENTRIES;
use guest_driver::{Batch, Driver, Frames, Given, Kind};
use guest_memory::GuestMemory;
use serde::Serialize;
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use vgpu_sched::scan::{ScanLimits, ScanMode, Scanner};

use super::bare::{Guest, Host};
use super::spread::{self, HEADING, Spread};
use crate::ratio::as_f64;
use crate::table;

/// Commands checked in a second, beside a plain copy of them.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Rounds. Each measures everything once, in turn.
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,

    /// Times each is done in a round.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    times: u32,
}

/// The JSON.
#[derive(Serialize)]
struct Figures {
    rounds: u32,
    /// Bytes of commands checked in a second, rings and batches together, in
    /// millions.
    scan_mb_s: Spread,
    /// Rings alone.
    ring_mb_s: Spread,
    /// Privileged batches alone, which are copied from the guest and to the
    /// host's pages.
    batch_mb_s: Spread,
    /// A user's batch that was never seen before.
    user_mb_s: Spread,
    /// One that did not change.
    unchanged_mb_s: Spread,
    /// The same bytes as rings and privileged batches copied.
    memcpy_mb_s: Spread,
    /// Checking the commands of one request that does nothing, its batch's
    /// among them.
    noop_scan_ns: Spread,
    /// Of that, the batch.
    noop_user_ns: Spread,
    /// Such a request from its guest and back.
    noop_latency_ns: Spread,
    /// The same where users' batches are not looked at.
    noop_latency_off_ns: Spread,
    /// Checking by the request's time.
    noop_share: Spread,
}

/// Bytes of a ring to check: most of one of i915's.
const RING: usize = 12 << 10;
/// Bytes of a ring in all.
const RING_SIZE: u32 = 16 << 10;
/// Bytes of a privileged batch, which stands where the guest has the pages
/// of a context image behind its first; that image never runs here.
const BATCH: usize = 64 << 10;
const BATCH_AT: u32 = 0x2000;
/// The context whose batches are scanned: its image is whole.
const USER_CONTEXT: usize = 1;
/// Bytes of a user's batch: within what one submission's scan may cost.
const USER: usize = 56 << 10;
/// Frames of a guest.
const FRAMES: usize = 1024;

/// Runs it.
///
/// # Errors
/// When the audit refuses the commands, or a host cannot be simulated.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let figures = measure(args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    let rows = [
        figures.scan_mb_s.row("checked, MB/s"),
        figures.ring_mb_s.row("  rings"),
        figures.batch_mb_s.row("  privileged batches"),
        figures.user_mb_s.row("  users' batches"),
        figures.unchanged_mb_s.row("  users' batches, unchanged"),
        figures.memcpy_mb_s.row("copied, MB/s"),
        figures.noop_scan_ns.row("a request that does nothing, ns"),
        figures.noop_user_ns.row("  of that, its batch"),
        figures.noop_latency_ns.row("  from the guest and back, ns"),
        figures
            .noop_latency_off_ns
            .row("  the same, batches not looked at"),
        figures.noop_share.row("  share of checking"),
    ];
    print!("{}", table::render(HEADING, rows));
    println!("{} rounds of {}", args.rounds, args.times);
    Ok(())
}

/// What is checked.
struct Scan {
    host: Host,
    guest: Guest,
    ring: Vec<u32>,
    batch: Vec<u32>,
    noop: Vec<u32>,
    /// Where the context has the user's batch, and one that ends at once.
    user: [u64; 2],
    user_bytes: usize,
    /// It has seen both.
    scanner: Scanner,
    words: Vec<u32>,
}

impl Scan {
    fn new() -> anyhow::Result<Self> {
        let host = Host::new(GGTT_ENTRIES - 2)?;
        let guest = Guest::new(&host, 1, Engine::Rcs, FRAMES, 2)?;
        let batch = commands::privileged(BATCH);
        // The driver's first frame is its first page in the global table.
        let bytes: Vec<u8> = batch.iter().flat_map(|w| w.to_le_bytes()).collect();
        guest.memory.write(BATCH_AT.into(), &bytes)?;
        let ring = commands::ring(RING);
        let user = commands::user(USER);
        let bytes: Vec<u8> = user.iter().flat_map(|w| w.to_le_bytes()).collect();
        let [with_data, short] = guest.contexts[USER_CONTEXT].slots;
        guest.memory.write(with_data.data, &bytes)?;
        let end = Batch::new().end().finish();
        let end: Vec<u8> = end.iter().flat_map(|w| w.to_le_bytes()).collect();
        guest.memory.write(short.batch, &end)?;
        Ok(Self {
            user: [with_data.data_va, short.batch_va],
            user_bytes: bytes.len(),
            scanner: scanner(),
            words: Vec::with_capacity(ring.len()),
            noop: commands::request(1),
            host,
            guest,
            ring,
            batch,
        })
    }

    /// Checks a copy of commands in the ring.
    fn ring(&mut self, noop: bool) -> anyhow::Result<()> {
        let from = if noop { &self.noop } else { &self.ring };
        self.words.clear();
        self.words.extend_from_slice(from);
        let words = &mut self.words;
        self.guest
            .audit(&self.host, |audit| audit.ring(words, 0, RING_SIZE))?;
        black_box(&self.words);
        Ok(())
    }

    /// Copies and checks the batch.
    fn batch(&self) -> anyhow::Result<()> {
        let at = self
            .guest
            .audit(&self.host, |audit| audit.batch(BATCH_AT))?;
        black_box(at);
        Ok(())
    }

    /// Scans a user's batch `times` times, each as if never seen or not;
    /// nanoseconds each.
    fn user(&self, start: u64, fresh: bool, times: u32) -> anyhow::Result<f64> {
        self.guest.own_space(USER_CONTEXT, |space| {
            time(times, || {
                let new = fresh.then(scanner);
                let scanner = new.as_ref().unwrap_or(&self.scanner);
                let report = scanner.scan(Engine::Rcs, &[], space, &[start]);
                ensure!(!report.doubtful && report.findings.is_empty(), "{report:?}");
                black_box(report.commands);
                Ok(())
            })
        })?
    }

    /// Copies the same bytes.
    fn copy(&mut self) {
        for from in [&self.ring, &self.batch] {
            self.words.clear();
            self.words.extend_from_slice(black_box(from));
            black_box(&self.words);
        }
    }
}

fn scanner() -> Scanner {
    Scanner::new(&gen8::platform::BDW, ScanMode::Note, ScanLimits::default())
}

/// A host that looks at users' batches or not, and a guest on it. Dropped in
/// this order.
struct Simulated {
    frames: Frames,
    guest: SimGuest,
    _host: SimHost,
}

impl Simulated {
    fn new(scan: ScanMode) -> anyhow::Result<Self> {
        let host = SimHost::start(SimHostConfig {
            scan,
            ..SimHostConfig::default()
        })?;
        let config = SimGuestConfig {
            frames: FRAMES,
            ..SimGuestConfig::default()
        };
        Ok(Self {
            frames: Frames::new(256, u64::try_from(FRAMES)?),
            guest: SimGuest::start(&host, &config)?,
            _host: host,
        })
    }
}

fn measure(args: &Args) -> anyhow::Result<Figures> {
    let mut scan = Scan::new()?;
    let sims = [ScanMode::Note, ScanMode::Off].map(Simulated::new);
    let [with, without] = sims;
    let (with, without) = (with?, without?);
    let mut driver = Driver::start(&with.guest, with.frames, 1)?;
    let mut other = Driver::start(&without.guest, without.frames, 1)?;
    let [ring_bytes, batch_bytes] =
        [&scan.ring, &scan.batch].map(|words| u64::try_from(words.len() * 4).map_or(0.0, as_f64));
    let user_bytes = u64::try_from(scan.user_bytes).map_or(0.0, as_f64);
    let all = ring_bytes + batch_bytes;
    // Bytes in nanoseconds are GB/s.
    let mb_s = |bytes: f64, ns: f64| bytes * 1000.0 / ns;
    let mut seen: [Vec<f64>; 11] = Default::default();
    // The first round warms up and does not count.
    for round in 0..=args.rounds {
        let ring = time(args.times, || scan.ring(false))?;
        let batch = time(args.times, || scan.batch())?;
        let copy = time(args.times, || {
            scan.copy();
            Ok(())
        })?;
        let noop = time(args.times * 20, || scan.ring(true))?;
        let [long, short] = scan.user;
        let user = scan.user(long, true, args.times)?;
        let unchanged = scan.user(long, false, args.times)?;
        let noop_user = scan.user(short, false, args.times * 20)?;
        let noop = noop + noop_user;
        let latency = noops(&mut driver, args.times)?;
        let off = noops(&mut other, args.times)?;
        let round_of = [
            mb_s(all, ring + batch),
            mb_s(ring_bytes, ring),
            mb_s(batch_bytes, batch),
            mb_s(user_bytes, user),
            mb_s(user_bytes, unchanged),
            mb_s(all, copy),
            noop,
            noop_user,
            latency,
            off,
            noop / latency,
        ];
        if round > 0 {
            for (all, one) in seen.iter_mut().zip(round_of) {
                all.push(one);
            }
        }
    }
    let [
        scan,
        ring,
        batch,
        user,
        unchanged,
        copy,
        noop,
        noop_user,
        latency,
        off,
        share,
    ] = seen.map(Spread::of);
    Ok(Figures {
        rounds: args.rounds,
        scan_mb_s: scan,
        ring_mb_s: ring,
        batch_mb_s: batch,
        user_mb_s: user,
        unchanged_mb_s: unchanged,
        memcpy_mb_s: copy,
        noop_scan_ns: noop,
        noop_user_ns: noop_user,
        noop_latency_ns: latency,
        noop_latency_off_ns: off,
        noop_share: share,
    })
}

/// Nanoseconds each of `times`.
fn time(times: u32, mut f: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut result = Ok(());
    let ns = spread::time(times, || {
        result = (0..times).try_for_each(|_| f());
    });
    result.map(|()| ns)
}

/// The middle of what requests take that do nothing, one after the other, in
/// nanoseconds.
fn noops(driver: &mut Driver<&SimGuest>, times: u32) -> anyhow::Result<f64> {
    let mut latencies = Vec::new();
    for _ in 0..times {
        let nothing = |_: &_| Given {
            kind: Kind::Stores,
            batch: Batch::new().end().finish(),
            after: Vec::new(),
        };
        let taken = driver.submit_given(Engine::Rcs, nothing)?;
        ensure!(taken, "the driver takes no request");
        while !driver.idle() {
            for finished in driver.wait()? {
                finished.result?;
                latencies.push(finished.latency);
            }
        }
    }
    latencies.sort();
    let middle: &Duration = latencies
        .get(latencies.len() / 2)
        .context("no request came back")?;
    Ok(middle.as_secs_f64() * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there() {
        let args = Args {
            json: true,
            rounds: 1,
            times: 2,
        };
        let json = serde_json::to_value(measure(&args).unwrap()).unwrap();
        for key in [
            "scan_mb_s",
            "user_mb_s",
            "unchanged_mb_s",
            "memcpy_mb_s",
            "noop_scan_ns",
        ] {
            assert!(json[key]["median"].as_f64().unwrap() > 0.0, "{json}");
        }
        // A machine that is busy makes it nothing in three places.
        assert!(
            json["noop_share"]["median"].as_f64().unwrap() >= 0.0,
            "{json}"
        );
    }

    #[test]
    fn the_audit_sees_every_command_and_moves_every_address() {
        let mut scan = Scan::new().unwrap();
        let requests = scan.ring.len() / scan.noop.len();
        let mut words = scan.ring.clone();
        let checked = scan.guest.audit(&scan.host, |audit| {
            audit.ring(&mut words, 0, RING_SIZE).unwrap();
            audit.commands
        });
        let each = scan.guest.audit(&scan.host, |audit| {
            audit.ring(&mut scan.noop, 0, RING_SIZE).unwrap();
            audit.commands
        });
        assert_eq!(checked, each * u64::try_from(requests).unwrap());
        let moved = words.iter().zip(&scan.ring).filter(|(a, b)| a != b).count();
        // The store's and the breadcrumb's.
        assert_eq!(moved, requests * 2);
    }
}
