//! Guests without a device model, and a GPU that does nothing: what vgpud
//! makes of their work, by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gen8::{Engine, lrc, pte};
use gpu_bus::{GGTT_BASE, Gpu};
use guest_driver::{Context, Frames, Platform};
use guest_memory::{Gfn, GuestMemory, VecMemory};
use vgpu_sched::audit::{AuditLimits, Auditor};
use vgpu_sched::dma::{DmaSpace, GuestMap, HostPages, MapLimits};
use vgpu_sched::ggtt::{GuestGgtt, translate};
use vgpu_sched::ppgtt::{ShadowTables, TableLimits};
use vgpu_sched::registers::Registers;
use vgpu_sched::windows::Windows;
use vgpu_sched::workload::{Element, OwnSpace, Shadow, Source, Workload, WorkloadSite, prepare};

/// A GPU that does nothing.
struct Still;

impl Gpu for Still {
    fn read32(&self, _offset: u32) -> u32 {
        0
    }
    fn write32(&self, _offset: u32, _value: u32) {}
    fn read64(&self, _offset: u32) -> u64 {
        0
    }
    fn write64(&self, _offset: u32, _value: u64) {}
}

/// vgpud's part that guests share.
pub struct Host {
    dma: Arc<DmaSpace>,
    pages: Arc<HostPages>,
    /// The physical global table.
    pub windows: Arc<Windows>,
}

impl Host {
    /// With a global table of so many pages.
    ///
    /// # Errors
    /// When there is no page for it.
    pub fn new(table: u32) -> anyhow::Result<Self> {
        let dma = Arc::new(DmaSpace::new());
        let pages = HostPages::new(Arc::clone(&dma), 1 << 18);
        let gpu = Arc::new(Registers::new(Arc::new(Still)));
        let windows = Windows::with_pages(gpu, pages.allocate()?, 1, table);
        Ok(Self {
            dma,
            pages,
            windows,
        })
    }
}

/// Entries of a guest's global table that a bench uses.
const ENTRIES: usize = 4096;

/// A guest's global table.
struct Table(Vec<AtomicU64>);

impl GuestGgtt for Table {
    fn load(&self, index: u32) -> u64 {
        let at = usize::try_from(index).ok().and_then(|i| self.0.get(i));
        at.map_or(0, |e| e.load(Relaxed))
    }
}

/// The machine of a guest that has memory and a global table.
struct Machine {
    memory: Arc<VecMemory>,
    table: Arc<Table>,
}

impl Platform for Machine {
    fn memory(&self) -> &dyn GuestMemory {
        &*self.memory
    }

    fn config_read(&mut self, _register: u16, _size: u8) -> u32 {
        u32::MAX
    }

    fn config_write(&mut self, _register: u16, _size: u8, _value: u32) {}

    fn mmio_read(&mut self, _address: u64, _size: u8) -> u64 {
        u64::MAX
    }

    fn mmio_write(&mut self, address: u64, _size: u8, value: u64) {
        let at = address.checked_sub(GGTT_BASE.into()).map(|at| at / 8);
        let entry = at.and_then(|at| self.table.0.get(usize::try_from(at).ok()?));
        if let Some(entry) = entry {
            entry.store(value, Relaxed);
        }
    }

    fn wait_interrupt(&mut self, _timeout: Duration) -> bool {
        false
    }
}

/// A guest whose driver has contexts on one engine.
pub struct Guest {
    /// Its vGPU.
    pub id: u64,
    engine: Engine,
    /// Its memory.
    pub memory: Arc<VecMemory>,
    table: Arc<Table>,
    map: Arc<GuestMap>,
    tables: Arc<ShadowTables>,
    shadow: Shadow,
    /// Its contexts.
    pub contexts: Vec<Context>,
}

impl Guest {
    /// A guest with so many frames and contexts.
    ///
    /// # Errors
    /// When its memory does not suffice.
    pub fn new(
        host: &Host,
        id: u64,
        engine: Engine,
        frames: usize,
        contexts: u32,
    ) -> anyhow::Result<Self> {
        let memory = Arc::new(VecMemory::new(frames));
        let table = Arc::new(Table((0..ENTRIES).map(|_| AtomicU64::new(0)).collect()));
        let shared: Arc<dyn GuestMemory> = Arc::clone(&memory) as _;
        let limits = MapLimits::default();
        let map = Arc::new(GuestMap::new(Arc::clone(&host.dma), shared, limits));
        let pages = Arc::clone(&host.pages);
        let tables = ShadowTables::new(Arc::clone(&map), pages, TableLimits::default());
        let machine = Machine {
            memory: Arc::clone(&memory),
            table: Arc::clone(&table),
        };
        let mut gpu = guest_driver::Gpu::unprobed(machine, &gen8::platform::BDW);
        let mut frames = Frames::new(1, u64::try_from(frames)?);
        let contexts = (1..=contexts)
            .map(|n| Context::new(&mut gpu, &mut frames, engine, n * 0x20))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            id,
            engine,
            memory,
            table,
            map,
            tables,
            shadow: Shadow::default(),
            contexts,
        })
    }

    /// Adds a request to a context and prepares it as vgpud does.
    ///
    /// # Errors
    /// When vgpud refuses it.
    pub fn request(&mut self, host: &Host, context: usize) -> anyhow::Result<Box<Workload>> {
        let Some(context) = self.contexts.get_mut(context) else {
            bail!("no context {context}");
        };
        let batch = context.slots[0].batch_va;
        context.add_request(&*self.memory, batch)?;
        let descriptor = context.publish(&*self.memory)?;
        let mut shadow = std::mem::take(&mut self.shadow);
        let element = prepare(
            &self.source(host),
            &mut shadow,
            self.engine,
            descriptor,
            None,
        );
        self.shadow = shadow;
        match element? {
            Element::Work(work) => Ok(work),
            Element::Empty => bail!("a request left the ring empty"),
        }
    }

    fn source<'a>(&'a self, host: &'a Host) -> Source<'a> {
        Source {
            gpu: &gen8::platform::BDW,
            vgpu: self.id,
            map: &self.map,
            table: &*self.table,
            tables: &self.tables,
            windows: &host.windows,
            pages: &host.pages,
            limits: AuditLimits::default(),
            scan: None,
        }
    }

    /// Has an audit as a submission's, and lets go of what it asked for.
    pub fn audit<R>(
        &self,
        host: &Host,
        run: impl FnOnce(&mut Auditor<'_, WorkloadSite<'_>>) -> R,
    ) -> R {
        let source = self.source(host);
        let mut shadow = Shadow::default();
        let mut site = WorkloadSite::new(&source, &mut shadow);
        run(&mut Auditor::new(self.engine, &mut site, source.limits))
    }

    /// Calls `with` with the address space of a context.
    ///
    /// # Errors
    /// When the guest's memory or tables do not suffice.
    pub fn own_space<R>(
        &self,
        context: usize,
        with: impl FnOnce(&OwnSpace<'_>) -> R,
    ) -> anyhow::Result<R> {
        let Some(context) = self.contexts.get(context) else {
            bail!("no context {context}");
        };
        let page = context.publish(&*self.memory)?.register_page() >> 12;
        let registers = translate(&*self.table, page)?;
        let at = registers.address().context("no register page")?;
        let word = |index: usize| -> anyhow::Result<u32> {
            Ok(self.memory.read_u32(at + u64::try_from(index * 4)?)?)
        };
        let root = u64::from(word(lrc::PDP0_UDW)?) << 32 | u64::from(word(lrc::PDP0_LDW)?);
        let root = self.tables.pin(Gfn::containing(root))?;
        Ok(with(&OwnSpace {
            root: &root,
            map: &self.map,
        }))
    }

    /// The workload is through.
    pub fn finish(&self, workload: &Workload) {
        workload.write_back(&self.map, workload.guest_tail());
    }

    /// Pages its global table maps.
    pub fn mapped(&self) -> usize {
        let present = |e: &&AtomicU64| e.load(Relaxed) & pte::PRESENT != 0;
        self.table.0.iter().filter(present).count()
    }
}
