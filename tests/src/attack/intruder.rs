//! The hostile guest, its device model included.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use gen8::{Engine, Platform, lrc, pte};
use guest_memory::GuestMemory;
use vgpu_ring::{Event, Message, Request};
use vgpu_sched::dma::MapLimits;
use vgpu_sched::ppgtt::TableLimits;
use vgpu_sched::scheduler::Scheduler;
use vgpu_sched::vgpu::{VgpuConfig, VgpuError};
use vgpu_sched::windows::WindowLimits;

use super::memory::{Memory, Trap};
use super::program::{Author, evil, foreign};
use super::put;
use super::seat::Seat;
use crate::Bytes;
use crate::bytes::low;
use crate::layout::{CONTEXTS, Place, WINDOW_PAGES, set_register, write_context};

/// Its memory: two chunks of the bus and a page.
pub(crate) const PAGES: usize = 1025;
/// Elements of an engine that may be on their way.
const PENDING: u32 = 3;
/// How long it waits for one before it resets the engine.
const PATIENCE: Duration = Duration::from_millis(2);
/// Bytes of a context's ring.
const RING_BYTES: u32 = 4 * 4096;

#[derive(Clone, Copy, Default)]
struct Context {
    tail: u32,
    live: bool,
}

/// What the guest did so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deeds {
    /// Loads.
    pub loads: u64,
    /// Commands it wrote.
    pub written: u64,
    /// Elements that ran to their tail.
    pub done: u64,
    /// Elements that vgpud refused or that failed on the engine.
    pub failed: u64,
    /// Resets it asked for.
    pub resets: u64,
}

/// A burst of writes while others read.
struct Burst {
    memory: Arc<Memory>,
    at: u64,
    words: Vec<u32>,
    count: u32,
}

/// A processor of the guest that does nothing but write.
pub(crate) struct Racer {
    bursts: Option<SyncSender<Burst>>,
    thread: Option<JoinHandle<()>>,
}

impl Racer {
    /// # Panics
    /// When there is no thread for it.
    pub fn new() -> Self {
        let (bursts, work) = sync_channel::<Burst>(1);
        let thread = std::thread::Builder::new()
            .name("racer".into())
            .spawn(move || {
                for burst in work {
                    for n in 0..burst.count {
                        let at = burst.at.wrapping_add(u64::from(n % 16) * 64);
                        // It may be a hole by now.
                        let _ = put(burst.memory.guest(), at, &burst.words);
                    }
                }
            })
            .unwrap();
        Self {
            bursts: Some(bursts),
            thread: Some(thread),
        }
    }

    fn send(&self, burst: Burst) {
        if let Some(bursts) = &self.bursts {
            // When it is busy it goes on with what it has.
            let _ = bursts.try_send(burst);
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        self.bursts = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it is counted.
            let _ = thread.join();
        }
    }
}

/// A vGPU that means no good.
pub(crate) struct Intruder {
    pub seat: Seat,
    gpu: &'static Platform,
    contexts: [Context; CONTEXTS],
    pending: [u32; Engine::COUNT],
    pub deeds: Deeds,
}

impl Intruder {
    /// One with limits that it meets, or with the usual ones.
    pub fn new(scheduler: &Scheduler, gpu: &'static Platform, id: u64, narrow: bool) -> Self {
        let mut config = VgpuConfig {
            id,
            ..VgpuConfig::default()
        };
        if narrow {
            config.map = MapLimits { chunks: 2 };
            config.tables = TableLimits { keep: 12, max: 24 };
            config.windows = WindowLimits {
                windows: 64,
                pages: 512,
                pinned: 160,
            };
        }
        Self {
            seat: Seat::new(scheduler, config, PAGES),
            gpu,
            contexts: [Context::default(); CONTEXTS],
            pending: [0; Engine::COUNT],
            deeds: Deeds::default(),
        }
    }

    /// Does one thing.
    ///
    /// # Errors
    /// When vgpud is to drop the vGPU.
    pub fn act(&mut self, b: &mut Bytes<'_>, racer: &Racer) -> Result<(), VgpuError> {
        match b.u8() % 40 {
            0..=27 => self.run(b)?,
            28 => self.tables(b),
            29 => self.global_table(b),
            30 => self.image(b),
            31 | 32 => self.trap(b),
            33 => {
                if b.flag() {
                    self.seat.memory.mend();
                    self.seat.handle.handle(Request::InvalidateMemory)?;
                } else {
                    let gfn = self.frame(b);
                    self.seat.memory.punch(gfn);
                }
            }
            34 => self.message(b)?,
            35 => {
                let engines = b.u8() % 16;
                self.reset(engines)?;
            }
            36 => {
                let at = (self.frame(b) << 12) + u64::from(b.u16() & 0xffc);
                let words: Vec<u32> = (0..=b.u8() % 16).map(|_| b.u32()).collect();
                // It may not be there.
                let _ = put(self.seat.memory.guest(), at, &words);
            }
            37 => self.seat.close(b.u8().is_multiple_of(4)),
            38 => {
                let at = (self.frame(b) << 12) + u64::from(b.u16() & 0xffc);
                let words = evil(b, Engine::Rcs);
                racer.send(Burst {
                    memory: Arc::clone(&self.seat.memory),
                    at,
                    words,
                    count: u32::from(b.u8()) * 16,
                });
            }
            _ => self.load(b)?,
        }
        self.listen()
    }

    /// A frame: one of a context's, most of the time.
    fn frame(&self, b: &mut Bytes<'_>) -> u64 {
        let place = Place::of(b.u8().into());
        match b.u8() % 8 {
            0 => b.pick(&place.tables()) >> 12,
            1 => place.registers() >> 12,
            2 | 3 => (place.ring() >> 12) + u64::from(b.u8() % 4),
            4 => place.batch() >> 12,
            5 => (place.image() >> 12) + u64::from(b.u8() % 32),
            6 => u64::from(b.u16()) % 1025,
            _ => foreign(b) >> 12,
        }
    }

    /// Writes commands for a context and loads it.
    fn run(&mut self, b: &mut Bytes<'_>) -> Result<(), VgpuError> {
        let n = usize::from(b.u8()) % CONTEXTS;
        let engine = Engine::ALL[n % Engine::COUNT];
        self.settle(engine)?;
        let memory = self.seat.memory.guest();
        let context = &mut self.contexts[n];
        if !context.live || b.rarely(16) {
            *context = Context {
                tail: 0,
                live: write_context(memory, n, engine).is_ok(),
            };
        }
        let place = Place::of(n);
        let mut author = Author::new(b, memory, (self.gpu, engine), n);
        let words = author.ring();
        let room = (RING_BYTES - context.tail) / 4;
        let len = u32::try_from(words.len()).unwrap_or(0);
        if len >= room {
            // No command may cross the end.
            let rest = vec![0; usize::try_from(room).unwrap_or(0)];
            let _ = put(memory, place.ring() + u64::from(context.tail), &rest);
            context.tail = 0;
        }
        let _ = put(memory, place.ring() + u64::from(context.tail), &words);
        context.tail = (context.tail + len * 4) % RING_BYTES;
        self.deeds.written += author.commands;
        let _ = set_register(memory, place, lrc::RING_TAIL, context.tail);
        if engine == Engine::Rcs && b.rarely(8) {
            let mut author = Author::new(b, memory, (self.gpu, engine), n);
            let lines = author.at_restore(2, false);
            let indirect = author.piece(2) | lines & 0x3f;
            author.at_restore(0, true);
            let per_context = low(place.batch()) | 1;
            self.deeds.written += author.commands;
            let chosen = b.pick(&[
                (0, 0),
                (indirect, 0),
                (0, per_context),
                (indirect, per_context),
            ]);
            let _ = set_register(memory, place, lrc::INDIRECT_CTX, chosen.0);
            let _ = set_register(memory, place, lrc::PER_CTX_BB, chosen.1);
        }
        let id = |n: usize| u32::try_from(n).unwrap_or(0) + 1;
        let other = (n + Engine::COUNT) % CONTEXTS;
        let second = if b.rarely(4) && self.contexts[other].live {
            Place::of(other).descriptor(id(other))
        } else {
            0
        };
        self.submit(engine, [place.descriptor(id(n)), second])
    }

    fn submit(&mut self, engine: Engine, desc: [u64; 2]) -> Result<(), VgpuError> {
        self.deeds.loads += 1;
        self.pending[engine.index()] += 1 + u32::from(desc[1] & 1 != 0);
        self.seat.submit(engine, desc)
    }

    /// A load of any descriptors.
    fn load(&mut self, b: &mut Bytes<'_>) -> Result<(), VgpuError> {
        let engine = b.pick(&Engine::ALL);
        let mut descriptor = || {
            let place = Place::of(b.u8().into());
            let good = place.descriptor(u32::from(b.u8()) + 1);
            match b.u8() % 4 {
                0 => good,
                1 => good ^ 1 << (b.u8() % 64),
                2 => good & !0xffff_f000 | foreign(b) & 0xffff_f000,
                _ => b.value(),
            }
        };
        let desc = [descriptor(), descriptor()];
        self.submit(engine, desc)
    }

    /// An entry of a page table, or all of them.
    fn tables(&mut self, b: &mut Bytes<'_>) {
        let tables = Place::of(b.u8().into()).tables();
        let table = b.pick(&tables);
        let flags = b.pick(&[3, 3, 1, 0, 3 | 1 << 7, 3 | 1 << 11, 0xfff]);
        let entry = self.frame(b) << 12 | flags;
        let index = u64::from(b.u16()) % if b.flag() { 4 } else { 512 };
        let memory = self.seat.memory.guest();
        let _ = memory.write_u64(table + index * 8, entry);
        if b.rarely(16) {
            let all: Vec<u8> = (0..512).flat_map(|_| entry.to_le_bytes()).collect();
            let _ = memory.write(table, &all);
        }
    }

    fn global_table(&mut self, b: &mut Bytes<'_>) {
        let table = Arc::clone(&self.seat.table);
        match b.u8() % 8 {
            0 => table.fill_above(b.u64()),
            1 => table.fill_above(0),
            2 => table.set_fickle(b.pick(&[0, 1, 7, 63])),
            3 => {
                // As it was.
                for page in 0..WINDOW_PAGES {
                    let entry = u64::from(page) << 12 | pte::PRESENT;
                    table.store(usize::try_from(page).unwrap_or(0), entry);
                }
                table.set_fickle(0);
            }
            _ => {
                let page = usize::try_from(foreign(b) >> 12).unwrap_or(usize::MAX);
                let entry = self.frame(b) << 12 | u64::from(b.u8() & 1);
                table.store(page, entry);
            }
        }
    }

    fn image(&mut self, b: &mut Bytes<'_>) {
        let n = usize::from(b.u8()) % CONTEXTS;
        let field = match b.u8() % 4 {
            0 => usize::from(b.u16()) % lrc::PAGE_DWORDS,
            _ => b.pick(&[
                lrc::RING_START,
                lrc::RING_CTL,
                lrc::RING_HEAD,
                lrc::RING_TAIL,
                lrc::CONTEXT_CONTROL,
                lrc::BB_HEAD,
                lrc::BB_STATE,
                lrc::INDIRECT_CTX,
                lrc::PER_CTX_BB,
                lrc::PDP0_LDW,
                lrc::PDP0_UDW,
                lrc::PDP3_UDW,
            ]),
        };
        let value = match b.u8() % 3 {
            0 => low(self.frame(b) << 12) | u32::from(b.u8()),
            1 => u32::from(b.u16() & 0x3ffc),
            _ => b.value_u32(),
        };
        let _ = set_register(self.seat.memory.guest(), Place::of(n), field, value);
        self.contexts[n].live = b.flag();
    }

    /// Something else stands there as soon as somebody has looked.
    fn trap(&mut self, b: &mut Bytes<'_>) {
        let gfn = self.frame(b);
        let elsewhere = b.rarely(4);
        let to = if elsewhere { self.frame(b) } else { gfn };
        let at = (to << 12).wrapping_add(u64::from(b.u16() & 0xffc));
        let engine = b.pick(&Engine::ALL);
        let mut words = evil(b, engine);
        while words.len() < 16 && b.flag() {
            words.extend(evil(b, engine));
        }
        self.seat.memory.set(Trap {
            gfn,
            after: b.u8() % 4,
            at,
            words,
        });
    }

    /// Any message that decodes.
    fn message(&mut self, b: &mut Bytes<'_>) -> Result<(), VgpuError> {
        let kind = u64::from(b.u8() % 8);
        let slot = match b.u8() % 4 {
            0 => [b.u64(), b.u64(), b.u64(), b.u64()],
            1 => [
                kind | u64::from(b.u32()) << 8,
                b.value(),
                b.value(),
                b.value(),
            ],
            2 => {
                let tables = Place::of(b.u8().into()).tables();
                let root = b.pick(&tables);
                Request::DestroyPageTable { root }.encode()
            }
            _ => Request::WriteRegister {
                offset: 0x2000 + u32::from(b.u16() & 0x3ffc),
                value: b.value_u32(),
            }
            .encode(),
        };
        let Ok(request) = Request::decode(slot) else {
            return Ok(());
        };
        if let Request::Reset { engines, .. } = request {
            return self.reset(engines);
        }
        self.seat.handle.handle(request)
    }

    fn reset(&mut self, engines: u8) -> Result<(), VgpuError> {
        self.deeds.resets += 1;
        for engine in Engine::ALL {
            if engines >> engine.index() & 1 != 0 {
                self.pending[engine.index()] = 0;
                self.forget(engine);
            }
        }
        self.seat
            .handle
            .handle(Request::Reset { engines, epoch: 1 })
    }

    /// Contexts of an engine are made anew.
    fn forget(&mut self, engine: Engine) {
        for n in (engine.index()..CONTEXTS).step_by(Engine::COUNT) {
            self.contexts[n].live = false;
        }
    }

    /// Waits until there is not too much on its way, or for too long.
    fn settle(&mut self, engine: Engine) -> Result<(), VgpuError> {
        while self.pending[engine.index()] >= PENDING {
            match self.seat.wait(PATIENCE) {
                Some(event) => self.hear(event)?,
                None => {
                    self.seat.close(false);
                    self.reset(1 << engine.index())?;
                }
            }
        }
        Ok(())
    }

    /// Takes what came back.
    pub fn listen(&mut self) -> Result<(), VgpuError> {
        while let Some(event) = self.seat.event() {
            self.hear(event)?;
        }
        self.seat.handle.usable()
    }

    fn hear(&mut self, event: Event) -> Result<(), VgpuError> {
        match event {
            Event::ContextDone { engine, .. } => {
                self.deeds.done += 1;
                if let Some(pending) = self.pending.get_mut(usize::from(engine)) {
                    *pending = pending.saturating_sub(1);
                }
            }
            Event::Fault { engine, .. } => {
                self.deeds.failed += 1;
                self.reset(1 << engine)?;
            }
            Event::Interrupt { .. }
            | Event::ResetDone { .. }
            | Event::Pong { .. }
            | Event::Protect { .. }
            | Event::Unprotect { .. } => {}
        }
        Ok(())
    }
}
