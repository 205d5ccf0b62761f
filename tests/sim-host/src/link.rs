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
use crate::doom::{Doom, Mortal};
use crate::table::Table;

/// Why a vGPU was dropped; the first reason stays.
type Failure = Arc<OnceLock<String>>;

struct Sink {
    ring: Producer<Event, AreaWords, EventBell>,
    broken: Failure,
    doom: Option<Arc<Doom>>,
}

impl EventSink for Sink {
    fn push(&mut self, event: Event) -> Result<(), Full> {
        let pushed = match &self.doom {
            Some(doom) => doom.step(|| self.ring.push(event)).unwrap_or(Ok(())),
            None => self.ring.push(event),
        };
        match pushed {
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
    id: u64,
    share: Share,
    area: SharedArea,
    bells: Bells,
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
        let (link, bells) = Self::start_in(host, id, share, memory, Some(table), restored)?;
        let end = link.area.device_end(bells);
        Ok((link, end))
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
        let (link, bells) = Self::start_in(host, id, Share::default(), memory, table, None)?;
        let area = SharedArea::open(link.area.share()?)?;
        Ok((link, area, bells))
    }

    fn start_in(
        host: &SimHost,
        id: u64,
        share: Share,
        memory: Arc<dyn GuestMemory>,
        table: Option<TableFrames>,
        restored: Option<SchedulerV1>,
    ) -> anyhow::Result<(Self, Bells)> {
        let area = SharedArea::create(AreaConfig::default())?;
        let bells = Bells::new().context("no doorbells")?;
        let theirs = bells.try_clone().context("no doorbells")?;
        let end = area.daemon_end(bells.try_clone().context("no doorbells")?);
        let table = Table::new(end.ggtt.clone(), table);
        let config = VgpuConfig {
            restored,
            ..VgpuConfig::default()
        };
        let link = Self::serve(host, (id, share), memory, end, (area, bells), table, config)?;
        Ok((link, theirs))
    }

    /// Ends it, of a vgpud that is no more; what is left of it.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn bury(self) -> anyhow::Result<Orphan> {
        Ok(Orphan {
            area: SharedArea::open(self.area.share()?)?,
            bells: self.bells.try_clone().context("no doorbells")?,
            id: self.id,
            share: self.share,
            table: self.table.clone(),
        })
    }

    fn serve(
        host: &SimHost,
        (id, share): (u64, Share),
        memory: Arc<dyn GuestMemory>,
        end: DaemonEnd,
        (area, bells): (SharedArea, Bells),
        table: Table,
        config: VgpuConfig,
    ) -> anyhow::Result<Self> {
        let bell = bells.submit.try_clone().context("no doorbell")?;
        let DaemonEnd {
            mut requests,
            events,
            changes,
            ..
        } = end;
        let doom = host.doom().cloned();
        let memory = match &doom {
            Some(doom) => Arc::new(Mortal {
                memory,
                doom: Arc::clone(doom),
            }),
            None => memory,
        };
        let config = VgpuConfig {
            id,
            share,
            shadow: host.shadow(),
            scan: host.scan(),
            ..config
        };
        let failure = Failure::default();
        let handle = host.scheduler().add_vgpu(
            config,
            memory,
            Arc::new(table.clone()),
            Box::new(Sink {
                ring: events,
                broken: Arc::clone(&failure),
                doom: doom.clone(),
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
                            while let Some(request) = requests.peek()? {
                                handle.handle(request)?;
                                // What died with a request in its hand has not
                                // taken it.
                                match &doom {
                                    Some(doom) => {
                                        if doom.step(|| requests.take()).is_none() {
                                            return Ok(());
                                        }
                                    }
                                    None => requests.take(),
                                }
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
            id,
            share,
            area,
            bells,
        };
        Ok(link)
    }

    /// What a device model gets that takes the place of another one.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub(crate) fn successors_end(&self) -> anyhow::Result<DeviceEnd> {
        let bells = self.bells.try_clone().context("no doorbells")?;
        Ok(self.area.resumed_device_end(bells))
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

/// What a vgpud leaves of its side of a vGPU.
pub struct Orphan {
    area: SharedArea,
    bells: Bells,
    id: u64,
    share: Share,
    table: Table,
}

impl Orphan {
    /// A new vgpud takes it over. Its device model has to
    /// [replay](vgpu_device::Device::replay).
    ///
    /// # Errors
    /// What the system or the scheduler says.
    pub fn adopt(self, host: &SimHost, memory: Arc<dyn GuestMemory>) -> anyhow::Result<Link> {
        let Self {
            area,
            bells,
            id,
            share,
            table,
        } = self;
        let end = area.resumed_daemon_end(bells.try_clone().context("no doorbells")?);
        let config = VgpuConfig {
            adopted: true,
            ..VgpuConfig::default()
        };
        Link::serve(host, (id, share), memory, end, (area, bells), table, config)
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
