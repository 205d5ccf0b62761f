//! A small driver for tests. It touches the GPU only as a driver can:
//! registers, global table, memory, interrupt.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gen8::csb::{self, Descriptor};
use gen8::{Engine, irq, lrc, pte, ring};
use gpu_bus::{Dma, DmaFault, GGTT_BASE, Gpu, InterruptLine};
use softgpu::{Config, SoftGpu, WriteLog};

/// Longer than anything here takes: only a failure gets there.
const PATIENCE: Duration = Duration::from_secs(60);

pub const RAM: usize = 24 << 20;
/// Bus address of global page 0.
const GGTT_BUS: u64 = 0x10_0000;
/// Where pages for the per-process tables come from.
const PPGTT_BUS: u64 = 8 << 20;

pub struct Ram(Mutex<Vec<u8>>);

impl Ram {
    fn range(
        &self,
        address: u64,
        len: usize,
        write: bool,
    ) -> Result<std::ops::Range<usize>, DmaFault> {
        let fault = DmaFault { address, write };
        let start = usize::try_from(address).map_err(|_| fault)?;
        let end = start.checked_add(len).ok_or(fault)?;
        if end <= RAM {
            Ok(start..end)
        } else {
            Err(fault)
        }
    }
}

impl Dma for Ram {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let r = self.range(address, buf.len(), false)?;
        buf.copy_from_slice(&self.0.lock().unwrap()[r]);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        let r = self.range(address, data.len(), true)?;
        self.0.lock().unwrap()[r].copy_from_slice(data);
        Ok(())
    }
}

#[derive(Default)]
pub struct Line {
    raised: Mutex<u64>,
    changed: Condvar,
}

impl InterruptLine for Line {
    fn raise(&self) {
        *self.raised.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

/// A context the rig made.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub lrca: u32,
    pub id: u32,
    pub ring: u32,
    pub ring_size: u32,
    pub tail: u32,
}

impl Context {
    pub fn descriptor(&self) -> Descriptor {
        Descriptor((u64::from(self.id) << 32) | u64::from(self.lrca) | 0x19)
    }
}

pub struct Rig {
    pub gpu: Arc<SoftGpu>,
    pub ram: Arc<Ram>,
    pub line: Arc<Line>,
    pub log: Arc<WriteLog>,
    next_global: u32,
    next_bus: u64,
    pub root: u64,
    read_pointer: [u32; 4],
    hwsp: [u32; 4],
    /// Events read so far, by engine.
    pub events: [Vec<(u32, u32)>; 4],
    next_id: u32,
    seen: u64,
}

pub fn desc(events: &[(u32, u32)]) -> Vec<u32> {
    events.iter().map(|e| e.0).collect()
}

impl Rig {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with_command_cost(command_cost_ns: u32) -> Self {
        Self::with(Config {
            command_cost_ns,
            ..Config::default()
        })
    }

    pub fn with(config: Config) -> Self {
        let ram = Arc::new(Ram(Mutex::new(vec![0; RAM])));
        let line = Arc::new(Line::default());
        let log = Arc::new(WriteLog::new());
        let config = Config {
            write_log: Some(log.clone()),
            ..config
        };
        let gpu = SoftGpu::new(config, ram.clone(), line.clone());
        let mut rig = Self {
            gpu,
            ram,
            line,
            log,
            next_global: 0x1000,
            next_bus: PPGTT_BUS + 0x1000,
            root: PPGTT_BUS,
            read_pointer: [5; 4],
            hwsp: [0; 4],
            events: Default::default(),
            next_id: 1,
            seen: 0,
        };
        for n in 0..4 {
            rig.gpu.write32(irq::GT_IMR0 + n * 0x10, 0);
            rig.gpu.write32(irq::GT_IER0 + n * 0x10, u32::MAX);
        }
        rig.gpu.write32(irq::MASTER, irq::MASTER_ENABLE);
        for e in Engine::ALL {
            rig.hwsp[e.index()] = rig.global(1);
            rig.enable(e);
        }
        rig
    }

    /// Sets an engine up, as after a reset.
    pub fn enable(&mut self, e: Engine) {
        let i = e.index();
        self.put(e, ring::CSB_PTR, 0xffff_0505);
        self.read_pointer[i] = 5;
        let pointer = self.hwsp[i] + csb::HWSP_WRITE_POINTER;
        self.poke(pointer, &[5]);
        self.put(e, ring::IMR, 0);
        self.put(
            e,
            ring::EMR,
            !(ring::ERROR_INSTRUCTION | ring::ERROR_PAGE_TABLE),
        );
        self.put(
            e,
            ring::MODE,
            ring::MODE_RUN_LIST << 16 | ring::MODE_RUN_LIST,
        );
        let page = self.hwsp[i];
        self.put(e, ring::HWS_PGA, page);
    }

    pub fn put(&self, e: Engine, o: u32, v: u32) {
        self.gpu.write32(e.mmio_base() + o, v);
    }

    pub fn get(&self, e: Engine, o: u32) -> u32 {
        self.gpu.read32(e.mmio_base() + o)
    }

    /// Maps fresh pages into the global table.
    pub fn global(&mut self, pages: u32) -> u32 {
        let start = self.next_global;
        for p in 0..pages {
            let a = start + p * 4096;
            let bus = GGTT_BUS + u64::from(a);
            self.gpu
                .write64(GGTT_BASE + (a >> 12) * 8, bus | pte::PRESENT);
        }
        // A hole after each piece catches overruns.
        self.next_global = start + (pages + 1) * 4096;
        start
    }

    /// Gives back a context made last, so that memory lasts.
    pub fn forget_globals(&mut self, c: &Context) {
        self.next_global = c.lrca;
    }

    pub fn poke(&self, global: u32, dwords: &[u32]) {
        let bytes: Vec<u8> = dwords.iter().flat_map(|d| d.to_le_bytes()).collect();
        self.ram
            .write(GGTT_BUS + u64::from(global), &bytes)
            .unwrap();
    }

    pub fn peek(&self, global: u32) -> u32 {
        self.peek_bus(GGTT_BUS + u64::from(global))
    }

    pub fn peek_bus(&self, bus: u64) -> u32 {
        let mut b = [0; 4];
        self.ram.read(bus, &mut b).unwrap();
        u32::from_le_bytes(b)
    }

    pub fn bus_page(&mut self) -> u64 {
        self.next_bus += 0x1000;
        self.next_bus - 0x1000
    }

    /// Maps `address` to the bus page `frame` in the shared tables.
    pub fn map(&mut self, address: u64, frame: u64, writable: bool) {
        let mut table = self.root;
        let mut level = pte::Level::Pml4;
        while let Some(below) = level.below() {
            let at = table + 8 * wide(level.index(address));
            let mut b = [0; 8];
            self.ram.read(at, &mut b).unwrap();
            let mut entry = u64::from_le_bytes(b);
            if entry & pte::PRESENT == 0 {
                entry = self.bus_page() | pte::PRESENT | pte::WRITABLE;
                self.ram.write(at, &entry.to_le_bytes()).unwrap();
            }
            table = entry & pte::ADDRESS;
            level = below;
        }
        let at = table + 8 * wide(level.index(address));
        let rw = if writable { pte::WRITABLE } else { 0 };
        let entry = frame | pte::PRESENT | rw;
        self.ram.write(at, &entry.to_le_bytes()).unwrap();
    }

    /// The bus page behind a per-process address.
    pub fn frame(&self, address: u64) -> u64 {
        let mut table = self.root;
        let mut level = Some(pte::Level::Pml4);
        while let Some(l) = level {
            let mut b = [0; 8];
            let at = table + 8 * wide(l.index(address));
            self.ram.read(at, &mut b).unwrap();
            table = u64::from_le_bytes(b) & pte::ADDRESS;
            level = l.below();
        }
        table
    }

    pub fn poke_bus(&self, bus: u64, v: u32) {
        self.ram.write(bus, &v.to_le_bytes()).unwrap();
    }

    pub fn ram_write(&self, bus: u64, data: &[u8]) {
        self.ram.write(bus, data).unwrap();
    }

    pub fn ram_read(&self, bus: u64, len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        self.ram.read(bus, &mut v).unwrap();
        v
    }

    /// Commands at a bus address.
    pub fn put_batch(&self, bus: u64, dwords: &[u32]) {
        let bytes: Vec<u8> = dwords.iter().flat_map(|d| d.to_le_bytes()).collect();
        self.ram.write(bus, &bytes).unwrap();
    }

    /// Maps fresh pages; returns the bus address of each.
    pub fn map_fresh(&mut self, address: u64, pages: u64) -> Vec<u64> {
        (0..pages)
            .map(|p| {
                let bus = self.bus_page();
                self.map(address + p * 4096, bus, true);
                bus
            })
            .collect()
    }

    /// A context that was never run, with a ring of `pages`.
    pub fn context(&mut self, e: Engine, pages: u32) -> Context {
        let lrca = self.global(gen8::platform::BDW.image(e).pages);
        let ring = self.global(pages);
        let id = self.next_id << 5;
        self.next_id += 1;
        let regs = lrca + 4096;
        let set = |i: usize, v: u32| self.poke(regs + low(wide(i)) * 4, &[v]);
        set(lrc::CONTEXT_CONTROL, 0x0009_0008 | lrc::RESTORE_INHIBIT);
        set(lrc::RING_START, ring);
        set(lrc::RING_CTL, ((pages - 1) << 12) | 1);
        set(lrc::PDP0_LDW, low(self.root));
        set(lrc::PDP0_UDW, low(self.root >> 32));
        Context {
            lrca,
            id,
            ring,
            ring_size: pages * 4096,
            tail: 0,
        }
    }

    pub fn image(&self, c: &Context, dword: usize) -> u32 {
        self.peek(c.lrca + 4096 + low(wide(dword)) * 4)
    }

    pub fn set_image(&self, c: &Context, dword: usize, v: u32) {
        self.poke(c.lrca + 4096 + low(wide(dword)) * 4, &[v]);
    }

    /// Appends commands to the ring, without telling the GPU.
    pub fn emit(&self, c: &mut Context, dwords: &[u32]) {
        let mut padded = dwords.to_vec();
        if !padded.len().is_multiple_of(2) {
            padded.push(0);
        }
        for d in padded {
            self.poke(c.ring + c.tail, &[d]);
            c.tail = (c.tail + 4) % c.ring_size;
        }
        self.set_image(c, lrc::RING_TAIL, c.tail);
    }

    pub fn elsp(&self, e: Engine, first: Descriptor, second: Descriptor) {
        for d in [second, first] {
            self.put(e, ring::ELSP, low(d.0 >> 32));
            self.put(e, ring::ELSP, low(d.0));
        }
    }

    pub fn submit(&self, e: Engine, c: &Context) {
        self.elsp(e, c.descriptor(), Descriptor(0));
    }

    /// Commands in the ring, run to the end.
    pub fn run(&mut self, e: Engine, c: &mut Context, dwords: &[u32]) {
        self.emit(c, dwords);
        self.submit(e, c);
        self.wait_idle(e);
    }

    /// Reads new events, as an interrupt handler does.
    pub fn collect(&mut self) {
        self.gpu.write32(irq::MASTER, 0);
        for n in [0, 1, 3] {
            let iir = irq::GT_IIR0 + n * 0x10;
            let v = self.gpu.read32(iir);
            self.gpu.write32(iir, v);
        }
        self.gpu.write32(irq::MASTER, irq::MASTER_ENABLE);
        for e in Engine::ALL {
            let i = e.index();
            let page = self.hwsp[i];
            let write = self.peek(page + csb::HWSP_WRITE_POINTER);
            while self.read_pointer[i] != write {
                let next = (self.read_pointer[i] + 1) % csb::ENTRIES;
                self.read_pointer[i] = next;
                let at = page + csb::HWSP_BUFFER + next * 8;
                let event = (self.peek(at), self.peek(at + 4));
                assert_ne!(event.0, u32::MAX, "an event read twice");
                self.poke(at, &[u32::MAX, u32::MAX]);
                self.events[i].push(event);
            }
        }
    }

    /// Handles interrupts until `done` holds.
    pub fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        loop {
            self.collect();
            if done(self) {
                return;
            }
            let line = self.line.clone();
            let guard = line.raised.lock().unwrap();
            let seen = self.seen;
            // Memory changes without an interrupt too: look again soon.
            let (guard, _) = line
                .changed
                .wait_timeout_while(guard, Duration::from_millis(1), |n| *n == seen)
                .unwrap();
            self.seen = *guard;
            drop(guard);
            self.patience(what);
        }
    }

    /// Like [`Rig::wait`], but looks only when an interrupt came.
    pub fn wait_message(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        while !done(self) {
            let line = self.line.clone();
            let seen = self.seen;
            let (guard, late) = line
                .changed
                .wait_timeout_while(line.raised.lock().unwrap(), PATIENCE, |n| *n == seen)
                .unwrap();
            assert!(!late.timed_out(), "no message: {what}; {:?}", self.gpu);
            self.seen = *guard;
            drop(guard);
            self.collect();
        }
    }

    fn patience(&self, what: &str) {
        thread_local!(static START: std::time::Instant = std::time::Instant::now());
        assert!(
            START.with(std::time::Instant::elapsed) < PATIENCE,
            "never happened: {what}; {:?}",
            self.gpu
        );
    }

    /// Until the last event says the engine is idle.
    pub fn wait_idle(&mut self, e: Engine) {
        self.wait("idle", |r| {
            r.events[e.index()]
                .last()
                .is_some_and(|(s, _)| s & csb::ACTIVE_TO_IDLE != 0)
                && r.get(e, ring::EXECLIST_STATUS_LO) & 4 == 0
                && r.get(e, ring::EXECLIST_STATUS_HI) == 0
        });
        self.collect();
    }

    /// Status words of an engine's events so far; forgets them.
    pub fn take_events(&mut self, e: Engine) -> Vec<(u32, u32)> {
        self.collect();
        std::mem::take(&mut self.events[e.index()])
    }

    /// Until the engine reports an error.
    pub fn wait_error(&mut self, e: Engine) -> u32 {
        self.wait("error", |r| r.get(e, ring::EIR) != 0);
        self.get(e, ring::EIR)
    }
}

/// Opcode and flags of an MI command.
pub const fn mi(opcode: u32, flags: u32) -> u32 {
    (opcode << 23) | flags
}

/// The low half.
pub const fn low(v: u64) -> u32 {
    let b = v.to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

pub fn wide(v: usize) -> u64 {
    u64::try_from(v).unwrap()
}

/// The engine's index.
pub fn number(e: Engine) -> u64 {
    wide(e.index())
}

/// Both halves of an address.
pub const fn halves(a: u64) -> [u32; 2] {
    [low(a), low(a >> 32)]
}

/// MI_STORE_DATA_IMM of a dword; `global` selects the table.
pub fn store(global: bool, address: u64, v: u32) -> [u32; 4] {
    let [lo, hi] = halves(address);
    [mi(0x20, 2 | u32::from(global) << 22), lo, hi, v]
}

/// MI_BATCH_BUFFER_START into the context's own tables.
pub fn batch(address: u64) -> [u32; 3] {
    let [lo, hi] = halves(address);
    [mi(0x31, 1 | 1 << 8), lo, hi]
}

pub const END: u32 = mi(0x0a, 0);
