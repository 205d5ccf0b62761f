//! One-shot pre-copy: each page that the GPU may have written goes to the
//! target once, is verified while the guest goes on, and goes again only if
//! it changed.
//!
//! A round takes the names of the pages that may have been written since the
//! last, and then copies them, in that order: what is written after a page
//! was copied is named the next time. A copy is looked at, sent and retained,
//! always the same one. Looking is done by threads that need no page sent
//! before they take the next, so the way to the target and the processors
//! are busy at the same time.
//!
//! When the guest stands still, what is left is verified and what changed of
//! it sent. There are two ends to that work: pages that most likely changed
//! can be sent without a look whenever the way to the target would be idle,
//! and meanwhile the threads look at those that most likely did not.

mod chunk;
mod convergence;
mod counts;
mod frames;
mod queue;
mod seams;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use guest_memory::{Gfn, MemoryError};

use crate::adaptive::{AtStop, Costs, Plan, Regions, Seen};
use crate::detect::{Detector, Footprint};
use crate::settling::Settling;

use chunk::{Chunk, Done, How, Job};
use frames::FrameSet;
use queue::Queue;

pub use convergence::Convergence;
pub use counts::Counts;
pub use seams::{Candidates, Carrier, Clock, Host, Namer, RealClock, Sender, Work};

/// What can be chosen about a migration.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that look at pages.
    pub threads: NonZeroUsize,
    /// Whether a look at a few words comes first where that pays.
    pub sampling: bool,
    /// The same plan for every region, to compare with.
    pub fixed: Option<Plan>,
    /// What things cost before any of it was measured.
    pub costs: Costs,
}

impl Default for Options {
    /// Two threads, everything decided by what is seen.
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::MIN.saturating_add(1),
            sampling: true,
            fixed: None,
            costs: Costs::default(),
        }
    }
}

/// Why a migration failed. The guest can go on where it is.
#[derive(Debug, thiserror::Error)]
pub enum PrecopyError {
    /// The target cannot be reached.
    #[error("pages do not get to the target: {0}")]
    Carrier(#[from] io::Error),
    /// A page cannot be read, and the guest stands still.
    #[error("a page cannot be sent: {0}")]
    Unreadable(MemoryError),
}

/// What is known of a region.
#[derive(Clone, Copy, Debug)]
struct Area {
    /// Pages that may have been written since they were verified or sent.
    waiting: FrameSet,
    /// Those that waited when the last round began.
    began: FrameSet,
    /// Pages of which something is retained.
    known: FrameSet,
    /// Pages that had changed when last verified.
    changed: FrameSet,
    seen: Seen,
    plan: Plan,
}

/// A migration of a guest's pages.
pub struct Precopy {
    detector: Box<dyn Detector>,
    options: Options,
    /// Frames the guest can have.
    frames: u64,
    costs: Costs,
    regions: Regions,
    areas: BTreeMap<u64, Area>,
    settling: Settling,
    rounds: u32,
    total: Counts,
}

impl Precopy {
    /// Of a guest with frames below `frames`. What is retained is the
    /// detector's, which must be a fresh one.
    #[must_use]
    pub fn new(detector: Box<dyn Detector>, frames: u64, options: Options) -> Self {
        Self {
            detector,
            options,
            frames,
            costs: options.costs,
            regions: Regions::default(),
            areas: BTreeMap::new(),
            settling: Settling::default(),
            rounds: 0,
            total: Counts::default(),
        }
    }

    /// A round while the guest goes on. The first sends everything.
    ///
    /// # Errors
    /// When the target cannot be reached.
    pub fn round(&mut self, host: &Host<'_>) -> Result<Counts, PrecopyError> {
        let began = host.clock.now();
        let mut counts = self.absorb(host);
        let mut chunks = Vec::new();
        for (&region, area) in &mut self.areas {
            area.began = area.waiting;
            area.seen = Seen {
                waiting: area.waiting.count(),
                ..Seen::default()
            };
            let plan = self.options.plan(area.plan);
            if plan.background {
                area.seen.before = area.changed.count();
                chunks.append(&mut area.chunks(region, plan.look()));
            }
        }
        let queue = Queue::in_order(chunks);
        let done = self.run(host, false, &|| queue.first())?;
        for done in &done {
            counts += done.counts;
            self.take_note(done, host.carrier.reads_again());
        }
        counts.elapsed = host.clock.now().saturating_sub(began);
        self.measure(host, &counts);
        self.rounds += 1;
        self.total += counts;
        Ok(counts)
    }

    /// The stop phase. Nothing may write to the guest's memory any more.
    /// Afterwards every page that the target does not have has been sent or
    /// named.
    ///
    /// # Errors
    /// When the target cannot be reached, or a page that it needs not read.
    pub fn stop(&mut self, host: &Host<'_>) -> Result<Counts, PrecopyError> {
        let began = host.clock.now();
        let mut counts = self.absorb(host);
        let mut queue = Queue::default();
        for (&region, area) in &self.areas {
            let plan = self.options.plan(area.plan);
            let how = match plan.at_stop {
                AtStop::Send => How::Blind,
                AtStop::Verify => plan.look(),
            };
            let expected = self.regions.expected(region);
            queue.add(expected, plan.look(), area.chunks(region, how));
        }
        let queue = queue.by_expectation();
        // The way to the target is about to be idle: a chunk is left on it.
        let chunk = f64::from(chunk::count(chunk::CHUNK));
        let hungry = Duration::from_secs_f64(self.costs.send_ns * 1e-9 * chunk);
        let next = || match host.carrier.backlog() {
            Some(backlog) if self.options.fixed.is_none() => queue.either_end(backlog < hungry),
            _ => queue.first(),
        };
        let done = self.run(host, true, &next)?;
        for done in &done {
            counts += done.counts;
            self.take_note(done, false);
        }
        counts.elapsed = host.clock.now().saturating_sub(began);
        self.total += counts;
        Ok(counts)
    }

    /// The carrier has begun to read what was named before: see
    /// [`Settling::round_began`].
    pub fn carrier_began_round(&mut self) {
        self.settling.round_began();
    }

    /// Somebody else wrote this page and the carrier may have read it since,
    /// as with pages that the guest's own processors write: what is retained
    /// of it need not be what the target has.
    pub fn forget(&mut self, gfn: Gfn) {
        self.detector.forget(gfn);
        if let Some(area) = self.areas.get_mut(&Regions::of(gfn)) {
            area.known.remove(gfn);
        }
    }

    /// Pages that may have been written since they were verified or sent, as
    /// of the last round.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let areas = self.areas.values();
        areas.map(|area| u64::from(area.waiting.count())).sum()
    }

    /// How long the stop phase would take if it came now and what was seen in
    /// the last round waited: the way to the target and the threads at the
    /// same time if the carrier can tell how busy it is, else one after the
    /// other.
    #[must_use]
    pub fn predicted_stop(&self, carrier: Carrier<'_>) -> Duration {
        let (mut looking, mut sending) = (0.0, 0.0);
        for (&region, area) in &self.areas {
            // What waited in the last round waits again, if it is written
            // again as it was.
            let mut waiting = area.waiting;
            waiting.add(&area.began);
            let known = f64::from(waiting.common(&area.known));
            let unknown = f64::from(waiting.count()) - known;
            let plan = self.options.plan(area.plan);
            let going = match plan.at_stop {
                AtStop::Send => known,
                AtStop::Verify => {
                    looking += known * self.costs.verify_ns;
                    known * self.regions.expected(region)
                }
            };
            sending += (going + unknown) * self.costs.send_ns;
        }
        let ns = match carrier.backlog() {
            Some(backlog) => f64::max(looking, sending + backlog.as_secs_f64() * 1e9),
            None => looking + sending,
        };
        Duration::from_secs_f64(ns * 1e-9)
    }

    /// Rounds so far.
    #[must_use]
    pub const fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Everything so far.
    #[must_use]
    pub const fn total(&self) -> Counts {
        self.total
    }

    /// What things cost, as measured so far.
    #[must_use]
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// What is retained.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.detector.footprint()
    }

    /// Takes the candidates, by region.
    fn take(&self, candidates: &dyn Candidates) -> BTreeMap<u64, FrameSet> {
        let mut fresh: BTreeMap<u64, FrameSet> = BTreeMap::new();
        let mut add = |region, new: &FrameSet| {
            if *new != FrameSet::default() {
                fresh.entry(region).or_default().add(new);
            }
        };
        // Most come in a row: a region's are put together first.
        let (mut region, mut row) = (0, FrameSet::default());
        candidates.take(&mut |gfn| {
            // What is no frame of the guest's is none of the target's.
            if gfn.0 >= self.frames {
                return;
            }
            if Regions::of(gfn) != region {
                add(region, &row);
                (region, row) = (Regions::of(gfn), FrameSet::default());
            }
            row.insert(gfn);
        });
        add(region, &row);
        fresh
    }

    /// Takes the candidates, and plans with what was seen of the last round.
    fn absorb(&mut self, host: &Host<'_>) -> Counts {
        let again = host.carrier.reads_again();
        let fresh = self.take(host.candidates);
        for (&region, area) in &mut self.areas {
            let new = fresh.get(&region).copied().unwrap_or_default();
            area.seen.touched = area.began.common(&new);
            if self.rounds > 0 {
                area.plan = self.regions.round(region, &area.seen, &self.costs);
            }
        }
        let mut counts = Counts::default();
        for (region, new) in fresh {
            let plan = Regions::first(&self.costs);
            let area = self.areas.entry(region).or_insert_with(|| Area::new(plan));
            area.waiting.add(&new);
            for gfn in new.of(region).filter(|_| again) {
                if self.settling.may_be_written(gfn) {
                    self.detector.forget(gfn);
                    area.known.remove(gfn);
                }
            }
        }
        counts.candidates = self.waiting();
        counts
    }

    fn run(
        &self,
        host: &Host<'_>,
        last: bool,
        next: &(dyn Fn() -> Option<Chunk> + Sync),
    ) -> Result<Vec<Done>, PrecopyError> {
        let job = Job {
            host: *host,
            detector: &*self.detector,
            last,
        };
        job.run(self.options.threads, next)
    }

    fn take_note(&mut self, done: &Done, reads_again: bool) {
        let Some(area) = self.areas.get_mut(&done.region) else {
            return;
        };
        let seen = &mut area.seen;
        seen.verified += done.verified.count();
        seen.changed += done.changed.count();
        seen.sampled += u32::try_from(done.counts.sampled).unwrap_or(u32::MAX);
        seen.again += done.changed.common(&area.changed);
        area.waiting.clear(&done.through);
        area.changed.clear(&done.through);
        area.changed.add(&done.changed);
        area.known.clear(&done.sent);
        area.known.clear(&done.gone);
        area.known.add(&done.retained);
        if reads_again {
            self.settling.named(done.sent.of(done.region));
        }
    }

    fn measure(&mut self, host: &Host<'_>, counts: &Counts) {
        let pages = u32::try_from(counts.verified).unwrap_or(u32::MAX);
        let threads = u32::try_from(self.options.threads.get()).unwrap_or(u32::MAX);
        self.costs.verified(pages, counts.looking / threads);
        self.costs.carries(host.carrier.bytes_per_second());
    }
}

impl Options {
    /// What is done with a region, when `plan` seems best.
    fn plan(&self, plan: Plan) -> Plan {
        let plan = self.fixed.unwrap_or(plan);
        Plan {
            sampled: plan.sampled && self.sampling,
            ..plan
        }
    }
}

impl Plan {
    const fn look(&self) -> How {
        let sampled = self.sampled;
        How::Verify { sampled }
    }
}

impl Area {
    fn new(plan: Plan) -> Self {
        Self {
            waiting: FrameSet::default(),
            began: FrameSet::default(),
            known: FrameSet::default(),
            changed: FrameSet::default(),
            seen: Seen::default(),
            plan,
        }
    }

    /// What waits; `how` is for pages of which something is retained.
    fn chunks(&self, region: u64, how: How) -> Vec<Chunk> {
        let (mut known, mut unknown) = (self.waiting, self.waiting);
        known.keep(&self.known);
        unknown.clear(&self.known);
        let mut chunks = Chunk::split(region, &unknown, How::Unknown);
        chunks.append(&mut Chunk::split(region, &known, how));
        chunks
    }
}

#[cfg(test)]
mod tests;
