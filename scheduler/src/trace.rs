//! What happened on the engines, in a ring of fixed size.
//!
//! Recording takes no lock and waits for nobody: each slot carries a stamp
//! that says which event is in it and whether it is complete. A reader copies
//! a slot and looks at the stamp again; what was overwritten meanwhile is
//! counted as missed.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use gen8::Engine;
pub use vgpu_control::What;

use crate::clock::nanos;

/// Events a ring holds unless told otherwise: 3 MiB.
pub const DEFAULT_EVENTS: usize = 1 << 16;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Its number: events count from 0.
    pub number: u64,
    /// When, on the scheduler's clock.
    pub at: Duration,
    /// On which engine.
    pub engine: Engine,
    /// Whose; for a reset, whose workload it ended.
    pub vgpu: u64,
    /// What happened.
    pub what: What,
}

/// What a reader got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Events, oldest first.
    pub events: Vec<TraceEvent>,
    /// Where to go on.
    pub next: u64,
    /// Events between where the reader asked and `next` that are lost.
    pub missed: u64,
}

/// An event's number and state, and the event as words.
#[derive(Default)]
struct Slot {
    /// 0: empty. 2n + 1: event n is being written. 2n + 2: event n.
    stamp: AtomicU64,
    at: AtomicU64,
    vgpu: AtomicU64,
    kind: AtomicU64,
    counts: AtomicU64,
    ns: AtomicU64,
}

/// The ring. Memory is taken once.
pub struct Trace {
    slots: Box<[Slot]>,
    head: AtomicU64,
}

impl Default for Trace {
    fn default() -> Self {
        Self::new(DEFAULT_EVENTS)
    }
}

impl Trace {
    /// A ring of at least `events` events, rounded up to a power of two.
    #[must_use]
    pub fn new(events: usize) -> Self {
        let events = events.clamp(1, 1 << 24).next_power_of_two();
        Self {
            slots: (0..events).map(|_| Slot::default()).collect(),
            head: AtomicU64::new(0),
        }
    }

    fn slot(&self, number: u64) -> &Slot {
        let mask = u64::try_from(self.slots.len()).unwrap_or(1) - 1;
        &self.slots[usize::try_from(number & mask).unwrap_or(0)]
    }

    /// Events so far, lost ones as well: where a reader starts that wants
    /// new ones only.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Records an event.
    pub fn record(&self, at: Duration, engine: Engine, vgpu: u64, what: What) {
        let number = self.head.fetch_add(1, Ordering::Relaxed);
        let slot = self.slot(number);
        let old = slot.stamp.load(Ordering::Relaxed);
        // Another thread stopped in the middle of an event a whole ring ago,
        // or overtook this one by a ring. That slot is not ours to write.
        if old & 1 == 1 || old > 2 * number {
            return;
        }
        let claimed =
            slot.stamp
                .compare_exchange(old, 2 * number + 1, Ordering::Relaxed, Ordering::Relaxed);
        if claimed.is_err() {
            return;
        }
        // No word may be seen before the claim.
        fence(Ordering::Release);
        let (kind, counts, ns) = pack(engine, what);
        let at = nanos(at);
        slot.at.store(at, Ordering::Relaxed);
        slot.vgpu.store(vgpu, Ordering::Relaxed);
        slot.kind.store(kind, Ordering::Relaxed);
        slot.counts.store(counts, Ordering::Relaxed);
        slot.ns.store(ns, Ordering::Relaxed);
        slot.stamp.store(2 * number + 2, Ordering::Release);
    }

    /// Reads at most `max` events from number `cursor` on. A cursor from
    /// another life of the ring starts at its head.
    #[must_use]
    pub fn read(&self, cursor: u64, max: usize) -> Batch {
        let size = u64::try_from(self.slots.len()).unwrap_or(1);
        let head = self.head();
        let cursor = cursor.min(head);
        let mut next = cursor.max(head.saturating_sub(size));
        let mut events = Vec::new();
        let mut missed = next - cursor;
        while next < head && events.len() < max {
            match self.load(next) {
                Loaded::Event(event) => events.push(event),
                // Near the head somebody is about to complete it. Far behind
                // nobody is: it was dropped.
                Loaded::Incomplete if head - next <= size / 2 => break,
                Loaded::Incomplete | Loaded::Gone => missed += 1,
            }
            next += 1;
        }
        Batch {
            events,
            next,
            missed,
        }
    }

    fn load(&self, number: u64) -> Loaded {
        let slot = self.slot(number);
        let complete = 2 * number + 2;
        match slot.stamp.load(Ordering::Acquire) {
            stamp if stamp < complete => return Loaded::Incomplete,
            stamp if stamp > complete => return Loaded::Gone,
            _ => {}
        }
        let at = Duration::from_nanos(slot.at.load(Ordering::Relaxed));
        let vgpu = slot.vgpu.load(Ordering::Relaxed);
        let kind = slot.kind.load(Ordering::Relaxed);
        let counts = slot.counts.load(Ordering::Relaxed);
        let ns = slot.ns.load(Ordering::Relaxed);
        // The words above before the second look.
        fence(Ordering::Acquire);
        if slot.stamp.load(Ordering::Relaxed) != complete {
            return Loaded::Gone;
        }
        unpack(kind, counts, ns).map_or(Loaded::Gone, |(engine, what)| {
            Loaded::Event(TraceEvent {
                number,
                at,
                engine,
                vgpu,
                what,
            })
        })
    }
}

enum Loaded {
    Event(TraceEvent),
    Incomplete,
    Gone,
}

const READY: u64 = 0;
const START: u64 = 1;
const SWITCH: u64 = 2;
const HANDOVER: u64 = 3;
const DONE: u64 = 4;
const FAILED: u64 = 5;
const CANCELLED: u64 = 6;
const RESET: u64 = 7;
const THROTTLED: u64 = 8;

/// Kind with engine, counts, nanoseconds. Counts are cut to 32 bits.
fn pack(engine: Engine, what: What) -> (u64, u64, u64) {
    let low = |n: u64| n.min(u32::MAX.into());
    let (kind, counts, ns) = match what {
        What::Ready => (READY, 0, 0),
        What::Start { slot } => (START, slot.into(), 0),
        What::Switch { reads, writes, ns } => (SWITCH, low(reads) << 32 | low(writes), ns),
        What::Handover { pairs } => (HANDOVER, low(pairs), 0),
        What::Done { ran_ns } => (DONE, 0, ran_ns),
        What::Failed => (FAILED, 0, 0),
        What::Cancelled => (CANCELLED, 0, 0),
        What::Reset => (RESET, 0, 0),
        What::Throttled => (THROTTLED, 0, 0),
    };
    let engine = u64::try_from(engine.index()).unwrap_or(0);
    (engine << 8 | kind, counts, ns)
}

fn unpack(kind: u64, counts: u64, ns: u64) -> Option<(Engine, What)> {
    let engine = Engine::from_index(usize::try_from(kind >> 8).ok()?)?;
    let low = counts & u64::from(u32::MAX);
    let what = match kind & 0xff {
        READY => What::Ready,
        START => What::Start {
            slot: u8::try_from(counts).ok()?,
        },
        SWITCH => What::Switch {
            reads: counts >> 32,
            writes: low,
            ns,
        },
        HANDOVER => What::Handover { pairs: low },
        DONE => What::Done { ran_ns: ns },
        FAILED => What::Failed,
        CANCELLED => What::Cancelled,
        RESET => What::Reset,
        THROTTLED => What::Throttled,
        _ => return None,
    };
    Some((engine, what))
}

#[cfg(test)]
mod tests;
