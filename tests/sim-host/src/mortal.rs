//! A guest whose device model is killed again and again, at a step that chance
//! picks, and replaced.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use fake_xen::{Domain, DomainConfig, FakeXenError, MmioHole, Vcpu, place_bars};
use vgpu_device::Kept;
use vgpu_dm::{AttachError, PageKeeper, Server, ServerConfig};
use vgpu_ring::{Bells, KeptPart, SharedArea};
use xen_glue::{
    Access, DomId, ForeignMap, ForeignMemory, ForeignMemoryConfig, Handles, Hypervisor, IoreqPages,
    Mapping, PARKING_GFN, Privcmd, PrivcmdError, Resource, TableFrames,
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

/// Device models in domains of their own, with what outlives these.
struct Domains {
    pages: Arc<Mutex<IoreqPages>>,
    /// The present one.
    stub: Domain,
}

/// Tells who outlives the domain where the page of requests is, and dies of it.
struct Keeper {
    pages: Arc<Mutex<IoreqPages>>,
    fuse: Arc<Fuse>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeper")
    }
}

impl PageKeeper for Keeper {
    fn lift(&self) -> std::io::Result<()> {
        self.fuse.step();
        lock(&self.pages).lift();
        Ok(())
    }

    fn page_at(&self, gfn: u64) -> std::io::Result<()> {
        self.fuse.step();
        lock(&self.pages)
            .page_at(gfn)
            .map_err(std::io::Error::other)
    }

    fn enabled(&self) -> std::io::Result<()> {
        self.fuse.step();
        lock(&self.pages).enabled().map_err(std::io::Error::other)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whose place a device model takes.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Nobody's.
    First,
    /// That of one whose ioreq server is there.
    Server(u16),
    /// That of one whose domain is gone.
    Domain,
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
    /// If they are not in dom0.
    domains: Option<Domains>,
    /// Told when one is killed.
    wake: Sender<()>,
}

impl Succession {
    /// Another one, which takes the place of the last, or the first; `None`
    /// when it was killed before it served.
    fn next(&mut self, place: Place) -> Result<Option<Server>, AttachError> {
        let steps = (self.lives)().unwrap_or(u64::MAX);
        let fuse = Arc::new(Fuse::new(steps, self.wake.clone()));
        let mut config = self.config.clone();
        let mut xen = self.xen.clone();
        if let Some(domains) = &self.domains {
            xen = xen.seen_from(domains.stub.id());
            config.keeper = Some(Arc::new(Keeper {
                pages: Arc::clone(&domains.pages),
                fuse: Arc::clone(&fuse),
            }));
        }
        let handles = Handles::open(&xen, self.domain).map_err(|e| AttachError::System {
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
        let made = catch_unwind(AssertUnwindSafe(|| {
            let (end, server) = match place {
                Place::First => (self.area.device_end(bells), None),
                Place::Server(server) => (self.area.resumed_device_end(bells), Some(server)),
                Place::Domain => (self.area.resumed_device_end(bells), None),
            };
            let part = end.kept.clone();
            let kept = Arc::new(Fused { part, fuse });
            if let Place::First = place {
                Server::attach_keeping(handles, &config, end, kept)
            } else {
                Server::recover_keeping(handles, &config, server, end, kept)
            }
        }));
        match made {
            Ok(server) => Ok(Some(server?)),
            Err(e) if e.is::<Killed>() => Ok(None),
            Err(e) => resume_unwind(e),
        }
    }
}

/// How a device model that takes another's place dies, and when: after so many
/// steps, with its domain or alone.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// Steps.
    pub after: u64,
    /// Its domain goes, too.
    pub domain: bool,
}

/// What came of deaths so far.
#[derive(Debug, Default)]
struct Toll {
    kills: AtomicU64,
    domains: AtomicU64,
    in_flight: AtomicU64,
}

/// The guest. Parts go in the order they stand in.
pub struct MortalGuest {
    thread: Option<JoinHandle<Result<(), AttachError>>>,
    stop: Arc<AtomicBool>,
    wake: Sender<()>,
    toll: Arc<Toll>,
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
        mut lives: impl FnMut() -> Option<u64> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let deaths = move || {
            let after = lives()?;
            let domain = false;
            Some(Death { after, domain })
        };
        Self::start_where(host, config, deaths, false)
    }

    /// The same with device models in domains of their own, which may die with
    /// these. Xen leaves what is a domain's to nobody, so a guest survives no more
    /// than seven deaths of domains.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_in_domains(
        host: &SimHost,
        config: &SimGuestConfig,
        deaths: impl FnMut() -> Option<Death> + Send + 'static,
    ) -> anyhow::Result<Self> {
        Self::start_where(host, config, deaths, true)
    }

    fn start_where(
        host: &SimHost,
        config: &SimGuestConfig,
        mut deaths: impl FnMut() -> Option<Death> + Send + 'static,
        in_domains: bool,
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
        let pages = IoreqPages::new(Arc::clone(&privcmd), id);
        let memory = ForeignMemory::new(privcmd, id, ForeignMemoryConfig::default());
        let (link, area, bells) =
            Link::start_bare(host, id.0.into(), Arc::new(memory), Some(table))?;
        let (wake, woken) = channel();
        let domains = in_domains.then(|| -> anyhow::Result<_> {
            Ok(Domains {
                pages: Arc::new(Mutex::new(pages)),
                stub: stub_domain(&xen)?,
            })
        });
        let mut first = true;
        let with_domain = Arc::new(AtomicBool::new(false));
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
                keeper: None,
            },
            area,
            bells,
            // Nobody could take the place of one that never served.
            lives: Box::new({
                let with_domain = Arc::clone(&with_domain);
                move || {
                    if std::mem::take(&mut first) {
                        return None;
                    }
                    let death = deaths()?;
                    with_domain.store(death.domain, SeqCst);
                    Some(death.after)
                }
            }),
            domains: domains.transpose()?,
            wake: wake.clone(),
        };
        let Some(server) = succession.next(Place::First)? else {
            anyhow::bail!("the first device model did not attach");
        };
        let number = server.id();
        server.abandon();
        let stop = Arc::new(AtomicBool::new(false));
        let toll = Arc::new(Toll::default());
        toll.kills.store(1, SeqCst);
        let mut reign = Reign {
            succession,
            number,
            woken,
            with_domain,
            stop: Arc::clone(&stop),
            toll: Arc::clone(&toll),
            domain: Arc::clone(&domain),
        };
        let thread = std::thread::Builder::new()
            .name("succession".into())
            // Nobody would answer its CPUs any more when that fails.
            .spawn(move || {
                reign.run().inspect_err(|e| {
                    log::error!("{e}");
                    reign.domain.0.destroy();
                })
            })?;
        let guest = Self {
            thread: Some(thread),
            stop,
            wake,
            toll,
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
        self.toll.kills.load(SeqCst)
    }

    /// Of those, how many with their domain, and in how many cases of these a
    /// vCPU waited there.
    #[must_use]
    pub fn domains_gone(&self) -> (u64, u64) {
        let [gone, in_flight] = [&self.toll.domains, &self.toll.in_flight].map(|n| n.load(SeqCst));
        (gone, in_flight)
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

/// A domain for a device model.
fn stub_domain(xen: &fake_xen::FakeXen) -> Result<Domain, FakeXenError> {
    xen.create_domain(DomainConfig {
        frames: 1,
        ..DomainConfig::default()
    })
}

/// How often it is looked after what Xen sends to domains that are gone.
const TEND: Duration = Duration::from_millis(1);

/// Has one device model after the other serve the guest.
struct Reign {
    succession: Succession,
    /// The present one's ioreq server.
    number: u16,
    /// Hears of deaths, wherever they come.
    woken: Receiver<()>,
    /// The next to die does so with its domain.
    with_domain: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    toll: Arc<Toll>,
    domain: Arc<OwnDomain>,
}

impl Reign {
    fn run(&mut self) -> Result<(), AttachError> {
        while !self.stop.load(SeqCst) {
            let served = if self.succession.domains.is_some() {
                self.domain.0.pause();
                let served = self.in_domain();
                self.domain.0.unpause();
                served?
            } else {
                self.succession.next(Place::Server(self.number))?
            };
            if !self.stop.load(SeqCst) {
                self.wait(served.as_ref());
            }
            if let Some(server) = served {
                server.abandon();
            }
            self.toll.kills.fetch_add(1, SeqCst);
        }
        Ok(())
    }

    /// Takes a death in, and gives the guest another device model in a domain of
    /// its own: the present one, if it lives.
    fn in_domain(&mut self) -> Result<Option<Server>, AttachError> {
        loop {
            let Some(domains) = &mut self.succession.domains else {
                return Ok(None);
            };
            let pages = Arc::clone(&domains.pages);
            let left = lock(&pages).lift();
            let gone = self.with_domain.swap(false, SeqCst);
            let mut place = Place::Server(self.number);
            if gone {
                domains.stub.destroy();
                let made = stub_domain(&self.succession.xen);
                domains.stub = made.map_err(|e| AttachError::System {
                    what: "make a domain",
                    source: std::io::Error::other(e),
                })?;
                self.toll.domains.fetch_add(1, SeqCst);
                self.toll.in_flight.fetch_add(u64::from(left > 0), SeqCst);
                place = Place::Domain;
            }
            let served = self.succession.next(place)?;
            match &served {
                Some(server) => self.number = server.id(),
                // Nobody knows its server, if it made one.
                None if gone => self.with_domain.store(true, SeqCst),
                None => {}
            }
            // It may die of what was left.
            let mut killed = served.is_none();
            while !killed && !lock(&pages).settle() {
                killed = self.woken.recv_timeout(TEND).is_ok();
            }
            if !killed {
                return Ok(served);
            }
            if served.is_none() {
                let _ = self.woken.recv();
            }
            if let Some(server) = served {
                server.abandon();
            }
            self.toll.kills.fetch_add(1, SeqCst);
            if self.stop.load(SeqCst) {
                return Ok(None);
            }
        }
    }

    /// Until it is killed, or all is to end.
    fn wait(&self, server: Option<&Server>) {
        loop {
            match self.woken.recv_timeout(TEND) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
            if let (Some(domains), Some(server)) = (&self.succession.domains, server)
                && lock(&domains.pages).tend()
                && let Err(e) = server.wake_vcpus()
            {
                log::error!("{e}");
            }
        }
    }
}
