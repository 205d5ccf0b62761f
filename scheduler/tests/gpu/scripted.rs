//! A GPU that runs nothing and says what a test tells it to, for orders of
//! events that a GPU shows rarely.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gen8::csb::{CONTEXT_COMPLETE, HWSP_BUFFER, HWSP_WRITE_POINTER, IDLE_TO_ACTIVE};
use gen8::{Engine, irq, regs, ring};
use gpu_bus::{Dma, GGTT_BASE, Gpu, InterruptLine};
use guest_memory::VecMemory;
use vgpu_ring::{Event, FaultReason, Request};
use vgpu_sched::dma::DmaSpace;
use vgpu_sched::events::{EventSink, Full};
use vgpu_sched::interrupt::Line;
use vgpu_sched::scheduler::{Config, Scheduler};
use vgpu_sched::vgpu::VgpuConfig;

use crate::driver::{Guest, ManualClock};

const BASE: u32 = 0x2000;

type Hook = Box<dyn FnOnce(&Script) + Send>;

#[derive(Default)]
struct State {
    registers: HashMap<u32, u32>,
    ggtt: HashMap<u32, u64>,
    port: Vec<u32>,
    /// Done after the next read of the render engine's identity register.
    hook: Option<Hook>,
}

/// The GPU. Only its render engine is ever given work.
pub struct Script {
    dma: Arc<DmaSpace>,
    line: Arc<Line>,
    state: Mutex<State>,
    loads: Mutex<Sender<u64>>,
}

impl Script {
    fn set(&self, offset: u32, change: impl FnOnce(u32) -> u32) {
        let mut state = self.state.lock().unwrap();
        let r = state.registers.entry(offset).or_default();
        *r = change(*r);
    }

    /// Sets bits of the engine's identity register, without a message.
    fn identity(&self, bits: u16) {
        self.set(irq::GT_IIR0, |v| v | u32::from(bits));
    }

    fn raise(&self, bits: u16) {
        self.identity(bits);
        self.line.raise();
    }

    /// Writes a status event, without an interrupt.
    fn status(&self, status: u32, context: u32) {
        let (page, next) = {
            let state = self.state.lock().unwrap();
            let address = state.registers[&(BASE + ring::HWS_PGA)];
            let pointer = state.registers[&(BASE + ring::CSB_PTR)] & 7;
            (state.ggtt[&(address >> 12)] & !0xfff, (pointer + 1) % 6)
        };
        self.set(BASE + ring::CSB_PTR, |v| v & !7 | next);
        let entry = page + u64::from(HWSP_BUFFER + next * 8);
        self.dma.write(entry, &status.to_le_bytes()).unwrap();
        self.dma.write(entry + 4, &context.to_le_bytes()).unwrap();
        let pointer = page + u64::from(HWSP_WRITE_POINTER);
        self.dma.write(pointer, &next.to_le_bytes()).unwrap();
    }
}

impl Gpu for Script {
    fn read32(&self, offset: u32) -> u32 {
        let (value, hook) = {
            let mut state = self.state.lock().unwrap();
            let stored = *state.registers.get(&offset).unwrap_or(&0);
            match offset {
                // A reset is done at once.
                ring::GDRST => (0, None),
                irq::MASTER => (1, None),
                irq::GT_IIR0 => (stored, state.hook.take()),
                o if o & 0xfff == ring::RESET_CTL => (stored | ring::RESET_CTL_READY, None),
                _ => (stored, None),
            }
        };
        if let Some(hook) = hook {
            hook(self);
        }
        value
    }

    fn write32(&self, offset: u32, value: u32) {
        if offset == BASE + ring::ELSP {
            let mut state = self.state.lock().unwrap();
            state.port.push(value);
            if let [_, _, high, low] = state.port[..] {
                state.port.clear();
                let descriptor = u64::from(high) << 32 | u64::from(low);
                let _ = self.loads.lock().unwrap().send(descriptor);
            }
            return;
        }
        self.set(offset, |old| match offset {
            irq::GT_IIR0 => old & !value,
            o if o == BASE + ring::EIR => old & !value,
            o if regs::masked(o) => regs::apply_masked(old, value),
            _ => value,
        });
    }

    fn read64(&self, _offset: u32) -> u64 {
        0
    }

    fn write64(&self, offset: u32, value: u64) {
        let index = (offset - GGTT_BASE) / 8;
        self.state.lock().unwrap().ggtt.insert(index, value);
    }
}

struct Stage {
    gpu: Arc<Script>,
    clock: Arc<ManualClock>,
    scheduler: Scheduler,
    loads: Receiver<u64>,
}

impl Stage {
    fn new() -> Self {
        let dma = Arc::new(DmaSpace::new());
        let line = Arc::new(Line::default());
        let (sender, loads) = channel();
        let gpu = Arc::new(Script {
            dma: Arc::clone(&dma),
            line: Arc::clone(&line),
            state: Mutex::default(),
            loads: Mutex::new(sender),
        });
        let clock = Arc::new(ManualClock::default());
        let config = Config {
            clock: Arc::clone(&clock) as _,
            ..Config::default()
        };
        let scheduler = Scheduler::start(&config, Arc::clone(&gpu) as _, dma, line).unwrap();
        Self {
            gpu,
            clock,
            scheduler,
            loads,
        }
    }

    /// A guest whose one context has something to run.
    fn guest(&self, id: u64) -> (Guest, crate::driver::Context) {
        let mut guest = Guest::on(&self.scheduler, id, 64);
        let mut c = guest.context(Engine::Rcs, 1);
        guest.emit(&mut c, &[0, 0]);
        (guest, c)
    }

    /// The id of the context that was loaded.
    fn loaded(&self) -> u32 {
        let descriptor = self.loads.recv_timeout(Duration::from_secs(30)).unwrap();
        u32::try_from(descriptor >> 32).unwrap()
    }
}

#[test]
fn an_interrupt_between_two_looks_is_the_guests_that_raised_it() {
    let stage = Stage::new();
    let (mut first, a) = stage.guest(1);
    let (mut second, b) = stage.guest(2);
    let seq = first.submit(&a, None);
    let id = stage.loaded();
    let behind = second.submit(&b, None);
    // The interrupt says only that the context started; when it is being
    // answered the context asks for an interrupt and ends.
    stage.gpu.status(IDLE_TO_ACTIVE, 0);
    stage.gpu.state.lock().unwrap().hook = Some(Box::new(move |gpu| {
        gpu.identity(irq::USER | irq::CONTEXT_SWITCH);
        gpu.status(CONTEXT_COMPLETE | 8, id);
    }));
    stage.gpu.raise(irq::CONTEXT_SWITCH);
    let events = first.wait(seq, 0);
    assert_eq!(
        events,
        [Event::ContextDone {
            engine: 0,
            element: 0,
            bits: irq::USER,
            seq
        }]
    );
    let id = stage.loaded();
    stage.gpu.status(CONTEXT_COMPLETE | 8, id);
    stage.gpu.raise(irq::CONTEXT_SWITCH);
    assert_eq!(second.wait(behind, 0).len(), 1);
}

#[test]
fn a_completion_whose_interrupt_was_lost_is_found() {
    let stage = Stage::new();
    let (mut guest, c) = stage.guest(1);
    let seq = guest.submit(&c, None);
    let id = stage.loaded();
    stage.gpu.status(CONTEXT_COMPLETE | 8, id);
    assert_eq!(guest.wait(seq, 0).len(), 1);
}

#[test]
fn an_event_of_a_workload_long_gone_ends_no_other() {
    let stage = Stage::new();
    let (mut guest, c) = stage.guest(1);
    guest.submit(&c, None);
    let old = stage.loaded();
    guest.reset(1);
    let seq = guest.submit(&c, None);
    let id = stage.loaded();
    assert_ne!(old, id);
    stage.gpu.status(CONTEXT_COMPLETE | 8, old);
    stage.gpu.raise(irq::CONTEXT_SWITCH);
    stage.gpu.status(CONTEXT_COMPLETE | 8, id);
    stage.gpu.raise(irq::CONTEXT_SWITCH | irq::USER);
    let events = guest.wait(seq, 0);
    assert_eq!(
        events,
        [Event::ContextDone {
            engine: 0,
            element: 0,
            bits: irq::USER,
            seq
        }]
    );
    assert_eq!(stage.scheduler.inspect().engines[0].resets, 1);
}

#[test]
fn an_error_without_a_cause_ends_nothing_and_one_with_a_cause_does() {
    let stage = Stage::new();
    let (mut guest, c) = stage.guest(1);
    let seq = guest.submit(&c, None);
    stage.loaded();
    stage.gpu.raise(irq::ERROR | irq::USER);
    assert_eq!(
        guest.event(),
        Event::Interrupt {
            engine: 0,
            bits: irq::USER
        }
    );
    stage.gpu.set(BASE + ring::EIR, |_| ring::ERROR_INSTRUCTION);
    stage.gpu.set(BASE + ring::IPEHR, |_| 0x1234_5678);
    stage.gpu.raise(irq::ERROR);
    assert_eq!(
        guest.event(),
        Event::Fault {
            engine: 0,
            element: 0,
            reason: FaultReason::Instruction,
            ipehr: 0x1234_5678,
            seq
        }
    );
}

#[test]
fn the_limit_counts_from_the_start_not_from_the_submission() {
    let stage = Stage::new();
    let (mut first, a) = stage.guest(1);
    let (mut second, b) = stage.guest(2);
    let seq = first.submit(&a, None);
    let id = stage.loaded();
    let behind = second.submit(&b, None);
    stage.clock.pass(Duration::from_secs(9));
    stage.gpu.status(CONTEXT_COMPLETE | 8, id);
    stage.gpu.raise(irq::CONTEXT_SWITCH);
    first.wait(seq, 0);
    let id = stage.loaded();
    stage.clock.pass(Duration::from_secs(9));
    stage.gpu.status(CONTEXT_COMPLETE | 8, id);
    stage.gpu.raise(irq::CONTEXT_SWITCH);
    assert_eq!(second.wait(behind, 0).len(), 1);
    let lanes = stage.scheduler.inspect().vgpus;
    assert_eq!(lanes[0].engines[0].counters.busy_ns, 9_000_000_000);
    assert_eq!(lanes[1].engines[0].counters.busy_ns, 9_000_000_000);
}

/// A sink that remembers why its vGPU failed.
struct Told {
    failed: Arc<AtomicU64>,
}

impl EventSink for Told {
    fn push(&mut self, _event: Event) -> Result<(), Full> {
        Err(Full)
    }
    fn failed(&mut self, why: &str) {
        assert!(why.contains("events waiting"), "{why}");
        self.failed.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_sink_is_told_once_that_its_vgpu_failed() {
    let stage = Stage::new();
    let failed = Arc::new(AtomicU64::new(0));
    let sink = Told {
        failed: Arc::clone(&failed),
    };
    let handle = stage
        .scheduler
        .add_vgpu(
            VgpuConfig::default(),
            Arc::new(VecMemory::new(1)),
            Arc::new(crate::driver::Table::new()),
            Box::new(sink),
        )
        .unwrap();
    let mut refused = 0;
    for token in 0..3000 {
        refused += u32::from(handle.handle(Request::Ping { token }).is_err());
    }
    assert!(refused > 1);
    assert_eq!(failed.load(Ordering::SeqCst), 1);
}

#[test]
fn guests_take_turns() {
    let stage = Stage::new();
    let mut guests: Vec<_> = (1..=3).map(|id| stage.guest(id)).collect();
    let mut seqs: Vec<u64> = guests.iter_mut().map(|(g, c)| g.submit(c, None)).collect();
    for _ in 0..3 {
        for (i, (guest, context)) in guests.iter_mut().enumerate() {
            let id = stage.loaded();
            // It has more to do before it is even through.
            let next = guest.submit(context, None);
            stage.gpu.status(CONTEXT_COMPLETE | 8, id);
            stage.gpu.raise(irq::CONTEXT_SWITCH);
            guest.wait(seqs[i], 0);
            seqs[i] = next;
            // Its next workload waits behind the other's.
            while stage.scheduler.inspect().engines[0].waiting < 2 {
                std::thread::yield_now();
            }
        }
    }
    let view = stage.scheduler.inspect();
    let counts = view.vgpus.iter().map(|v| v.engines[0].counters.completed);
    assert!(counts.eq([3, 3, 3]));
}
