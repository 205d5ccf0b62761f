//! A guest whose device model is killed again and again, at a step that chance
//! picks, and replaced.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;
use fake_xen::{Domain, DomainConfig, MmioHole, Vcpu, place_bars};
use vgpu_device::Kept;
use vgpu_dm::{AttachError, Server, ServerConfig};
use vgpu_ring::{Bells, KeptPart, SharedArea};
use xen_glue::{
    Access, DomId, ForeignMap, ForeignMemory, ForeignMemoryConfig, Handles, Hypervisor, Mapping,
    PARKING_GFN, Privcmd, PrivcmdError, Resource, TableFrames,
};

use crate::guest::{OwnDomain, SLOT};
use crate::{Link, SimGuest, SimGuestConfig, SimHost};

/// What ends a thread of a killed device model.
struct Killed;

/// Burns down by a step for each store to what is kept, each operation of the
/// hypervisor's and each other effect. When it is burnt, no thread takes another.
struct Fuse {
    left: AtomicU64,
    burnt: AtomicBool,
    tell: Mutex<Sender<()>>,
}

impl Fuse {
    fn new(steps: u64, tell: Sender<()>) -> Self {
        Self {
            left: AtomicU64::new(steps),
            burnt: AtomicBool::new(false),
            tell: Mutex::new(tell),
        }
    }

    fn step(&self) {
        let last = |left: u64| left.checked_sub(1);
        if !self.burnt.load(SeqCst) && self.left.fetch_update(SeqCst, SeqCst, last).is_ok() {
            return;
        }
        if !self.burnt.swap(true, SeqCst) {
            let tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever replaces it may have found out already.
            let _ = tell.send(());
        }
        if !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }
}

/// What is kept, by a device model with a fuse.
struct Fused {
    part: KeptPart,
    fuse: Arc<Fuse>,
}

impl Kept for Fused {
    fn load(&self, index: usize) -> u64 {
        self.part.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        self.fuse.step();
        self.part.store(index, value);
    }

    fn about_to(&self) {
        self.fuse.step();
    }
}

/// Its operations. A page table that was being moved is moved frame by frame by
/// each successor anew: a step is one of `MOVES` of those, or none of many
/// device models that live for a few hundred steps would be through with it.
struct FusedPrivcmd {
    privcmd: Arc<dyn Privcmd>,
    fuse: Arc<Fuse>,
    moved: AtomicU64,
}

/// Frames moved in a step.
const MOVES: u64 = 64;

impl Privcmd for FusedPrivcmd {
    fn dm_op(&self, domid: DomId, bufs: &mut [&mut [u8]]) -> Result<(), PrivcmdError> {
        const MOVE: [u8; 4] = xen_sys::XEN_DMOP_relocate_memory.to_le_bytes();
        let moves = bufs.first().is_some_and(|op| op.starts_with(&MOVE));
        if !moves || self.moved.fetch_add(1, SeqCst).is_multiple_of(MOVES) {
            self.fuse.step();
        }
        self.privcmd.dm_op(domid, bufs)
    }

    fn map_foreign(
        &self,
        domid: DomId,
        gfns: &[u64],
        access: Access,
    ) -> Result<ForeignMap, PrivcmdError> {
        self.privcmd.map_foreign(domid, gfns, access)
    }

    fn map_resource(&self, domid: DomId, resource: Resource) -> Result<Mapping, PrivcmdError> {
        self.privcmd.map_resource(domid, resource)
    }

    fn restrict(&self, domid: DomId) -> Result<(), PrivcmdError> {
        self.privcmd.restrict(domid)
    }
}

/// What one device model after the other is made with.
struct Succession {
    xen: fake_xen::FakeXen,
    domain: DomId,
    config: ServerConfig,
    area: SharedArea,
    bells: Bells,
    lives: Box<dyn FnMut() -> Option<u64> + Send>,
    /// Told when one is killed.
    wake: Sender<()>,
}

impl Succession {
    /// Another one, which takes the place of the last, or the first; `None`
    /// when it was killed before it served.
    fn next(&mut self, server: Option<u16>) -> Result<Option<Server>, AttachError> {
        let steps = (self.lives)().unwrap_or(u64::MAX);
        let fuse = Arc::new(Fuse::new(steps, self.wake.clone()));
        let handles = Handles::open(&self.xen, self.domain).map_err(|e| AttachError::System {
            what: "open Xen",
            source: std::io::Error::other(e),
        })?;
        let handles = Handles {
            privcmd: Arc::new(FusedPrivcmd {
                privcmd: handles.privcmd,
                fuse: Arc::clone(&fuse),
                moved: AtomicU64::new(0),
            }),
            ..handles
        };
        let bells = self
            .bells
            .try_clone()
            .map_err(|source| AttachError::System {
                what: "share doorbells",
                source,
            })?;
        let made = catch_unwind(AssertUnwindSafe(|| match server {
            None => {
                let end = self.area.device_end(bells);
                let part = end.kept.clone();
                let kept = Arc::new(Fused { part, fuse });
                Server::attach_keeping(handles, &self.config, end, kept)
            }
            Some(server) => {
                let end = self.area.resumed_device_end(bells);
                let part = end.kept.clone();
                let kept = Arc::new(Fused { part, fuse });
                Server::recover_keeping(handles, &self.config, server, end, kept)
            }
        }));
        match made {
            Ok(server) => Ok(Some(server?)),
            Err(e) if e.is::<Killed>() => Ok(None),
            Err(e) => resume_unwind(e),
        }
    }
}

/// The guest. Parts go in the order they stand in.
pub struct MortalGuest {
    thread: Option<JoinHandle<Result<(), AttachError>>>,
    stop: Arc<AtomicBool>,
    wake: Sender<()>,
    kills: Arc<AtomicU64>,
    link: Link,
    domain: Arc<OwnDomain>,
}

impl MortalGuest {
    /// Creates a domain whose device models live for as many steps as `lives`
    /// says: for ever, when it says nothing. The first is through with
    /// attaching.
    ///
    /// # Errors
    /// What the hypervisor, the scheduler or the first device model says.
    pub fn start(
        host: &SimHost,
        config: &SimGuestConfig,
        lives: impl FnMut() -> Option<u64> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let xen = host.hypervisor().clone();
        let domain = Arc::new(OwnDomain(xen.create_domain(DomainConfig {
            vcpus: config.vcpus,
            frames: config.frames,
            ..DomainConfig::default()
        })?));
        let id = domain.0.id();
        let privcmd = xen.open_privcmd()?;
        let table = TableFrames::create(&*xen.open_domain_memory()?, &*privcmd, id)?;
        let memory = ForeignMemory::new(privcmd, id, ForeignMemoryConfig::default());
        let (link, area, bells) =
            Link::start_bare(host, id.0.into(), Arc::new(memory), Some(table))?;
        let (wake, woken) = channel();
        let mut lives = lives;
        let mut first = true;
        let mut succession = Succession {
            xen,
            domain: id,
            config: ServerConfig {
                slot: SLOT,
                table_gfn: Some(PARKING_GFN),
                device: vgpu_device::Config {
                    gpu: host.platform(),
                    ..config.device.clone()
                },
                spin: config.spin,
                seccomp: vgpu_dm::Seccomp::Off,
            },
            area,
            bells,
            // Nobody could take the place of one that never served.
            lives: Box::new(move || {
                if std::mem::take(&mut first) {
                    None
                } else {
                    lives()
                }
            }),
            wake: wake.clone(),
        };
        let Some(server) = succession.next(None)? else {
            anyhow::bail!("the first device model did not attach");
        };
        let number = server.id();
        server.abandon();
        let stop = Arc::new(AtomicBool::new(false));
        let kills = Arc::new(AtomicU64::new(1));
        let thread = std::thread::Builder::new()
            .name("succession".into())
            .spawn({
                let (stop, kills) = (Arc::clone(&stop), Arc::clone(&kills));
                let domain = Arc::clone(&domain);
                move || {
                    let mut serve = || {
                        while !stop.load(SeqCst) {
                            // It tells when it is killed, wherever it was then.
                            let next = succession.next(Some(number))?;
                            let _ = woken.recv();
                            if let Some(server) = next {
                                server.abandon();
                            }
                            kills.fetch_add(1, SeqCst);
                        }
                        Ok(())
                    };
                    // Nobody would answer its CPUs any more.
                    serve().inspect_err(|_| domain.0.destroy())
                }
            })?;
        let guest = Self {
            thread: Some(thread),
            stop,
            wake,
            kills,
            link,
            domain,
        };
        let hole = MmioHole {
            low: 0xc000_0000..=0xfbff_ffff,
            ..MmioHole::default()
        };
        place_bars(&guest.vcpu(0)?, SimGuest::sbdf(), &hole)?;
        Ok(guest)
    }

    /// A virtual CPU.
    ///
    /// # Errors
    /// When there is no such.
    pub fn vcpu(&self, number: u32) -> anyhow::Result<Vcpu> {
        self.domain().vcpu(number).context("no such vCPU")
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain.0
    }

    /// vgpud's side.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// Device models killed so far.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.kills.load(SeqCst)
    }

    /// Ends the last device model.
    ///
    /// # Errors
    /// Why none could take the place of one.
    pub fn end(mut self) -> Result<(), AttachError> {
        self.end_succession()
    }

    fn end_succession(&mut self) -> Result<(), AttachError> {
        self.stop.store(true, SeqCst);
        // It is gone already when it failed.
        let _ = self.wake.send(());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(e)) => resume_unwind(e),
            None => Ok(()),
        }
    }
}

impl Drop for MortalGuest {
    fn drop(&mut self) {
        if let Err(e) = self.end_succession() {
            log::error!("no device model took the last one's place: {e}");
        }
    }
}
