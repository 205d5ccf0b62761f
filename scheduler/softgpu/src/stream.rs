//! The command streamer: where the engine is, and one command at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gen8::cmd::{Privilege, mi_op};
use gen8::{Engine, lrc, ring};

use crate::bits::{hi, index, join, lo};
use crate::blit::Setup;
use crate::context::Loaded;
use crate::core::Core;
use crate::counters::count;
use crate::fetch::Fetcher;
use crate::journal::Notes;
use crate::memory::{AddressFault, Memory, Space};
use crate::pace::Pace;
use crate::position::{Batch, Flow, Ring};
use crate::unit::{Unit, attention};

/// Why the streamer stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A reset, or the end of the GPU.
    Reset,
    /// A command that cannot be decoded.
    Instruction,
    /// An address that reaches nothing.
    Address(AddressFault),
}

impl From<AddressFault> for Stop {
    fn from(f: AddressFault) -> Self {
        Self::Address(f)
    }
}

pub(crate) struct Streamer {
    pub(crate) core: Arc<Core>,
    pub(crate) engine: Engine,
    pub(crate) memory: Memory,
    pub(crate) fetch: Fetcher,
    packet: Vec<u32>,
    pub(crate) ring: Ring,
    pub(crate) flow: Flow,
    pub(crate) first: Batch,
    pub(crate) second: Batch,
    /// MI_ARB_ON_OFF.
    pub(crate) arbitrate: bool,
    /// MI_SET_PREDICATE: when commands become no-ops.
    pub(crate) predication: u32,
    pub(crate) context: Loaded,
    /// What XY_SETUP_BLT left.
    pub(crate) setup: Setup,
    /// The signals that had come when memory was last looked at, of a wait that
    /// goes by them.
    pub(crate) awaited: Option<u64>,
    pub(crate) row: Vec<u8>,
    pub(crate) row_under: Vec<u8>,
    pub(crate) pace: Pace,
    pub(crate) notes: Notes,
    /// Consecutive rounds that did nothing but wait or jump back.
    idle_rounds: u32,
    /// Commands not yet added to the counter.
    executed: u64,
}

/// Rounds of a loop or polls that go at full speed.
const EAGER_ROUNDS: u32 = 32;
/// The longest an engine sleeps between polls.
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

impl Streamer {
    pub(crate) fn new(core: Arc<Core>, engine: Engine) -> Self {
        Self {
            pace: Pace::new(core.command_cost_ns, core.blit_cost_ns_per_kib),
            memory: Memory::new(core.clone(), engine),
            core,
            engine,
            fetch: Fetcher::new(),
            packet: Vec::new(),
            ring: Ring::default(),
            flow: Flow::Ring,
            first: Batch::NONE,
            second: Batch::NONE,
            arbitrate: true,
            predication: 0,
            context: Loaded::default(),
            setup: Setup::default(),
            awaited: None,
            row: Vec::new(),
            row_under: Vec::new(),
            notes: Notes::default(),
            idle_rounds: 0,
            executed: 0,
        }
    }

    pub(crate) fn unit(&self) -> &Unit {
        self.core.unit(self.engine)
    }

    /// Whether the current buffer may do everything.
    pub(crate) fn privileged(&self) -> bool {
        match self.flow {
            Flow::First => self.first.privileged,
            Flow::Second => self.second.privileged,
            _ => true,
        }
    }

    /// The space of an operand that asks for the global table or not. A
    /// buffer without privilege reaches only its own.
    pub(crate) fn operand_space(&self, global: bool) -> Space {
        if global && self.privileged() {
            Space::Ggtt
        } else {
            Space::Ppgtt
        }
    }

    fn batch(&self) -> Batch {
        match self.flow {
            Flow::Second => self.second,
            Flow::Ring | Flow::First => self.first,
            Flow::Indirect(_) | Flow::PerContext | Flow::PerContextDone => Batch {
                at: self.first.at,
                privileged: true,
            },
        }
    }

    /// Graphics address of the next command.
    fn here(&self) -> u64 {
        if self.flow == Flow::Ring {
            u64::from(self.ring.start.wrapping_add(self.ring.head))
        } else {
            self.batch().at
        }
    }

    /// Dword `i` from the next command's start.
    fn peek(&mut self, i: u32) -> Result<u32, Stop> {
        if self.flow == Flow::Ring {
            let r = self.ring;
            let head = r.offset(r.head, i * 4);
            let to_end = r.size - head;
            let to_tail = r.ahead().saturating_sub(i * 4);
            let at = u64::from(r.start.wrapping_add(head));
            let limit = u64::from(to_end.min(to_tail));
            return Ok(self.fetch.dword(&mut self.memory, Space::Ggtt, at, limit)?);
        }
        let b = self.batch();
        let at = b.at.wrapping_add(u64::from(i) * 4);
        let limit = match self.flow {
            Flow::Indirect(end) => end.saturating_sub(at),
            _ => u64::MAX,
        };
        Ok(self.fetch.dword(&mut self.memory, b.space(), at, limit)?)
    }

    /// Moves past `n` dwords.
    fn advance(&mut self, n: u32) {
        self.notes.moved = true;
        match self.flow {
            Flow::Ring => {
                let head = self.ring.offset(self.ring.head, n * 4);
                if head < self.ring.head {
                    // Read ahead no further than the end, but the start may
                    // have been rewritten since it was last read.
                    self.fetch.invalidate();
                }
                self.ring.head = head;
                self.core.set_ring(self.engine, ring::HEAD, head);
            }
            Flow::Second => self.second.at = self.second.at.wrapping_add(u64::from(n) * 4),
            _ => self.first.at = self.first.at.wrapping_add(u64::from(n) * 4),
        }
    }

    /// Fetches, decodes and executes one command.
    pub(crate) fn step(&mut self) -> Result<(), Stop> {
        let dw0 = self.peek(0)?;
        let at = self.here();
        self.core.set_ring(self.engine, ring::ACTHD, lo(at));
        self.core.set_ring(self.engine, ring::ACTHD_UDW, hi(at));
        self.core.set_ring(self.engine, ring::IPEHR, dw0);
        self.executed += 1;
        if dw0 == 0 {
            // MI_NOOP, by far the most frequent.
            self.advance(1);
            return Ok(());
        }
        let found = self.core.platform.commands.decode(self.engine, dw0);
        let command = found.ok_or(Stop::Instruction)?;
        let n = command.dwords(dw0);
        match self.flow {
            Flow::Ring if u64::from(n) * 4 > u64::from(self.ring.ahead()) => {
                return Err(Stop::Instruction);
            }
            Flow::Indirect(end) if self.first.at + u64::from(n) * 4 > end => {
                return Err(Stop::Instruction);
            }
            _ => {}
        }
        let client = dw0 >> 29;
        let pipe_control = command.name == "PIPE_CONTROL";
        if client == 3 && !pipe_control {
            // 3D and media state: nothing here draws.
            self.advance(n);
            return Ok(());
        }
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        packet.push(dw0);
        for i in 1..n {
            packet.push(self.peek(i)?);
        }
        if client == 0 && dw0 >> 23 == mi_op::SEMAPHORE_WAIT {
            let passed = self.suppressed() || self.semaphore_wait(&packet)?;
            self.packet = packet;
            if passed {
                self.end_rounds();
                self.awaited = None;
                self.advance(n);
            } else {
                // The position stays: the main loop looks for resets and
                // switches, then polls again.
                self.executed = self.executed.saturating_sub(1);
                self.round();
            }
            return Ok(());
        }
        self.advance(n);
        let ignored = command.privilege == Privilege::Privileged && !self.privileged();
        let result = if ignored {
            count(&self.unit().counters.unprivileged);
            Ok(())
        } else if client == 0 {
            self.mi(&packet)
        } else if self.suppressed() {
            Ok(())
        } else if pipe_control {
            self.pipe_control(&packet)
        } else {
            self.blit(&packet)
        };
        self.packet = packet;
        result
    }

    /// Sleeps while the engine is ahead of its own time: by much, or at all
    /// at the `end` of a context.
    pub(crate) fn keep_pace(&mut self, end: bool) -> Result<(), Stop> {
        while let Some(ahead) = self.pace.ahead(end) {
            if self.unit().must_stop() {
                return Err(Stop::Reset);
            }
            let later = attention::PENDING | attention::FLUSH | attention::HOLD;
            self.unit().pause(ahead, later);
        }
        Ok(())
    }

    /// Whether MI_SET_PREDICATE turns commands into no-ops now (Broadwell
    /// PRM volume 2a, MI_SET_PREDICATE).
    pub(crate) fn suppressed(&self) -> bool {
        let result = |r| self.core.ring(self.engine, r) & 1 != 0;
        match self.predication {
            0 => false,
            1 => !result(ring::PREDICATE_RESULT_2),
            2 => result(ring::PREDICATE_RESULT_2),
            3 => !result(ring::PREDICATE_RESULT),
            4 => result(ring::PREDICATE_RESULT),
            _ => true,
        }
    }

    /// Starts a batch at `target`.
    pub(crate) fn start_batch(
        &mut self,
        target: u64,
        unprivileged: bool,
        second_level: bool,
    ) -> Result<(), Stop> {
        let from = self.here();
        let batch = Batch {
            at: target,
            privileged: self.privileged() && !unprivileged,
        };
        let loops = match self.flow {
            Flow::Ring => {
                self.flow = Flow::First;
                self.first = batch;
                false
            }
            Flow::First if second_level => {
                self.flow = Flow::Second;
                self.second = batch;
                false
            }
            Flow::First => {
                self.first = batch;
                target < from
            }
            Flow::Second => {
                self.second = batch;
                target < from
            }
            Flow::Indirect(_) | Flow::PerContext | Flow::PerContextDone => {
                return Err(Stop::Instruction);
            }
        };
        self.fetch.invalidate();
        self.publish_batch();
        if loops {
            self.round();
        } else {
            count(&self.unit().counters.batches);
        }
        Ok(())
    }

    /// The current buffer ends.
    pub(crate) fn end_batch(&mut self) {
        self.flow = match self.flow {
            Flow::Second => Flow::First,
            Flow::PerContext => Flow::PerContextDone,
            _ => Flow::Ring,
        };
        self.fetch.invalidate();
        self.publish_batch();
        self.flush_counters();
    }

    /// BB_ADDR and BB_STATE as they stand.
    pub(crate) fn publish_batch(&self) {
        let b = self.batch_registers();
        let e = self.engine;
        self.core.set_ring(e, ring::BB_ADDR, lo(b.first));
        self.core.set_ring(e, ring::BB_ADDR_UDW, hi(b.first));
        self.core.set_ring(e, ring::BB_STATE, b.first_state);
        self.core.set_ring(e, ring::SBB_ADDR, lo(b.second));
        self.core.set_ring(e, ring::SBB_ADDR_UDW, hi(b.second));
        self.core.set_ring(e, ring::SBB_STATE, b.second_state);
    }

    /// One round of a loop, or one poll, ended. Rounds without effect make
    /// the engine yield: longer and longer, so that spinning engines leave
    /// the CPU to others.
    pub(crate) fn round(&mut self) {
        if std::mem::take(&mut self.memory.touched) {
            self.idle_rounds = 0;
            return;
        }
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        let Some(late) = self.idle_rounds.checked_sub(EAGER_ROUNDS) else {
            return;
        };
        self.flush_counters();
        let time = Duration::from_micros(1 << (late / 4).min(12)).min(LONGEST_PAUSE);
        // A list that cannot be switched to does not hurry this one.
        let ignore = if self.arbitrate {
            0
        } else {
            attention::PENDING
        };
        self.unit().pause(time, ignore);
    }

    /// A wait ended, or a context starts: polls are eager again.
    pub(crate) fn end_rounds(&mut self) {
        self.idle_rounds = 0;
    }

    pub(crate) fn waited(&self) -> bool {
        self.idle_rounds != 0
    }

    pub(crate) fn flush_counters(&mut self) {
        let n = std::mem::take(&mut self.executed);
        self.unit().counters.commands.fetch_add(n, Relaxed);
    }

    /// Reads a register as a command does.
    pub(crate) fn read_register(&self, offset: u32) -> u32 {
        self.core.read_register(offset & 0x7f_fffc)
    }

    /// Writes a register as a command does.
    pub(crate) fn write_register(&mut self, offset: u32, value: u32) {
        self.memory.touched = true;
        self.notes.changed = true;
        let allowed =
            self.core
                .command_write(self.engine, self.privileged(), offset & 0x7f_fffc, value);
        if !allowed {
            count(&self.unit().counters.unprivileged);
        }
    }

    /// Graphics address of the context's own status page.
    pub(crate) fn status_page(&self) -> u32 {
        self.context
            .descriptor
            .lrca()
            .wrapping_add(lrc::PPHWSP_PAGE * 4096)
    }
}

/// Operand `i` of a command, which the command must have.
pub(crate) fn operand(packet: &[u32], i: u32) -> Result<u32, Stop> {
    packet.get(index(i)).copied().ok_or(Stop::Instruction)
}

/// The address in operands `i` and `i + 1`, dword aligned.
pub(crate) fn address(packet: &[u32], i: u32) -> Result<u64, Stop> {
    let a = join(operand(packet, i)?, operand(packet, i + 1)?);
    Ok(a & !3)
}
