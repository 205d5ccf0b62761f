//! Bytes that go with a switch: entries of the global page table and parts of
//! contexts, counted on the software GPU with two guests that take turns.

use anyhow::ensure;
use gen8::Engine;
use guest_driver::{Driver, Frames};
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};

/// Bytes a switch of every engine, with one workload on each.
pub struct Bytes {
    /// Entries of the global table written.
    pub gtt: f64,
    /// The same when nothing is known of what the table holds: a workload's
    /// every window.
    pub windows: f64,
    /// Copied of contexts: register pages, commands, what a run leaves.
    pub context: f64,
}

/// The frames that a guest's driver may use: above the first MiB.
const FIRST_FRAME: u64 = 256;

/// Bytes of a page-table entry.
const ENTRY: u64 = 8;

/// What a guest's workloads took so far.
#[derive(Clone, Copy, Default)]
struct Sum {
    completed: u64,
    entries: u64,
    bytes: u64,
}

/// One guest and its driver.
struct Runner<'a> {
    guest: &'a SimGuest,
    driver: Driver<&'a SimGuest>,
}

impl<'a> Runner<'a> {
    fn new(guest: &'a SimGuest, frames: u64, seed: u64) -> anyhow::Result<Self> {
        let driver = Driver::start(guest, Frames::new(FIRST_FRAME, frames), seed)?;
        Ok(Self { guest, driver })
    }

    /// A request on each engine, to the end.
    fn round(&mut self) -> anyhow::Result<()> {
        let mut under_way = 0;
        for engine in Engine::ALL {
            ensure!(self.driver.submit(engine)?, "{engine:?} takes no request");
            under_way += 1;
        }
        while under_way > 0 {
            for finished in self.driver.wait()? {
                finished.result?;
                under_way -= 1;
            }
        }
        Ok(())
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for lane in self.guest.scheduled().engines {
            sum.completed += lane.counters.completed;
            sum.entries += lane.counters.ptes_written;
            sum.bytes += lane.counters.bytes_copied;
        }
        sum
    }
}

/// Counts over `rounds` of each guest.
///
/// # Errors
/// When the host cannot be simulated or a result is wrong.
pub fn measure(rounds: u32) -> anyhow::Result<Bytes> {
    let host = SimHost::start(SimHostConfig::default())?;
    let config = SimGuestConfig::default();
    let frames = u64::try_from(config.frames)?;
    let guests = [
        SimGuest::start(&host, &config)?,
        SimGuest::start(&host, &config)?,
    ];
    let mut runners = Vec::new();
    for (guest, seed) in guests.iter().zip(1..) {
        runners.push(Runner::new(guest, frames, seed)?);
    }
    // The first of each finds nothing of its own in the table.
    let mut windows = 0;
    for runner in &mut runners {
        let before = runner.sum().entries;
        runner.round()?;
        windows += runner.sum().entries - before;
    }
    let before: Vec<Sum> = runners.iter().map(Runner::sum).collect();
    for _ in 0..rounds {
        for runner in &mut runners {
            runner.round()?;
        }
    }
    let mut all = Sum::default();
    for (runner, before) in runners.iter().zip(before) {
        let after = runner.sum();
        all.completed += after.completed - before.completed;
        all.entries += after.entries - before.entries;
        all.bytes += after.bytes - before.bytes;
    }
    let engines = u64::try_from(Engine::COUNT)?;
    let turns = all.completed / engines;
    let each = |sum: u64| -> anyhow::Result<f64> {
        let tenths = u32::try_from(sum * 10 / turns.max(1))?;
        Ok(f64::from(tenths) / 10.0)
    };
    let started = u64::try_from(runners.len())?;
    Ok(Bytes {
        gtt: each(all.entries * ENTRY)?,
        windows: f64::from(u32::try_from(windows * ENTRY / started)?),
        context: each(all.bytes)?,
    })
}
