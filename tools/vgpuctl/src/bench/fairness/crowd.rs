//! Guests on one host that work and rest when they are told to.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use gen8::Engine;
use guest_driver::{Driver, Frames};
use sim_host::{SimGuest, SimGuestConfig, SimHost};

use super::load::Load;
use super::worker::Worker;

/// The frames that a guest's driver may use: above the first MiB.
const FIRST_FRAME: u64 = 256;
/// How often to look for guests that do not come to rest.
const LOOK: Duration = Duration::from_millis(100);

/// What guests did in some time.
pub struct Sample {
    pub elapsed: Duration,
    pub guests: Vec<Did>,
}

/// What one guest did, by engine.
#[derive(Clone, Debug, Default)]
pub struct Did {
    /// Work that came back, in nanoseconds of engine time.
    pub work_ns: [u64; Engine::COUNT],
    /// Nanoseconds on the engine.
    pub busy_ns: [u64; Engine::COUNT],
    /// How many of its batches waited how long at most, in nanoseconds.
    pub waits: Vec<(u64, u64)>,
    /// Results that were not what they should be.
    pub mismatches: u64,
}

/// The moment's order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Rest,
    Work,
    Leave,
}

struct State {
    order: Order,
    /// Guests at rest.
    resting: usize,
    failed: Option<anyhow::Error>,
}

/// Between the guests' threads and whoever measures.
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    working: AtomicBool,
}

impl Gate {
    fn new() -> Self {
        Self {
            state: Mutex::new(State {
                order: Order::Rest,
                resting: 0,
                failed: None,
            }),
            changed: Condvar::new(),
            working: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, order: Order) {
        let mut state = self.lock();
        state.order = order;
        self.working.store(order == Order::Work, Relaxed);
        self.changed.notify_all();
    }

    /// Whether to submit more.
    pub fn working(&self) -> bool {
        self.working.load(Relaxed)
    }

    /// A guest is at rest, and waits for work. `false`: it is to leave.
    fn rest(&self) -> bool {
        let mut state = self.lock();
        state.resting += 1;
        self.changed.notify_all();
        let rests = |s: &mut State| s.order == Order::Rest;
        let mut state = self
            .changed
            .wait_while(state, rests)
            .unwrap_or_else(PoisonError::into_inner);
        state.resting -= 1;
        state.order == Order::Work
    }

    /// Sleeps until then, or until there is to be no more work.
    pub fn sleep(&self, time: Duration) {
        let state = self.lock();
        drop(
            self.changed
                .wait_timeout_while(state, time, |s| s.order == Order::Work)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Waits until `count` guests are at rest; calls `look` now and then.
    fn all_rest(&self, count: usize, look: impl Fn()) -> anyhow::Result<()> {
        let busy = |s: &mut State| s.resting < count && s.failed.is_none();
        loop {
            look();
            let (mut state, timeout) = self
                .changed
                .wait_timeout_while(self.lock(), LOOK, busy)
                .unwrap_or_else(PoisonError::into_inner);
            if !timeout.timed_out() {
                return state.failed.take().map_or(Ok(()), Err);
            }
        }
    }

    fn fail(&self, error: anyhow::Error) {
        self.lock().failed.get_or_insert(error);
        self.changed.notify_all();
    }
}

/// Guests with their drivers up.
pub struct Crowd<'a> {
    gate: &'a Gate,
    guests: &'a [SimGuest],
    work: &'a [Tally],
}

/// What came back to a guest.
#[derive(Default)]
pub struct Tally {
    /// Work, by engine.
    pub work_ns: [AtomicU64; Engine::COUNT],
    /// Results that were not what they should be.
    pub mismatches: AtomicU64,
}

impl Crowd<'_> {
    /// Starts a guest like `kind` on `host` for each of `loads`, and calls
    /// `measure`.
    pub fn with<R>(
        host: &SimHost,
        loads: &[Load],
        kind: &SimGuestConfig,
        measure: impl FnOnce(&Crowd<'_>) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let last = u64::try_from(kind.frames)?;
        let start = |load: &Load| {
            let config = SimGuestConfig {
                share: load.share,
                // Many threads that look for requests take the CPUs from
                // each other.
                spin: Duration::ZERO,
                ..kind.clone()
            };
            SimGuest::start(host, &config)
        };
        let guests: Vec<SimGuest> = loads.iter().map(start).collect::<Result<_, _>>()?;
        let work: Vec<Tally> = loads.iter().map(|_| Tally::default()).collect();
        let gate = Gate::new();
        thread::scope(|scope| {
            for (number, ((guest, load), tally)) in (1..).zip(guests.iter().zip(loads).zip(&work)) {
                let gate = &gate;
                let run = move || {
                    if let Err(e) = live(guest, last, load, tally, gate) {
                        gate.fail(e.context(format!("guest {number}")));
                    }
                };
                let spawned = thread::Builder::new()
                    .name(format!("guest{number}"))
                    .spawn_scoped(scope, run);
                if let Err(e) = spawned {
                    gate.order(Order::Leave);
                    return Err(anyhow!(e).context("no thread for a guest"));
                }
            }
            let crowd = Crowd {
                gate: &gate,
                guests: &guests,
                work: &work,
            };
            let result = gate
                .all_rest(guests.len(), || ())
                .and_then(|()| measure(&crowd));
            gate.order(Order::Leave);
            result
        })
    }

    /// The guests.
    pub const fn guests(&self) -> &[SimGuest] {
        self.guests
    }

    /// Has everyone work, and measures for `window` after `lead` has passed.
    /// Everyone rests when this returns.
    pub fn measure(&self, lead: Duration, window: Duration) -> anyhow::Result<Sample> {
        self.gate.order(Order::Work);
        thread::sleep(lead);
        let (start, before) = (Instant::now(), self.now());
        thread::sleep(window);
        let (end, after) = (Instant::now(), self.now());
        self.gate.order(Order::Rest);
        self.gate
            .all_rest(self.guests.len(), || self.end_the_reset())?;
        let gone = self.guests.iter().find_map(SimGuest::failure);
        if let Some(reason) = gone {
            return Err(anyhow!(reason).context("vgpud dropped a guest"));
        }
        Ok(Sample {
            elapsed: end - start,
            guests: after.iter().zip(&before).map(|(a, b)| a.since(b)).collect(),
        })
    }

    /// The driver of a guest whose batch was reset would wait for long.
    fn end_the_reset(&self) {
        for guest in self.guests.iter().filter(|g| resets(g) > 0) {
            guest.domain().destroy();
        }
    }

    fn now(&self) -> Vec<Did> {
        // Work first, all at once: to ask vgpud takes longer.
        let work: Vec<[u64; Engine::COUNT]> = self
            .work
            .iter()
            .map(|w| w.work_ns.each_ref().map(|n| n.load(Relaxed)))
            .collect();
        let one = |((guest, work_ns), tally): ((&SimGuest, _), &Tally)| {
            let lanes = guest.lanes();
            Did {
                work_ns,
                busy_ns: lanes.each_ref().map(|l| l.values.busy_ns),
                waits: lanes.into_iter().flat_map(|l| l.waits).collect(),
                mismatches: tally.mismatches.load(Relaxed),
            }
        };
        self.guests
            .iter()
            .zip(work)
            .zip(self.work)
            .map(one)
            .collect()
    }
}

impl Did {
    fn since(&self, before: &Self) -> Self {
        let less = |a: [u64; Engine::COUNT], b: [u64; Engine::COUNT]| {
            [0, 1, 2, 3].map(|e: usize| a[e].saturating_sub(b[e]))
        };
        // Those before are taken away again when they are counted.
        let mut waits = std::collections::BTreeMap::new();
        for &(ns, n) in &self.waits {
            *waits.entry(ns).or_insert(0_u64) += n;
        }
        for (ns, n) in &before.waits {
            if let Some(have) = waits.get_mut(ns) {
                *have = have.saturating_sub(*n);
            }
        }
        Self {
            work_ns: less(self.work_ns, before.work_ns),
            busy_ns: less(self.busy_ns, before.busy_ns),
            waits: waits.into_iter().filter(|(_, n)| *n > 0).collect(),
            // Those of the lead count too.
            mismatches: self.mismatches,
        }
    }
}

/// One guest from boot to its end.
fn live(
    guest: &SimGuest,
    last: u64,
    load: &Load,
    tally: &Tally,
    gate: &Gate,
) -> anyhow::Result<()> {
    let driver = Driver::start(guest, Frames::new(FIRST_FRAME, last), 1)
        .context("its driver does not start")?;
    let mut worker = Worker::new(driver, load, tally);
    while gate.rest() {
        worker.work(gate).map_err(|e| explain(guest, e))?;
    }
    Ok(())
}

/// A batch that ends was reset: the machine was so busy with other things
/// that it went beyond the run limit.
#[derive(Debug)]
pub struct Disturbed;

impl fmt::Display for Disturbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a batch that ends ran past the run limit: this machine is too busy")
    }
}

/// Batches of a guest that vgpud reset.
fn resets(guest: &SimGuest) -> u64 {
    guest.lanes().iter().map(|l| l.values.failed).sum()
}

fn explain(guest: &SimGuest, error: anyhow::Error) -> anyhow::Error {
    if resets(guest) == 0 {
        error
    } else {
        error.context(Disturbed)
    }
}
