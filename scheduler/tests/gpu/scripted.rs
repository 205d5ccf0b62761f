//! A GPU that runs nothing and says what a test tells it to, for orders of
//! events that a GPU shows rarely.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gen8::csb::{
    ACTIVE_TO_IDLE, CONTEXT_COMPLETE, ELEMENT_SWITCH, HWSP_BUFFER, HWSP_WRITE_POINTER,
    IDLE_TO_ACTIVE, LITE_RESTORE, PREEMPTED,
};
use gen8::{Engine, irq, lrc, regs, ring};
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
    /// Interrupts answered.
    answered: u64,
}

/// The GPU. Only its render engine is ever given work.
pub struct Script {
    dma: Arc<DmaSpace>,
    line: Arc<Line>,
    state: Mutex<State>,
    loads: Mutex<Sender<Vec<u32>>>,
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

    /// Interrupts, and waits for the answer.
    pub fn raise(&self, bits: u16) {
        let before = self.state.lock().unwrap().answered;
        self.identity(bits);
        self.line.raise();
        while self.state.lock().unwrap().answered == before {
            std::thread::yield_now();
        }
    }

    /// Does something after the next look at the identity register.
    pub fn hook(&self, hook: impl FnOnce(&Self) + Send + 'static) {
        self.state.lock().unwrap().hook = Some(Box::new(hook));
    }

    /// Writes a status event, without an interrupt.
    pub fn status(&self, status: u32, context: u32) {
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
            if let [second, used, first, _] = state.port[..] {
                state.port.clear();
                let mut list = vec![first];
                list.extend((used & 1 != 0).then_some(second));
                let _ = self.loads.lock().unwrap().send(list);
            }
            return;
        }
        if offset == irq::MASTER && value & irq::MASTER_ENABLE != 0 {
            self.state.lock().unwrap().answered += 1;
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

pub struct Stage {
    pub gpu: Arc<Script>,
    pub clock: Arc<ManualClock>,
    pub scheduler: Scheduler,
    loads: Receiver<Vec<u32>>,
}

impl Stage {
    pub fn new() -> Self {
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
    pub fn guest(&self, id: u64) -> (Guest, crate::driver::Context) {
        let mut guest = Guest::on(&self.scheduler, id, 64);
        let mut c = guest.context(Engine::Rcs, 1);
        guest.emit(&mut c, &[0, 0]);
        (guest, c)
    }

    /// The same, and what its context starts from is restored, so that it
    /// can follow another guest's at once.
    pub fn restored(&self, id: u64) -> (Guest, crate::driver::Context) {
        let (guest, c) = self.guest(id);
        guest.set_image(&c, lrc::CONTEXT_CONTROL, 9 << 16 | 8);
        (guest, c)
    }

    /// The ids of the contexts of the next load.
    pub fn list(&self) -> Vec<u32> {
        self.loads.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    /// A load, if there was one.
    pub fn waiting_list(&self) -> Option<Vec<u32>> {
        self.loads.try_recv().ok()
    }

    /// The id of the one context that was loaded.
    pub fn loaded(&self) -> u32 {
        let list = self.list();
        assert_eq!(list.len(), 1);
        list[0]
    }

    /// Nothing was loaded since.
    pub fn nothing(&self) {
        assert_eq!(self.loads.try_recv().ok(), None);
    }

    /// The engine takes up a load when it is idle.
    pub fn takes_up(&self) {
        self.gpu.status(IDLE_TO_ACTIVE, 0);
        self.gpu.raise(irq::CONTEXT_SWITCH);
    }

    /// What it loads again while it runs.
    pub fn lite_restore(&self, id: u32) {
        self.gpu.status(PREEMPTED | LITE_RESTORE, id);
        self.gpu.raise(irq::CONTEXT_SWITCH);
    }

    /// The last one of a list ends.
    pub fn ends(&self, id: u32) {
        self.gpu.status(CONTEXT_COMPLETE | ACTIVE_TO_IDLE, id);
        self.gpu.raise(irq::CONTEXT_SWITCH);
    }

    /// The first one of two ends.
    pub fn goes_on(&self, id: u32) {
        self.gpu.status(CONTEXT_COMPLETE | ELEMENT_SWITCH, id);
        self.gpu.raise(irq::CONTEXT_SWITCH);
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
    stage.gpu.hook(move |gpu| {
        gpu.identity(irq::USER | irq::CONTEXT_SWITCH);
        gpu.status(CONTEXT_COMPLETE | 8, id);
    });
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
    stage.takes_up();
    stage.ends(id);
    assert_eq!(second.wait(behind, 0).len(), 1);
}

#[test]
fn a_completion_whose_interrupt_was_lost_is_found() {
    let stage = Stage::new();
    let (mut guest, c) = stage.guest(1);
    let seq = guest.submit(&c, None);
    let id = stage.loaded();
    stage.gpu.status(IDLE_TO_ACTIVE, 0);
    stage.gpu.status(CONTEXT_COMPLETE | ACTIVE_TO_IDLE, id);
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
    stage.takes_up();
    stage.ends(old);
    stage.gpu.status(CONTEXT_COMPLETE | ACTIVE_TO_IDLE, id);
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
    stage.gpu.status(IDLE_TO_ACTIVE, 0);
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
    let one = stage.loaded();
    let behind = second.submit(&b, None);
    stage.clock.pass(Duration::from_secs(5));
    stage.takes_up();
    stage.clock.pass(Duration::from_secs(9));
    stage.ends(one);
    first.wait(seq, 0);
    let id = stage.loaded();
    stage.takes_up();
    stage.clock.pass(Duration::from_secs(9));
    stage.ends(id);
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
