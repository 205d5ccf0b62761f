//! A device among in-memory surroundings.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use gen8::{Engine, Platform, irq, ring};
use guest_memory::{GuestMemory, VecMemory};
use vgpu_device::{
    Bar, BarSink, Clock, Config, Device, Full, GGTT_ENTRIES, GgttTable, GpuPort, InterruptSink,
    Seams, Unkept,
};
use vgpu_ring::Request;

/// A global page table.
pub struct Table(Vec<AtomicU64>);

impl GgttTable for Table {
    fn load(&self, index: u32) -> u64 {
        self.0.get(index as usize).map_or(0, |e| e.load(SeqCst))
    }

    fn store(&self, index: u32, entry: u64) {
        if let Some(e) = self.0.get(index as usize) {
            e.store(entry, SeqCst);
        }
    }
}

/// Everything that leaves the device, and the clock.
#[derive(Default)]
pub struct World {
    pub sent: Mutex<Vec<Request>>,
    /// Refuses requests while set.
    pub full: Mutex<bool>,
    pub msis: Mutex<Vec<(u64, u32)>>,
    pub intx: Mutex<bool>,
    pub windows: Mutex<Vec<(Bar, u64, u64)>>,
    pub now: AtomicU64,
    pub alarms: Mutex<Vec<u64>>,
}

impl GpuPort for World {
    fn send(&self, request: Request) -> Result<(), Full> {
        if *self.full.lock().unwrap() {
            return Err(Full);
        }
        self.sent.lock().unwrap().push(request);
        Ok(())
    }
}

impl InterruptSink for World {
    fn msi(&self, address: u64, data: u32) {
        self.msis.lock().unwrap().push((address, data));
    }

    fn intx(&self, level: bool) {
        *self.intx.lock().unwrap() = level;
    }
}

impl Clock for World {
    fn now_ns(&self) -> u64 {
        self.now.load(SeqCst)
    }

    fn alarm(&self, at_ns: u64) {
        self.alarms.lock().unwrap().push(at_ns);
    }
}

impl BarSink for World {
    fn map(&self, bar: Bar, base: u64, len: u64) {
        let mut windows = self.windows.lock().unwrap();
        assert!(windows.iter().all(|w| w.0 != bar), "{bar} mapped twice");
        windows.push((bar, base, len));
    }

    fn unmap(&self, bar: Bar, base: u64, len: u64) {
        let mut windows = self.windows.lock().unwrap();
        let at = windows.iter().position(|w| *w == (bar, base, len));
        windows.remove(at.expect("unmapped what was not mapped"));
    }
}

pub const PAGES: usize = 256;
/// GGTT page n of this many maps guest frame n.
pub const MAPPED: u32 = 128;

pub struct Rig {
    pub device: Device,
    pub world: Arc<World>,
    pub memory: Arc<VecMemory>,
    pub table: Arc<Table>,
    pub seams: Seams,
}

impl Rig {
    pub fn seams() -> (Seams, Arc<World>, Arc<VecMemory>, Arc<Table>) {
        let world = Arc::new(World::default());
        world.now.store(1_000_000, SeqCst);
        let memory = Arc::new(VecMemory::new(PAGES));
        let entries = (0..GGTT_ENTRIES).map(|_| AtomicU64::new(0));
        let table = Arc::new(Table(entries.collect()));
        let seams = Seams {
            memory: memory.clone(),
            ggtt: table.clone(),
            port: world.clone(),
            interrupts: world.clone(),
            clock: world.clone(),
            bars: world.clone(),
            kept: Arc::new(Unkept),
        };
        (seams, world, memory, table)
    }

    pub fn new() -> Self {
        Self::on(&gen8::platform::BDW)
    }

    pub fn on(gpu: &'static Platform) -> Self {
        let (seams, world, memory, table) = Self::seams();
        for page in 0..MAPPED {
            table.store(page, u64::from(page) << 12 | 1);
        }
        let config = Config {
            gpu,
            ..Config::default()
        };
        let device = Device::new(&config, seams.clone()).unwrap();
        Self {
            device,
            world,
            memory,
            table,
            seams,
        }
    }

    pub fn read(&self, offset: u32) -> u32 {
        let value = self.device.read(Bar::Registers, offset.into(), 4);
        u32::try_from(value).unwrap()
    }

    pub fn write(&self, offset: u32, value: u32) {
        self.device
            .write(Bar::Registers, offset.into(), 4, value.into());
    }

    /// Firmware: BARs, decoding, MSI.
    pub fn enumerate(&self) {
        self.device.config_write(0x10, 8, 0xf100_0000);
        self.device.config_write(0x18, 8, 0x8_0000_0000);
        self.device.config_write(4, 2, 6);
        self.device.config_write(0x94, 8, 0xfee0_0000);
        self.device.config_write(0x9c, 2, 0x41);
        self.device.config_write(0x92, 2, 1);
    }

    /// What i915 sets up before the first submission on `engine`: its status
    /// page is guest frame 16 + index.
    pub fn start(&self, engine: Engine) {
        let base = engine.mmio_base();
        self.write(base + ring::HWS_PGA, status_page(engine));
        self.write(base + ring::CSB_PTR, 0xffff_0505);
        self.write(base + ring::MODE, 0x8000_8000);
        let (bank, shift) = engine.irq_bank();
        let bits = u32::from(irq::USER | irq::ERROR | irq::CONTEXT_SWITCH) << shift;
        self.write(base + ring::IMR, !bits);
        self.write(base + ring::EMR, !1);
        let at = irq::GT_BANK_STRIDE * bank;
        self.write(irq::GT_IMR0 + at, 0);
        self.write(irq::GT_IER0 + at, u32::MAX);
        self.write(irq::MASTER, irq::MASTER_ENABLE);
    }

    /// Loads the execlist port.
    pub fn submit(&self, engine: Engine, desc: [u64; 2]) {
        let port = engine.mmio_base() + ring::ELSP;
        for d in [desc[1], desc[0]] {
            let b = d.to_le_bytes();
            self.write(port, u32::from_le_bytes([b[4], b[5], b[6], b[7]]));
            self.write(port, u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        }
    }

    /// i915's interrupt handler, for one bank; gives the identity bits.
    pub fn handle_interrupt(&self, bank: u32) -> u32 {
        self.write(irq::MASTER, 0);
        let iir = irq::GT_IIR0 + bank * irq::GT_BANK_STRIDE;
        let bits = self.read(iir);
        self.write(iir, bits);
        self.write(irq::MASTER, irq::MASTER_ENABLE);
        bits
    }

    /// Status-buffer entries up to the write pointer: status words.
    pub fn status_words(&self, engine: Engine, from: u32, to: u32) -> Vec<u64> {
        let page = u64::from(status_page(engine));
        (from..=to)
            .map(|n| {
                self.memory
                    .read_u64(page + 0x40 + u64::from(n) * 8)
                    .unwrap()
            })
            .collect()
    }

    pub fn write_pointer(&self, engine: Engine) -> u32 {
        let page = u64::from(status_page(engine));
        self.memory.read_u32(page + 0x7c).unwrap()
    }

    pub fn sent(&self) -> Vec<Request> {
        std::mem::take(&mut self.world.sent.lock().unwrap())
    }

    pub fn msis(&self) -> usize {
        std::mem::take(&mut *self.world.msis.lock().unwrap()).len()
    }
}

pub fn status_page(engine: Engine) -> u32 {
    (16 + u32::try_from(engine.index()).unwrap()) << 12
}

/// A descriptor of context `id` whose image is guest frame 32 + 4 `id`.
pub fn context(id: u32) -> u64 {
    u64::from(id) << 37 | u64::from(32 + 4 * id) << 12 | 0x19
}
