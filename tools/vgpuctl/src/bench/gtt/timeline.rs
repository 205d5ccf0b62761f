//! One engine and the vGPUs that share it, in virtual time: who submits when,
//! whom vgpud's policy picks, and what each workload needs of the global table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use anyhow::Context as _;
use gen8::Engine;
use guest_driver::Random;
use vgpu_sched::policy::Policy;
use vgpu_sched::workload::Workload;

use crate::bench::bare::{Guest, Host};

/// Contexts of a guest.
pub const CONTEXTS: u32 = 8;
/// Of these, those it works with at a time.
const AT_A_TIME: u32 = 3;
/// Frames of a guest.
const FRAMES: usize = 1024;
/// Mean time of a workload on the engine.
const WORK: Duration = Duration::from_micros(400);

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A guest submits.
    Submit(usize),
    /// What runs ends.
    End,
    /// The policy wants to be asked again.
    Ask,
}

/// The engine begins a workload.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Whose.
    pub guest: usize,
    /// Whose the one before was.
    pub before: Option<usize>,
    /// Entries written for it.
    pub ptes: u64,
    /// Of these, entries that the engine waited for.
    pub late: u64,
}

struct Load {
    guest: Guest,
    random: Random,
    requests: u32,
    /// Submitted, and how much of its entries came late.
    waits: Option<(Box<Workload>, u64)>,
}

/// The engine and its guests.
pub struct Timeline {
    host: Host,
    loads: Vec<Load>,
    policy: Policy,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    serial: u64,
    running: Option<(usize, Duration, Box<Workload>)>,
    last: Option<usize>,
    /// Of the engine's time, what all guests want, in percent.
    wanted: u32,
}

impl Timeline {
    /// So many guests on a table of so many pages, that want so many percent
    /// of the engine's time.
    ///
    /// # Errors
    /// When a guest cannot be made.
    pub fn new(guests: u32, wanted: u32, table: u32) -> anyhow::Result<Self> {
        let host = Host::new(table)?;
        let load = |n: u32| -> anyhow::Result<Load> {
            let guest = Guest::new(&host, n.into(), Engine::Rcs, FRAMES, CONTEXTS)?;
            Ok(Load {
                guest,
                random: Random::new(n.into()),
                requests: 0,
                waits: None,
            })
        };
        let loads: Vec<Load> = (1..=guests).map(load).collect::<Result<_, _>>()?;
        let mut timeline = Self {
            host,
            loads,
            policy: Policy::new(),
            events: BinaryHeap::new(),
            serial: 0,
            running: None,
            last: None,
            wanted,
        };
        for guest in 0..timeline.loads.len() {
            let at = timeline.pause(guest)?;
            timeline.at(at, Event::Submit(guest));
        }
        Ok(timeline)
    }

    /// Pages that each guest's own global table maps.
    pub fn mapped(&self) -> Vec<usize> {
        self.loads.iter().map(|l| l.guest.mapped()).collect()
    }

    /// Pages of all windows that stand.
    pub fn used(&self) -> u32 {
        let shares = self.loads.iter().map(|l| l.guest.id);
        shares.map(|id| self.host.windows.share(id).pages).sum()
    }

    fn at(&mut self, when: Duration, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((when, self.serial, event)));
    }

    /// How long a guest thinks: all together want part of the engine's time.
    fn pause(&mut self, guest: usize) -> anyhow::Result<Duration> {
        let guests = u32::try_from(self.loads.len())?;
        let period = WORK * guests * 100 / self.wanted;
        let random = &mut self.loads.get_mut(guest).context("no such guest")?.random;
        Ok(spread(random, period.saturating_sub(WORK)))
    }

    /// Runs until the engine began so many workloads, and tells of each.
    ///
    /// # Errors
    /// When vgpud refuses one.
    pub fn run(&mut self, turns: u32, mut tell: impl FnMut(Turn)) -> anyhow::Result<()> {
        let mut left = turns;
        while left > 0 {
            let Some(Reverse((now, _, event))) = self.events.pop() else {
                break;
            };
            match event {
                Event::Submit(guest) => self.submit(guest, now)?,
                Event::End => self.end(now)?,
                Event::Ask => {}
            }
            if let Some(turn) = self.start(now)? {
                tell(turn);
                left -= 1;
            }
        }
        Ok(())
    }

    fn submit(&mut self, guest: usize, now: Duration) -> anyhow::Result<()> {
        let idle = self.running.is_none() && self.policy.waiting() == 0;
        let load = self.loads.get_mut(guest).context("no such guest")?;
        // Now and then it works with other contexts.
        let first = load.requests / 64;
        let context = (first + load.random.below(AT_A_TIME)) % CONTEXTS;
        load.requests += 1;
        let work = load
            .guest
            .request(&self.host, usize::try_from(context)?)
            .with_context(|| format!("guest {}", load.guest.id))?;
        let late = if idle { work.cost.ptes } else { 0 };
        load.waits = Some((work, late));
        self.policy.ready(load.guest.id, now);
        Ok(())
    }

    fn end(&mut self, now: Duration) -> anyhow::Result<()> {
        let (guest, began, work) = self.running.take().context("nothing runs")?;
        let load = self.loads.get_mut(guest).context("no such guest")?;
        load.guest.finish(&work);
        self.policy.charge(load.guest.id, now - began, now);
        let at = now + self.pause(guest)?;
        self.at(at, Event::Submit(guest));
        Ok(())
    }

    fn start(&mut self, now: Duration) -> anyhow::Result<Option<Turn>> {
        if self.running.is_some() {
            return Ok(None);
        }
        let Some(id) = self.policy.take(now) else {
            if let Some(at) = self.policy.wake_at(now) {
                self.at(at.max(now + Duration::from_nanos(1)), Event::Ask);
            }
            return Ok(None);
        };
        let guest = usize::try_from(id)? - 1;
        let load = self.loads.get_mut(guest).context("no such guest")?;
        let (work, late) = load.waits.take().context("it has no work")?;
        let ends = now + spread(&mut load.random, WORK);
        let turn = Turn {
            guest,
            before: self.last.replace(guest),
            ptes: work.cost.ptes,
            late,
        };
        self.running = Some((guest, now, work));
        self.at(ends, Event::End);
        Ok(Some(turn))
    }
}

/// Between a quarter of `mean` and seven quarters.
fn spread(random: &mut Random, mean: Duration) -> Duration {
    mean / 4 + mean * 3 / 2 * random.below(1000) / 1000
}
