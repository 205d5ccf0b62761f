//! The rings between a device model and the scheduler, and the thread that
//! vgpud has for each vGPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use guest_memory::GuestMemory;
use vgpu_config::Share;
use vgpu_ring::{
    AreaConfig, AreaWords, Bells, DaemonEnd, DeviceEnd, Doorbell, Event, EventBell, Producer,
    PushError, SharedArea,
};
use vgpu_sched::events::{EventSink, Full};
use vgpu_sched::reading::Allowance;
use vgpu_sched::scheduler::Handle;
use vgpu_sched::vgpu::{SchedulerV1, VgpuConfig};
use xen_glue::TableFrames;

use crate::SimHost;
use crate::table::Table;

/// Why a vGPU was dropped; the first reason stays.
type Failure = Arc<OnceLock<String>>;

struct Sink {
    ring: Producer<Event, AreaWords, EventBell>,
    broken: Failure,
}

impl EventSink for Sink {
    fn push(&mut self, event: Event) -> Result<(), Full> {
        match self.ring.push(event) {
            Ok(()) => Ok(()),
            Err(PushError::Full) => Err(Full),
            // The vGPU is about to go; where its events go is all the same.
            Err(PushError::Broken(e)) => {
                self.broken.get_or_init(|| format!("complete {e}"));
                Ok(())
            }
        }
    }
}

/// vgpud's side of one vGPU. Dropping it removes the vGPU.
pub struct Link {
    handle: Arc<Handle>,
    stop: Arc<AtomicBool>,
    bell: EventBell,
    thread: Option<JoinHandle<()>>,
    failure: Failure,
    table: Table,
}

impl Link {
    /// Adds a vGPU, new or as `restored`, and serves its submit ring; the
    /// device model's end.
    ///
    /// # Errors
    /// What the system or the scheduler says.
    pub fn start(
        host: &SimHost,
        id: u64,
        share: Share,
        memory: Arc<dyn GuestMemory>,
        table: TableFrames,
        restored: Option<SchedulerV1>,
    ) -> anyhow::Result<(Self, DeviceEnd)> {
        let (link, area, bells) = Self::start_in(host, id, share, memory, Some(table), restored)?;
        Ok((link, area.device_end(bells)))
    }

    /// Like [`Link::start`], with all that a device model could lay hands
    /// on: the shared memory, with the guest's page table unless it is
    /// `table`, and the doorbells.
    ///
    /// # Errors
    /// What the system or the scheduler says.
    pub fn start_bare(
        host: &SimHost,
        id: u64,
        memory: Arc<dyn GuestMemory>,
        table: Option<TableFrames>,
    ) -> anyhow::Result<(Self, SharedArea, Bells)> {
        Self::start_in(host, id, Share::default(), memory, table, None)
    }

    fn start_in(
        host: &SimHost,
        id: u64,
        share: Share,
        memory: Arc<dyn GuestMemory>,
        table: Option<TableFrames>,
        restored: Option<SchedulerV1>,
    ) -> anyhow::Result<(Self, SharedArea, Bells)> {
        let area = SharedArea::create(AreaConfig::default())?;
        let bells = Bells::new().context("no doorbells")?;
        let bell = bells.submit.try_clone().context("no doorbell")?;
        let theirs = bells.try_clone().context("no doorbells")?;
        let DaemonEnd {
            mut requests,
            events,
            ggtt,
            changes,
            kept: _,
        } = area.daemon_end(bells);
        let table = Table::new(ggtt, table);
        let config = VgpuConfig {
            id,
            share,
            shadow: host.shadow(),
            scan: host.scan(),
            restored,
            ..VgpuConfig::default()
        };
        let failure = Failure::default();
        let handle = host.scheduler().add_vgpu(
            config,
            memory,
            Arc::new(table.clone()),
            Box::new(Sink {
                ring: events,
                broken: Arc::clone(&failure),
            }),
        )?;
        handle.count_changes(changes);
        let handle = Arc::new(handle);
        let stop = Arc::new(AtomicBool::new(false));
        let bounded = !host.reads_all();
        let thread = std::thread::Builder::new()
            .name(format!("vgpu{id}"))
            .spawn({
                let (handle, stop, failure) = (handle.clone(), stop.clone(), failure.clone());
                move || {
                    let mut serve = || -> anyhow::Result<()> {
                        let mut allowance = bounded.then(Allowance::new);
                        while !stop.load(Ordering::SeqCst) {
                            while let Some(request) = requests.pop()? {
                                handle.handle(request)?;
                                if let Some(pause) = allowance.as_mut().and_then(Allowance::served)
                                    && !stop.load(Ordering::SeqCst)
                                {
                                    std::thread::park_timeout(pause);
                                }
                            }
                            handle.flush_events();
                            handle.usable()?;
                            if failure.get().is_some() {
                                return Ok(());
                            }
                            requests.wait(Some(Duration::from_millis(100)))?;
                        }
                        Ok(())
                    };
                    if let Err(e) = serve() {
                        log::warn!("vGPU {id} is dropped: {e:#}");
                        failure.get_or_init(|| format!("{e:#}"));
                    }
                }
            })?;
        let link = Self {
            handle,
            stop,
            bell,
            thread: Some(thread),
            failure,
            table,
        };
        Ok((link, area, theirs))
    }

    /// Why the vGPU was dropped, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// The guest's page table.
    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }

    /// The vGPU as the scheduler knows it.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("a vGPU's worker panicked");
            }
        }
    }
}
