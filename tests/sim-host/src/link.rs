//! The rings between a device model and the scheduler, and the thread that
//! vgpud has for each vGPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use guest_memory::GuestMemory;
use vgpu_ring::{
    AreaConfig, AreaWords, Bells, DaemonEnd, DeviceEnd, Doorbell, Event, EventBell, Producer,
    SharedArea,
};
use vgpu_sched::events::{EventSink, Full};
use vgpu_sched::ggtt::GuestGgtt;
use vgpu_sched::scheduler::Handle;
use vgpu_sched::vgpu::VgpuConfig;
use xen_glue::TableFrames;

use crate::SimHost;

/// The guest's table as vgpud reads it: RAM of the guest.
struct Table(TableFrames);

impl GuestGgtt for Table {
    fn load(&self, index: u32) -> u64 {
        self.0.load(index)
    }
}

struct Sink(Producer<Event, AreaWords, EventBell>);

impl EventSink for Sink {
    fn push(&mut self, event: Event) -> Result<(), Full> {
        self.0.push(event).map_err(|_| Full)
    }
}

/// vgpud's side of one vGPU. Dropping it removes the vGPU.
pub struct Link {
    handle: Arc<Handle>,
    stop: Arc<AtomicBool>,
    bell: EventBell,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Link {
    /// Adds a vGPU and serves its submit ring; the device model's end.
    pub fn start(
        host: &SimHost,
        id: u64,
        memory: Arc<dyn GuestMemory>,
        table: TableFrames,
    ) -> anyhow::Result<(Self, DeviceEnd)> {
        let area = SharedArea::create(AreaConfig::default())?;
        let bells = Bells::new().context("no doorbells")?;
        let bell = bells.submit.try_clone().context("no doorbell")?;
        let device = area.device_end(bells.try_clone().context("no doorbells")?);
        let DaemonEnd {
            mut requests,
            events,
            ggtt: _,
        } = area.daemon_end(bells);
        let config = VgpuConfig {
            id,
            ..VgpuConfig::default()
        };
        let handle = host.scheduler().add_vgpu(
            config,
            memory,
            Arc::new(Table(table)),
            Box::new(Sink(events)),
        )?;
        let handle = Arc::new(handle);
        let stop = Arc::new(AtomicBool::new(false));
        let failure = Arc::new(Mutex::new(None));
        let thread = std::thread::Builder::new()
            .name(format!("vgpu{id}"))
            .spawn({
                let (handle, stop, failure) = (handle.clone(), stop.clone(), failure.clone());
                move || {
                    let mut serve = || -> anyhow::Result<()> {
                        while !stop.load(Ordering::SeqCst) {
                            while let Some(request) = requests.pop()? {
                                handle.handle(request)?;
                            }
                            handle.flush_events();
                            requests.wait(Some(Duration::from_millis(100)))?;
                        }
                        Ok(())
                    };
                    if let Err(e) = serve() {
                        log::warn!("vGPU {id} is dropped: {e:#}");
                        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                        *failure = Some(format!("{e:#}"));
                    }
                }
            })?;
        let link = Self {
            handle,
            stop,
            bell,
            thread: Some(thread),
            failure,
        };
        Ok((link, device))
    }

    /// Why the vGPU was dropped, if it was.
    pub fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The vGPU as the scheduler knows it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a vGPU's worker panicked");
        }
    }
}
