//! What the engine says it did.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::Duration;

use gen8::{irq, ring};
use vgpu_ring::FaultReason;

use super::lists::Change;
use super::{EngineUnit, Outcome, Owner, State, Told};
use crate::clock::nanos;
use crate::sync::lock;
use crate::trace::What;

/// How long interrupts that may be another workload's wait to come with its
/// end.
const CARRY: Duration = Duration::from_millis(1);

impl EngineUnit {
    /// The engine interrupted.
    pub fn interrupt(&self) {
        if self.stopping.load(Ordering::Acquire) {
            let bits = self.hardware.acknowledge();
            self.missed.fetch_or(bits, Ordering::AcqRel);
            return;
        }
        let mut state = lock(&self.state);
        self.progress(&mut state);
        self.end_failed(&mut state);
        self.feed(&mut state);
        drop(state);
        self.tell();
    }

    /// Ends what runs if the GPU reported an error.
    pub(super) fn end_failed(&self, state: &mut State) {
        if !std::mem::take(&mut state.erred) {
            return;
        }
        let error = self.hardware.error();
        if error.eir == 0 {
            return;
        }
        let reason = if error.eir & ring::ERROR_PAGE_TABLE != 0 {
            FaultReason::PageFault
        } else {
            FaultReason::Instruction
        };
        let outcome = Outcome::Failed {
            reason,
            ipehr: error.ipehr,
        };
        // It stays where it failed, so this is who did it.
        self.end_running(state, outcome, |_| true);
    }

    /// Takes the engine's interrupts and status events. Only here are they
    /// read.
    pub(super) fn progress(&self, state: &mut State) {
        let mut bits = self.hardware.acknowledge() | self.missed.swap(0, Ordering::AcqRel);
        let events = self.hardware.events();
        if !events.is_empty() {
            // What was raised before these events were written belongs to
            // what ran until then. It may have come after the first look.
            bits |= self.hardware.acknowledge();
        }
        state.erred |= bits & irq::ERROR != 0;
        let mine = bits & crate::audit::GUEST_INTERRUPTS;
        // All that ran since the last look may have raised them. One too many
        // costs a guest a look; one too few could cost it all.
        let mut ran: Vec<u32> = state.lists.running().into_iter().collect();
        carry(state, &ran, mine);
        for (status, id) in events {
            let changes = state.lists.event(status, id);
            if changes.is_empty() {
                continue;
            }
            for change in &changes {
                if let Change::Begins(tag) = *change {
                    carry(state, &[tag], mine);
                    ran.push(tag);
                }
            }
            self.follow(state, &changes);
            if state.waiters > 0 {
                self.moved.notify_all();
            }
        }
        // Nobody else can have: no need to wait.
        if mine != 0
            && let Some(only) = ran.first().copied()
            && ran.iter().all(|tag| *tag == only)
        {
            pass_on(state, only);
        }
    }

    /// One event's changes.
    fn follow(&self, state: &mut State, changes: &[Change]) {
        let was_idle = state.timed.is_none();
        self.count_time(state);
        self.follow_registers(state, changes);
        let now = self.clock.now();
        for change in changes {
            match *change {
                Change::Begins(tag) => {
                    // On an idle engine the limit counts from the load.
                    if !was_idle {
                        state.since = now;
                    }
                    self.begins(state, tag);
                }
                Change::Ended(tag) => {
                    if let Some(l) = state.loaded_mut(tag)
                        && !l.ended
                    {
                        l.ended = true;
                        let (vgpu, ran) = (l.job.client.id(), l.ran);
                        self.overran(state, tag);
                        state.policy.charge(vgpu, ran, now);
                    }
                }
                Change::Done(tag) => self.leave(state, tag, Outcome::Done),
                Change::Displaced(tag) => self.displaced(state, tag),
                Change::Dropped(tag) => {
                    if state.loaded(tag).is_some_and(|l| l.unwanted) {
                        self.leave(state, tag, Outcome::Cancelled);
                    } else {
                        // It stood behind one that was taken off.
                        again(state, tag);
                    }
                }
            }
        }
    }

    /// One was taken off before its end. It goes on, if anybody wants it to:
    /// elsewhere if it can, else when it is loaded again.
    fn displaced(&self, state: &mut State, tag: u32) {
        let Some(l) = state.loaded_mut(tag) else {
            return;
        };
        if l.cancelled {
            self.leave(state, tag, Outcome::Cancelled);
        } else if let Some(place) = l.job.workload.interrupted() {
            self.leave(state, tag, Outcome::Interrupted(place));
        } else {
            l.job.workload.goes_on();
            again(state, tag);
        }
    }

    /// Books the time since the last event for what ran. Called before the
    /// lists' word of who that was is old.
    pub(super) fn count_time(&self, state: &mut State) {
        let now = self.clock.now();
        let spent = now.saturating_sub(state.counted);
        if let Some(ran) = state.timed.take()
            && let Some(l) = state.loaded_mut(ran)
        {
            l.ran += spent;
            self.totals.busy_ns.add(nanos(spent));
        }
        state.counted = now;
        state.timed = state.lists.running();
    }

    fn begins(&self, state: &mut State, tag: u32) {
        let now = self.clock.now();
        let Some(l) = state.loaded_mut(tag).filter(|l| !l.began) else {
            return;
        };
        l.began = true;
        let counters = l.job.client.counters(self.engine);
        counters.waits.record(now.saturating_sub(l.job.since));
        let what = What::Start { slot: l.slot };
        self.trace(l.job.client.id(), what);
    }

    /// Counts one that kept others waiting past its vGPU's slice.
    fn overran(&self, state: &State, tag: u32) {
        if let Some(l) = state.loaded(tag)
            && l.ran > l.job.client.slice()
            && state.policy.waiting() + state.next.len() > 0
        {
            l.job.client.counters(self.engine).overruns.add(1);
        }
    }

    /// What the changes mean for the engine's registers.
    fn follow_registers(&self, state: &mut State, changes: &[Change]) {
        let mut ended = None;
        let mut begins = None;
        for change in changes {
            match *change {
                Change::Ended(tag) => ended = Some(tag),
                Change::Begins(tag) => begins = Some(tag),
                Change::Displaced(tag) => return self.displaced_registers(state, tag),
                Change::Done(_) | Change::Dropped(_) => {}
            }
        }
        let Some(ended) = ended.and_then(|tag| state.loaded.iter().find(|l| l.tag == tag)) else {
            return;
        };
        let Some(owner) = &state.owner else {
            return;
        };
        let none;
        let effects = if ended.ended {
            // It ran through nothing; only what surrounds a restore ran.
            if !ended.job.workload.effects.allow_prologue() {
                return self.lose_registers(state);
            }
            none = state.switcher.no_effects();
            &none
        } else {
            &ended.job.workload.effects
        };
        let next = begins.and_then(|tag| state.loaded.iter().find(|l| l.tag == tag));
        match next.filter(|n| n.job.client.id() != owner.vgpu) {
            None => state.switcher.ran(&mut lock(&owner.registers), effects),
            Some(next) => {
                let client = &next.job.client;
                let registers = Arc::clone(client.registers(self.engine));
                state.switcher.handed_over(
                    &mut lock(&owner.registers),
                    effects,
                    &mut lock(&registers),
                    &next.pairs,
                );
                let counters = client.counters(self.engine);
                let plain = state.switcher.baseline(true);
                counters.handovers.add(1);
                counters.switch_reads_saved.add(plain.reads);
                counters.switch_writes_saved.add(plain.writes);
                self.totals.handovers.add(1);
                let pairs = u64::try_from(next.pairs.len()).unwrap_or(u64::MAX);
                let vgpu = client.id();
                self.trace(vgpu, What::Handover { pairs });
                state.owner = Some(Owner { vgpu, registers });
            }
        }
    }

    /// One was taken off, and nobody knows how far it came. What the engine
    /// holds is still its vGPU's.
    fn displaced_registers(&self, state: &mut State, tag: u32) {
        let vgpu = state.loaded(tag).map(|l| l.job.client.id());
        let State {
            owner, switcher, ..
        } = state;
        match owner {
            Some(owner) if Some(owner.vgpu) == vgpu => {
                switcher.interrupted(&mut lock(&owner.registers));
            }
            _ => self.lose_registers(state),
        }
    }

    /// Nothing is known of the engine's registers.
    pub(super) fn lose_registers(&self, state: &mut State) {
        state.switcher.reset();
        state.owner = None;
    }

    /// Takes a loaded workload off the books.
    pub(super) fn leave(&self, state: &mut State, tag: u32, outcome: Outcome) {
        let Some(at) = state.loaded.iter().position(|l| l.tag == tag) else {
            return;
        };
        let l = state.loaded.remove(at);
        let now = self.clock.now();
        let vgpu = l.job.client.id();
        if !l.ended {
            state.policy.charge(vgpu, l.ran, now);
        }
        let ran_ns = nanos(l.ran);
        let counters = l.job.client.counters(self.engine);
        counters.busy_ns.add(ran_ns);
        let what = match outcome {
            Outcome::Done => {
                counters.completed.add(1);
                What::Done { ran_ns }
            }
            Outcome::Failed { .. } => {
                counters.failed.add(1);
                What::Failed
            }
            Outcome::Cancelled | Outcome::Interrupted(_) => What::Cancelled,
        };
        self.trace(vgpu, what);
        state.told.push_back(Told::Left {
            client: l.job.client,
            workload: l.job.workload,
            outcome,
            bits: l.carried,
        });
    }

    /// Looks after the engine at every wake-up of the interrupt thread: finds
    /// a completion whose interrupt was lost, ends a workload that has run
    /// too long, wakes who was over its cap, and ends what waits on a dead
    /// engine. Returns when to look again at the latest, if something is due.
    pub fn check(&self) -> Option<Duration> {
        // Whoever has the engine moves it on; others must not wait for that.
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return Some(CARRY),
        };
        if !state.lists.idle() && self.hardware.has_events() {
            self.progress(&mut state);
        }
        self.end_failed(&mut state);
        self.end_overdue(&mut state);
        self.feed(&mut state);
        if state.dead.is_some() {
            self.end_waiting(&mut state);
        }
        let mut due = None;
        for at in 0..state.loaded.len() {
            let Some(l) = state.loaded.get_mut(at).filter(|l| l.carried != 0) else {
                continue;
            };
            if std::mem::replace(&mut l.stale, true) {
                let tag = l.tag;
                pass_on(&mut state, tag);
            } else {
                due = Some(CARRY);
            }
        }
        let now = self.clock.now();
        state.alarm = state.policy.wake_at(now).filter(|at| *at > now);
        if let Some(at) = state.alarm {
            let left = at.saturating_sub(now);
            due = Some(due.map_or(left, |d: Duration| d.min(left)));
        }
        let quiet = state.told.is_empty();
        drop(state);
        if !quiet {
            self.tell();
        }
        due
    }
}

/// A loaded workload is the next to be loaded again.
fn again(state: &mut State, tag: u32) {
    if let Some(at) = state.loaded.iter().position(|l| l.tag == tag) {
        let l = state.loaded.remove(at);
        state.next.push_front(l.job);
    }
}

/// These may have raised `bits`.
fn carry(state: &mut State, tags: &[u32], bits: u16) {
    if bits == 0 {
        return;
    }
    for tag in tags {
        if let Some(l) = state.loaded_mut(*tag) {
            l.carried |= bits;
        }
    }
}

/// Tells a loaded workload's client of the interrupts that it carries.
fn pass_on(state: &mut State, tag: u32) {
    if let Some(l) = state.loaded_mut(tag) {
        let bits = std::mem::take(&mut l.carried);
        l.stale = false;
        if bits != 0 {
            let client = Arc::clone(&l.job.client);
            state.told.push_back(Told::Interrupts { client, bits });
        }
    }
}
