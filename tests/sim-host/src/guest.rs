//! A simulated guest with its device model.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use fake_xen::{Domain, DomainConfig, FakeXen, Interrupt, MmioHole, Vcpu, place_bars};
use gen8::Engine;
use guest_driver::Platform;
use guest_memory::GuestMemory;
use vgpu_config::Share;
use vgpu_device::DeviceV1;
use vgpu_dm::{Server, ServerConfig};
use vgpu_sched::inspect::{LaneCounters, VgpuView};
use vgpu_sched::saved::Saved;
use xen_glue::{
    ForeignMemory, ForeignMemoryConfig, Handles, Hypervisor, PARKING_GFN, Sbdf, TableFrames,
};

use crate::link::{Link, Orphan};
use crate::{SimHost, Witness};

/// The PCI slot of every simulated guest's GPU.
pub(crate) const SLOT: u8 = 0x10;

/// What can be chosen about a guest.
#[derive(Clone, Debug)]
pub struct SimGuestConfig {
    /// Frames of memory.
    pub frames: usize,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Its virtual GPU, which becomes what the host's GPU is.
    pub device: vgpu_device::Config,
    /// How long its device model's threads look for the next request before
    /// they sleep, at most.
    pub spin: Duration,
    /// What it gets of the GPU's time.
    pub share: Share,
    /// Who counts what vgpud and the GPU do to its memory.
    pub witness: Option<Arc<Witness>>,
}

impl Default for SimGuestConfig {
    /// One vCPU, 16 MiB, a GPU with a 64 MiB aperture.
    fn default() -> Self {
        Self {
            frames: 4096,
            vcpus: 1,
            device: vgpu_device::Config {
                aperture_mib: 64,
                ..vgpu_device::Config::default()
            },
            spin: ServerConfig::DEFAULT_SPIN,
            share: Share::default(),
            witness: None,
        }
    }
}

/// A domain that is destroyed with its owner.
pub(crate) struct OwnDomain(pub(crate) Domain);

impl Drop for OwnDomain {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// A domain, its device model, and vgpud's side of its vGPU. The parts go in
/// the order they stand in: no request may meet a half-gone vGPU.
pub struct SimGuest {
    server: RwLock<Option<Arc<Server>>>,
    /// How its device models are made.
    model: ServerConfig,
    link: RwLock<Option<Arc<Link>>>,
    vcpu: Vcpu,
    pub(crate) xen: FakeXen,
    domain: OwnDomain,
}

/// A domain, and what is attached to it.
struct Attached {
    owned: OwnDomain,
    link: Link,
    server: Server,
    model: ServerConfig,
}

impl SimGuest {
    /// Creates a domain, attaches a device model, and has firmware place the
    /// device's BARs.
    ///
    /// # Errors
    /// What the hypervisor, the scheduler or the device model says.
    pub fn start(host: &SimHost, config: &SimGuestConfig) -> anyhow::Result<Self> {
        let Attached {
            owned,
            link,
            server,
            model,
        } = Self::attach(host, config, None, |_| Ok(()))?;
        let vcpu = owned.0.vcpu(0).context("no vcpu 0")?;
        // What mmio_hole= gives: room for the aperture below 4 GiB.
        let hole = MmioHole {
            low: 0xc000_0000..=0xfbff_ffff,
            ..MmioHole::default()
        };
        place_bars(&vcpu, Sbdf::slot(SLOT), &hole)?;
        Ok(Self {
            server: RwLock::new(Some(Arc::new(server))),
            model,
            link: RwLock::new(Some(Arc::new(link))),
            vcpu,
            xen: host.hypervisor().clone(),
            domain: owned,
        })
    }

    /// Creates a domain, has `fill` bring its memory, and attaches a device
    /// model with a vGPU as it was saved.
    ///
    /// # Errors
    /// What the hypervisor, the scheduler or the device model says; nothing is
    /// left then.
    pub fn restore(
        host: &SimHost,
        config: &SimGuestConfig,
        saved: &Saved,
        fill: impl FnOnce(&Domain) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let Attached {
            owned,
            link,
            server,
            model,
        } = Self::attach(host, config, Some(saved), fill)?;
        let vcpu = owned.0.vcpu(0).context("no vcpu 0")?;
        Ok(Self {
            server: RwLock::new(Some(Arc::new(server))),
            model,
            link: RwLock::new(Some(Arc::new(link))),
            vcpu,
            xen: host.hypervisor().clone(),
            domain: owned,
        })
    }

    fn attach(
        host: &SimHost,
        config: &SimGuestConfig,
        saved: Option<&Saved>,
        fill: impl FnOnce(&Domain) -> anyhow::Result<()>,
    ) -> anyhow::Result<Attached> {
        let xen = host.hypervisor();
        let owned = OwnDomain(xen.create_domain(DomainConfig {
            vcpus: config.vcpus,
            frames: config.frames,
            ..DomainConfig::default()
        })?);
        let domain = &owned.0;
        fill(domain)?;
        let privcmd = xen.open_privcmd()?;
        let table = TableFrames::create(&*xen.open_domain_memory()?, &*privcmd, domain.id())?;
        let device: Option<DeviceV1> = match saved {
            Some(saved) => {
                saved.fits(host.platform().name)?;
                saved.table.unpack(|index, entry| table.store(index, entry));
                Some(serde_json::from_slice(&saved.device).context("the saved device")?)
            }
            None => None,
        };
        let mut memory: Arc<dyn GuestMemory> = Arc::new(ForeignMemory::new(
            privcmd,
            domain.id(),
            ForeignMemoryConfig::default(),
        ));
        if let Some(witness) = &config.witness {
            memory = witness.watch(memory);
        }
        let id = u64::from(domain.id().0);
        let restored = saved.map(|s| s.scheduler.clone());
        let (link, end) = Link::start(host, id, config.share, memory, table, restored)?;
        let server_config = ServerConfig {
            slot: SLOT,
            table_gfn: Some(PARKING_GFN),
            device: vgpu_device::Config {
                gpu: host.platform(),
                ..config.device.clone()
            },
            spin: config.spin,
            // It shares the process with the test.
            seccomp: vgpu_dm::Seccomp::Off,
            keeper: None,
        };
        let handles = Handles::open(xen, domain.id())?;
        let server = match device {
            Some(device) => Server::restore(handles, &server_config, &device, end)?,
            None => Server::attach(handles, &server_config, end)?,
        };
        Ok(Attached {
            owned,
            link,
            server,
            model: server_config,
        })
    }

    /// vgpud's side of it.
    ///
    /// # Panics
    /// While there is none.
    pub(crate) fn link(&self) -> Arc<Link> {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner);
        let Some(link) = link.clone() else {
            panic!("the guest has no vgpud");
        };
        link
    }

    /// vgpud died: ends what is left of its side of the vGPU. There is none
    /// until [`SimGuest::adopt`].
    ///
    /// # Errors
    /// When it is in use, or the process has no more descriptors.
    pub fn orphan(&self) -> anyhow::Result<Orphan> {
        let link = self
            .link
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        link.and_then(Arc::into_inner)
            .context("its vgpud is in use")?
            .bury()
    }

    /// A new vgpud takes it over, and replaces its device model.
    ///
    /// # Errors
    /// What the system, the scheduler or the device model says.
    pub fn adopt(&self, orphan: Orphan, host: &SimHost) -> anyhow::Result<()> {
        let memory = Arc::new(ForeignMemory::new(
            self.xen.open_privcmd()?,
            self.domain().id(),
            ForeignMemoryConfig::default(),
        ));
        let mut server = self.server.write().unwrap_or_else(PoisonError::into_inner);
        let old = server.take().and_then(Arc::into_inner);
        let old = old.context("its device model is in use")?;
        let number = old.id();
        old.abandon();
        let link = orphan.adopt(host, memory)?;
        let end = link.successors_end()?;
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(link));
        let handles = Handles::open(&self.xen, self.domain().id())?;
        let next = Server::recover(handles, &self.model, number, end)?;
        next.device().replay();
        *server = Some(Arc::new(next));
        Ok(())
    }

    /// The domain.
    #[must_use]
    pub const fn domain(&self) -> &Domain {
        &self.domain.0
    }

    /// Its first virtual CPU.
    #[must_use]
    pub const fn vcpu(&self) -> &Vcpu {
        &self.vcpu
    }

    /// Its device model.
    ///
    /// # Panics
    /// While there is none.
    #[must_use]
    pub fn server(&self) -> Arc<Server> {
        let server = self.server.read().unwrap_or_else(PoisonError::into_inner);
        let Some(server) = server.clone() else {
            panic!("the guest has no device model");
        };
        server
    }

    /// Where its GPU sits.
    #[must_use]
    pub fn sbdf() -> Sbdf {
        Sbdf::slot(SLOT)
    }

    /// Why vgpud dropped the vGPU, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.link().failure()
    }

    /// What the vGPU did on each engine so far.
    #[must_use]
    pub fn lanes(&self) -> [LaneCounters; Engine::COUNT] {
        self.link().handle().lanes()
    }

    /// vgpud's view of the vGPU.
    #[must_use]
    pub fn scheduled(&self) -> VgpuView {
        self.link().handle().inspect()
    }
}

/// A virtual CPU and the GPU it sees. A stopped domain's accesses go nowhere,
/// as on a bus without a device.
#[derive(Clone, Copy)]
pub struct Cpu<'a>(pub &'a Vcpu);

impl Platform for Cpu<'_> {
    fn memory(&self) -> &dyn GuestMemory {
        self.0
    }

    fn config_read(&mut self, register: u16, size: u8) -> u32 {
        let register = u8::try_from(register).unwrap_or(0xff);
        let value = self
            .0
            .pci_config_read(SimGuest::sbdf(), register, size.into());
        value.unwrap_or(u32::MAX)
    }

    fn config_write(&mut self, register: u16, size: u8, value: u32) {
        let register = u8::try_from(register).unwrap_or(0xff);
        let done = self
            .0
            .pci_config_write(SimGuest::sbdf(), register, size.into(), value);
        if let Err(e) = done {
            log::debug!("config write: {e}");
        }
    }

    fn mmio_read(&mut self, address: u64, size: u8) -> u64 {
        self.0.mmio_read(address, size.into()).unwrap_or(u64::MAX)
    }

    fn mmio_write(&mut self, address: u64, size: u8, value: u64) {
        if let Err(e) = self.0.mmio_write(address, size.into(), value) {
            log::debug!("write to {address:#x}: {e}");
        }
    }

    fn wait_interrupt(&mut self, timeout: Duration) -> bool {
        matches!(
            self.0.wait_interrupt(Some(timeout)),
            Some(Interrupt::Msi { .. })
        )
    }
}

impl Platform for &SimGuest {
    fn memory(&self) -> &dyn GuestMemory {
        &self.vcpu
    }

    fn config_read(&mut self, register: u16, size: u8) -> u32 {
        Cpu(&self.vcpu).config_read(register, size)
    }

    fn config_write(&mut self, register: u16, size: u8, value: u32) {
        Cpu(&self.vcpu).config_write(register, size, value);
    }

    fn mmio_read(&mut self, address: u64, size: u8) -> u64 {
        Cpu(&self.vcpu).mmio_read(address, size)
    }

    fn mmio_write(&mut self, address: u64, size: u8, value: u64) {
        Cpu(&self.vcpu).mmio_write(address, size, value);
    }

    fn wait_interrupt(&mut self, timeout: Duration) -> bool {
        Cpu(&self.vcpu).wait_interrupt(timeout)
    }
}

/// A guest as its driver holds it that may move to another one.
#[derive(Clone)]
pub struct SharedGuest(pub Arc<SimGuest>);

impl Platform for SharedGuest {
    fn memory(&self) -> &dyn GuestMemory {
        &self.0.vcpu
    }

    fn config_read(&mut self, register: u16, size: u8) -> u32 {
        (&*self.0).config_read(register, size)
    }

    fn config_write(&mut self, register: u16, size: u8, value: u32) {
        (&*self.0).config_write(register, size, value);
    }

    fn mmio_read(&mut self, address: u64, size: u8) -> u64 {
        (&*self.0).mmio_read(address, size)
    }

    fn mmio_write(&mut self, address: u64, size: u8, value: u64) {
        (&*self.0).mmio_write(address, size, value);
    }

    fn wait_interrupt(&mut self, timeout: Duration) -> bool {
        (&*self.0).wait_interrupt(timeout)
    }
}
