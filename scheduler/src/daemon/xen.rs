//! The daemon on Xen, with the software GPU.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use guest_memory::{Gfn, WrittenPages};
use serde_json::Value;
use softgpu::SoftGpu;
use vgpu_config::{Gpu, Share};
use vgpu_control::{EngineSample, LaneSample, TracePage};
use vgpu_ring::{GgttTable, Request, TableChanges};
use vgpu_sched::clock::{Clock, nanos};
use vgpu_sched::dma::DmaSpace;
use vgpu_sched::events::EventSink;
use vgpu_sched::interrupt::Line;
use vgpu_sched::ppgtt::{Frames, ShadowConfig, ShadowMode};
use vgpu_sched::scan::ScanMode;
use vgpu_sched::scheduler::{Config, Handle, Scheduler};
use vgpu_sched::vgpu::{Drained, SchedulerV1, StillRuns, VgpuConfig};
use xen_glue::{
    DeviceModel, DomId, ForeignMemory, ForeignMemoryConfig, Hypervisor, Privcmd, XenHost, Xenstore,
    XenstoreError,
};

use super::extents;
use super::platform::{Identity, Origin, Platform, Vgpu};
use super::reclaim::reclaim;
use super::table::Table;
use super::translate;

/// Address space for mappings of one guest's memory. Tables and buffers of a
/// guest lie all over its memory; with less room than they need, each request
/// maps and unmaps what it compares. Page tables for all of it take 8 MiB.
const CACHE_BYTES: u64 = 4 << 30;

/// Xen, the GPU and its scheduler.
pub struct XenPlatform {
    kind: Gpu,
    // Before the GPU: it drives it while it shuts down.
    scheduler: Scheduler,
    privcmd: Arc<dyn Privcmd>,
    scan: ScanMode,
    shadow: ShadowMode,
    _gpu: Arc<SoftGpu>,
}

impl XenPlatform {
    /// Takes the GPU over and opens Xen's nodes. `scan` is for every vGPU.
    ///
    /// # Errors
    /// When this is no Xen host, or the GPU does not come up.
    pub fn open(
        gpu: Gpu,
        config: Config,
        scan: ScanMode,
        shadow: ShadowMode,
    ) -> anyhow::Result<Self> {
        let privcmd = XenHost
            .open_privcmd()
            .context("vgpud runs in a Xen control domain")?;
        let dma = Arc::new(DmaSpace::new());
        let line = Arc::new(Line::default());
        let kind = gpu;
        let platform = match kind {
            Gpu::Bdw => &gen8::platform::BDW,
            Gpu::Kbl => &gen8::platform::KBL,
        };
        let config = Config {
            gpu: platform,
            ..config
        };
        let gpu = SoftGpu::new(
            softgpu::Config {
                platform,
                journal: config.flights.clone().map(|log| log as _),
                ..softgpu::Config::default()
            },
            dma.clone(),
            line.clone(),
        );
        let scheduler = Scheduler::start(&config, gpu.clone(), dma, line)
            .context("the scheduler does not start")?;
        Ok(Self {
            kind,
            scheduler,
            privcmd,
            shadow,
            scan,
            _gpu: gpu,
        })
    }
}

impl Platform for XenPlatform {
    fn gpu(&self) -> Gpu {
        self.kind
    }

    fn identify(&self, domid: u16) -> Identity {
        let read = || -> Result<Identity, XenstoreError> {
            let xenstore = Xenstore::open()?;
            let node = |name| xenstore.read_if_there(&format!("/local/domain/{domid}/{name}"));
            let (vm, name) = (node("vm")?, node("name")?);
            Ok(translate::identity(vm.as_deref(), name.as_deref()))
        };
        read().unwrap_or_else(|e| {
            log::warn!("domain {domid}: {e}; its share cannot be kept");
            Identity::default()
        })
    }

    fn add_vgpu(
        &self,
        domid: u16,
        share: Share,
        ggtt: GgttTable,
        origin: Origin<'_>,
        events: Box<dyn EventSink>,
    ) -> anyhow::Result<Arc<dyn Vgpu>> {
        let config = ForeignMemoryConfig {
            cache_bytes: CACHE_BYTES,
            ..ForeignMemoryConfig::default()
        };
        let memory = ForeignMemory::new(Arc::clone(&self.privcmd), DomId(domid), config);
        let config = VgpuConfig {
            id: domid.into(),
            share,
            shadow: ShadowConfig {
                mode: self.shadow,
                ..ShadowConfig::default()
            },
            scan: self.scan,
            restored: match origin {
                Origin::Saved(saved) => Some(saved.scheduler.clone()),
                Origin::New | Origin::Orphan => None,
            },
            adopted: matches!(origin, Origin::Orphan),
            ..VgpuConfig::default()
        };
        let table = match origin {
            Origin::Orphan => Table::orphan(&XenHost, DomId(domid), ggtt),
            Origin::New | Origin::Saved(_) => Table::make(&XenHost, DomId(domid), ggtt),
        };
        if let Origin::Saved(saved) = origin {
            table.unpack(&saved.table);
        }
        let table = Arc::new(table);
        let handle = self
            .scheduler
            .add_vgpu(config, Arc::new(memory), table.clone(), events)?;
        Ok(Arc::new(Scheduled {
            handle,
            dm: DeviceModel::new(Arc::clone(&self.privcmd), DomId(domid)),
            clock: Arc::clone(self.scheduler.clock()),
            table,
        }))
    }

    fn adopted_all(&self) {
        self.scheduler.adopted_all();
    }

    fn reclaim(&self, domid: u16, server: u16) -> anyhow::Result<()> {
        reclaim(&XenHost, DomId(domid), server)
    }

    fn pause(&self, domid: u16) -> anyhow::Result<()> {
        // What an administrator would do, and undoes the same way.
        let status = Command::new("xl")
            .args(["pause", &domid.to_string()])
            .status()
            .context("cannot run xl")?;
        if !status.success() {
            bail!("xl pause: {status}");
        }
        Ok(())
    }

    fn engines(&self) -> (u64, Vec<EngineSample>) {
        let engines = self.scheduler.engines();
        let samples = engines.into_iter().map(translate::engine).collect();
        (nanos(self.scheduler.clock().now()), samples)
    }

    fn trace(&self, cursor: u64, max: usize) -> TracePage {
        translate::trace(self.scheduler.trace().read(cursor, max))
    }

    fn tree(&self) -> Value {
        to_value(&self.scheduler.inspect())
    }
}

struct Scheduled {
    handle: Handle,
    dm: DeviceModel,
    clock: Arc<dyn Clock>,
    table: Arc<Table>,
}

impl Vgpu for Scheduled {
    fn request(&self, request: Request) -> Result<(), String> {
        self.handle.handle(request).map_err(|e| e.to_string())
    }

    fn usable(&self) -> Result<(), String> {
        self.handle.usable().map_err(|e| e.to_string())
    }

    fn count_changes(&self, changes: TableChanges) {
        self.handle.count_changes(changes);
    }

    fn table(&self) -> &Table {
        &self.table
    }

    fn suspend(&self, limit: Duration) -> Result<Drained, StillRuns> {
        self.handle.suspend(limit)
    }

    fn resume(&self) {
        self.handle.resume();
    }

    fn save(&self) -> SchedulerV1 {
        self.handle.save()
    }

    fn written(&self) -> &WrittenPages {
        self.handle.written()
    }

    fn track(&self, on: bool) {
        self.handle.track(on);
    }

    fn reached(&self) -> Frames {
        self.handle.reached()
    }

    fn name_pages(&self, gfns: &[Gfn]) -> anyhow::Result<()> {
        extents::name(&self.dm, gfns)
    }

    fn set_share(&self, share: Share) {
        self.handle.set_share(share);
    }

    fn lanes(&self) -> (u64, Vec<LaneSample>) {
        let at_ns = nanos(self.clock.now());
        let lanes = self.handle.lanes();
        (
            at_ns,
            lanes.into_iter().filter_map(translate::lane).collect(),
        )
    }

    fn tree(&self) -> Value {
        to_value(&self.handle.inspect())
    }
}

/// A view as a tree. What cannot be one is shown as the reason.
fn to_value(view: &impl serde::Serialize) -> Value {
    serde_json::to_value(view).unwrap_or_else(|e| Value::String(e.to_string()))
}
