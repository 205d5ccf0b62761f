//! The GPU's owner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gen8::{Engine, Platform};
use gpu_bus::Gpu;
use guest_memory::{GuestMemory, WrittenPages};
use vgpu_config::Share;
use vgpu_ring::{Request, TableChanges};

use crate::clock::{Clock, Monotonic};
use crate::dma::{DmaSpace, HostPages, OutOfPages};
use crate::engine::{
    BringUpError, Common, EngineUnit, EngineView, Hardware, IdleContext, IdleError,
};
use crate::events::EventSink;
use crate::flights::{FlightLog, FlightSlot};
use crate::ggtt::GuestGgtt;
use crate::inspect::{LaneCounters, SchedulerView, VgpuView};
use crate::interrupt::{self, Line};
use crate::policy::RunLimit;
use crate::ppgtt::Frames;
use crate::registers::Registers;
use crate::switch::SwitchMode;
use crate::sync::lock;
use crate::trace::{self, Trace};
use crate::vgpu::{BadScheduler, Drained, SchedulerV1, StillRuns, Vgpu, VgpuConfig, VgpuError};
use crate::windows::Windows;

/// What can be chosen about the scheduler.
#[derive(Clone)]
pub struct Config {
    /// What the GPU is, and so are the vGPUs.
    pub gpu: &'static Platform,
    /// How long a workload may hold an engine.
    pub run_limit: Duration,
    /// Pages of 4 KiB for shadow tables, shadow rings and the like.
    pub own_pages: usize,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Events the trace holds.
    pub trace_events: usize,
    /// How registers are carried over between vGPUs.
    pub switch_mode: SwitchMode,
    /// Where what is at the GPU is kept for a vgpud to come, and what the last
    /// one left.
    pub flights: Option<Arc<FlightLog>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gpu: Default::default(),
            run_limit: Duration::from_secs(10),
            // 1 GiB; taken in pieces of 2 MiB as needed.
            own_pages: 1 << 18,
            clock: Arc::new(Monotonic::default()),
            trace_events: trace::DEFAULT_EVENTS,
            switch_mode: SwitchMode::default(),
            flights: None,
        }
    }
}

/// The GPU could not be taken over, or a vGPU not be added.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// No own page.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// An engine did not come up.
    #[error(transparent)]
    BringUp(#[from] BringUpError),
    /// No context to take others off with.
    #[error(transparent)]
    Idle(#[from] IdleError),
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A saved state that no vGPU can have.
    #[error(transparent)]
    Saved(#[from] BadScheduler),
    /// The id is taken.
    #[error("a vGPU with id {0} exists already")]
    Exists(u64),
}

/// What vGPUs share.
pub(crate) struct Shared {
    pub gpu: &'static Platform,
    pub dma: Arc<DmaSpace>,
    pub pages: Arc<HostPages>,
    pub windows: Arc<Windows>,
    pub engines: Arc<[EngineUnit; Engine::COUNT]>,
}

/// Owns the GPU and runs vGPUs on it.
pub struct Scheduler {
    gpu: Arc<Registers>,
    line: Arc<Line>,
    shared: Arc<Shared>,
    trace: Arc<Trace>,
    clock: Arc<dyn Clock>,
    vgpus: Arc<Mutex<BTreeMap<u64, Arc<Vgpu>>>>,
    /// What another vgpud had at the GPU when it died.
    remains: Mutex<Vec<FlightSlot>>,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    /// Takes over `gpu`, whose DMA goes through `dma` and whose interrupts
    /// come by `line`.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub fn start(
        config: &Config,
        gpu: Arc<dyn Gpu>,
        dma: Arc<DmaSpace>,
        line: Arc<Line>,
    ) -> Result<Self, SchedulerError> {
        let gpu = Arc::new(Registers::new(gpu));
        let pages = HostPages::new(Arc::clone(&dma), config.own_pages);
        let windows = Windows::new(Arc::clone(&gpu), pages.allocate()?);
        let reset = Arc::new(Mutex::new(()));
        let trace = Arc::new(Trace::new(config.trace_events));
        let common = Common {
            clock: Arc::clone(&config.clock),
            limit: RunLimit(config.run_limit),
            mode: config.switch_mode,
            trace: Arc::clone(&trace),
            line: Arc::clone(&line),
            gpu: config.gpu,
            flights: config.flights.clone(),
        };
        // Before the first workload takes a place in it.
        let flights = config.flights.as_ref();
        let remains = flights.map(FlightLog::remains).unwrap_or_default();
        let bring_up = |engine| -> Result<EngineUnit, SchedulerError> {
            let hardware = Hardware::bring_up(
                engine,
                Arc::clone(&gpu),
                &windows,
                pages.allocate()?,
                Arc::clone(&reset),
            )?;
            let idle = IdleContext::new(config.gpu, engine, &pages, &windows)?;
            Ok(EngineUnit::new(hardware, idle, common.clone()))
        };
        interrupt::disable(&gpu);
        let engines = Arc::new([
            bring_up(Engine::Rcs)?,
            bring_up(Engine::Bcs)?,
            bring_up(Engine::Vcs)?,
            bring_up(Engine::Vecs)?,
        ]);
        interrupt::enable(&gpu);

        // A late end of a workload matters little against its limit.
        let tick =
            (config.run_limit / 8).clamp(Duration::from_millis(2), Duration::from_millis(250));
        let thread = {
            let line = Arc::clone(&line);
            let gpu = Arc::clone(&gpu);
            let engines = Arc::clone(&engines);
            std::thread::Builder::new()
                .name("gpu-interrupt".into())
                .spawn(move || interrupt::run(&line, &gpu, &engines, tick))?
        };
        Ok(Self {
            gpu,
            line,
            shared: Arc::new(Shared {
                gpu: config.gpu,
                dma,
                pages,
                windows,
                engines,
            }),
            trace,
            clock: Arc::clone(&config.clock),
            vgpus: Arc::default(),
            remains: Mutex::new(remains),
            thread: Some(thread),
        })
    }

    /// Adds a vGPU. `memory` and `table` are its guest's; `events` takes
    /// what it is told. A saved one goes on from
    /// [`VgpuConfig::restored`](crate::vgpu::VgpuConfig::restored). It is
    /// removed when the handle is dropped.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub fn add_vgpu(
        &self,
        mut config: VgpuConfig,
        memory: Arc<dyn GuestMemory>,
        table: Arc<dyn GuestGgtt>,
        events: Box<dyn EventSink>,
    ) -> Result<Handle, SchedulerError> {
        let id = config.id;
        let mut vgpus = lock(&self.vgpus);
        if vgpus.contains_key(&id) {
            return Err(SchedulerError::Exists(id));
        }
        let restored = config.restored.take();
        let adopted = config.adopted;
        if let Some(saved) = &restored {
            saved.check(self.shared.gpu)?;
        }
        let vgpu = Vgpu::new(Arc::clone(&self.shared), config, memory, table, events)?;
        if let Some(saved) = &restored {
            vgpu.restore(saved);
        }
        if adopted {
            let mine = |slot: &mut FlightSlot| slot.vgpu() == id;
            let remains = lock(&self.remains).extract_if(.., mine).collect();
            vgpu.inherit(remains);
        }
        vgpus.insert(id, Arc::clone(&vgpu));
        Ok(Handle {
            vgpu,
            vgpus: Arc::clone(&self.vgpus),
        })
    }

    /// Nobody else is going to be adopted: forgets what of others was at the
    /// GPU.
    pub fn adopted_all(&self) {
        lock(&self.remains).clear();
    }

    /// What happened on the engines.
    #[must_use]
    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }

    /// The clock whose time the trace's events carry.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The engines at this moment.
    #[must_use]
    pub fn engines(&self) -> Vec<EngineView> {
        self.shared.engines.iter().map(EngineUnit::view).collect()
    }

    /// Everything at this moment.
    #[must_use]
    pub fn inspect(&self) -> SchedulerView {
        let vgpus: Vec<Arc<Vgpu>> = lock(&self.vgpus).values().cloned().collect();
        SchedulerView {
            accesses: self.gpu.accesses(),
            windows: self.shared.windows.counts(),
            own_pages: self.shared.pages.used(),
            chunks: self.shared.dma.mapped_chunks(),
            engines: self.engines(),
            vgpus: vgpus.iter().map(|v| v.view()).collect(),
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let vgpus: Vec<Arc<Vgpu>> = lock(&self.vgpus).values().cloned().collect();
        for vgpu in vgpus {
            vgpu.remove();
        }
        interrupt::disable(&self.gpu);
        self.line.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the interrupt thread panicked");
        }
    }
}

/// A vGPU in the hands of whoever serves its device model.
pub struct Handle {
    vgpu: Arc<Vgpu>,
    vgpus: Arc<Mutex<BTreeMap<u64, Arc<Vgpu>>>>,
}

impl Handle {
    /// Does what the device model asks. One thread at a time; requests in
    /// order.
    ///
    /// # Errors
    /// [`VgpuError`]: drop the vGPU.
    pub fn handle(&self, request: Request) -> Result<(), VgpuError> {
        self.vgpu.handle(request)
    }

    /// Whether the vGPU can go on.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn usable(&self) -> Result<(), VgpuError> {
        self.vgpu.usable()
    }

    /// The complete ring has room again.
    pub fn flush_events(&self) {
        self.vgpu.flush_events();
    }

    /// Changes what the vGPU gets of the GPU's time, on every engine, from
    /// now on.
    pub fn set_share(&self, share: Share) {
        self.vgpu.set_share(share);
    }

    /// Where the device model counts changes of protected page tables. To be
    /// given before its first request; without it none is relied on.
    pub fn count_changes(&self, changes: TableChanges) {
        self.vgpu.count_changes(changes);
    }

    /// Has it recorded what work at the GPU may write, or no longer.
    pub fn track(&self, on: bool) {
        self.vgpu.track(on);
    }

    /// Frames that work at the GPU may have written since the last call, or
    /// since [`Handle::track`].
    #[must_use]
    pub fn reached(&self) -> Frames {
        self.vgpu.reached()
    }

    /// Stops giving the GPU work of this vGPU, takes back what has not begun,
    /// and waits, at most `limit`, for what runs. On return the GPU and this
    /// process write nothing of the guest's any more, and events of all that
    /// ended are on their way. Requests are still taken: what they submit
    /// waits until [`Handle::resume`].
    ///
    /// # Errors
    /// [`StillRuns`]; the vGPU goes on.
    pub fn suspend(&self, limit: Duration) -> Result<Drained, StillRuns> {
        self.vgpu.suspend(limit)
    }

    /// Goes on after [`Handle::suspend`]; what was taken back runs.
    pub fn resume(&self) {
        self.vgpu.resume();
    }

    /// The guest's pages that this process writes when it brings contexts up
    /// to date. What the GPU writes is not among them.
    #[must_use]
    pub fn written(&self) -> &WrittenPages {
        self.vgpu.written()
    }

    /// What to save of the vGPU, after [`Handle::suspend`] and when every
    /// request of its device model has been taken.
    #[must_use]
    pub fn save(&self) -> SchedulerV1 {
        self.vgpu.save()
    }

    /// What the vGPU did on each engine so far.
    #[must_use]
    pub fn lanes(&self) -> [LaneCounters; Engine::COUNT] {
        self.vgpu.lanes()
    }

    /// The vGPU now.
    #[must_use]
    pub fn inspect(&self) -> VgpuView {
        self.vgpu.view()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.vgpu.remove();
        let mut vgpus = lock(&self.vgpus);
        let same = |v: &Arc<Vgpu>| Arc::ptr_eq(v, &self.vgpu);
        if vgpus.get(&self.vgpu.id()).is_some_and(same) {
            vgpus.remove(&self.vgpu.id());
        }
    }
}
