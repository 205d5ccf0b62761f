//! The ways to migrate that are compared.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde::Serialize;
use vgpu_migrate::adaptive::{AtStop, Costs, Plan};
use vgpu_migrate::connection::Bucket;
use vgpu_migrate::precopy::{Candidates, Carrier, Clock, Convergence, Host, Options, Precopy};
use vgpu_migrate::{Method, Page};

use super::machine::Machine;
use super::pattern::Pattern;
use super::rates::Rates;
use super::world::World;

/// A way to migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The guest stops and everything goes.
    StopAndCopy,
    /// Everything goes and is digested once; the guest stops; everything ever
    /// mapped is digested again by one thread, and what changed goes.
    Published,
    /// Ours.
    Ours,
    /// Ours, each page looked at as a whole.
    OursNoSampling,
    /// Ours, looking and sending in turn.
    OursNoOverlap,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::StopAndCopy,
        Self::Published,
        Self::Ours,
        Self::OursNoSampling,
        Self::OursNoOverlap,
    ];

    /// As figures call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StopAndCopy => "stop_and_copy",
            Self::Published => "published",
            Self::Ours => "ours",
            Self::OursNoSampling => "ours_no_sampling",
            Self::OursNoOverlap => "ours_no_overlap",
        }
    }

    /// The same plan for all regions, where nothing is decided by what is
    /// seen.
    const fn fixed(self) -> Option<Plan> {
        match self {
            Self::StopAndCopy => Some(Plan {
                background: false,
                at_stop: AtStop::Send,
                sampled: false,
            }),
            Self::Published => Some(Plan {
                background: true,
                at_stop: AtStop::Verify,
                sampled: false,
            }),
            _ => None,
        }
    }
}

/// One migration.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Run {
    pub mem_mb: u32,
    pub gbit: u32,
    pub pattern: &'static str,
    pub method: &'static str,
    /// From the guest's stop until the target has everything.
    pub downtime_ms: f64,
    /// The parts of it: until the last page was looked at, and from then until
    /// the last byte of pages was over, and the state.
    pub looking_ms: f64,
    pub sending_ms: f64,
    pub state_ms: f64,
    /// From the first page.
    pub total_ms: f64,
    pub bytes: u64,
    pub rounds: u32,
    /// Pages sent before the guest stopped, as often as they were.
    pub before_pages: u64,
    /// Pages that may have been written when it had, those looked at, and
    /// those sent.
    pub stop_candidates: u64,
    pub stop_verified: u64,
    pub stop_pages: u64,
    /// Pages that the GPU wrote and the target has otherwise.
    pub missed: u64,
    /// Pages sent again although the target had these very bytes.
    pub false_positives: u64,
    /// What wrote the pages.
    pub engine: &'static str,
}

/// Bytes of the vGPU's state.
const STATE: u32 = 256 << 10;
/// A word to the target and back, for it to confirm.
const ROUND_TRIP: Duration = Duration::from_micros(200);
/// Rounds are not begun more often: the guest's processors are not ours.
const PACE: Duration = Duration::from_millis(10);

/// What is the same for several runs.
pub struct Bench<'a> {
    pub machine: &'a mut dyn Machine,
    pub target: &'a mut [Page],
    /// By threads: one, and two.
    pub rates: [Rates; 2],
    pub engine: &'static str,
}

/// All that the published scheme looks at: whatever was ever mapped.
struct EverMapped<'a>(&'a World<'a>, u64, u64);

impl Candidates for EverMapped<'_> {
    fn take(&self, each: &mut dyn FnMut(guest_memory::Gfn)) {
        self.0.take(&mut |_| {});
        (self.1..self.1 + self.2)
            .map(guest_memory::Gfn)
            .for_each(each);
    }
}

impl Bench<'_> {
    /// Migrates once.
    ///
    /// # Errors
    /// When a page that the GPU did not write differs at the target, or the
    /// guest fails.
    pub fn run(&mut self, gbit: u32, pattern: Pattern, way: Way) -> anyhow::Result<Run> {
        let pages = u64::try_from(self.target.len())?;
        let first = self.machine.first();
        let room = self.target.len() * 128 + (8 << 20);
        let [one, two] = self.rates;
        let rates = if way == Way::Published { one } else { two };
        let speed = Bucket::new(f64::from(gbit) * 1e9 / 8.0, 0);
        let mut world = World::new(self.machine, pattern, rates, speed, self.target)?;
        if way == Way::OursNoOverlap {
            world = world.without_overlap();
        }
        let world = &world;
        let ever_mapped = EverMapped(world, first, pages);
        let host = Host {
            memory: &*world.memory(),
            candidates: if way == Way::Published {
                &ever_mapped
            } else {
                world
            },
            carrier: Carrier::Sends(world),
            clock: world,
        };
        let options = Options {
            // Several threads are part of the rates.
            threads: NonZeroUsize::MIN,
            sampling: way != Way::OursNoSampling,
            fixed: way.fixed(),
            costs: Costs {
                send_ns: 4096.0 * 8.0 / f64::from(gbit),
                verify_ns: rates.copy_ns + rates.digest_ns,
                probe_ns: rates.probe_ns,
                stop_chance: 0.1,
                ..Costs::default()
            },
        };
        let frames = first + pages;
        let detector = Method::SampledDigest.detector(frames, room)?;
        let mut precopy = Precopy::new(detector, frames, options);
        if way != Way::StopAndCopy {
            precopy.round(&host)?;
        }
        if !matches!(way, Way::StopAndCopy | Way::Published) {
            let mut convergence = Convergence::default();
            while !convergence.reached(precopy.predicted_stop(host.carrier), world.now()) {
                let next = host.clock.now() + PACE;
                precopy.round(&host)?;
                world.wait_until(next);
            }
        }
        let before = precopy.total();
        let stopped = host.clock.now();
        world.halt();
        let stop = precopy.stop(&host)?;
        let looked = host.clock.now();
        world.flush(0);
        let sent = host.clock.now();
        world.flush(STATE);
        let over = host.clock.now() + ROUND_TRIP;
        let ms = |from: Duration, to: Duration| round(to.saturating_sub(from).as_secs_f64() * 1e3);
        Ok(Run {
            mem_mb: u32::try_from(pages / 256)?,
            gbit,
            pattern: pattern.name(),
            method: way.name(),
            downtime_ms: ms(stopped, over),
            looking_ms: ms(stopped, looked),
            sending_ms: ms(looked, sent),
            state_ms: ms(sent, over),
            total_ms: ms(Duration::ZERO, over),
            bytes: world.sent().bytes,
            rounds: precopy.rounds(),
            before_pages: before.sent,
            stop_candidates: stop.candidates,
            stop_verified: stop.verified,
            stop_pages: stop.sent,
            missed: world.missed()?,
            false_positives: world.sent().in_vain,
            engine: self.engine,
        })
    }
}

/// Microseconds are more than is meant.
fn round(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}
