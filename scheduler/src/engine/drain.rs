//! A vGPU is about to be saved: what of it runs comes to its end.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::stop::LOOK;
use super::{EngineUnit, State};
use crate::sync::lock;

/// Something of the vGPU runs and did not end in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// For how long it has, on this engine.
    pub ran: Duration,
}

/// How long what runs may take to yield, once it is to.
const YIELD: Duration = Duration::from_millis(250);

/// Whether anything of a vGPU is at the engine, or goes back there.
fn owns(state: &State, vgpu: u64) -> bool {
    let loaded = state.loaded.iter().map(|l| &l.job);
    let mut jobs = loaded.chain(&state.next);
    jobs.any(|j| j.client.id() == vgpu)
}

impl EngineUnit {
    /// Takes off the engine what of a vGPU did not begin. What runs goes on.
    pub fn withdraw(&self, vgpu: u64) {
        let mut state = lock(&self.state);
        self.drop_waiting(&mut state, vgpu);
        let first = state.lists.order()[0];
        for l in &mut state.loaded {
            l.unwanted |= l.job.client.id() == vgpu && Some(l.tag) != first;
        }
        self.feed(&mut state);
        drop(state);
        self.tell();
    }

    /// Waits until nothing of a vGPU is at the engine. What runs is to end
    /// before `deadline`; then it is made to yield, with its place kept. Its
    /// client has been told of each workload then, and gives the engine no
    /// others.
    ///
    /// # Errors
    /// [`Runs`]: it does not yield, and goes on.
    pub fn drain(&self, vgpu: u64, deadline: Instant) -> Result<(), Runs> {
        let mut state = lock(&self.state);
        state.waiters += 1;
        let mut result = Ok(());
        let mut until = deadline;
        let mut yields = false;
        while owns(&state, vgpu) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && yields {
                result = Err(Runs {
                    ran: self.ran(&mut state, vgpu),
                });
                break;
            }
            if left.is_zero() {
                until = Instant::now() + YIELD;
                yields = true;
            }
            if !yields || !self.preempt(&mut state, vgpu) {
                self.feed(&mut state);
            }
            state = self
                .moved
                .wait_timeout(state, left.min(LOOK))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if self.hardware.has_events() {
                self.progress(&mut state);
                self.end_failed(&mut state);
            }
            // Others do not wait for what this thread saw.
            drop(state);
            self.tell();
            state = lock(&self.state);
        }
        state.waiters -= 1;
        if result.is_err() {
            for l in &mut state.loaded {
                l.unwanted &= l.job.client.id() != vgpu;
            }
        }
        self.feed(&mut state);
        self.set_alarm(&mut state);
        drop(state);
        self.tell();
        result
    }

    /// Loads a context that does nothing in place of what runs, if that is of
    /// this vGPU; says whether it did. What runs is taken off at the next
    /// command at which it lets itself be.
    fn preempt(&self, state: &mut State, vgpu: u64) -> bool {
        let running = state.running();
        let runs = running.is_some_and(|l| l.job.client.id() == vgpu && !l.ended);
        if !runs || state.lists.loading() || state.dead.is_some() {
            return false;
        }
        let tag = self.next_tag(state);
        state.lists.preempt(tag);
        self.hardware.load(self.idle.descriptor(tag), None);
        true
    }

    fn ran(&self, state: &mut State, vgpu: u64) -> Duration {
        self.count_time(state);
        let mine = state.loaded.iter().filter(|l| l.job.client.id() == vgpu);
        mine.map(|l| l.ran).max().unwrap_or_default()
    }

    /// Brings the vGPU's values of this engine's registers up to date with
    /// what the GPU holds. Nothing of it is at the engine.
    pub fn collect_registers(&self, vgpu: u64) {
        let mut state = lock(&self.state);
        state.waiters += 1;
        // Another one's workload may stand ready to change them on its way.
        while state.owner.as_ref().is_some_and(|o| o.vgpu == vgpu) && !state.lists.idle() {
            state = self
                .moved
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if self.hardware.has_events() {
                self.progress(&mut state);
                self.end_failed(&mut state);
                self.feed(&mut state);
            }
            drop(state);
            self.tell();
            state = lock(&self.state);
        }
        state.waiters -= 1;
        let State {
            owner, switcher, ..
        } = &mut *state;
        if let Some(owner) = owner.as_ref().filter(|o| o.vgpu == vgpu) {
            self.hardware.collect(switcher, &mut lock(&owner.registers));
        }
    }
}
