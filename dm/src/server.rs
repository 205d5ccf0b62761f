//! Attaching to a domain, serving it, and letting go.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;
use guest_memory::{GuestMemory, Recorder, WrittenPages};
use nix::errno::Errno;
use serde::Serialize;
use vgpu_confine::{Role, Seccomp};
use vgpu_device::kept::{self, First, RecoverError};
use vgpu_device::{
    Config, ConfigError, Device, DeviceV1, Exits, Inspection, Kept, RestoreError, Seams,
};
use vgpu_ring::{DeviceEnd, Doorbell, EventBell, RingError};
use xen_glue::{
    DEVICE_MODEL_REQUESTS, DeviceModel, DeviceModelError, DomId, EventChannel, EventChannelError,
    ForeignMemory, ForeignMemoryConfig, Handles, IoreqServer, IoreqServerId, Privcmd, Sbdf,
    TableError, TableFrames, VcpuIoreqs, VcpuIoreqsError,
};

use crate::alarm::Alarm;
use crate::events::EventLoop;
use crate::keeper::{self, PageKeeper};
use crate::outside::{Interrupts, SubmitRing};
use crate::pause::Pause;
use crate::protection::{Protection, ProtectionState, StillProtected};
use crate::saving::{self, OtherDevice};
use crate::spin::Spin;
use crate::successor;
use crate::table::{GuestTable, TableState};
use crate::vcpu::{Counts, VcpuLoop};
use crate::windows::Windows;

/// Whom to serve, and with what.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// PCI slot on bus 0, 1 to 31.
    pub slot: u8,
    /// Where the guest's page table lies while BAR0 has no address, if it is
    /// RAM of the guest; else it is in the shared area and trapped.
    pub table_gfn: Option<u64>,
    /// The device.
    pub device: Config,
    /// How long a vCPU's thread looks for the next request before it
    /// sleeps, at most.
    pub spin: Duration,
    /// What a system call leads to that a thread's work does without.
    pub seccomp: Seccomp,
    /// Who outlives this domain, if it is one for a device model alone. Then no
    /// frame is protected for vgpud, either: Xen 4.17 would leave what is
    /// protected to a domain that is gone (`arch/x86/mm/p2m.c:p2m_set_ioreq_server`).
    pub keeper: Option<Arc<dyn PageKeeper>>,
}

impl ServerConfig {
    /// [`ServerConfig::spin`] unless told otherwise.
    pub const DEFAULT_SPIN: Duration = Duration::from_millis(1);
}

/// Why a domain cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The PCI slot.
    #[error("slot is {0}, allowed: 1 to 31")]
    Slot(u8),
    /// The device's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device's saved state.
    #[error("saved device: {0}")]
    State(#[from] RestoreError),
    /// What a former device model kept.
    #[error("kept device: {0}")]
    Kept(#[from] RecoverError),
    /// The saved device is another one than was asked for.
    #[error("saved device: {0}")]
    Other(#[from] OtherDevice),
    /// An operation on the domain.
    #[error(transparent)]
    Domain(#[from] DeviceModelError),
    /// The guest's page table.
    #[error("page table of the guest: {0}")]
    Table(#[from] TableError),
    /// A vCPU's requests.
    #[error("vcpu {vcpu}: {source}")]
    Vcpu {
        /// The vCPU.
        vcpu: u32,
        /// What is wrong.
        source: VcpuIoreqsError,
    },
    /// A thread keeps more than it needs.
    #[error(transparent)]
    Confine(#[from] vgpu_confine::ConfineError),
    /// The ring of vgpud's events.
    #[error("complete {0}")]
    Ring(#[from] RingError),
    /// Descriptors or threads.
    #[error("cannot {what}: {source}")]
    System {
        /// What was refused.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// What a server did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Requests answered.
    pub requests: u64,
    /// Of those, found by looking instead of by an event.
    pub polled: u64,
    /// Times a thread slept.
    pub sleeps: u64,
    /// Interrupts Xen refused.
    pub refused_interrupts: u64,
    /// Pieces of guest memory mapped now.
    pub mapped_pieces: u64,
}

/// The device with the server's own numbers.
#[derive(Debug, Serialize)]
struct Tree {
    server: u16,
    function: String,
    statistics: Statistics,
    ggtt: TableState,
    protection: ProtectionState,
    device: Inspection,
}

/// What a server begins with.
#[derive(Clone, Copy)]
enum Beginning<'a> {
    /// A device as after power-on.
    New,
    /// One as saved.
    Restored(&'a DeviceV1),
    /// What a former device model left.
    Left {
        /// Its ioreq server, if that is any domain's that lives.
        server: Option<IoreqServerId>,
    },
}

/// A domain being served. Dropping it lets go of the domain.
pub struct Server {
    pub(crate) device: Arc<Device>,
    server: Arc<IoreqServer>,
    function: Sbdf,
    domid: DomId,
    pub(crate) privcmd: Arc<dyn Privcmd>,
    memory: Arc<ForeignMemory>,
    protection: Arc<Protection>,
    pub(crate) written: Arc<WrittenPages>,
    pub(crate) table: Arc<GuestTable>,
    pub(crate) pause: Arc<Pause>,
    interrupts: Arc<Interrupts>,
    pub(crate) windows: Arc<Windows>,
    counts: Arc<Counts>,
    alarm: Arc<Alarm>,
    kept: Arc<dyn Kept>,
    /// Whether frames may be protected.
    protects: bool,
    /// Xen's ends wake the vCPUs.
    channels: Vec<Arc<EventChannel>>,
    stop: Arc<AtomicBool>,
    stop_bell: EventBell,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Attaches to a domain with a device as after power-on. When this
    /// returns, the guest finds the device.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is left in the domain then.
    pub fn attach(
        handles: Handles,
        config: &ServerConfig,
        end: DeviceEnd,
    ) -> Result<Self, AttachError> {
        let kept = Arc::new(end.kept.clone());
        Self::attach_keeping(handles, config, end, kept)
    }

    /// Attaches, and keeps in `kept` what a successor needs.
    ///
    /// # Errors
    /// As [`Server::attach`].
    pub fn attach_keeping(
        handles: Handles,
        config: &ServerConfig,
        end: DeviceEnd,
        kept: Arc<dyn Kept>,
    ) -> Result<Self, AttachError> {
        Self::start(handles, config, end, kept, Beginning::New)
    }

    /// Attaches with a device as saved, which must be one of this
    /// configuration. vgpud, which has taken over what was saved of it, is
    /// told what was in flight.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is left in the domain then.
    pub fn restore(
        handles: Handles,
        config: &ServerConfig,
        state: &DeviceV1,
        end: DeviceEnd,
    ) -> Result<Self, AttachError> {
        let state = &saving::as_configured(state, &config.device)?;
        let kept = Arc::new(end.kept.clone());
        let server = Self::start(handles, config, end, kept, Beginning::Restored(state))?;
        server.device.resubmit();
        Ok(server)
    }

    /// Takes the place of a device model that died, whatever it was at. `end`
    /// is the [resumed](vgpu_ring::Area::resumed_device_end) one of its area,
    /// `server` the number of its ioreq server.
    ///
    /// # Errors
    /// [`AttachError`]; the ioreq server is there still, and vCPUs may wait in
    /// it.
    pub fn recover(
        handles: Handles,
        config: &ServerConfig,
        server: u16,
        end: DeviceEnd,
    ) -> Result<Self, AttachError> {
        let kept = Arc::new(end.kept.clone());
        Self::recover_keeping(handles, config, Some(server), end, kept)
    }

    /// Takes the place of one whose domain is gone, and with it all that could
    /// be done with its ioreq server: there is a new one.
    ///
    /// # Errors
    /// As [`Server::recover`].
    pub fn recover_anew(
        handles: Handles,
        config: &ServerConfig,
        end: DeviceEnd,
    ) -> Result<Self, AttachError> {
        let kept = Arc::new(end.kept.clone());
        Self::recover_keeping(handles, config, None, end, kept)
    }

    /// Takes either place, with what was kept in `kept`.
    ///
    /// # Errors
    /// As [`Server::recover`].
    pub fn recover_keeping(
        handles: Handles,
        config: &ServerConfig,
        server: Option<u16>,
        end: DeviceEnd,
        kept: Arc<dyn Kept>,
    ) -> Result<Self, AttachError> {
        let server = server.map(IoreqServerId);
        Self::start(handles, config, end, kept, Beginning::Left { server })
    }

    fn start(
        handles: Handles,
        config: &ServerConfig,
        end: DeviceEnd,
        kept: Arc<dyn Kept>,
        beginning: Beginning<'_>,
    ) -> Result<Self, AttachError> {
        if !(1..=31).contains(&config.slot) {
            return Err(AttachError::Slot(config.slot));
        }
        let DeviceEnd {
            mut requests,
            mut events,
            ggtt,
            changes,
            kept: _,
        } = end;
        let Handles {
            domid,
            privcmd,
            channels,
        } = handles;
        let dm = DeviceModel::new(Arc::clone(&privcmd), domid);
        let vcpus = u32::try_from(channels.len()).unwrap_or(u32::MAX);
        let mut first = First::Nothing;
        let left = matches!(beginning, Beginning::Left { .. });
        let server = match beginning {
            Beginning::Left { server } => {
                let doing = kept::doing(&*kept)?;
                first = doing.first;
                successor::resume(&mut requests, &mut events, doing);
                // Or it would look as if it had an event in hand for ever.
                kept::event_done(&*kept);
                let server = match server {
                    Some(server) => dm.attach_ioreq_server(server),
                    None => dm.create_ioreq_server()?,
                };
                // Until all is taken over, it is there for another one.
                server.persist(true);
                server
            }
            _ => dm.create_ioreq_server()?,
        };
        let server = Arc::new(server);
        let page = Arc::new(keeper::enable(&server, vcpus, config.keeper.as_deref())?);
        let moving = successor::table(&dm, config.table_gfn, left, &kept);
        let frames = match (&moving, config.table_gfn) {
            (Some(table), Some(_)) => Some(TableFrames::open(&*privcmd, domid, table.at())?),
            _ => None,
        };
        let table = Arc::new(GuestTable::new(ggtt, frames));
        let make = if left { Windows::left } else { Windows::new };
        let windows = Arc::new(make(Arc::clone(&server), moving, Arc::clone(&kept)));
        let cache = ForeignMemoryConfig::default();
        let memory = Arc::new(ForeignMemory::new(Arc::clone(&privcmd), domid, cache));
        let written = Arc::new(WrittenPages::default());
        let recorder: Arc<dyn GuestMemory> =
            Arc::new(Recorder::new(memory.clone(), Arc::clone(&written)));
        let submit = Arc::new(SubmitRing::new(requests, changes, Arc::clone(&kept)));
        let bell = events.doorbell().try_clone();
        let bell = bell.map_err(system("share a doorbell"))?;
        let clock = if left { Alarm::going_on } else { Alarm::new };
        let alarm = Arc::new(clock(bell, Arc::clone(&kept)));
        let protection = Arc::new(Protection::new(
            Arc::clone(&server),
            Arc::clone(&page),
            Arc::clone(&submit),
            Arc::clone(&alarm),
            recorder,
            Arc::clone(&kept),
        ));
        if left {
            protection.take_over();
        }
        let protects = config.keeper.is_none();
        if protects {
            protection.begin_again();
        }
        let interrupts = Arc::new(Interrupts {
            dm,
            slot: config.slot,
            refused: AtomicU64::new(0),
            kept: Arc::clone(&kept),
        });
        let seams = Seams {
            memory: protection.clone(),
            ggtt: table.clone(),
            port: submit.clone(),
            interrupts: interrupts.clone(),
            clock: alarm.clone(),
            bars: windows.clone(),
            kept: Arc::clone(&kept),
        };
        let device = Arc::new(match beginning {
            Beginning::New => Device::new(&config.device, seams)?,
            Beginning::Restored(state) => Device::restore(state, seams)?,
            Beginning::Left { .. } => Device::recover(&config.device, seams)?,
        });
        windows.settle();
        if let Some(gfn) = config.table_gfn.filter(|_| left && windows.is_out()) {
            // vgpud goes on with the RAM, so that is where the table is.
            windows.take_table_in(gfn);
        }
        let mut this = Self {
            device,
            server,
            function: Sbdf::slot(config.slot),
            domid,
            privcmd,
            memory,
            protection,
            written,
            table,
            pause: Arc::default(),
            interrupts,
            windows,
            counts: Arc::default(),
            alarm,
            kept,
            protects,
            channels: Vec::new(),
            stop: Arc::default(),
            stop_bell: EventBell::new().map_err(system("make a doorbell"))?,
            threads: Vec::new(),
        };
        let mut vcpus = Vec::new();
        for (vcpu, channels) in (0..).zip(channels) {
            let ioreqs = VcpuIoreqs::bind(Arc::clone(&page), vcpu, channels, domid)
                .map_err(|source| AttachError::Vcpu { vcpu, source })?;
            this.channels.push(Arc::clone(ioreqs.channel()));
            vcpus.push(this.vcpu(ioreqs, config)?);
        }
        let mut events = EventLoop {
            device: Arc::clone(&this.device),
            protection: Arc::clone(&this.protection),
            submit,
            alarm: Arc::clone(&this.alarm),
            ring: events,
            pause: Arc::clone(&this.pause),
            kept: Arc::clone(&this.kept),
            stop: Arc::clone(&this.stop),
        };
        successor::do_again(first, &mut vcpus, &mut events, &*this.kept)?;
        for vcpu in vcpus {
            let name = format!("vcpu{}", vcpu.ioreqs.vcpu());
            this.spawn(name, (Role::Vcpu, config.seccomp), move || vcpu.run())?;
        }
        this.spawn("events".into(), (Role::Events, config.seccomp), move || {
            events.run();
        })?;
        // Last: from now on the guest finds the device.
        match this.server.map_pci(this.function) {
            Err(e) if left && e.errno == Errno::EEXIST => {}
            other => other?,
        }
        this.server.persist(false);
        Ok(this)
    }

    fn vcpu(&self, ioreqs: VcpuIoreqs, config: &ServerConfig) -> Result<VcpuLoop, AttachError> {
        let bell = self.stop_bell.try_clone();
        Ok(VcpuLoop {
            ioreqs,
            device: Arc::clone(&self.device),
            protection: Arc::clone(&self.protection),
            function: self.function,
            outside: None,
            spin: Spin::new(config.spin),
            answered: Instant::now(),
            counts: Arc::clone(&self.counts),
            kept: Arc::clone(&self.kept),
            stop: Arc::clone(&self.stop),
            bell: bell.map_err(system("share a doorbell"))?,
        })
    }

    fn spawn(
        &mut self,
        name: String,
        (role, seccomp): (Role, Seccomp),
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), AttachError> {
        let (tell, hear) = bounded(1);
        let run = move || {
            // It has heard nothing of the guest's yet.
            let confined = vgpu_confine::thread(role, seccomp, &DEVICE_MODEL_REQUESTS);
            let go_on = confined.is_ok();
            // Whoever starts it waits for that.
            let _ = tell.send(confined);
            if go_on {
                run();
            }
        };
        let thread = thread::Builder::new().name(name).spawn(run);
        self.threads.push(thread.map_err(system("start a thread"))?);
        match hear.recv() {
            Ok(confined) => Ok(confined?),
            Err(_) => Err(system("start a thread")(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The number of the ioreq server. It outlives this process in Xen, so
    /// whoever starts a successor keeps it.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.server.id().0
    }

    /// Whether the domain still has its ioreq server: one that ends has none
    /// (Xen `common/ioreq.c:ioreq_server_destroy_all`).
    #[must_use]
    pub fn attached(&self) -> bool {
        self.server.info().is_ok()
    }

    /// The domain.
    pub(crate) fn domid(&self) -> DomId {
        self.domid
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it did so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Statistics {
            requests: get(&self.counts.requests),
            polled: get(&self.counts.polled),
            sleeps: get(&self.counts.sleeps),
            refused_interrupts: get(&self.interrupts.refused),
            mapped_pieces: self.memory.stats().cached,
        }
    }

    /// Accesses to the device by kind.
    #[must_use]
    pub fn exits(&self) -> Exits {
        self.device.exits()
    }

    /// Where the guest's page table is.
    #[must_use]
    pub fn table(&self) -> TableState {
        self.windows.table()
    }

    /// The guest's frames that are protected for vgpud.
    #[must_use]
    pub fn protection(&self) -> ProtectionState {
        self.protection.state()
    }

    /// Lets go of the guest's protected frames and protects none until
    /// [`Self::allow_protection`]. Xen cannot log the guest's writes, as a
    /// migration has it do, while one is protected.
    ///
    /// # Errors
    /// [`StillProtected`]: a vCPU that writes to a frame without a pause can
    /// keep that one protected for longer.
    pub fn hold_protection(&self) -> Result<(), StillProtected> {
        self.protection.end()
    }

    /// Lets frames be protected again, where that can be.
    pub fn allow_protection(&self) {
        if self.protects {
            self.protection.begin_again();
        }
    }

    /// Has each vCPU that waits for an answer look for it, in whichever page it
    /// waits.
    ///
    /// # Errors
    /// When Xen does not signal one.
    pub fn wake_vcpus(&self) -> Result<(), EventChannelError> {
        self.channels
            .iter()
            .try_for_each(|channel| channel.notify())
    }

    /// The device and this server, for people and tools.
    ///
    /// # Errors
    /// When the tree cannot be made into JSON.
    pub fn inspect(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(Tree {
            server: self.id(),
            function: self.function.to_string(),
            statistics: self.statistics(),
            ggtt: self.table(),
            protection: self.protection(),
            device: self.device.inspect(),
        })
    }

    /// Lets go of the domain: requests stop coming, those under way are
    /// answered, the server is destroyed, no guest memory stays mapped. A
    /// domain that is gone already is let go of silently.
    pub fn stop(mut self) {
        self.release();
    }

    /// Ends the threads and lets go of nothing: what a kill leaves.
    pub fn abandon(mut self) {
        self.server.persist(true);
        self.end_threads();
    }

    fn end_threads(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.stop_bell.ring();
        self.pause.stop();
        self.alarm.ring();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread panicked");
            }
        }
    }

    fn release(&mut self) {
        // While requests are still answered.
        self.protection.finish();
        // Then no more requests, then an answer to each there is: a vCPU must
        // not be left waiting.
        if let Err(e) = self.server.set_enabled(false) {
            log::debug!("{e}");
        }
        self.end_threads();
        // Dropping the last handle of the server destroys it.
        self.memory.invalidate();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody knows how far it came: the domain is a successor's.
            self.server.persist(true);
            self.end_threads();
        } else if !self.threads.is_empty() {
            self.release();
        }
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> AttachError {
    move |source| AttachError::System { what, source }
}
