//! An engine at one moment.

use super::EngineUnit;
use crate::clock::nanos;
use crate::counters::Counters;
use crate::sync::lock;

/// An engine at one moment, for inspection.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EngineView {
    /// Name.
    pub name: &'static str,
    /// The vGPU that runs now, or is about to.
    pub running: Option<u64>,
    /// For how long, in nanoseconds.
    pub running_ns: Option<u64>,
    /// The vGPU whose workload follows at once.
    pub second: Option<u64>,
    /// The vGPU whose registers it holds.
    pub owner: Option<u64>,
    /// vGPUs that wait.
    pub waiting: usize,
    /// Nanoseconds with something to run, what runs now included.
    pub busy_ns: u64,
    /// Nanoseconds without.
    pub idle_ns: u64,
    /// Switches between vGPUs by register accesses.
    pub switches: u64,
    /// Switches between vGPUs by commands from the second slot.
    pub handovers: u64,
    /// Nanoseconds in switches.
    pub switch_ns: u64,
    /// Resets so far.
    pub resets: u64,
    /// Why it is out of use.
    pub dead: Option<String>,
}

impl EngineUnit {
    /// Nanoseconds that `vgpu` had of this engine, what it runs now included.
    /// `counters` are its own for this engine.
    #[must_use]
    pub fn busy_ns(&self, vgpu: u64, counters: &Counters) -> u64 {
        let state = lock(&self.state);
        let now = nanos(self.clock.now().saturating_sub(state.counted));
        let mine = state.loaded.iter().filter(|l| l.job.client.id() == vgpu);
        let loaded = mine.map(|l| {
            let runs = state.timed == Some(l.tag);
            nanos(l.ran) + if runs { now } else { 0 }
        });
        counters.busy_ns.get() + loaded.sum::<u64>()
    }

    /// Whether it is out of use. What it had then is held for good.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        lock(&self.state).dead.is_some()
    }

    /// The engine now.
    #[must_use]
    pub fn view(&self) -> EngineView {
        let state = lock(&self.state);
        let now = self.clock.now();
        let vgpu = |tag| state.loaded(tag).map(|l| l.job.client.id());
        let [first, second] = state.lists.order();
        let since = |start| nanos(now.saturating_sub(start));
        let uncounted = state.timed.map_or(0, |_| since(state.counted));
        let busy_ns = self.totals.busy_ns.get() + uncounted;
        let up_ns = nanos(now.saturating_sub(self.up_since));
        EngineView {
            name: self.engine.sysfs_name(),
            running: first.and_then(vgpu),
            running_ns: first.map(|_| since(state.since)),
            second: second.and_then(vgpu),
            owner: state.owner.as_ref().map(|o| o.vgpu),
            waiting: state.policy.waiting() + state.next.len(),
            busy_ns,
            idle_ns: up_ns.saturating_sub(busy_ns),
            switches: self.totals.switches.get(),
            handovers: self.totals.handovers.get(),
            switch_ns: self.totals.switch_ns.get(),
            resets: state.resets,
            dead: state.dead.clone(),
        }
    }
}
