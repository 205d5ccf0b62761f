//! vGPUs that mean no good, beside those that are measured.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use gen8::Engine;
use sim_host::{Rogue, SimHost};
use vgpu_ring::Event;

/// A domain id that no guest of a bench gets.
const ID: u64 = 40_000;
/// How often a rogue looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(5);
/// When a full ring is tried again, as vgpu-dm does. A process that spins
/// costs what it costs, with a ring or without.
const RETRY: Duration = Duration::from_millis(1);

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// Submits nothing but batches that never end, each again once vgpud has
    /// reset it.
    Spins,
    /// Fills its submit ring as fast as it is emptied.
    Floods,
    /// The same, of a vgpud that reads all it finds.
    FloodsUnbounded,
    /// Submits a batch that never ends, and dies while it runs.
    Dies,
}

impl Mischief {
    /// In words.
    pub const fn does(self) -> &'static str {
        match self {
            Self::Spins => "spins",
            Self::Floods | Self::FloodsUnbounded => "floods its ring",
            Self::Dies => "dies on the engine",
        }
    }
}

/// Does it until `stop`; how many times. What it has on the engine is off it
/// on return.
pub fn run(host: &SimHost, mischief: Mischief, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut rogue = Rogue::start(host, ID, Engine::Bcs)?;
    let times = match mischief {
        Mischief::Spins => spin(&mut rogue, stop)?,
        Mischief::Floods | Mischief::FloodsUnbounded => flood(&mut rogue, stop)?,
        Mischief::Dies => {
            rogue.spin()?;
            let bcs = Engine::Bcs.index();
            while !stop.load(Relaxed) && host.scheduler().engines()[bcs].running != Some(ID) {
                std::thread::sleep(LOOK / 10);
            }
            1
        }
    };
    drop(rogue);
    while !stop.load(Relaxed) {
        std::thread::sleep(LOOK);
    }
    Ok(times)
}

/// How many of its batches were reset.
fn spin(rogue: &mut Rogue, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut faults = 0;
    while !stop.load(Relaxed) {
        rogue.spin()?;
        while !stop.load(Relaxed) {
            match rogue.event(LOOK)? {
                Some(Event::Fault { .. }) => {
                    faults += 1;
                    rogue.reset()?;
                }
                Some(Event::ResetDone { .. }) => break,
                _ => {}
            }
        }
    }
    Ok(faults)
}

/// How many answers it got.
fn flood(rogue: &mut Rogue, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut answers = 0;
    while !stop.load(Relaxed) && rogue.failure().is_none() {
        if rogue.ping(64)? > 0 {
            std::thread::sleep(RETRY);
        }
        while rogue.event(Duration::ZERO)?.is_some() {
            answers += 1;
        }
    }
    Ok(answers)
}
