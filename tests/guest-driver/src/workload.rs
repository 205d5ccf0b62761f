//! Work with a known outcome: commands, and what the CPU says they do.

use gen8::Engine;

use crate::batch::{Rect, Surface, Tiling};
use crate::context::{DATA_BYTES, Slot};
use crate::{Batch, Random};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Immediate stores and dword copies.
    Stores,
    /// General-purpose registers and the ALU.
    Math,
    /// Fills and copies, linear and tiled (blitter only).
    Blits,
}

impl Kind {
    /// A kind the engine can do.
    #[must_use]
    pub fn pick(engine: Engine, random: &mut Random) -> Self {
        let kinds: &[Self] = if engine == Engine::Bcs {
            &[Self::Stores, Self::Math, Self::Blits, Self::Blits]
        } else {
            &[Self::Stores, Self::Math]
        };
        let n = u32::try_from(kinds.len()).unwrap_or(1);
        kinds[random.below(n) as usize]
    }
}

/// Commands of the caller's.
pub struct Given {
    /// What they do.
    pub kind: Kind,
    /// The batch; a page at most.
    pub batch: Vec<u32>,
    /// What the buffer begins with when it is through.
    pub after: Vec<u8>,
}

/// The GPU and the CPU disagree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} {kind:?}: byte {offset:#x} is {found:#04x}, expected {expected:#04x}")]
pub struct Mismatch {
    /// sysfs name of the engine.
    pub engine: &'static str,
    /// What was run.
    pub kind: Kind,
    /// First wrong byte of the data.
    pub offset: usize,
    /// What the GPU left there.
    pub found: u8,
    /// What the CPU computed.
    pub expected: u8,
}

/// Commands for a slot, its content before, and its content after.
pub struct Workload {
    /// The batch.
    pub batch: Vec<u32>,
    /// The data before.
    pub before: Vec<u8>,
    /// The data after.
    pub after: Vec<u8>,
}

impl Workload {
    /// Random work of a kind.
    pub fn generate(engine: Engine, kind: Kind, slot: &Slot, random: &mut Random) -> Self {
        let mut before = Vec::new();
        while (before.len() as u64) < DATA_BYTES {
            before.extend_from_slice(&random.next_u64().to_le_bytes());
        }
        let mut after = before.clone();
        let mut batch = Batch::new();
        match kind {
            Kind::Stores => stores(&mut batch, &mut after, slot, random),
            Kind::Math => math(&mut batch, &mut after, engine, slot, random),
            Kind::Blits => blits(&mut batch, &mut after, slot, random),
        }
        batch.end();
        Self {
            batch: batch.finish(),
            before,
            after,
        }
    }
}

fn stores(batch: &mut Batch, data: &mut [u8], slot: &Slot, random: &mut Random) {
    let dwords = u32::try_from(data.len() / 4).unwrap_or(1);
    for _ in 0..32 {
        let at = random.below(dwords) as usize * 4;
        let va = slot.data_va + at as u64;
        match random.below(3) {
            0 => {
                let value = random.next_u32();
                batch.store_u32(va, value);
                data[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            1 => {
                let at = at & !7;
                let value = random.next_u64();
                batch.store_u64(slot.data_va + at as u64, value);
                data[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                let from = random.below(dwords) as usize * 4;
                batch.copy_u32(va, slot.data_va + from as u64);
                data.copy_within(from..from + 4, at);
            }
        }
    }
}

/// ALU operations of MI_MATH: opcode, and what it does to source A and B.
type Operation = (u32, fn(u64, u64) -> u64);

const OPERATIONS: [Operation; 5] = [
    (0x100, u64::wrapping_add),
    (0x101, u64::wrapping_sub),
    (0x102, |a, b| a & b),
    (0x103, |a, b| a | b),
    (0x104, |a, b| a ^ b),
];

/// One ALU instruction: opcode and two operands.
const fn alu(opcode: u32, a: u32, b: u32) -> u32 {
    opcode << 20 | a << 10 | b
}

fn math(batch: &mut Batch, data: &mut [u8], engine: Engine, slot: &Slot, random: &mut Random) {
    const LOAD: u32 = 0x080;
    const LOADINV: u32 = 0x480;
    const STORE: u32 = 0x180;
    const SRCA: u32 = 0x20;
    const SRCB: u32 = 0x21;
    const ACCU: u32 = 0x31;
    let register = |n: u32| engine.mmio_base() + gen8::ring::GPR0 + n * 8;
    let mut gpr = [0_u64; 16];
    for (index, value) in (0..).zip(&mut gpr) {
        *value = random.next_u64();
        let b = value.to_le_bytes();
        let low = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        batch.load_registers(&[(register(index), low), (register(index) + 4, high)]);
    }
    for _ in 0..8 {
        let (a, b, to) = (random.below(16), random.below(16), random.below(16));
        let (opcode, f) = OPERATIONS[random.below(5) as usize];
        let inverted = random.below(2) == 1;
        let source = gpr[b as usize];
        gpr[to as usize] = f(gpr[a as usize], if inverted { !source } else { source });
        batch.math(&[
            alu(LOAD, SRCA, a),
            alu(if inverted { LOADINV } else { LOAD }, SRCB, b),
            alu(opcode, 0, 0),
            alu(STORE, to, ACCU),
        ]);
    }
    for (n, value) in (0..).zip(gpr) {
        let at = n as usize * 8;
        let va = slot.data_va + at as u64;
        batch.store_register(register(n), va);
        batch.store_register(register(n) + 4, va + 4);
        data[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// Surfaces of the blits: 256 by 32 pixels each, two to a slot.
const WIDTH: u32 = 256;
const HEIGHT: u32 = 32;
const PITCH: u32 = WIDTH * 4;

fn blits(batch: &mut Batch, data: &mut [u8], slot: &Slot, random: &mut Random) {
    let surface = |half: u32, tiling| Surface {
        address: slot.data_va + u64::from(half * PITCH * HEIGHT),
        pitch: PITCH,
        tiling,
    };
    let tilings = [Tiling::Linear, Tiling::X, Tiling::Y];
    for _ in 0..3 {
        let to = surface(1, tilings[random.below(3) as usize]);
        let from = surface(0, tilings[random.below(3) as usize]);
        let w = 1 + random.below(WIDTH);
        let h = 1 + random.below(HEIGHT);
        let mut place = || (random.below(WIDTH - w + 1), random.below(HEIGHT - h + 1));
        let (x, y) = place();
        let (sx, sy) = place();
        let rect = Rect { x, y, w, h };
        let base = (PITCH * HEIGHT) as usize;
        batch.y_tiling(from.tiling == Tiling::Y, to.tiling == Tiling::Y);
        let colour = (random.below(2) == 0).then(|| random.next_u32());
        match colour {
            Some(c) => batch.fill(&to, rect, c),
            None => batch.copy(&to, rect, &from, sx, sy),
        };
        for row in 0..h {
            for column in 0..w {
                let at = base + to.offset(x + column, y + row) as usize;
                let pixel = match colour {
                    Some(c) => c.to_le_bytes(),
                    None => {
                        let f = from.offset(sx + column, sy + row) as usize;
                        [data[f], data[f + 1], data[f + 2], data[f + 3]]
                    }
                };
                data[at..at + 4].copy_from_slice(&pixel);
            }
        }
    }
    batch.y_tiling(false, false);
}
