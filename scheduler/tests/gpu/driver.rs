//! A tiny guest driver over the scheduler and the software GPU.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gen8::pte::{ENTRIES, Level, PRESENT, WRITABLE};
use gen8::{Engine, lrc};
use guest_memory::{GuestMemory, VecMemory};
use softgpu::{SoftGpu, WriteLog};
use vgpu_ring::{Event, FaultReason, Request};
use vgpu_sched::clock::Clock;
use vgpu_sched::dma::DmaSpace;
use vgpu_sched::events::{EventSink, Full};
use vgpu_sched::ggtt::GuestGgtt;
use vgpu_sched::interrupt::Line;
use vgpu_sched::scheduler::{Config, Handle, Scheduler};
use vgpu_sched::switch::SwitchMode;
use vgpu_sched::vgpu::{SchedulerV1, VgpuConfig};

use crate::stuck::Deaf;

/// Longest wait for an event that must come: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Windows of the scheduler's own: each engine's status page, and its idle
/// context's image and ring.
pub const OWN_WINDOWS: usize = 3 * Engine::COUNT;

/// Pages of the guest's global table that tests use.
const TABLE: usize = 4096;

pub struct Host {
    pub scheduler: Scheduler,
    pub log: Arc<WriteLog>,
    pub clock: Arc<ManualClock>,
    pub gpu: Arc<SoftGpu>,
    pub deaf: Arc<Deaf>,
}

impl Host {
    pub fn new() -> Self {
        Self::with(SwitchMode::default())
    }

    /// One that switches in this mode.
    pub fn with(switch_mode: SwitchMode) -> Self {
        let dma = Arc::new(DmaSpace::new());
        let line = Arc::new(Line::default());
        let log = Arc::new(WriteLog::new());
        let gpu = SoftGpu::new(
            softgpu::Config {
                write_log: Some(Arc::clone(&log)),
                ..softgpu::Config::default()
            },
            Arc::clone(&dma) as _,
            Arc::clone(&line) as _,
        );
        let clock = Arc::new(ManualClock::default());
        let config = Config {
            clock: Arc::clone(&clock) as _,
            switch_mode,
            ..Config::default()
        };
        let deaf = Arc::new(Deaf {
            gpu: Arc::clone(&gpu) as _,
            deaf: AtomicBool::new(false),
        });
        let scheduler = Scheduler::start(&config, Arc::clone(&deaf) as _, dma, line).unwrap();
        Self {
            scheduler,
            log,
            clock,
            gpu,
            deaf,
        }
    }

    pub fn guest(&self, id: u64, pages: usize) -> Guest {
        Guest::on(&self.scheduler, id, pages)
    }
}

/// Time that passes when a test says so.
#[derive(Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn pass(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap();
        self.0.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

pub struct Table(Vec<AtomicU64>);

impl Table {
    pub fn new() -> Self {
        Self((0..TABLE).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn store(&self, page: u32, entry: u64) {
        self.0[usize::try_from(page).unwrap()].store(entry, Ordering::Release);
    }
}

impl GuestGgtt for Table {
    fn load(&self, index: u32) -> u64 {
        let entry = usize::try_from(index).ok().and_then(|i| self.0.get(i));
        entry.map_or(0, |e| e.load(Ordering::Acquire))
    }
}

struct Sink {
    sender: Sender<Event>,
    open: Arc<Mutex<bool>>,
}

impl EventSink for Sink {
    fn push(&mut self, event: Event) -> Result<(), Full> {
        if !*self.open.lock().unwrap() {
            return Err(Full);
        }
        let _ = self.sender.send(event);
        Ok(())
    }
}

pub struct Guest {
    pub memory: Arc<VecMemory>,
    pub table: Arc<Table>,
    pub handle: Handle,
    events: Receiver<Event>,
    /// Whether events are taken.
    pub gate: Arc<Mutex<bool>>,
    next_gfn: u64,
    next_ggtt: u32,
    seq: u64,
}

#[derive(Clone)]
pub struct Context {
    pub engine: Engine,
    pub descriptor: u64,
    /// Guest-physical address of the register page.
    pub registers: u64,
    /// Guest-physical address of the ring.
    pub ring: u64,
    pub ring_size: u32,
    pub tail: u32,
    pub root: u64,
}

/// What is submitted is prepared when the call returns, however slow the host.
const BY_THE_CALLER: Option<Duration> = Some(Duration::MAX);

impl Guest {
    /// A guest with `pages` pages of memory.
    pub fn on(scheduler: &Scheduler, id: u64, pages: usize) -> Self {
        let config = VgpuConfig {
            id,
            worker_above: BY_THE_CALLER,
            ..VgpuConfig::default()
        };
        Self::with(scheduler, config, pages)
    }

    /// The same with a vGPU of one's choice.
    pub fn with(scheduler: &Scheduler, config: VgpuConfig, pages: usize) -> Self {
        let memory = Arc::new(VecMemory::new(pages));
        Self::seen_as(scheduler, config, Arc::clone(&memory), memory)
    }

    /// The same whose memory vgpud sees as `seen`.
    pub fn seen_as(
        scheduler: &Scheduler,
        config: VgpuConfig,
        memory: Arc<VecMemory>,
        seen: Arc<dyn GuestMemory>,
    ) -> Self {
        Self::of(scheduler, config, memory, seen, Arc::new(Table::new()))
    }

    /// The same guest elsewhere, as it was saved. It knows its contexts and
    /// not what was submitted.
    pub fn restored(&self, scheduler: &Scheduler, id: u64, saved: &SchedulerV1) -> Self {
        let pages = self.memory.pages();
        let memory = Arc::new(VecMemory::new(pages));
        let mut page = [0; 4096];
        for gpa in (0..pages).map(|p| u64::try_from(p * 4096).unwrap()) {
            self.memory.read(gpa, &mut page).unwrap();
            memory.write(gpa, &page).unwrap();
        }
        let table = Table::new();
        for page in 0..u32::try_from(TABLE).unwrap() {
            table.store(page, self.table.load(page));
        }
        let config = VgpuConfig {
            id,
            restored: Some(saved.clone()),
            worker_above: BY_THE_CALLER,
            ..VgpuConfig::default()
        };
        Self {
            next_gfn: self.next_gfn,
            next_ggtt: self.next_ggtt,
            ..Self::of(
                scheduler,
                config,
                Arc::clone(&memory),
                memory,
                Arc::new(table),
            )
        }
    }

    fn of(
        scheduler: &Scheduler,
        config: VgpuConfig,
        memory: Arc<VecMemory>,
        seen: Arc<dyn GuestMemory>,
        table: Arc<Table>,
    ) -> Self {
        let (sender, events) = channel();
        let gate = Arc::new(Mutex::new(true));
        let sink = Sink {
            sender,
            open: Arc::clone(&gate),
        };
        let handle = scheduler
            .add_vgpu(config, seen, Arc::clone(&table) as _, Box::new(sink))
            .unwrap();
        Self {
            memory,
            table,
            handle,
            events,
            gate,
            // Page 0 stays free, so that a stray 0 shows.
            next_gfn: 1,
            next_ggtt: 16,
            seq: 0,
        }
    }

    /// Fresh guest-physical pages; the address of the first.
    pub fn pages(&mut self, count: u64) -> u64 {
        let gpa = self.next_gfn << 12;
        self.next_gfn += count;
        gpa
    }

    /// Binds pages in the global table; the graphics address of the first.
    pub fn bind(&mut self, gpa: u64, count: u32) -> u32 {
        let page = self.next_ggtt;
        self.next_ggtt += count;
        for i in 0..count {
            let frame = gpa + u64::from(i) * 4096;
            self.table.store(page + i, frame | PRESENT);
        }
        page << 12
    }

    /// A page and its global address.
    pub fn global_page(&mut self) -> (u64, u32) {
        let gpa = self.pages(1);
        (gpa, self.bind(gpa, 1))
    }

    pub fn read(&self, gpa: u64) -> u32 {
        self.memory.read_u32(gpa).unwrap()
    }

    pub fn write_words(&self, gpa: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.memory.write(gpa, &bytes).unwrap();
    }

    fn image_word(index: usize) -> u64 {
        u64::try_from(index * 4).unwrap()
    }

    /// A context with a ring of `ring_pages` and an empty address space.
    pub fn context(&mut self, engine: Engine, ring_pages: u32) -> Context {
        let pages = gen8::platform::BDW.image(engine).pages;
        let image = self.pages(pages.into());
        let lrca = self.bind(image, pages);
        let ring = self.pages(ring_pages.into());
        let start = self.bind(ring, ring_pages);
        let root = self.pages(1);
        let registers = image + 4096;
        let [low, high] = [root & 0xffff_ffff, root >> 32].map(|v| u32::try_from(v).unwrap());
        let set = |index: usize, value: u32| {
            self.memory
                .write_u32(registers + Self::image_word(index), value)
                .unwrap();
        };
        set(
            lrc::CONTEXT_CONTROL,
            (9 << 16) | lrc::INHIBIT_SYNC_SWITCH | lrc::RESTORE_INHIBIT,
        );
        set(lrc::RING_START, start);
        set(lrc::RING_CTL, (ring_pages - 1) << 12 | 1);
        set(lrc::PDP0_LDW, low);
        set(lrc::PDP0_UDW, high);
        Context {
            engine,
            descriptor: u64::from(lrca) | 1 | 3 << 3 | 1 << 5 | 1 << 8 | 0x60 << 32,
            registers,
            ring,
            ring_size: ring_pages * 4096,
            tail: 0,
            root,
        }
    }

    pub fn image(&self, context: &Context, index: usize) -> u32 {
        self.read(context.registers + Self::image_word(index))
    }

    pub fn set_image(&self, context: &Context, index: usize, value: u32) {
        let at = context.registers + Self::image_word(index);
        self.memory.write_u32(at, value).unwrap();
    }

    /// Maps a 4 KiB page in a context's address space.
    pub fn map(&mut self, context: &Context, address: u64, gpa: u64) {
        self.map_as(context, address, gpa | PRESENT | WRITABLE);
    }

    /// The same for reading only.
    pub fn map_read_only(&mut self, context: &Context, address: u64, gpa: u64) {
        self.map_as(context, address, gpa | PRESENT);
    }

    fn map_as(&mut self, context: &Context, address: u64, entry: u64) {
        let mut table = context.root;
        for level in [Level::Pml4, Level::Pdp, Level::Pd] {
            let at = table + Self::entry(level.index(address));
            let entry = self.memory.read_u64(at).unwrap();
            table = if entry & PRESENT == 0 {
                let new = self.pages(1);
                let flags = PRESENT | WRITABLE;
                self.memory.write_u64(at, new | flags).unwrap();
                new
            } else {
                entry & !0xfff
            };
        }
        self.set_pte(table, Level::Pt.index(address), entry);
    }

    fn entry(index: usize) -> u64 {
        assert!(index < ENTRIES);
        u64::try_from(index * 8).unwrap()
    }

    pub fn set_pte(&self, table: u64, index: usize, entry: u64) {
        let at = table + Self::entry(index);
        self.memory.write_u64(at, entry).unwrap();
    }

    /// Puts commands behind the ring's tail, which is padded to a qword.
    pub fn emit(&self, context: &mut Context, words: &[u32]) {
        let mut words = words.to_vec();
        if words.len() % 2 == 1 {
            words.push(0);
        }
        for w in words {
            let at = context.ring + u64::from(context.tail);
            self.memory.write_u32(at, w).unwrap();
            context.tail = (context.tail + 4) % context.ring_size;
        }
        self.set_image(context, lrc::RING_TAIL, context.tail);
    }

    /// After a reset: an empty ring again.
    pub fn rewind(&self, context: &mut Context) {
        context.tail = 0;
        self.set_image(context, lrc::RING_HEAD, 0);
        self.set_image(context, lrc::RING_TAIL, 0);
    }

    pub fn submit(&mut self, first: &Context, second: Option<&Context>) -> u64 {
        self.seq += 1;
        self.handle
            .handle(Request::Submit {
                engine: first.engine.index().try_into().unwrap(),
                seq: self.seq,
                desc: [first.descriptor, second.map_or(0, |c| c.descriptor)],
            })
            .unwrap();
        self.seq
    }

    /// The next event.
    pub fn event(&mut self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// Waits until load `seq` is through: the events up to its last element,
    /// that one included.
    pub fn wait(&mut self, seq: u64, element: u8) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.event();
            events.push(event);
            match event {
                Event::ContextDone {
                    seq: s, element: e, ..
                } if s == seq && e == element => return events,
                Event::Fault { .. } => panic!("{event:?}, {:?}", self.handle.inspect().refusals),
                _ => {}
            }
        }
    }

    /// Takes what events there are: the loads of one element that are
    /// through.
    pub fn done(&mut self) -> Vec<u64> {
        let mut done = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::ContextDone { seq, .. } => done.push(seq),
                Event::Interrupt { .. } => {}
                other => panic!("{other:?}, {:?}", self.handle.inspect().refusals),
            }
        }
        done
    }

    /// Waits until single-element loads are through, in any order.
    pub fn wait_all(&mut self, seqs: &[u64]) {
        let mut left = seqs.to_vec();
        while !left.is_empty() {
            match self.event() {
                Event::ContextDone { seq, .. } => left.retain(|s| *s != seq),
                Event::Interrupt { .. } => {}
                other => panic!("{other:?}, {:?}", self.handle.inspect().refusals),
            }
        }
    }

    /// Runs a context to its tail.
    pub fn run(&mut self, context: &Context) -> Vec<Event> {
        let seq = self.submit(context, None);
        self.wait(seq, 0)
    }

    /// Submits a context that must fail.
    pub fn fails(&mut self, context: &Context) -> (FaultReason, u32) {
        let seq = self.submit(context, None);
        loop {
            match self.event() {
                Event::Fault {
                    reason,
                    ipehr,
                    seq: s,
                    ..
                } => {
                    assert_eq!(s, seq);
                    return (reason, ipehr);
                }
                Event::ContextDone { .. } => panic!("it ran"),
                _ => {}
            }
        }
    }

    /// Resets engines as a guest does and waits for the answer.
    pub fn reset(&mut self, engines: u8) {
        self.handle
            .handle(Request::Reset { engines, epoch: 7 })
            .unwrap();
        loop {
            if let Event::ResetDone { engines: e, epoch } = self.event() {
                assert_eq!((e, epoch), (engines, 7));
                return;
            }
        }
    }
}

/// Commands.
pub mod cmd {
    pub const BATCH_END: u32 = 0x0a << 23;
    pub const USER_INTERRUPT: u32 = 0x02 << 23;
    const GLOBAL: u32 = 1 << 22;

    pub fn store_global(address: u32, value: u32) -> [u32; 4] {
        [0x20 << 23 | GLOBAL | 2, address, 0, value]
    }

    /// Polls memory until it equals `value`.
    pub fn wait_global(address: u32, value: u32) -> [u32; 4] {
        const POLL: u32 = 1 << 15;
        const EQUAL: u32 = 4 << 12;
        [0x1c << 23 | GLOBAL | POLL | EQUAL | 2, value, address, 0]
    }

    /// The same in the context's own space.
    pub fn wait(address: u64, value: u32) -> [u32; 4] {
        let [header, value, _, _] = wait_global(0, value);
        let [low, high] = halves(address);
        [header & !GLOBAL, value, low, high]
    }

    /// Lets nothing take the context off, or something again.
    pub const fn arbitrate(on: bool) -> u32 {
        0x08 << 23 | on as u32
    }

    pub fn store(address: u64, value: u32) -> [u32; 4] {
        let [low, high] = halves(address);
        [0x20 << 23 | 2, low, high, value]
    }

    pub fn batch(address: u64) -> [u32; 3] {
        let [low, high] = halves(address);
        [0x31 << 23 | 1 << 8 | 1, low, high]
    }

    pub fn global_batch(address: u32) -> [u32; 3] {
        [0x31 << 23 | 1, address, 0]
    }

    pub fn load_register(offset: u32, value: u32) -> [u32; 3] {
        [0x22 << 23 | 1, offset, value]
    }

    pub fn store_register_global(offset: u32, address: u32) -> [u32; 4] {
        [0x24 << 23 | GLOBAL | 2, offset, address, 0]
    }

    /// Fills a rectangle of 32-bit pixels.
    pub fn color_blt(address: u64, pitch: u32, width: u32, height: u32, color: u32) -> [u32; 7] {
        let [low, high] = halves(address);
        let header = 2 << 29 | 0x50 << 22 | 3 << 20 | 5;
        let br13 = 3 << 24 | 0xf0 << 16 | pitch;
        [header, br13, 0, height << 16 | width, low, high, color]
    }

    /// Copies a rectangle of 32-bit pixels.
    pub fn copy_blt(to: u64, from: u64, pitch: u32, width: u32, height: u32) -> [u32; 10] {
        let [to_low, to_high] = halves(to);
        let [from_low, from_high] = halves(from);
        let header = 2 << 29 | 0x53 << 22 | 3 << 20 | 8;
        let br13 = 3 << 24 | 0xcc << 16 | pitch;
        let size = height << 16 | width;
        [
            header, br13, 0, size, to_low, to_high, 0, pitch, from_low, from_high,
        ]
    }

    pub fn halves(address: u64) -> [u32; 2] {
        [address & 0xffff_ffff, address >> 32].map(|v| u32::try_from(v).unwrap())
    }
}
