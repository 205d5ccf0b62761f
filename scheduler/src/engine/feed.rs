//! What the engine gets next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{EngineUnit, Job, Loaded, Owner, State, TAG_SHIFT, TAGS};
use crate::clock::nanos;
use crate::switch::{SwitchCost, prologue_commands};
use crate::sync::lock;
use crate::trace::What;

/// Moves of its tail that a running workload keeps, so that what was put
/// behind it can always be taken away again.
const KEPT_RELOADS: u32 = 1;

impl EngineUnit {
    /// Gives the engine what it has room for.
    pub(super) fn feed(&self, state: &mut State) {
        // Another load would take the place of one not taken up.
        if state.dead.is_some() || state.lists.loading() {
            return;
        }
        match (state.lists.running(), state.lists.second()) {
            (None, _) => self.start(state),
            (Some(running), None) => self.refill(state, running),
            (Some(running), Some(second)) => {
                let unwanted = state.loaded(second).is_some_and(|l| l.unwanted);
                let goes_on = state.loaded(running).is_some_and(|l| !l.unwanted);
                if unwanted && goes_on {
                    self.load_again(state, running, None);
                }
            }
        }
    }

    /// Who comes next, if anybody may.
    fn next(&self, state: &mut State) -> Option<Job> {
        if let Some(job) = state.next.pop_front() {
            return Some(job);
        }
        let now = self.clock.now();
        loop {
            let chosen = state.policy.take(now);
            for vgpu in state.policy.held_back() {
                self.trace(vgpu, What::Throttled);
                if let Some(job) = state.ready.get(&vgpu).and_then(VecDeque::front) {
                    job.client.counters(self.engine).throttled.add(1);
                }
            }
            let vgpu = chosen?;
            let queue = state.ready.get_mut(&vgpu);
            let Some((job, more)) = queue.and_then(|q| Some((q.pop_front()?, !q.is_empty())))
            else {
                state.policy.charge(vgpu, Duration::ZERO, now);
                continue;
            };
            if more {
                state.policy.ready(vgpu, now);
            } else {
                state.ready.remove(&vgpu);
            }
            return Some(job);
        }
    }

    /// Loads an idle engine.
    fn start(&self, state: &mut State) {
        let Some(mut first) = self.next(state) else {
            return;
        };
        // It may have stood behind another one once.
        first.workload.set_prologue(&[]);
        self.give_registers(state, &first);
        let first = self.loaded(state, first, 0, Vec::new());
        let tag = first.tag;
        state.loaded.push(first);
        state.since = self.clock.now();
        state.waits_behind = None;
        let second = self.second(state, tag);
        self.load(state, tag, second);
    }

    /// Puts something behind what runs, so that the engine goes on without
    /// waiting for us.
    fn refill(&self, state: &mut State, running: u32) {
        let ready = state
            .loaded(running)
            .is_some_and(|l| !l.unwanted && !l.ended && l.job.workload.reloads() > KEPT_RELOADS);
        if ready && let Some(second) = self.second(state, running) {
            self.load_again(state, running, Some(second));
        }
    }

    /// Loads a list that begins with what runs.
    fn load_again(&self, state: &mut State, running: u32, second: Option<u32>) {
        let Some(l) = state.loaded_mut(running) else {
            return;
        };
        // Without a new tail it might be taken for idle.
        if l.job.workload.reload() {
            self.load(state, running, second);
        }
    }

    fn load(&self, state: &mut State, first: u32, second: Option<u32>) {
        let descriptor = |tag| state.loaded(tag).map(Loaded::descriptor);
        let Some(one) = descriptor(first) else {
            return;
        };
        let two = second.and_then(descriptor);
        match second {
            Some(second) => state.lists.load(&[first, second]),
            None => state.lists.load(&[first]),
        }
        // Known before the GPU can say that it is through.
        self.hardware.load(one, two);
    }

    fn loaded(&self, state: &mut State, mut job: Job, slot: u8, pairs: Vec<(u32, u32)>) -> Loaded {
        let tag = self.next_tag(state);
        if let Some(log) = &self.flights {
            let vgpu = job.client.id();
            job.workload.depart(log, self.engine, vgpu, tag);
        }
        Loaded {
            job,
            tag,
            slot,
            pairs,
            ran: Duration::ZERO,
            began: false,
            ended: false,
            unwanted: false,
            cancelled: false,
            carried: 0,
            stale: false,
        }
    }

    /// A context id that no event still names.
    pub(super) fn next_tag(&self, state: &mut State) -> u32 {
        state.tag = (state.tag + 1) % TAGS;
        state.tag << TAG_SHIFT
    }

    /// Chooses what can follow `first` without us.
    fn second(&self, state: &mut State, first: u32) -> Option<u32> {
        if !state.next.is_empty() && state.waits_behind == Some(first) {
            return None;
        }
        let mut second = self.next(state)?;
        if let Some(pairs) = self.behind(state, first, &mut second) {
            let second = self.loaded(state, second, 1, pairs);
            let tag = second.tag;
            state.loaded.push(second);
            return Some(tag);
        }
        // Its turn comes when the engine is idle.
        state.next.push_front(second);
        state.waits_behind = Some(first);
        None
    }

    /// Gives an idle engine's registers to the vGPU of `job`.
    fn give_registers(&self, state: &mut State, job: &Job) {
        let id = job.client.id();
        let registers = job.client.registers(self.engine);
        let switcher = &mut state.switcher;
        if state.owner.as_ref().is_some_and(|o| o.vgpu == id) {
            let mut file = lock(registers);
            self.hardware.resume(switcher, &mut file);
            if job.workload.restore_inhibit {
                self.hardware.clear_context(switcher, &mut file);
            }
            return;
        }
        let before = self.clock.now();
        let outgoing = state.owner.take();
        let mut cost = {
            let mut outgoing = outgoing.as_ref().map(|o| lock(&o.registers));
            let mut file = lock(registers);
            let out = outgoing.as_deref_mut();
            let mut cost = self.hardware.switch(switcher, out, &mut file);
            if job.workload.restore_inhibit {
                cost += self.hardware.clear_context(switcher, &mut file);
            }
            cost
        };
        let ns = nanos(self.clock.now().saturating_sub(before));
        let SwitchCost { reads, writes } = cost;
        let counters = job.client.counters(self.engine);
        counters.switches.add(1);
        counters.switch_reads.add(reads);
        counters.switch_writes.add(writes);
        counters.switch_ns.add(ns);
        cost = switcher.baseline(outgoing.is_some());
        let saved = |plain: u64, had: u64| plain.saturating_sub(had);
        counters.switch_reads_saved.add(saved(cost.reads, reads));
        counters.switch_writes_saved.add(saved(cost.writes, writes));
        self.totals.switches.add(1);
        self.totals.switch_ns.add(ns);
        self.trace(id, What::Switch { reads, writes, ns });
        state.owner = Some(Owner {
            vgpu: id,
            registers: Arc::clone(registers),
        });
    }

    /// The register changes with which `second` can follow the loaded `first`
    /// with nobody's help, put in front of its commands. `None` when it cannot.
    fn behind(&self, state: &State, first: u32, second: &mut Job) -> Option<Vec<(u32, u32)>> {
        let first = state.loaded(first)?;
        if first.job.workload.reloads() < KEPT_RELOADS {
            return None;
        }
        let theirs = first.job.client.registers(self.engine);
        if first.job.client.id() == second.client.id() {
            // What the guest wrote meanwhile is for the second at the latest.
            let fits = !lock(theirs).has_pending() && second.workload.set_prologue(&[]);
            return fits.then(Vec::new);
        }
        // Commands come after the restore. A context that is not restored needs
        // registers cleared before it starts; and what runs around the restore
        // must neither see the wrong registers nor, in the first, run twice.
        if second.workload.restore_inhibit
            || !second.workload.effects.allow_prologue()
            || !first.job.workload.effects.allow_prologue()
        {
            return None;
        }
        let mine = second.client.registers(self.engine);
        let effects = &first.job.workload.effects;
        let pairs = state
            .switcher
            .prologue(&lock(theirs), effects, &lock(mine))?;
        if !second.workload.effects.leave_alone(&pairs) {
            return None;
        }
        let commands = prologue_commands(&pairs);
        second.workload.set_prologue(&commands).then_some(pairs)
    }
}
