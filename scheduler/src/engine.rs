//! One engine: who runs on it, who waits, whose registers it holds.
//!
//! There is no thread of its own here. Whoever brings an event moves the
//! engine on: a submitter starts work on an idle engine, the interrupt
//! thread ends it and starts the next. So a workload costs no hand-over
//! between threads beyond the interrupt itself.

mod hardware;
mod switch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gen8::csb::{self, Descriptor};
use gen8::{Engine, irq, ring};
use vgpu_ring::FaultReason;

use crate::clock::Clock;
use crate::counters::{Counters, EngineCounters};
use crate::policy::{RunLimit, Turns};
use crate::sync::lock;
use crate::trace::{Trace, What};
use crate::workload::Workload;
pub use hardware::{BringUpError, Hardware, ResetFailed};
pub use switch::{SwitchCost, VgpuRegisters, allowed_nonpriv, engine_of};

/// How a workload left the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It reached its tail.
    Done,
    /// It failed and the engine was reset.
    Failed {
        /// Why.
        reason: FaultReason,
        /// The header of the command last executed.
        ipehr: u32,
    },
    /// Its vGPU no longer wants it.
    Cancelled,
}

/// The vGPU behind a workload, as an engine sees it.
pub trait Client: Send + Sync {
    /// Its id.
    fn id(&self) -> u64;
    /// Its values of the registers that a switch carries over.
    fn registers(&self, engine: Engine) -> &Arc<Mutex<VgpuRegisters>>;
    /// Where to count.
    fn counters(&self, engine: Engine) -> &Counters;
    /// The engine raised interrupts and goes on.
    fn interrupts(&self, engine: Engine, bits: u16);
    /// A workload left the engine, which raised the interrupts `bits` before.
    /// Called without locks of the engine.
    fn finished(&self, engine: Engine, workload: Box<Workload>, outcome: Outcome, bits: u16);
}

struct Ready {
    client: Arc<dyn Client>,
    workload: Box<Workload>,
    since: Duration,
}

struct Running {
    job: Ready,
    /// The id in its descriptor, to tell its events from older ones.
    tag: u32,
    since: Duration,
}

struct Owner {
    vgpu: u64,
    registers: Arc<Mutex<VgpuRegisters>>,
}

struct State {
    turns: Turns,
    ready: HashMap<u64, Ready>,
    running: Option<Running>,
    owner: Option<Owner>,
    tag: u32,
    /// The engine did not come back from a reset.
    dead: Option<String>,
    resets: u64,
}

/// What left the engine, to be told when its lock is released.
struct Left {
    job: Ready,
    outcome: Outcome,
    bits: u16,
}

/// One engine.
pub struct EngineUnit {
    engine: Engine,
    hardware: Hardware,
    clock: Arc<dyn Clock>,
    limit: RunLimit,
    trace: Arc<Trace>,
    totals: EngineCounters,
    up_since: Duration,
    state: Mutex<State>,
}

/// An engine at one moment, for inspection.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EngineView {
    /// Name.
    pub name: &'static str,
    /// The vGPU that runs now.
    pub running: Option<u64>,
    /// For how long, in nanoseconds.
    pub running_ns: Option<u64>,
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

/// Context ids are 20 bits above bit 4 of the upper dword
/// (Linux `gt/intel_lrc.h`, `intel_context_types.h`: Gen8 ids).
const TAG_SHIFT: u32 = 5;
const TAGS: u32 = 1 << 20;

/// Nanoseconds of a duration; one that does not fit is at least that long.
fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl EngineUnit {
    /// An engine that was brought up.
    #[must_use]
    pub fn new(
        hardware: Hardware,
        clock: Arc<dyn Clock>,
        limit: RunLimit,
        trace: Arc<Trace>,
    ) -> Self {
        Self {
            engine: hardware.engine(),
            hardware,
            limit,
            trace,
            totals: EngineCounters::default(),
            up_since: clock.now(),
            clock,
            state: Mutex::new(State {
                turns: Turns::default(),
                ready: HashMap::new(),
                running: None,
                owner: None,
                tag: 0,
                dead: None,
                resets: 0,
            }),
        }
    }

    /// Queues a workload and starts it when the engine is idle. A client has
    /// one workload at a time here. Hands it back when the engine is out of
    /// use.
    pub fn submit(
        &self,
        client: Arc<dyn Client>,
        workload: Box<Workload>,
    ) -> Result<(), Box<Workload>> {
        let mut state = lock(&self.state);
        if state.dead.is_some() {
            return Err(workload);
        }
        let id = client.id();
        let since = self.clock.now();
        self.trace(id, What::Ready);
        state.ready.insert(
            id,
            Ready {
                client,
                workload,
                since,
            },
        );
        state.turns.ready(id);
        if state.running.is_none() {
            self.start_next(&mut state);
        }
        Ok(())
    }

    /// Starts the next workload, if one waits.
    fn start_next(&self, state: &mut State) {
        let (id, job) = loop {
            let Some(id) = state.turns.take() else {
                return;
            };
            if let Some(job) = state.ready.remove(&id) {
                break (id, job);
            }
        };
        if state.owner.as_ref().is_some_and(|o| o.vgpu == id) {
            self.hardware
                .apply_pending(job.client.registers(self.engine));
        } else {
            self.switch(state, id, &job);
        }
        state.tag = (state.tag + 1) % TAGS;
        let tag = (state.tag) << TAG_SHIFT;
        let descriptor = Descriptor(job.workload.descriptor.0 | (u64::from(tag) << 32));
        // Known to be running before the GPU can say that it is through.
        let since = self.clock.now();
        let waited = since.saturating_sub(job.since);
        job.client.counters(self.engine).waits.record(waited);
        self.trace(id, What::Start { slot: 0 });
        state.running = Some(Running { job, tag, since });
        self.hardware.load(descriptor);
    }

    /// Gives the engine's registers to another vGPU.
    fn switch(&self, state: &mut State, id: u64, job: &Ready) {
        let counters = job.client.counters(self.engine);
        let registers = job.client.registers(self.engine);
        let before = self.clock.now();
        let outgoing = state.owner.take();
        let mut cost = self
            .hardware
            .switch(outgoing.as_ref().map(|o| o.registers.as_ref()), registers);
        if job.workload.restore_inhibit {
            cost += self.hardware.clear_context();
        }
        counters.switches.add(1);
        counters.switch_reads.add(cost.reads);
        counters.switch_writes.add(cost.writes);
        let spent = self.clock.now().saturating_sub(before);
        counters.switch_ns.add(nanos(spent));
        self.totals.switches.add(1);
        self.totals.switch_ns.add(nanos(spent));
        self.trace(
            id,
            What::Switch {
                reads: cost.reads,
                writes: cost.writes,
                ns: nanos(spent),
            },
        );
        state.owner = Some(Owner {
            vgpu: id,
            registers: Arc::clone(registers),
        });
    }

    /// Takes what runs off the books.
    fn take(&self, state: &mut State, outcome: Outcome, bits: u16) -> Option<Left> {
        let running = state.running.take()?;
        let spent = self.clock.now().saturating_sub(running.since);
        let counters = running.job.client.counters(self.engine);
        let ran_ns = nanos(spent);
        counters.busy_ns.add(ran_ns);
        self.totals.busy_ns.add(ran_ns);
        let what = match outcome {
            Outcome::Done => {
                counters.completed.add(1);
                What::Done { ran_ns }
            }
            Outcome::Failed { .. } => {
                counters.failed.add(1);
                What::Failed
            }
            Outcome::Cancelled => What::Cancelled,
        };
        self.trace(running.job.client.id(), what);
        Some(Left {
            job: running.job,
            outcome,
            bits,
        })
    }

    /// Tells the client. The engine's lock is not held.
    fn tell(&self, left: Option<Left>) {
        let Some(Left { job, outcome, bits }) = left else {
            return;
        };
        let Ready {
            client, workload, ..
        } = job;
        client.finished(self.engine, workload, outcome, bits);
    }

    /// The engine interrupted. Only the interrupt thread calls this.
    pub fn interrupt(&self) {
        let mut state = lock(&self.state);
        let mut bits = self.hardware.acknowledge();
        let completed = self.completed(&state);
        if completed {
            // What was raised before the completion was written is the
            // guest's that ran. It may have come after the first look.
            bits |= self.hardware.acknowledge();
        }
        let mine = bits & crate::audit::GUEST_INTERRUPTS;
        let left = if completed {
            let left = self.take(&mut state, Outcome::Done, mine);
            self.start_next(&mut state);
            left
        } else if bits & irq::ERROR != 0 {
            self.failed(&mut state, mine)
        } else {
            None
        };
        let goes_on = match &left {
            None if mine != 0 => state.running.as_ref().map(|r| Arc::clone(&r.job.client)),
            _ => None,
        };
        drop(state);
        if let Some(client) = goes_on {
            client.interrupts(self.engine, mine);
        }
        self.tell(left);
    }

    /// Reads the status buffer; whether the running workload is through.
    fn completed(&self, state: &State) -> bool {
        let tag = state.running.as_ref().map(|r| r.tag);
        self.hardware
            .events()
            .into_iter()
            .any(|(status, id)| status & csb::CONTEXT_COMPLETE != 0 && Some(id) == tag)
    }

    /// The GPU reported an error.
    fn failed(&self, state: &mut State, bits: u16) -> Option<Left> {
        let error = self.hardware.error();
        if error.eir == 0 {
            return None;
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
        self.reset(state, outcome, bits)
    }

    /// Resets the engine; whatever ran leaves with `outcome`, and the next
    /// starts.
    fn reset(&self, state: &mut State, outcome: Outcome, bits: u16) -> Option<Left> {
        state.resets += 1;
        if let Some(running) = &state.running {
            self.trace(running.job.client.id(), What::Reset);
        }
        // What the engine held is gone. Values not saved since the last
        // switch are the workload's own, and it failed.
        state.owner = None;
        if let Err(e) = self.hardware.reset() {
            log::error!("{}: {e}; out of use", self.engine.sysfs_name());
            state.dead = Some(e.to_string());
        }
        let mut left = self.take(state, outcome, bits);
        if state.dead.is_none() {
            self.start_next(state);
        } else if let Some(left) = &mut left {
            // It may still be running: what it can reach must not become
            // anything else.
            left.job.workload.abandon();
        }
        left
    }

    /// Looks after the engine at every tick: finds a completion whose
    /// interrupt was lost, ends a workload that has run too long, and ends
    /// what waits on a dead engine.
    pub fn check(&self) {
        let overlooked = {
            let state = lock(&self.state);
            state.running.is_some() && self.hardware.has_events()
        };
        if overlooked {
            self.interrupt();
        }
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let mut left = Vec::new();
        if let Some(running) = &state.running
            && self.limit.exceeded(running.since, now)
        {
            log::debug!(
                "{}: vGPU {} ran for {:?}, limit {:?}",
                self.engine.sysfs_name(),
                running.job.client.id(),
                now.saturating_sub(running.since),
                self.limit.0
            );
            let outcome = Outcome::Failed {
                reason: FaultReason::TimedOut,
                ipehr: self.hardware.error().ipehr,
            };
            left.extend(self.reset(&mut state, outcome, 0));
        }
        if state.dead.is_some() {
            while state.turns.take().is_some() {}
            left.extend(state.ready.drain().map(|(_, job)| Left {
                job,
                outcome: Outcome::Failed {
                    reason: FaultReason::TimedOut,
                    ipehr: 0,
                },
                bits: 0,
            }));
        }
        drop(state);
        for l in left {
            self.tell(Some(l));
        }
    }

    /// Takes a vGPU's workload back, off the GPU if it must be. On return the
    /// GPU does nothing for this vGPU on this engine any more. `None` when it
    /// has none here; one that just left may still be on its way to
    /// [`Client::finished`].
    pub fn cancel(&self, vgpu: u64) -> Option<Box<Workload>> {
        let mut state = lock(&self.state);
        state.turns.remove(vgpu);
        if let Some(job) = state.ready.remove(&vgpu) {
            return Some(job.workload);
        }
        let runs = state
            .running
            .as_ref()
            .is_some_and(|r| r.job.client.id() == vgpu);
        if !runs {
            return None;
        }
        self.reset(&mut state, Outcome::Cancelled, 0)
            .map(|l| l.job.workload)
    }

    /// Forgets that a vGPU owned the engine.
    pub fn disown(&self, vgpu: u64) {
        let mut state = lock(&self.state);
        if state.owner.as_ref().is_some_and(|o| o.vgpu == vgpu) {
            state.owner = None;
        }
    }

    fn trace(&self, vgpu: u64, what: What) {
        self.trace.record(self.clock.now(), self.engine, vgpu, what);
    }

    /// Nanoseconds that `vgpu` had of this engine, what it runs now included.
    /// `counters` are its own for this engine.
    #[must_use]
    pub fn busy_ns(&self, vgpu: u64, counters: &Counters) -> u64 {
        let state = lock(&self.state);
        let now = self.clock.now();
        let running = state.running.as_ref();
        let running = running.filter(|r| r.job.client.id() == vgpu);
        let running_ns = running.map_or(0, |r| nanos(now.saturating_sub(r.since)));
        counters.busy_ns.get() + running_ns
    }

    /// The engine now.
    #[must_use]
    pub fn view(&self) -> EngineView {
        let state = lock(&self.state);
        let now = self.clock.now();
        let running = state.running.as_ref();
        let running_ns = running.map(|r| nanos(now.saturating_sub(r.since)));
        let busy_ns = self.totals.busy_ns.get() + running_ns.unwrap_or(0);
        let up_ns = nanos(now.saturating_sub(self.up_since));
        EngineView {
            name: self.engine.sysfs_name(),
            running: running.map(|r| r.job.client.id()),
            running_ns,
            owner: state.owner.as_ref().map(|o| o.vgpu),
            waiting: state.turns.waiting(),
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
