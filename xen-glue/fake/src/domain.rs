//! A simulated domain.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use guest_memory::{Gfn, GuestMemory, MemoryError, for_each_page};
use nix::errno::Errno;
use xen_glue::DomId;

use crate::gate::{Cpus, Gate};
use crate::host::{Host, lock};
use crate::interrupts::Interrupts;
use crate::memory::Memory;
use crate::server::Servers;
use crate::vcpu::VcpuIo;
use crate::{FakeXenError, FrameKind, Vcpu};

/// Slots for requests in one page.
const MOST_VCPUS: u32 = 128;

/// Frames below the hole for devices at 0xf0000000.
const MOST_FRAMES: usize = 0xf_0000;

/// What a domain is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainConfig {
    /// Virtual CPUs, 1 to 128.
    pub vcpus: u32,
    /// Frames of RAM from frame 0, 1 to 0xf0000.
    pub frames: usize,
    /// Hardware-assisted paging, without which no frame can be protected.
    pub hap: bool,
}

impl Default for DomainConfig {
    /// One vCPU, 64 MiB, with HAP.
    fn default() -> Self {
        Self {
            vcpus: 1,
            frames: 64 << 8,
            hap: true,
        }
    }
}

/// Why a vCPU runs no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The domain was destroyed.
    #[error("the domain was destroyed")]
    Destroyed,
    /// Xen crashed the domain for what its device model did.
    #[error("the domain crashed: {0}")]
    Crashed(String),
}

pub(crate) struct DomainState {
    pub(crate) id: DomId,
    pub(crate) config: DomainConfig,
    pub(crate) memory: Memory,
    pub(crate) servers: Mutex<Servers>,
    pub(crate) interrupts: Interrupts,
    pub(crate) gate: Gate,
    pub(crate) cpus: Cpus,
    /// The last value written to port 0xcf8.
    pub(crate) cf8: AtomicU32,
    /// Frames left the guest: the next hypercall or request has every device
    /// model drop its mappings.
    pub(crate) mapcache_invalidate: AtomicBool,
    /// Set after `stopped`, to be looked at cheaply.
    is_stopped: AtomicBool,
    stopped: Mutex<Option<Stopped>>,
    /// One a vCPU: it does one thing at a time.
    pub(crate) busy: Vec<Mutex<VcpuIo>>,
}

impl DomainState {
    pub(crate) fn new(id: DomId, config: DomainConfig) -> Result<Self, FakeXenError> {
        if !(1..=MOST_VCPUS).contains(&config.vcpus) {
            return Err(FakeXenError::Config {
                what: "number of vcpus",
                value: u64::from(config.vcpus),
                most: u64::from(MOST_VCPUS),
            });
        }
        if !(1..=MOST_FRAMES).contains(&config.frames) {
            return Err(FakeXenError::Config {
                what: "number of frames",
                value: u64::try_from(config.frames).unwrap_or(u64::MAX),
                most: u64::try_from(MOST_FRAMES).unwrap_or(u64::MAX),
            });
        }
        Ok(Self {
            id,
            config,
            memory: Memory::new(config.frames)?,
            servers: Mutex::default(),
            interrupts: Interrupts::default(),
            gate: Gate::default(),
            cpus: Cpus::default(),
            cf8: AtomicU32::new(0),
            mapcache_invalidate: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            stopped: Mutex::default(),
            busy: (0..config.vcpus).map(|_| Mutex::default()).collect(),
        })
    }

    pub(crate) fn stopped(&self) -> Option<Stopped> {
        if !self.is_stopped.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.stopped).clone()
    }

    /// Stops all vCPUs; the first reason stays.
    pub(crate) fn stop(&self, why: Stopped) {
        lock(&self.stopped).get_or_insert(why);
        self.is_stopped.store(true, Ordering::Release);
        lock(&self.servers).wake_all();
        self.interrupts.stop();
        self.gate.nudge();
        self.cpus.nudge();
    }

    /// Xen arch/x86/mm/p2m-pod.c:p2m_pod_demand_populate.
    pub(crate) fn crash_if_exhausted(&self) {
        if self.memory.is_exhausted() && self.stopped().is_none() {
            self.crash("out of populate-on-demand memory".into());
        }
    }

    pub(crate) fn crash(&self, why: String) -> Stopped {
        log::warn!("{}: crashed: {why}", self.id);
        let stopped = Stopped::Crashed(why);
        self.stop(stopped.clone());
        stopped
    }
}

/// A domain, as the toolstack holds it. Cheap to clone.
#[derive(Clone)]
pub struct Domain {
    state: Arc<DomainState>,
    host: Arc<Host>,
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.state.id.0).finish()
    }
}

impl Domain {
    pub(crate) fn new(state: Arc<DomainState>, host: Arc<Host>) -> Self {
        Self { state, host }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> DomId {
        self.state.id
    }

    /// One of its vCPUs, or `None` when there is none of that number.
    #[must_use]
    pub fn vcpu(&self, number: u32) -> Option<Vcpu> {
        (number < self.state.config.vcpus).then(|| Vcpu::new(Arc::clone(&self.state), number))
    }

    /// Why it runs no more, if it does not.
    #[must_use]
    pub fn stopped(&self) -> Option<Stopped> {
        self.state.stopped()
    }

    /// Destroys it: vCPUs stop, ioreq servers go. Foreign mappings keep its
    /// pages, as they do on Xen.
    pub fn destroy(&self) {
        self.state.stop(Stopped::Destroyed);
        lock(&self.state.servers).destroy_all();
        self.host.forget(self.state.id);
    }

    /// Holds the vCPUs, after requests in flight have been answered.
    pub fn suspend(&self) {
        self.state.gate.close();
    }

    /// Lets the vCPUs go on.
    pub fn resume(&self) {
        self.state.gate.open();
    }

    /// Pauses it (`XEN_DOMCTL_pausedomain`): no vCPU runs when this returns,
    /// and those that wait for an answer look at none.
    pub fn pause(&self) {
        self.state.cpus.hold();
    }

    /// Takes one pause back.
    pub fn unpause(&self) {
        self.state.cpus.release();
    }

    /// Starts to log writes of vCPUs, and nothing else.
    ///
    /// # Errors
    /// EBUSY while a frame is write-protected.
    pub fn enable_log_dirty(&self) -> Result<(), Errno> {
        self.state.memory.enable_log_dirty()
    }

    /// Stops it.
    pub fn disable_log_dirty(&self) {
        self.state.memory.disable_log_dirty();
    }

    /// The frames logged since the last call, which are then clean; `None`
    /// when not logging.
    #[must_use]
    pub fn clean_log_dirty(&self) -> Option<Vec<Gfn>> {
        self.state.memory.clean_log_dirty()
    }

    /// What a frame is.
    #[must_use]
    pub fn frame(&self, gfn: Gfn) -> FrameKind {
        self.state.memory.kind(gfn.0)
    }

    /// Pages a frame out; a foreign map of it fails `attempts` times.
    ///
    /// # Errors
    /// EINVAL when it is not plain RAM.
    pub fn page_out(&self, gfn: Gfn, attempts: u32) -> Result<(), Errno> {
        self.state.memory.page_out(gfn.0, attempts)
    }

    /// Takes the memory of a frame of RAM for as long as nobody looks at it,
    /// as that of a guest that was started with less than it may have. What
    /// was in it is lost; it reads as zero.
    ///
    /// # Errors
    /// EINVAL when it is not plain RAM.
    pub fn populate_on_demand(&self, gfn: Gfn) -> Result<(), Errno> {
        self.state.memory.populate_on_demand(gfn.0)
    }

    /// How many more frames get their memory when someone looks; with the next
    /// the domain crashes.
    pub fn set_memory_on_demand(&self, frames: usize) {
        self.state.memory.set_on_demand(frames);
    }

    /// The highest frame number (`XENMEM_maximum_gpfn`).
    #[must_use]
    pub fn maximum_gpfn(&self) -> Gfn {
        Gfn(self.state.memory.maximum_gpfn())
    }

    /// Frames it has (`XENMEM_current_reservation`).
    #[must_use]
    pub fn current_reservation(&self) -> usize {
        self.state.memory.total()
    }

    /// Ioreq servers it has, whether anyone serves them or not.
    #[must_use]
    pub fn ioreq_servers(&self) -> usize {
        lock(&self.state.servers).count()
    }

    /// The level of an INTx line.
    #[must_use]
    pub fn intx_level(&self, device: u8, line: u8) -> bool {
        self.state.interrupts.level(device, line)
    }

    /// Interrupts raised so far.
    #[must_use]
    pub fn interrupts_raised(&self) -> u64 {
        self.state.interrupts.raised()
    }

    /// Its RAM past all write protection and logs, for checks in tests.
    #[must_use]
    pub fn ram(&self) -> Arc<dyn GuestMemory> {
        Arc::new(Ram(Arc::clone(&self.state)))
    }
}

struct Ram(Arc<DomainState>);

impl GuestMemory for Ram {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        for_each_page(gpa, buf.len(), |gfn, offset, range| {
            if self.0.memory.peek(gfn, offset, &mut buf[range]) {
                Ok(())
            } else {
                Err(MemoryError::Unmapped(gfn))
            }
        })
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        for_each_page(gpa, data.len(), |gfn, offset, range| {
            if self.0.memory.poke(gfn, offset, &data[range]) {
                Ok(())
            } else {
                Err(MemoryError::Unmapped(gfn))
            }
        })
    }
}
