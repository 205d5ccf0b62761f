//! The GPU and its owner.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fake_xen::FakeXen;
use gen8::Platform;
use guest_memory::Gfn;
use softgpu::{SoftGpu, WriteLog};
use vgpu_sched::dma::DmaSpace;
use vgpu_sched::flights::FlightLog;
use vgpu_sched::interrupt::Line;
use vgpu_sched::ppgtt::ShadowConfig;
use vgpu_sched::scan::ScanMode;
use vgpu_sched::scheduler::{Config, Scheduler};

use crate::{Doom, LogWords};

/// What can be chosen about a host.
#[derive(Clone, Debug, Default)]
pub struct SimHostConfig {
    /// What its GPU is, and so are its guests' GPUs.
    pub gpu: &'static Platform,
    /// Where softgpu notes the pages it wrote.
    pub write_log: Option<Arc<WriteLog>>,
    /// How long a workload may hold an engine; the scheduler's default if
    /// `None`.
    pub run_limit: Option<Duration>,
    /// Rings are read as fast as they are filled, to compare with.
    pub reads_all: bool,
    /// Nanoseconds each command takes an engine; 0 for as fast as it can.
    pub command_cost_ns: u32,
    /// Nanoseconds that drawing 1 KiB takes, likewise.
    pub blit_cost_ns_per_kib: u32,
    /// How guests' page tables are followed.
    pub shadow: ShadowConfig,
    /// What is done about batches without privilege.
    pub scan: ScanMode,
    /// When vgpud and its GPU end, and what they leave to the next.
    pub doom: Option<(Arc<Doom>, LogWords)>,
}

/// A host with one GPU.
pub struct SimHost {
    // Before the GPU: it drives it while it shuts down.
    scheduler: Scheduler,
    shadow: ShadowConfig,
    scan: ScanMode,
    gpu: Arc<SoftGpu>,
    dma: Arc<DmaSpace>,
    platform: &'static Platform,
    xen: FakeXen,
    reads_all: bool,
    doom: Option<Arc<Doom>>,
}

impl SimHost {
    /// Powers the host up.
    ///
    /// # Errors
    /// When the scheduler cannot take the GPU over.
    pub fn start(config: SimHostConfig) -> anyhow::Result<Self> {
        Self::start_on(FakeXen::new(), config)
    }

    /// Starts vgpud, with a GPU of its own, on a hypervisor that runs.
    ///
    /// # Errors
    /// As [`SimHost::start`].
    pub fn start_on(xen: FakeXen, config: SimHostConfig) -> anyhow::Result<Self> {
        let flights = config.doom.as_ref();
        let flights = flights.map(|(doom, words)| FlightLog::open(words.mortal(doom)));
        let flights = flights.transpose()?;
        let dma = Arc::new(DmaSpace::new());
        let line = Arc::new(Line::default());
        let gpu = SoftGpu::new(
            softgpu::Config {
                platform: config.gpu,
                write_log: config.write_log,
                command_cost_ns: config.command_cost_ns,
                blit_cost_ns_per_kib: config.blit_cost_ns_per_kib,
                journal: flights.clone().map(|log| log as _),
                ..softgpu::Config::default()
            },
            dma.clone(),
            line.clone(),
        );
        let mut chosen = Config {
            gpu: config.gpu,
            flights,
            ..Config::default()
        };
        if let Some(limit) = config.run_limit {
            chosen.run_limit = limit;
        }
        let scheduler = Scheduler::start(&chosen, gpu.clone(), dma.clone(), line)
            .context("the scheduler does not start")?;
        Ok(Self {
            scheduler,
            shadow: config.shadow,
            scan: config.scan,
            gpu,
            dma,
            platform: config.gpu,
            xen,
            reads_all: config.reads_all,
            doom: config.doom.map(|(doom, _)| doom),
        })
    }

    /// The GPU's owner.
    #[must_use]
    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// When it ends.
    pub(crate) const fn doom(&self) -> Option<&Arc<Doom>> {
        self.doom.as_ref()
    }

    /// Whether rings are read as fast as they are filled.
    pub(crate) const fn reads_all(&self) -> bool {
        self.reads_all
    }

    pub(crate) const fn shadow(&self) -> ShadowConfig {
        self.shadow
    }

    /// What is done about batches without privilege.
    #[must_use]
    pub const fn scan(&self) -> ScanMode {
        self.scan
    }

    /// The hypervisor.
    #[must_use]
    pub const fn hypervisor(&self) -> &FakeXen {
        &self.xen
    }

    /// What its GPU is.
    #[must_use]
    pub const fn platform(&self) -> &'static Platform {
        self.platform
    }

    /// The guest frame behind a bus address, as softgpu's write log has them;
    /// `None` where no guest's memory is.
    #[must_use]
    pub fn guest_frame(&self, address: u64) -> Option<Gfn> {
        self.dma.guest_address(address).map(Gfn::containing)
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &SoftGpu {
        &self.gpu
    }
}

impl Drop for SimHost {
    fn drop(&mut self) {
        log::debug!("host goes down: {:?}", self.gpu.counters());
    }
}
