//! Everything behind the device's lock.

use fxhash::FxHashMap;
use gen8::Engine;
use guest_memory::GuestMemory;
use serde::Serialize;
use std::sync::Arc;
use vgpu_ring::Request;

use crate::backlog::Backlog;
use crate::config::Config;
use crate::engines::Engines;
use crate::fences::Fences;
use crate::gmbus::Gmbus;
use crate::interrupts::{BankId, Interrupts};
use crate::kept::{Answer, Doer, Keeper};
use crate::pci::Pci;
use crate::pipe::Running;
use crate::registers::RegisterFile;
use crate::seams::{BarSink, Clock, GgttTable, GpuPort, InterruptSink, Kept};

/// How long a request that did not fit waits before it is tried again, in
/// nanoseconds.
const RETRY_NS: u64 = 1_000_000;

/// Registers counted at most when accesses are counted by register.
const COUNTED: usize = 4096;

/// What surrounds the device.
#[derive(Clone)]
pub struct Seams {
    /// The guest's memory.
    pub memory: Arc<dyn GuestMemory>,
    /// The guest's global page table.
    pub ggtt: Arc<dyn GgttTable>,
    /// The way to the daemon that owns the GPU.
    pub port: Arc<dyn GpuPort>,
    /// The guest's interrupts.
    pub interrupts: Arc<dyn InterruptSink>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where the windows appear.
    pub bars: Arc<dyn BarSink>,
    /// What outlives the device.
    pub kept: Arc<dyn Kept>,
}

/// Things worth counting that are not plain accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Incidents {
    /// Execlists submitted.
    pub submissions: u64,
    /// Execlists refused: no valid element, or too many waiting.
    pub refused_lists: u64,
    /// Elements that vgpud said failed.
    pub faults: u64,
    /// Engine resets by the guest, counted by engine.
    pub resets: u64,
    /// Status-buffer writes that found no memory.
    pub lost_status_writes: u64,
    /// PVINFO notifications of an unknown kind.
    pub unknown_notifications: u64,
}

/// Everything behind the device's lock.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) pci: Pci,
    pub(crate) regs: RegisterFile,
    /// The fence registers as the aperture has them.
    pub(crate) fences: Arc<Fences>,
    /// Fences written since, a bit each.
    pub(crate) fences_written: u32,
    pub(crate) irqs: Interrupts,
    pub(crate) engines: Engines,
    pub(crate) gmbus: Gmbus,
    pub(crate) pipes: [Option<Running>; 3],
    pub(crate) backlog: Backlog,
    pub(crate) incidents: Incidents,
    /// Accesses by register, when they are counted.
    pub(crate) counts: Option<FxHashMap<u32, u64>>,
    /// When to try again to send what did not fit.
    pub(crate) retry_at: Option<u64>,
    /// The deadline last told to the clock; `u64::MAX` for none.
    pub(crate) alarm: u64,
    /// The deadline may differ from that.
    pub(crate) deadline_moved: bool,
    /// What a successor needs.
    pub(crate) keeper: Keeper,
}

impl Core {
    pub(crate) fn new(config: &Config, seams: &Seams) -> Self {
        Self {
            pci: Pci::new(config),
            regs: RegisterFile::new(config),
            fences: Arc::default(),
            fences_written: 0,
            irqs: Interrupts::default(),
            engines: Engines::default(),
            gmbus: Gmbus::new(config.mode),
            pipes: [None; 3],
            backlog: Backlog::default(),
            incidents: Incidents::default(),
            counts: config.count_registers.then(FxHashMap::default),
            retry_at: None,
            alarm: u64::MAX,
            deadline_moved: false,
            keeper: Keeper::new(&*seams.kept),
            config: config.clone(),
        }
    }

    /// Gives a register its value, and vgpud too when the GPU needs it.
    pub(crate) fn store(&mut self, offset: u32, value: u32) {
        let changed = self.regs.get(offset) != value;
        self.regs.set(offset, value);
        if changed && self.regs.behaviour(offset).switched {
            self.send(Request::WriteRegister { offset, value });
        }
    }

    /// Has a request handed over when what is being done is committed.
    pub(crate) fn send(&mut self, request: Request) {
        self.backlog.send(request);
    }

    /// An engine has something to interrupt for, unless its mask says no.
    pub(crate) fn raise_engine(&mut self, engine: Engine, bits: u16) {
        let (bank, shift) = BankId::of_engine(engine);
        // RING_IMR has the bits where the bank has them
        // (Linux `gt/intel_execlists_submission.c:logical_ring_default_irqs`).
        let mask = self.regs.get(engine.mmio_base() + gen8::ring::IMR);
        self.irqs.raise(bank, (u32::from(bits) << shift) & !mask);
    }

    /// Brings what leaves the device in line with its state: the interrupt
    /// line, and the fences that the aperture has. Called behind every access.
    pub(crate) fn settle(&mut self, seams: &Seams) {
        if self.fences_written != 0 {
            let written = std::mem::take(&mut self.fences_written);
            self.fences.follow(&self.regs, written);
        }
        self.settle_interrupt(seams);
    }

    /// Ends what `doer` did: commits it with its answer, then hands requests
    /// over, then sets the alarm. Called at the end of every entry.
    pub(crate) fn finish(&mut self, seams: &Seams, doer: Doer, answer: Option<Answer>) {
        self.commit(&*seams.kept, doer, answer);
        if !self.backlog.is_empty() && !self.backlog.flush(&*seams.port) {
            if self.retry_at.is_none() {
                self.retry_at = Some(seams.clock.now_ns().saturating_add(RETRY_NS));
                self.deadline_moved = true;
            }
        } else {
            self.retry_at = None;
        }
        if !std::mem::take(&mut self.deadline_moved) {
            return;
        }
        let deadline = self.deadline(seams).unwrap_or(u64::MAX);
        if deadline < self.alarm {
            seams.clock.alarm(deadline);
        }
        self.alarm = deadline;
    }

    pub(crate) fn settle_interrupt(&mut self, seams: &Seams) {
        self.pci
            .set_pending(self.irqs.pending(), &*seams.interrupts);
    }

    /// Tries again to send what did not fit.
    pub(crate) fn retry(&mut self, seams: &Seams, now_ns: u64) {
        let sent = self.backlog.flush(&*seams.port);
        self.retry_at = (!sent).then(|| now_ns.saturating_add(RETRY_NS));
    }

    /// When the device wants to be ticked.
    pub(crate) fn deadline(&self, seams: &Seams) -> Option<u64> {
        let blank = self.next_blank(seams);
        match (blank, self.retry_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// Counts an access to a register, if those are counted.
    pub(crate) fn count(&mut self, offset: u32) {
        let Some(counts) = &mut self.counts else {
            return;
        };
        if counts.len() < COUNTED || counts.contains_key(&offset) {
            *counts.entry(offset).or_default() += 1;
        }
    }
}
