//! One engine: who runs on it, who waits, whose registers it holds.
//!
//! There is no thread of its own here. Whoever brings an event moves the
//! engine on: a submitter starts work on an idle engine or puts it behind
//! what runs, the interrupt thread ends it and fills the second slot again.
//! So a workload costs no hand-over between threads beyond the interrupt
//! itself, and while there is enough to do the engine never waits for one.
//!
//! `lists` keeps what the engine was given, `feed` decides what it gets
//! next, `progress` follows its events, `stop` takes work off it again, `drain`
//! lets it end.

mod drain;
mod feed;
mod hardware;
mod idle;
mod lists;
mod progress;
mod stop;
mod view;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gen8::csb::Descriptor;
use gen8::{Engine, Platform};
use vgpu_config::Share;
use vgpu_ring::FaultReason;

use crate::clock::Clock;
use crate::counters::{Counters, EngineCounters};
use crate::flights::FlightLog;
use crate::interrupt::Line;
use crate::policy::{Policy, RunLimit};
use crate::switch::{RegisterFile, SwitchMode, Switcher};
use crate::sync::lock;
use crate::trace::{Trace, What};
use crate::workload::{Interrupted, Workload};
pub use drain::Runs;
pub use hardware::{BringUpError, Hardware, ResetFailed};
pub use idle::{IdleContext, IdleError};
use lists::Lists;
pub use view::EngineView;

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
    /// Its vGPU no longer wants it, or it did not begin.
    Cancelled,
    /// It was taken off before its end, and can go on from there.
    Interrupted(Interrupted),
}

/// The vGPU behind a workload, as an engine sees it.
pub trait Client: Send + Sync {
    /// Its id.
    fn id(&self) -> u64;
    /// Its values of the registers that a switch carries over.
    fn registers(&self, engine: Engine) -> &Arc<Mutex<RegisterFile>>;
    /// Where to count.
    fn counters(&self, engine: Engine) -> &Counters;
    /// How long it may keep an engine while others wait.
    fn slice(&self) -> Duration;
    /// The engine raised interrupts and goes on.
    fn interrupts(&self, engine: Engine, bits: u16);
    /// A workload left the engine, which raised the interrupts `bits` before.
    /// Called without locks of the engine.
    fn finished(&self, engine: Engine, workload: Box<Workload>, outcome: Outcome, bits: u16);
}

/// A workload and whose it is.
struct Job {
    client: Arc<dyn Client>,
    workload: Box<Workload>,
    /// When it came.
    since: Duration,
}

/// A workload that the engine was given.
struct Loaded {
    job: Job,
    /// The id in its descriptor, to tell its events from older ones.
    tag: u32,
    /// In which slot it was given.
    slot: u8,
    /// Register changes in front of its commands.
    pairs: Vec<(u32, u32)>,
    /// Time on the engine so far.
    ran: Duration,
    began: bool,
    ended: bool,
    /// It is to be taken off.
    unwanted: bool,
    /// It will not go on then: its vGPU no longer wants it.
    cancelled: bool,
    /// Interrupts that it or another one raised.
    carried: u16,
    /// They have waited for the next look once.
    stale: bool,
}

impl Loaded {
    fn descriptor(&self) -> Descriptor {
        let id = u64::from(self.tag) << 32;
        Descriptor(self.job.workload.descriptor.0 | id)
    }
}

/// Whose registers the engine holds.
struct Owner {
    vgpu: u64,
    registers: Arc<Mutex<RegisterFile>>,
}

/// What a client is to be told when the engine's lock is released.
enum Told {
    Interrupts {
        client: Arc<dyn Client>,
        bits: u16,
    },
    Left {
        client: Arc<dyn Client>,
        workload: Box<Workload>,
        outcome: Outcome,
        bits: u16,
    },
}

struct State {
    policy: Policy,
    /// What waits, by vGPU.
    ready: HashMap<u64, VecDeque<Job>>,
    /// What comes next, whatever the policy says: chosen already.
    next: VecDeque<Job>,
    lists: Lists,
    loaded: Vec<Loaded>,
    /// When what runs began, or when it was loaded if it has not begun.
    since: Duration,
    /// Whose the time since `counted` is.
    timed: Option<u32>,
    counted: Duration,
    /// `next` cannot follow this one without register accesses.
    waits_behind: Option<u32>,
    switcher: Switcher,
    owner: Option<Owner>,
    told: VecDeque<Told>,
    tag: u32,
    /// Threads that wait for `moved`.
    waiters: usize,
    /// When the interrupt thread looks again because of a cap.
    alarm: Option<Duration>,
    /// The GPU reported an error that nobody has looked at.
    erred: bool,
    /// The engine did not come back from a reset.
    dead: Option<String>,
    resets: u64,
}

impl State {
    fn loaded(&self, tag: u32) -> Option<&Loaded> {
        self.loaded.iter().find(|l| l.tag == tag)
    }

    fn loaded_mut(&mut self, tag: u32) -> Option<&mut Loaded> {
        self.loaded.iter_mut().find(|l| l.tag == tag)
    }

    /// What runs.
    fn running(&self) -> Option<&Loaded> {
        self.loaded(self.lists.running()?)
    }
}

/// One engine.
pub struct EngineUnit {
    engine: Engine,
    hardware: Hardware,
    idle: IdleContext,
    clock: Arc<dyn Clock>,
    limit: RunLimit,
    trace: Arc<Trace>,
    totals: EngineCounters,
    up_since: Duration,
    /// Wakes the thread that calls [`Self::check`].
    line: Arc<Line>,
    flights: Option<Arc<FlightLog>>,
    state: Mutex<State>,
    /// Whoever has the state waits for the engine to hold still or be reset.
    /// The interrupt thread has others to look after meanwhile.
    stopping: AtomicBool,
    /// Interrupts that it took in that time.
    missed: AtomicU16,
    /// Something left the engine or was promoted.
    moved: Condvar,
    /// Held while clients are told, so that they are in order.
    telling: Mutex<()>,
}

/// Context ids are 20 bits above bit 4 of the upper dword
/// (Linux `gt/intel_lrc.h`, `intel_context_types.h`: Gen8 ids).
const TAG_SHIFT: u32 = 5;
const TAGS: u32 = 1 << 20;

/// What all engines of a GPU have in common.
#[derive(Clone)]
pub struct Common {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// How long a workload may hold an engine.
    pub limit: RunLimit,
    /// How registers are carried over between vGPUs.
    pub mode: SwitchMode,
    /// What happened.
    pub trace: Arc<Trace>,
    /// Wakes the interrupt thread.
    pub line: Arc<Line>,
    /// What the GPU is.
    pub gpu: &'static Platform,
    /// Where what is at the GPU is kept for a vgpud to come.
    pub flights: Option<Arc<FlightLog>>,
}

impl EngineUnit {
    /// An engine that was brought up.
    #[must_use]
    pub fn new(hardware: Hardware, idle: IdleContext, common: Common) -> Self {
        let Common {
            clock,
            limit,
            mode,
            trace,
            line,
            gpu,
            flights,
        } = common;
        let engine = hardware.engine();
        let now = clock.now();
        Self {
            engine,
            hardware,
            idle,
            limit,
            trace,
            totals: EngineCounters::default(),
            up_since: now,
            clock,
            line,
            flights,
            state: Mutex::new(State {
                policy: Policy::new(),
                ready: HashMap::new(),
                next: VecDeque::new(),
                lists: Lists::default(),
                loaded: Vec::new(),
                since: now,
                timed: None,
                counted: now,
                waits_behind: None,
                switcher: Switcher::with_table(gpu.switched, engine, mode),
                owner: None,
                told: VecDeque::new(),
                tag: 0,
                waiters: 0,
                alarm: None,
                erred: false,
                dead: None,
                resets: 0,
            }),
            stopping: AtomicBool::new(false),
            missed: AtomicU16::new(0),
            moved: Condvar::new(),
            telling: Mutex::new(()),
        }
    }

    /// Adds a vGPU, or changes its share from now on.
    pub fn set_share(&self, vgpu: u64, share: Share) {
        let mut state = lock(&self.state);
        state.policy.set_share(vgpu, share, self.clock.now());
        self.feed(&mut state);
        self.set_alarm(&mut state);
    }

    /// Queues a workload, and loads it when there is room at the engine and
    /// its vGPU is next. Those of one vGPU run in the order they come; two in
    /// a row are of different contexts. Hands it back when the engine is out
    /// of use.
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
        if state.lists.idle() && state.ready.is_empty() && state.next.is_empty() {
            // The engine waited for them.
            let ptes = workload.cost.ptes;
            client.counters(self.engine).ptes_late.add(ptes);
        }
        self.trace(id, What::Ready);
        state.ready.entry(id).or_default().push_back(Job {
            client,
            workload,
            since,
        });
        state.policy.ready(id, since);
        self.feed(&mut state);
        self.set_alarm(&mut state);
        Ok(())
    }

    /// Sees to it that the interrupt thread looks when a cap ends.
    fn set_alarm(&self, state: &mut State) {
        let Some(at) = state.policy.wake_at(self.clock.now()) else {
            return;
        };
        if state.alarm.is_none_or(|alarm| at < alarm) {
            state.alarm = Some(at);
            self.line.nudge();
        }
    }

    /// Tells clients what there is to tell, in order. On return everything
    /// that was to be told before is told, by whichever thread. The engine's
    /// lock is not held.
    fn tell(&self) {
        let _in_order = lock(&self.telling);
        loop {
            let Some(told) = lock(&self.state).told.pop_front() else {
                return;
            };
            match told {
                Told::Interrupts { client, bits } => client.interrupts(self.engine, bits),
                Told::Left {
                    client,
                    workload,
                    outcome,
                    bits,
                } => client.finished(self.engine, workload, outcome, bits),
            }
        }
    }

    /// Forgets a vGPU, which has nothing here any more.
    pub fn forget(&self, vgpu: u64) {
        let mut state = lock(&self.state);
        state.policy.remove(vgpu);
        state.ready.remove(&vgpu);
        state.owner.take_if(|o| o.vgpu == vgpu);
    }

    fn trace(&self, vgpu: u64, what: What) {
        self.trace.record(self.clock.now(), self.engine, vgpu, what);
    }
}
