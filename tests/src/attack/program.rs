//! Programs of a guest that knows what vgpud checks: right opcodes, right
//! lengths, addresses and registers that are nearly always right, batches in
//! batches. What is wrong is wrong in one place, most of the time.

use std::sync::OnceLock;

use gen8::cmd::flags::{USE_GGTT, batch_start, flush_dw, pipe_control};
use gen8::cmd::{Command, Flow, Guests, Length, Space, blt_op, mi_op};
use gen8::platform::PLATFORMS;
use gen8::{Engine, Platform, ring};
use guest_memory::VecMemory;

use super::put;
use crate::Bytes;
use crate::bytes::{high, low};
use crate::layout::{BATCH_VA, DATA_VA, Place};

/// Pieces of a context's batch page, each a batch of its own.
const PIECES: u64 = 4;
const PIECE: u64 = 0x400;
/// Dwords of a piece that are written, at most: its end comes behind.
const FULL: usize = 240;
/// Dwords a program has in the ring, at most.
const RING: usize = 480;

/// Where commands stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Ring,
    /// A batch in the global table, in this piece.
    Privileged(u64),
    /// One in the context's own.
    User(u64),
}

impl Level {
    const fn privileged(self) -> bool {
        matches!(self, Self::Ring | Self::Privileged(_))
    }

    /// The pieces it may start: those behind it, so that there is an end.
    const fn next(self) -> u64 {
        match self {
            Self::Ring => 0,
            Self::Privileged(at) | Self::User(at) => at + 1,
        }
    }
}

fn mi(opcode: u32, flags: u32) -> u32 {
    opcode << 23 | flags
}

/// Dwords of a command that is made up from the table, at most.
const LONG: u32 = 64;
/// Commands made up otherwise, or never good in a ring.
const OTHERS: [&str; 4] = [
    "MI_SET_PREDICATE",
    "MI_REPORT_HEAD",
    "MI_CLFLUSH",
    "MI_LOAD_REGISTER_IMM",
];

/// Bits 31:29 of a blitter command.
const BLITTER: u32 = 2;

/// The commands that a guest may use on an engine and that lead nowhere else;
/// blits draw where they like and are left out.
fn rows(gpu: &'static Platform, engine: Engine) -> &'static [&'static Command] {
    type Rows = [Vec<&'static Command>; Engine::COUNT];
    static ALL: [OnceLock<Rows>; PLATFORMS.len()] = [const { OnceLock::new() }; PLATFORMS.len()];
    let all = ALL[gpu.index()].get_or_init(|| {
        Engine::ALL.map(|engine| {
            let rows = gpu.commands.rows();
            rows.filter(|c| c.value >> 29 != BLITTER)
                .filter(|c| c.guests == Guests::Allowed && c.flow == Flow::Next)
                .filter(|c| c.engines.contains(engine))
                .filter(|c| c.lengths.least() <= LONG && !c.is_group())
                .filter(|c| !OTHERS.contains(&c.name))
                .collect()
        })
    });
    &all[engine.index()]
}

/// An address that is nobody's business: where other guests' windows stand
/// in the physical table, where the bus has other guests' memory.
pub(crate) fn foreign(b: &mut Bytes<'_>) -> u64 {
    let near = u64::from(b.u16() & 0xffc);
    match b.u8() % 8 {
        // The physical table fills from its start.
        0..=2 => u64::from(b.u16() % 1024) << 12 | near,
        // Chunks of the bus do, too.
        3 => u64::from(b.u8() % 16) << 21 | u64::from(b.u16() % 512) << 12 | near,
        4 => 0xffff_f000 | near,
        5 => Place::of(b.u8().into()).image() + (near & !3) + (u64::from(b.u8() % 32) << 12),
        6 => 1 << (b.u8() % 64),
        _ => b.u64(),
    }
}

/// Dwords that do harm wherever they run with privilege.
pub(crate) fn evil(b: &mut Bytes<'_>, engine: Engine) -> Vec<u32> {
    let at = foreign(b);
    match b.u8() % 6 {
        0 | 1 => vec![
            mi(mi_op::STORE_DATA_IMM, 2 | USE_GGTT),
            low(at),
            high(at),
            0xbad,
        ],
        2 => vec![
            mi(mi_op::LOAD_REGISTER_IMM, 1),
            b.pick(&[
                ring::GDRST,
                engine.mmio_base() + ring::MODE,
                engine.mmio_base() + ring::HWS_PGA,
                engine.mmio_base() + ring::ELSP,
            ]),
            b.value_u32(),
        ],
        3 => vec![
            mi(mi_op::LOAD_REGISTER_MEM, 2 | USE_GGTT),
            engine.mmio_base() + ring::GPR0,
            low(at),
            high(at),
        ],
        4 => vec![mi(mi_op::BATCH_BUFFER_START, 1), low(at) & !3, high(at)],
        _ => vec![mi(mi_op::UPDATE_GTT, 1), low(at), b.value_u32()],
    }
}

/// Writes programs for one context.
pub(crate) struct Author<'a, 'b> {
    b: &'a mut Bytes<'b>,
    memory: &'a VecMemory,
    gpu: &'static Platform,
    engine: Engine,
    n: usize,
    /// How often something is wrong: one command in so many; 0: never.
    slips: u8,
    /// Commands written, in batches of batches, too.
    pub commands: u64,
}

impl<'a, 'b> Author<'a, 'b> {
    /// For context `n` on `engine` of `gpu`, whose guest has `memory`.
    pub fn new(
        b: &'a mut Bytes<'b>,
        memory: &'a VecMemory,
        (gpu, engine): (&'static Platform, Engine),
        n: usize,
    ) -> Self {
        let slips = b.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 96, 96, 48, 48, 8, 2]);
        Self {
            b,
            memory,
            gpu,
            engine,
            n,
            slips,
            commands: 0,
        }
    }

    /// Commands for the ring, and the batches they name.
    pub fn ring(&mut self) -> Vec<u32> {
        let mut out = Vec::new();
        let count = 8 + self.b.u8() % 32;
        self.body(Level::Ring, count, RING, &mut out);
        if out.len() % 2 == 1 {
            out.push(0);
        }
        out
    }

    /// An indirect context or per-context batch in piece `at`; its whole
    /// cache lines.
    pub fn at_restore(&mut self, at: u64, ends: bool) -> u32 {
        let mut out = Vec::new();
        if self.b.flag() {
            self.keep_register(&mut out);
        }
        let count = self.b.u8() % 12;
        // It has no batches of its own: a restore does not nest.
        self.body(Level::Privileged(PIECES), count, FULL, &mut out);
        if ends {
            out.push(mi(mi_op::BATCH_BUFFER_END, 0));
        }
        out.resize(out.len().next_multiple_of(16), 0);
        self.write(at, &out);
        u32::try_from(out.len() / 16).unwrap_or(0)
    }

    /// What i915 does to L3SQCREG4 at each restore, which vgpud answers with
    /// a copy of its own (`vgpu_sched::audit`).
    fn keep_register(&mut self, out: &mut Vec<u32>) {
        const L3SQCREG4: u32 = 0xb118;
        let to = self.global();
        let back = if self.slip() { self.global() } else { to };
        out.extend([
            mi(mi_op::STORE_REGISTER_MEM, 2 | USE_GGTT),
            L3SQCREG4,
            to,
            0,
            mi(mi_op::LOAD_REGISTER_IMM, 1),
            L3SQCREG4,
            self.b.u32(),
            mi(mi_op::LOAD_REGISTER_MEM, 2 | USE_GGTT),
            L3SQCREG4,
            back,
            0,
        ]);
        self.commands += 3;
    }

    fn slip(&mut self) -> bool {
        self.slips != 0 && self.b.u8() % self.slips == 1
    }

    fn body(&mut self, level: Level, count: u8, most: usize, out: &mut Vec<u32>) {
        for _ in 0..count {
            if self.b.is_empty() {
                break;
            }
            let start = out.len();
            self.command(level, out);
            self.commands += 1;
            if out.len() > most {
                out.truncate(start);
                break;
            }
            if self.slip() {
                self.spoil(level, start, out);
            }
        }
    }

    /// Makes the command that was written last wrong.
    fn spoil(&mut self, level: Level, start: usize, out: &mut Vec<u32>) {
        let len = out.len() - start;
        let at = start + usize::from(self.b.u8()) % len.max(1);
        match self.b.u8() % 8 {
            0..=2 => {
                let bit = self.b.u8() % 32;
                if let Some(w) = out.get_mut(at) {
                    *w ^= 1 << bit;
                }
            }
            3 => {
                let to = foreign(self.b);
                for (w, v) in out
                    .iter_mut()
                    .skip(at.max(start + 1))
                    .zip([low(to), high(to)])
                {
                    *w = v;
                }
            }
            4 => out.extend(evil(self.b, self.engine)),
            5 => out.push(self.b.u32()),
            6 => {
                let cut = usize::from(self.b.u8()) % len.max(1);
                out.truncate(start + cut.max(1));
            }
            // Back to where it stands.
            _ => {
                let (to, flags) = match level {
                    Level::Ring | Level::Privileged(_) => (self.piece_global(0), 1),
                    Level::User(_) => (BATCH_VA, 1 | batch_start::PPGTT),
                };
                out.extend([mi(mi_op::BATCH_BUFFER_START, flags), low(to), high(to)]);
            }
        }
    }

    /// An address of the context's data in the global table.
    fn global(&mut self) -> u32 {
        low(Place::of(self.n).data() + u64::from((self.b.u16() % 0x2ff0) & !0x3f))
    }

    /// One in its own tables.
    fn own(&mut self) -> u64 {
        DATA_VA + u64::from((self.b.u16() % 0x2ff0) & !0x3f)
    }

    fn piece_global(&self, piece: u64) -> u64 {
        Place::of(self.n).batch() + piece % PIECES * PIECE
    }

    /// An operand: its flag and its two dwords.
    fn operand(&mut self, level: Level) -> (u32, u32, u32) {
        if level.privileged() && self.b.flag() {
            return (USE_GGTT, self.global(), 0);
        }
        let at = self.own();
        (0, low(at), high(at))
    }

    /// A register, and what may be written to it.
    fn register(&mut self, level: Level) -> (u32, u32) {
        let value = self.b.u32();
        if level.privileged() && self.b.rarely(4) {
            let rows = self.b.pick(self.gpu.rules.privileged);
            let block = self.b.pick(rows).block;
            let offset = block.start(self.engine);
            let masked = value & 0xffff | value << 16;
            let fits = |v| self.gpu.rules.may_write(self.engine, offset, Some(v));
            if let Some(v) = [value, masked, 0].into_iter().find(|v| fits(*v)) {
                return (offset, v);
            }
        }
        let gpr = self.engine.mmio_base() + ring::GPR0 + u32::from(self.b.u8() % 32) * 4;
        (gpr, value)
    }

    fn command(&mut self, level: Level, out: &mut Vec<u32>) {
        match self.b.u8() % 18 {
            0 | 1 => {
                let (flag, a0, a1) = self.operand(level);
                out.extend([mi(mi_op::STORE_DATA_IMM, 2 | flag), a0, a1, self.b.u32()]);
            }
            2 => {
                let (register, value) = self.register(level);
                out.extend([mi(mi_op::LOAD_REGISTER_IMM, 1), register, value]);
            }
            3 => {
                let (register, _) = self.register(level);
                let (flag, a0, a1) = self.operand(level);
                let header = mi(mi_op::STORE_REGISTER_MEM, 2 | flag);
                out.extend([header, register, a0, a1]);
            }
            4 => {
                let register = self.register(Level::User(0)).0;
                let (flag, a0, a1) = self.operand(level);
                out.extend([mi(mi_op::LOAD_REGISTER_MEM, 2 | flag), register, a0, a1]);
            }
            5 => {
                let from = self.register(Level::User(0)).0;
                let to = self.register(Level::User(0)).0;
                out.extend([mi(mi_op::LOAD_REGISTER_REG, 1), from, to]);
            }
            6 => {
                let (to, from) = (self.own(), self.own());
                let header = mi(mi_op::COPY_MEM_MEM, 3);
                out.extend([header, low(to), high(to), low(from), high(from)]);
            }
            7 => {
                let (flag, a0, a1) = self.operand(level);
                let operation = self.b.pick(&[5, 6, 4]) << 8;
                out.extend([mi(mi_op::ATOMIC, 1 | flag) | operation, a0, a1]);
            }
            8 => {
                // What is there is never below 0.
                let (flag, a0, a1) = self.operand(level);
                let header = mi(mi_op::SEMAPHORE_WAIT, 2 | 1 << 15 | 1 << 12 | flag);
                out.extend([header, 0, a0, a1]);
            }
            9 => {
                let r = u32::from(self.b.u8() % 16);
                out.extend([
                    mi(mi_op::MATH, 3),
                    0x080 << 20 | 0x20 << 10 | r,
                    0x080 << 20 | 0x21 << 10 | ((r + 1) % 16),
                    0x100 << 20,
                    0x180 << 20 | r << 10 | 0x31,
                ]);
            }
            10 => self.flush(level, out),
            11 => {
                let simple = self.b.pick(&[
                    mi(mi_op::NOOP, 0),
                    mi(mi_op::ARB_CHECK, 0),
                    mi(mi_op::USER_INTERRUPT, 0),
                    mi(mi_op::NOOP, 1 << 22 | 5),
                ]);
                out.push(simple);
            }
            12 => {
                let offset = u32::from(self.b.u8() & 0x3c) << 4;
                out.extend([
                    mi(mi_op::STORE_DATA_INDEX, 1 | 1 << 21),
                    offset,
                    self.b.u32(),
                ]);
            }
            13 if self.engine == Engine::Bcs => self.blit(out),
            13..=15 => self.row(level, out),
            _ => self.batch(level, out),
        }
    }

    fn flush(&mut self, level: Level, out: &mut Vec<u32>) {
        let (flag, a0, a1) = self.operand(level);
        let value = self.b.u32();
        if self.engine == Engine::Rcs {
            let global = if flag == 0 { 0 } else { pipe_control::GGTT };
            let flags = pipe_control::POST_SYNC_QW | global;
            out.extend([0x7a00_0004, flags, a0, a1, value, 0]);
        } else {
            let global = if flag == 0 { 0 } else { flush_dw::ADDRESS_GGTT };
            let header = mi(mi_op::FLUSH_DW, 2 | flush_dw::POST_SYNC_WRITE);
            out.extend([header, a0 | global, a1, value]);
        }
    }

    /// A small rectangle.
    fn blit(&mut self, out: &mut Vec<u32>) {
        let to = DATA_VA + u64::from(self.b.u8() % 16) * 64;
        let size = u32::from(self.b.u8() % 8 + 1) << 16 | u32::from(self.b.u8() % 16 + 1);
        if self.b.flag() {
            let header = 2 << 29 | blt_op::XY_COLOR_BLT << 22 | 3 << 20 | 5;
            let colour = self.b.u32();
            out.extend([header, 3 << 24 | 0xf0 << 16 | 256, 0, size]);
            out.extend([low(to), high(to), colour]);
        } else {
            let from = DATA_VA + 0x1000;
            let header = 2 << 29 | blt_op::XY_SRC_COPY_BLT << 22 | 3 << 20 | 8;
            out.extend([header, 3 << 24 | 0xcc << 16 | 256, 0, size]);
            out.extend([low(to), high(to), 0, 256, low(from), high(from)]);
        }
    }

    /// Any command of the table, its fields as they should be.
    fn row(&mut self, level: Level, out: &mut Vec<u32>) {
        let command = self.b.pick(rows(self.gpu, self.engine));
        let mut dw0 = command.value;
        let len = match command.length {
            Length::Fixed(n) => n,
            Length::Field { mask, bias } => {
                let least = command.lengths.least().max(bias);
                let spread = command
                    .lengths
                    .most()
                    .map_or(4, |most| most.max(least) - least);
                let spread = spread.min(LONG - least.min(LONG));
                let len = least + u32::from(self.b.u8()) % (spread + 1);
                dw0 |= (len - bias) & mask;
                len
            }
        };
        let start = out.len();
        out.push(dw0);
        for _ in 1..len.min(LONG) {
            let dword = if self.b.flag() {
                self.b.u32() & 0xff
            } else {
                0
            };
            out.push(dword);
        }
        for field in command.registers {
            let (register, _) = self.register(Level::User(0));
            if let Some(w) = out.get_mut(start + usize::from(field.dword)) {
                *w = register;
            }
        }
        for field in command.addresses {
            let Some(words) = out.get(start..) else {
                continue;
            };
            // What says that it is global may be a dword that was made up.
            let global = field.space.is_global(words) || field.space == Space::Ggtt;
            let to = if global && level.privileged() {
                self.global().into()
            } else {
                self.own()
            };
            let at = start + usize::from(field.dword);
            let halves = [low(to) & field.mask, high(to)];
            for (w, half) in out.iter_mut().skip(at).zip(halves).take(field.dwords()) {
                *w = half;
            }
        }
    }

    /// A batch, and the command that starts it.
    fn batch(&mut self, level: Level, out: &mut Vec<u32>) {
        let piece = level.next() + u64::from(self.b.u8() % 2);
        if piece >= PIECES {
            return out.push(0);
        }
        let user = !level.privileged() || !self.b.u8().is_multiple_of(4);
        let inner = if user {
            Level::User(piece)
        } else {
            Level::Privileged(piece)
        };
        let mut words = Vec::new();
        let count = 4 + self.b.u8() % 16;
        self.body(inner, count, FULL, &mut words);
        if !self.slip() {
            words.push(mi(mi_op::BATCH_BUFFER_END, 0));
        }
        self.write(piece, &words);
        let (to, space) = if user {
            (BATCH_VA + piece * PIECE, batch_start::PPGTT)
        } else {
            (self.piece_global(piece), 0)
        };
        let second = match level {
            Level::Ring => 0,
            Level::Privileged(_) | Level::User(_) => batch_start::SECOND_LEVEL,
        };
        let header = mi(mi_op::BATCH_BUFFER_START, 1 | space | second);
        out.extend([header, low(to), high(to)]);
    }

    fn write(&self, piece: u64, words: &[u32]) {
        // The guest has its batches, or has given them away.
        let _ = put(self.memory, self.piece_global(piece), words);
    }

    /// Where piece `at` is in the global table.
    pub fn piece(&self, at: u64) -> u32 {
        low(self.piece_global(at))
    }
}
