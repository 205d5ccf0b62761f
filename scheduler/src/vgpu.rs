//! One vGPU: its lanes, tables, registers, events.

mod config;
mod lane;
mod memory;
mod run;
mod saving;
mod tracked;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gen8::csb::Descriptor;
use gen8::{Engine, EngineSet};
use guest_memory::{Gfn, GuestMemory};
use vgpu_config::Share;
use vgpu_ring::{Event, FaultReason, Request};

use crate::complaint::Complaints;
use crate::counters::{CounterValues, Counters};
use crate::dma::GuestMap;
use crate::events::{EventSink, Outbox};
use crate::ggtt::GuestGgtt;
use crate::ppgtt::{Frames, ShadowTables};
use crate::scan::Scanner;
use crate::scheduler::Shared;
use crate::switch::RegisterFile;
use crate::sync::lock;
pub use config::{VgpuConfig, VgpuError};
use lane::{Element, Lane, LoadError, Shadows};
pub use memory::MemoryView;
pub use saving::{BadScheduler, Drained, EngineV1, InterruptedV1, SchedulerV1, StillRuns};
use worker::Worker;

struct LaneSlot {
    /// Locked while an element is prepared; before the lane.
    shadows: Mutex<Shadows>,
    lane: Mutex<Lane>,
    counters: Counters,
    registers: Arc<Mutex<RegisterFile>>,
    /// What preparing an element takes as a rule, nanoseconds.
    prepare_ns: AtomicU64,
}

/// Above this an element is prepared by the vGPU's worker, if nothing else is
/// chosen, and not by the thread that reads the requests: they are for the other
/// engines, too, and what follows on this one may be one with this one.
const WORKER_ABOVE: Duration = Duration::from_millis(1);

impl LaneSlot {
    /// Preparing an element took so long.
    fn prepared_in(&self, ns: u64) {
        let before = self.prepare_ns.load(Ordering::Relaxed);
        let now = before - before / 4 + ns / 4;
        self.prepare_ns.store(now, Ordering::Relaxed);
    }

    /// What preparing an element takes as a rule.
    fn takes(&self) -> Duration {
        Duration::from_nanos(self.prepare_ns.load(Ordering::Relaxed))
    }
}

/// One vGPU.
pub struct Vgpu {
    config: VgpuConfig,
    share: Mutex<Share>,
    shared: Arc<Shared>,
    map: Arc<GuestMap>,
    table: Mutex<Option<Arc<dyn GuestGgtt>>>,
    tables: Arc<ShadowTables>,
    /// Nothing more goes to the GPU until what is there is through.
    emptying: AtomicBool,
    lanes: [LaneSlot; Engine::COUNT],
    outbox: Mutex<Outbox>,
    /// Held while orders of the tables are passed on: they stay in order.
    ordering: Mutex<()>,
    /// Contexts that were not run.
    refusals: Mutex<Complaints>,
    /// What their batches without privilege held.
    noticed: Mutex<Complaints>,
    scanner: Scanner,
    failed: OnceLock<VgpuError>,
    removed: AtomicBool,
    worker: Worker,
}

impl Vgpu {
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: VgpuConfig,
        memory: Arc<dyn GuestMemory>,
        table: Arc<dyn GuestGgtt>,
        events: Box<dyn EventSink>,
    ) -> std::io::Result<Arc<Self>> {
        let map = Arc::new(GuestMap::new(Arc::clone(&shared.dma), memory, config.map));
        let switched = shared.gpu.switched;
        let pages = Arc::clone(&shared.pages);
        let tables = ShadowTables::followed(Arc::clone(&map), pages, config.tables, config.shadow);
        let scanner = Scanner::new(shared.gpu, config.scan, config.scan_limits);
        let vgpu = Arc::new(Self {
            share: Mutex::new(config.share),
            config,
            shared,
            map,
            table: Mutex::new(Some(table)),
            tables,
            emptying: AtomicBool::new(false),
            lanes: Engine::ALL.map(|engine| LaneSlot {
                shadows: Mutex::default(),
                lane: Mutex::default(),
                counters: Counters::default(),
                registers: Arc::new(Mutex::new(RegisterFile::with_table(switched, engine))),
                prepare_ns: AtomicU64::new(0),
            }),
            outbox: Mutex::new(Outbox::new(events)),
            ordering: Mutex::default(),
            refusals: Mutex::default(),
            noticed: Mutex::default(),
            scanner,
            failed: OnceLock::new(),
            removed: AtomicBool::new(false),
            worker: Worker::default(),
        });
        vgpu.shared
            .windows
            .set_limits(vgpu.id(), vgpu.config.windows);
        worker::start(&vgpu)?;
        vgpu.set_share(vgpu.config.share);
        Ok(vgpu)
    }

    fn slot(&self, engine: Engine) -> &LaneSlot {
        &self.lanes[engine.index()]
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.config.id
    }

    /// Does what the device model asks. Called by the one thread that takes
    /// its requests, in order.
    ///
    /// # Errors
    /// [`VgpuError`]: the vGPU is of no more use and should be removed.
    pub fn handle(self: &Arc<Self>, request: Request) -> Result<(), VgpuError> {
        self.usable()?;
        match request {
            Request::Submit { engine, seq, desc } => self.submit(engine, seq, desc)?,
            Request::Reset { engines, epoch } => {
                self.quiesce(EngineSet::from_bits(engines), true);
                self.push(Event::ResetDone { engines, epoch });
            }
            Request::WriteRegister { offset, value } => {
                // What no switch carries over is the device model's affair.
                if let Some(engine) = crate::switch::engine_of(self.shared.gpu.switched, offset) {
                    lock(&self.slot(engine).registers).write(offset, value);
                }
            }
            // Tables are followed from the contexts that use them.
            Request::CreatePageTable { .. } => {}
            Request::DestroyPageTable { root } => {
                self.tables.destroy(Gfn::containing(root));
                self.give_orders();
            }
            Request::InvalidateMemory => {
                self.map.invalidate();
                self.tables.frames_changed();
            }
            Request::Ping { token } => self.push(Event::Pong { token }),
            Request::Protection { .. }
            | Request::Protected { .. }
            | Request::TableWrite { .. }
            | Request::TableReleased { .. }
            | Request::WritesMissed { .. }
            | Request::Recovered { .. } => self.tracked(request),
        }
        self.usable()
    }

    /// Whether the vGPU can go on.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn usable(&self) -> Result<(), VgpuError> {
        match self.failed.get() {
            Some(e) => Err(e.clone()),
            None if self.removed.load(Ordering::Acquire) => Err(VgpuError::Removed),
            None => Ok(()),
        }
    }

    /// Offers waiting events to the sink again: there is room in it.
    pub fn flush_events(&self) {
        lock(&self.outbox).flush();
    }

    fn submit(self: &Arc<Self>, engine: u8, seq: u64, desc: [u64; 2]) -> Result<(), VgpuError> {
        let engine = Engine::from_index(engine.into()).ok_or(VgpuError::Engine(engine))?;
        let slot = self.slot(engine);
        slot.counters.loads.add(1);
        let mut lane = lock(&slot.lane);
        match lane.load(seq, desc.map(Descriptor)) {
            Ok(()) => {
                drop(lane);
                if slot.takes() > self.config.worker_above.unwrap_or(WORKER_ABOVE) {
                    self.worker.advance(engine);
                } else {
                    self.advance(engine);
                }
            }
            Err(LoadError::Sequence { last }) => {
                return Err(VgpuError::Sequence {
                    engine: engine.sysfs_name(),
                    seq,
                    last,
                });
            }
            // A guest can flood its port; it loses the engine until it
            // resets it.
            Err(LoadError::Full) => {
                slot.counters.refused.add(1);
                let first = Element { seq, element: 0 };
                self.fault(engine, &mut lane, first, FaultReason::Exhausted, 0);
            }
            Err(LoadError::Stopped) => {}
        }
        Ok(())
    }

    /// Stops the engine for this vGPU and says why.
    fn fault(
        &self,
        engine: Engine,
        lane: &mut Lane,
        element: Element,
        reason: FaultReason,
        ipehr: u32,
    ) {
        lane.stop();
        self.push(Event::Fault {
            engine: index(engine),
            element: element.element,
            reason,
            ipehr,
            seq: element.seq,
        });
    }

    fn push(&self, event: Event) {
        let mut outbox = lock(&self.outbox);
        let waiting = outbox.waiting();
        if outbox.push(event).is_err() {
            let error = VgpuError::NotDraining(waiting);
            let why = error.to_string();
            if self.failed.set(error).is_ok() {
                log::warn!("vGPU {}: of no more use: {why}", self.id());
                outbox.fail(&why);
            }
        } else if waiting == 0 && outbox.waiting() > 0 {
            // The worker offers it again.
            self.worker.wake();
        }
    }

    /// Ends everything on these engines. On return nothing submitted so far
    /// can touch the guest's memory. `reset`: the guest asked for it, and
    /// its engines start anew.
    fn quiesce(&self, engines: EngineSet, reset: bool) {
        for engine in engines.iter() {
            let slot = self.slot(engine);
            lock(&slot.lane).clear();
            self.shared.engines[engine.index()].cancel(self.id());
            let mut lane = lock(&slot.lane);
            // What was cancelled may have come back.
            lane.clear();
            if reset {
                lane.stopped = false;
                lock(&slot.registers).reset();
            } else {
                lane.stop();
            }
        }
    }

    /// Takes the vGPU off the GPU. On return nothing of the guest's memory is
    /// referenced and none of its events will be pushed.
    pub(crate) fn remove(self: &Arc<Self>) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.quiesce(EngineSet::ALL, false);
        worker::stop(self);
        // The worker may have started what it was preparing.
        self.quiesce(EngineSet::ALL, false);
        for unit in self.shared.engines.iter() {
            unit.forget(self.id());
        }
        for slot in &self.lanes {
            // What was being prepared found its lane stopped and is gone.
            drop(lock(&slot.shadows));
        }
        self.shared.windows.forget_vgpu(self.id());
        for slot in &self.lanes {
            *lock(&slot.shadows) = Shadows::default();
        }
        if self.tables.clear() {
            self.map.abandon();
        } else {
            self.map.close();
        }
        *lock(&self.table) = None;
        *lock(&self.outbox) = Outbox::new(Box::new(Nowhere));
    }

    /// Has it recorded what work at the GPU may write, or no longer.
    pub(crate) fn track(&self, on: bool) {
        self.tables.track(on);
    }

    /// What work at the GPU may have written since the last call.
    pub(crate) fn reached(&self) -> Frames {
        self.tables.written()
    }

    /// Changes what it gets of the GPU's time, on every engine.
    pub(crate) fn set_share(&self, share: Share) {
        *lock(&self.share) = share;
        for unit in self.shared.engines.iter() {
            unit.set_share(self.id(), share);
        }
    }

    /// An engine's counters now, with what runs there.
    fn counter_values(&self, engine: Engine) -> CounterValues {
        let counters = &self.slot(engine).counters;
        let unit = &self.shared.engines[engine.index()];
        let busy_ns = unit.busy_ns(self.id(), counters);
        CounterValues {
            busy_ns,
            ..counters.values()
        }
    }

    /// What it did on each engine so far.
    #[must_use]
    pub fn lanes(&self) -> [crate::inspect::LaneCounters; Engine::COUNT] {
        Engine::ALL.map(|engine| crate::inspect::LaneCounters {
            engine,
            values: self.counter_values(engine),
            waits: self.slot(engine).counters.waits.buckets(),
        })
    }

    /// The vGPU now.
    #[must_use]
    pub fn view(&self) -> crate::inspect::VgpuView {
        // One lock at a time: a guard made inside the struct expression would
        // be held to its end, and an engine asks for the share under its own.
        let share = *lock(&self.share);
        let events_waiting = lock(&self.outbox).waiting();
        let refusals = lock(&self.refusals).list();
        let noticed = lock(&self.noticed).list();
        crate::inspect::VgpuView {
            id: self.id(),
            failed: self.failed.get().map(ToString::to_string),
            share,
            chunks: self.map.chunks(),
            shadow: self.config.shadow.mode,
            tables: self.tables.counts(),
            windows: self.shared.windows.share(self.id()),
            memory: self.memory(),
            events_waiting,
            refusals,
            noticed,
            engines: Engine::ALL.map(|engine| self.lane_view(engine)).into(),
        }
    }

    fn lane_view(&self, engine: Engine) -> crate::inspect::LaneView {
        let slot = self.slot(engine);
        let (active_load, waiting_loads, stopped) = {
            let lane = lock(&slot.lane);
            let first = lane.flights().front();
            (first.map(|f| f.element.seq), lane.waiting(), lane.stopped)
        };
        let registers = lock(&slot.registers).view().into_iter().collect();
        crate::inspect::LaneView {
            name: engine.sysfs_name(),
            active_load,
            waiting_loads,
            stopped,
            counters: self.counter_values(engine),
            registers,
        }
    }
}

/// After removal events have nowhere to go.
struct Nowhere;

impl EventSink for Nowhere {
    fn push(&mut self, _event: Event) -> Result<(), crate::events::Full> {
        Ok(())
    }
}

/// The engine's number in a message.
fn index(engine: Engine) -> u8 {
    engine.index().to_le_bytes()[0]
}
