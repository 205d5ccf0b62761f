//! The attack: a vGPU whose guest *and* device model are hostile, at vgpud
//! directly, as fast as it goes.
//!
//! Three vGPUs share one software GPU. The intruder does what bytes say:
//! programs that are right but for one thing, page tables and a global table
//! that lead anywhere, memory that changes as soon as somebody has read it,
//! any message. The neighbour works by the book and checks every result. The
//! third has worked once and does nothing: nobody may touch it again.
//!
//! Each access of the GPU is judged ([`oracle`]), what the guests keep to
//! themselves must stay theirs, what vgpud holds for the intruder must stay
//! within its limits, and when the intruder goes nothing of it is left.

mod honest;
mod intruder;
mod memory;
mod oracle;
mod program;
mod seat;

use std::sync::Arc;
use std::time::Duration;

use gen8::Platform;
use guest_memory::{GuestMemory, MemoryError, VecMemory};
use softgpu::SoftGpu;
use vgpu_sched::dma::DmaSpace;
use vgpu_sched::events::BACKLOG;
use vgpu_sched::inspect::{SchedulerView, VgpuView};
use vgpu_sched::interrupt::Line;
use vgpu_sched::scheduler::{Config, Scheduler};

use crate::stage::wait_until;
use crate::{Bytes, panics};
use honest::{Honest, stolen};
pub use intruder::Deeds;
use intruder::{Intruder, PAGES, Racer};
use memory::Bus;
use oracle::Oracle;

const INTRUDER: u64 = 66;
const NEIGHBOUR: u64 = 7;
const BYSTANDER: u64 = 8;
/// Rounds an intruder lives.
const LIFE: u32 = 200;
/// Rounds from one piece of work of the neighbour to the next.
const WORK: u32 = 8;
/// Rounds from one look at what vgpud holds to the next.
const LOOK: u32 = 16;
/// Things done in a round, at most.
const ACTIONS: u32 = 64;

/// Writes dwords one after the other.
fn put(memory: &VecMemory, at: u64, words: &[u32]) -> Result<(), MemoryError> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    memory.write(at, &bytes)
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// What the intruders did.
    pub deeds: Deeds,
    /// Their commands that vgpud audited and let through.
    pub scanned: u64,
    /// Their elements that it refused.
    pub refused: u64,
    /// Commands of theirs that the GPU ran.
    pub executed: u64,
    /// Intruders that came and went.
    pub lives: u64,
    /// Of these, the ones vgpud dropped.
    pub dropped: u64,
    /// Reads of their memory that changed it.
    pub sprung: u64,
    /// Accesses of the GPU that were judged.
    pub accesses: u64,
    /// What the neighbour had done and checked.
    pub neighbour: u64,
    /// The most pages of its own that vgpud had in use.
    pub most_pages: usize,
    /// The most memory it held for one intruder, in KiB.
    pub most_kib: usize,
}

/// The stage and who is on it.
pub struct Attack {
    // The guests go before the GPU's owner, and that before the GPU.
    intruder: Option<Intruder>,
    neighbour: Honest,
    bystander: Honest,
    racer: Racer,
    scheduler: Scheduler,
    platform: &'static Platform,
    gpu: Arc<SoftGpu>,
    oracle: Arc<Oracle>,
    /// What was in use with only the honest there.
    before: SchedulerView,
    /// Accesses to the bystander's memory when it came to rest.
    rest: u64,
    round: u32,
    tally: Tally,
}

impl Attack {
    /// The honest guests at work on a GPU of this kind, and no intruder yet.
    ///
    /// # Panics
    /// When that fails already.
    #[must_use]
    pub fn new(platform: &'static Platform) -> Self {
        let dma = Arc::new(DmaSpace::new());
        let line = Arc::new(Line::default());
        let oracle = Arc::new(Oracle::default());
        let gpu = SoftGpu::new(
            softgpu::Config {
                platform,
                observer: Some(oracle.clone()),
                ..softgpu::Config::default()
            },
            Arc::new(Bus(Arc::clone(&dma))),
            line.clone(),
        );
        let config = Config {
            gpu: platform,
            // The intruder gives up long before, and on a busy machine the
            // honest may take a while.
            run_limit: Duration::from_secs(600),
            ..Config::default()
        };
        let scheduler = Scheduler::start(&config, gpu.clone(), dma, line).unwrap();
        let mut neighbour = Honest::new(&scheduler, NEIGHBOUR);
        let mut bystander = Honest::new(&scheduler, BYSTANDER);
        for (honest, value) in [(&mut neighbour, 0x1234_5678), (&mut bystander, 0x7654_3210)] {
            honest.set_register(value);
            honest.start();
            honest.finish();
        }
        let mut attack = Self {
            before: scheduler.inspect(),
            rest: 0,
            intruder: None,
            neighbour,
            bystander,
            racer: Racer::new(),
            scheduler,
            platform,
            gpu,
            oracle,
            round: 0,
            tally: Tally::default(),
        };
        attack.come_to_rest();
        attack.before = attack.scheduler.inspect();
        attack.rest = attack.bystander.seat.memory.touched();
        attack
    }

    /// What happened so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally;
        if let Some(intruder) = &self.intruder {
            add(&mut tally, intruder);
        }
        let ran: u64 = self.gpu.counters().engines.iter().map(|e| e.commands).sum();
        let honest = self.neighbour.commands + self.bystander.commands;
        tally.executed = ran.saturating_sub(honest);
        tally.accesses = self.oracle.accesses();
        tally.neighbour = self.neighbour.rounds;
        tally
    }

    /// A round of what `b` says.
    ///
    /// # Panics
    /// When anything that must hold does not.
    pub fn round(&mut self, b: &mut Bytes<'_>) {
        self.round += 1;
        if self.round.is_multiple_of(LIFE) {
            self.end_life();
        }
        if self.intruder.is_none() {
            let narrow = b.flag();
            self.intruder = Some(Intruder::new(
                &self.scheduler,
                self.platform,
                INTRUDER,
                narrow,
            ));
        }
        if self.round.is_multiple_of(WORK) && self.neighbour.idle() {
            self.neighbour.start();
        }
        let mut dropped = false;
        for _ in 0..ACTIONS {
            let Some(intruder) = self.intruder.as_mut().filter(|_| !b.is_empty()) else {
                break;
            };
            if let Err(e) = intruder.act(b, &self.racer) {
                log::debug!("dropped: {e}");
                dropped = true;
                break;
            }
        }
        self.neighbour.poll();
        self.judge();
        if self.round.is_multiple_of(LOOK) {
            self.look();
        }
        if dropped {
            self.tally.dropped += 1;
            self.end_life();
        }
    }

    /// Has the intruder go and looks what is left. The honest go on.
    ///
    /// # Panics
    /// When anything that must hold does not.
    pub fn end_life(&mut self) {
        let Some(intruder) = self.intruder.take() else {
            return;
        };
        self.tally.lives += 1;
        add(&mut self.tally, &intruder);
        let memory = Arc::clone(&intruder.seat.memory);
        drop(intruder);
        let touched = memory.touched();
        self.neighbour.finish();
        self.neighbour.start();
        self.neighbour.finish();
        self.come_to_rest();
        assert_eq!(memory.touched(), touched, "a guest that is gone");
        assert_eq!(stolen(&memory, PAGES), None, "what others keep");
        for honest in [&self.neighbour, &self.bystander] {
            honest.assert_whole();
        }
        assert_eq!(self.bystander.seat.memory.touched(), self.rest, "accesses");
        let view = self.scheduler.inspect();
        let in_use = |v: &SchedulerView| (v.own_pages, v.chunks, v.windows.windows, v.vgpus.len());
        assert_eq!(
            in_use(&view),
            in_use(&self.before),
            "pages, chunks, windows, vGPUs"
        );
        for engine in &view.engines {
            assert_eq!(engine.dead, None, "{}", engine.name);
        }
        self.judge();
    }

    /// Waits until nothing of the honest is at an engine.
    fn come_to_rest(&mut self) {
        for honest in [&self.neighbour, &self.bystander] {
            wait_until("the lanes to empty", || {
                let view = honest.seat.handle.inspect();
                view.engines.iter().all(|e| e.active_load.is_none())
            });
        }
    }

    fn judge(&self) {
        assert_eq!(self.oracle.broken(), Vec::<String>::new());
        assert_eq!(panics::seen(), 0, "a thread panicked");
    }

    /// What vgpud holds for the intruder.
    fn look(&mut self) {
        let view = self.scheduler.inspect();
        self.tally.most_pages = self.tally.most_pages.max(view.own_pages);
        let Some(vgpu) = view.vgpus.iter().find(|v| v.id == INTRUDER) else {
            return;
        };
        self.tally.most_kib = self.tally.most_kib.max(vgpu.memory.total_kib);
        assert_bounded(vgpu);
    }
}

fn add(tally: &mut Tally, intruder: &Intruder) {
    let deeds = intruder.deeds;
    let all = &mut tally.deeds;
    all.loads += deeds.loads;
    all.written += deeds.written;
    all.done += deeds.done;
    all.failed += deeds.failed;
    all.resets += deeds.resets;
    tally.sprung += intruder.seat.memory.sprung();
    for lane in intruder.seat.handle.lanes() {
        tally.scanned += lane.values.commands;
        tally.refused += lane.values.refused;
    }
}

/// The limits of a vGPU with the usual configuration hold for any.
fn assert_bounded(vgpu: &VgpuView) {
    const REFUSALS: usize = 16;
    const REFUSAL_BYTES: usize = 600;
    /// Rings of 2 MiB, register pages, copies of batches: two of each engine.
    const RINGS_KIB: usize = 8 * (2048 + 8 + 1024 + 512);
    let tables = vgpu_sched::ppgtt::TableLimits::default();
    let windows = vgpu_sched::windows::WindowLimits::default();
    assert!(vgpu.tables.tables <= tables.max, "{:?}", vgpu.tables);
    assert!(
        vgpu.windows.pinned_pages <= windows.pinned,
        "{:?}",
        vgpu.windows
    );
    assert!(vgpu.windows.pages <= windows.pages, "{:?}", vgpu.windows);
    assert!(vgpu.chunks <= 3, "{} chunks", vgpu.chunks);
    assert!(
        vgpu.events_waiting <= BACKLOG,
        "{} events",
        vgpu.events_waiting
    );
    assert!(vgpu.refusals.len().max(vgpu.noticed.len()) <= REFUSALS);
    let told = [&vgpu.refusals, &vgpu.noticed];
    for complaint in told.into_iter().flatten() {
        let text = format!("{complaint:?}");
        assert!(text.len() <= REFUSAL_BYTES, "{text}");
    }
    assert!(vgpu.memory.rings_kib <= RINGS_KIB, "{:?}", vgpu.memory);
    for lane in &vgpu.engines {
        assert!(lane.waiting_loads <= 64, "{lane:?}");
    }
}
