//! Taking work off the engine.
//!
//! A reset ends what runs and nothing else: the engine is made to hold still
//! first, then looked at once more, and what had not begun is loaded again.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vgpu_ring::FaultReason;

use super::{EngineUnit, Hardware, Job, Outcome, ResetFailed, State, Told};
use crate::sync::lock;
use crate::trace::What;

/// How long a thread waits for the interrupt thread before it looks for
/// itself.
pub(super) const LOOK: Duration = Duration::from_millis(100);

impl EngineUnit {
    /// Takes everything of a vGPU off the engine. On return the GPU does
    /// nothing for it here any more, and its client has been told of each
    /// workload. What others have at the engine goes on; if one of theirs
    /// runs and does not let go of what is behind it, this waits for its end.
    pub fn cancel(&self, vgpu: u64) {
        let mut state = lock(&self.state);
        self.drop_waiting(&mut state, vgpu);
        for l in &mut state.loaded {
            l.cancelled |= l.job.client.id() == vgpu;
            l.unwanted |= l.cancelled;
        }
        state.waiters += 1;
        while state.loaded.iter().any(|l| l.job.client.id() == vgpu) {
            let runs = |state: &State| {
                let first = state.lists.order()[0].and_then(|tag| state.loaded(tag));
                first.is_some_and(|l| l.job.client.id() == vgpu && !l.ended)
            };
            if runs(&state) {
                self.end_running(&mut state, Outcome::Cancelled, runs);
                self.feed(&mut state);
            } else {
                // It follows another one's, or only has to say that it is
                // through.
                self.feed(&mut state);
                state = self
                    .moved
                    .wait_timeout(state, LOOK)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                if self.hardware.has_events() {
                    self.progress(&mut state);
                    self.end_failed(&mut state);
                }
            }
            // Others do not wait for what this thread saw.
            drop(state);
            self.tell();
            state = lock(&self.state);
        }
        state.waiters -= 1;
        self.feed(&mut state);
        self.set_alarm(&mut state);
        drop(state);
        self.tell();
    }

    /// Ends what runs, or is about to, with `outcome`, if `still` says so
    /// when the engine holds still. Its vGPU's other workloads end with it.
    pub(super) fn end_running(
        &self,
        state: &mut State,
        outcome: Outcome,
        still: impl Fn(&State) -> bool,
    ) {
        let ended = match self.stopping(Hardware::hold) {
            Ok(()) => {
                // The last word on what it did.
                self.progress(state);
                if !still(state) {
                    self.hardware.go_on();
                    return;
                }
                self.stopping(Hardware::reset_held)
            }
            Err(e) => Err(e),
        };
        state.resets += 1;
        state.erred = false;
        if let Err(e) = ended {
            log::error!("{}: {e}; out of use", self.engine.sysfs_name());
            state.dead = Some(e.to_string());
        }
        self.after_reset(state, outcome);
    }

    /// A step that the hardware may take its time for.
    fn stopping(
        &self,
        step: impl Fn(&Hardware) -> Result<(), ResetFailed>,
    ) -> Result<(), ResetFailed> {
        self.stopping.store(true, Ordering::Release);
        let result = step(&self.hardware);
        self.stopping.store(false, Ordering::Release);
        result
    }

    /// The engine holds nothing any more, or never will.
    fn after_reset(&self, state: &mut State, outcome: Outcome) {
        let lost = state.lists.reset();
        self.count_time(state);
        let guilty = lost.first().filter(|l| !l.ended).map(|l| l.tag);
        let vgpu = guilty.and_then(|t| Some(state.loaded(t)?.job.client.id()));
        // Values not saved since the last switch went with the reset.
        if let Some(owner) = state.owner.take_if(|o| Some(o.vgpu) == vgpu) {
            lock(&owner.registers).reset();
        }
        self.lose_registers(state);
        let dead = Outcome::Failed {
            reason: FaultReason::TimedOut,
            ipehr: 0,
        };
        let mut again = Vec::new();
        for l in lost {
            let Some(loaded) = state.loaded_mut(l.tag) else {
                continue;
            };
            let same = Some(loaded.job.client.id()) == vgpu;
            let unwanted = loaded.unwanted || same;
            let outcome = match (l.ended, guilty == Some(l.tag), unwanted) {
                (true, ..) => Outcome::Done,
                (_, true, _) => outcome,
                (_, _, true) => Outcome::Cancelled,
                _ if state.dead.is_some() => dead,
                _ => {
                    again.push(l.tag);
                    continue;
                }
            };
            if state.dead.is_some()
                && let Some(l) = state.loaded_mut(l.tag)
            {
                // It may still be running: what it can reach must not become
                // anything else.
                l.job.workload.abandon();
            }
            if let (Some(vgpu), true) = (vgpu, guilty == Some(l.tag)) {
                self.trace(vgpu, What::Reset);
            }
            self.leave(state, l.tag, outcome);
        }
        for tag in again.into_iter().rev() {
            if let Some(at) = state.loaded.iter().position(|l| l.tag == tag) {
                let l = state.loaded.remove(at);
                state.next.push_front(l.job);
            }
        }
        if let (Some(vgpu), Outcome::Failed { .. }) = (vgpu, outcome) {
            self.drop_waiting(state, vgpu);
        }
    }

    /// A vGPU whose workload failed gets no other done until it has taken
    /// notice.
    pub(super) fn drop_waiting(&self, state: &mut State, vgpu: u64) {
        state.policy.withdraw(vgpu);
        for job in state.ready.remove(&vgpu).unwrap_or_default() {
            self.turn_away(state, job, Outcome::Cancelled);
        }
        let (mine, others): (Vec<Job>, Vec<Job>) =
            state.next.drain(..).partition(|j| j.client.id() == vgpu);
        state.next.extend(others);
        for job in mine {
            state.policy.charge(vgpu, Duration::ZERO, self.clock.now());
            self.turn_away(state, job, Outcome::Cancelled);
        }
    }

    /// A workload that never got to the engine.
    fn turn_away(&self, state: &mut State, job: Job, outcome: Outcome) {
        let Job {
            client, workload, ..
        } = job;
        let what = match outcome {
            Outcome::Cancelled => What::Cancelled,
            _ => What::Failed,
        };
        self.trace(client.id(), what);
        state.told.push_back(Told::Left {
            client,
            workload,
            outcome,
            bits: 0,
        });
    }

    /// Ends what has been on the engine for too long.
    pub(super) fn end_overdue(&self, state: &mut State) {
        let overdue = |state: &State| {
            !state.lists.idle() && self.limit.exceeded(state.since, self.clock.now())
        };
        if !overdue(state) {
            return;
        }
        if let Some(l) = state.running() {
            log::debug!(
                "{}: vGPU {} ran past the limit of {:?}",
                self.engine.sysfs_name(),
                l.job.client.id(),
                self.limit.0
            );
        }
        let outcome = Outcome::Failed {
            reason: FaultReason::TimedOut,
            ipehr: self.hardware.error().ipehr,
        };
        self.end_running(state, outcome, overdue);
    }

    /// Ends what waits for a dead engine.
    pub(super) fn end_waiting(&self, state: &mut State) {
        let now = self.clock.now();
        let timed_out = Outcome::Failed {
            reason: FaultReason::TimedOut,
            ipehr: 0,
        };
        while let Some(vgpu) = state.policy.take(now) {
            state.policy.charge(vgpu, Duration::ZERO, now);
        }
        let ready: Vec<Job> = state.ready.drain().flat_map(|(_, queue)| queue).collect();
        let next: Vec<Job> = state.next.drain(..).collect();
        for job in next.into_iter().chain(ready) {
            self.turn_away(state, job, timed_out);
        }
    }
}
