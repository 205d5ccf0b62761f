//! Builds command streams.

use gen8::cmd::{blt_op, mi_op, pipe_control};

/// A growing list of command dwords.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    dwords: Vec<u32>,
}

/// Low and high dword of an address.
const fn split(address: u64) -> (u32, u32) {
    let b = address.to_le_bytes();
    (
        u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
    )
}

const fn mi(opcode: u32, flags: u32) -> u32 {
    opcode << 23 | flags
}

impl Batch {
    /// No commands yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { dwords: Vec::new() }
    }

    /// Appends raw dwords.
    pub fn raw(&mut self, dwords: &[u32]) -> &mut Self {
        self.dwords.extend_from_slice(dwords);
        self
    }

    /// Stores a dword at a per-process address.
    pub fn store_u32(&mut self, address: u64, value: u32) -> &mut Self {
        let (low, high) = split(address);
        self.raw(&[mi(mi_op::STORE_DATA_IMM, 2), low, high, value])
    }

    /// Stores a qword at a per-process address.
    pub fn store_u64(&mut self, address: u64, value: u64) -> &mut Self {
        let (low, high) = split(address);
        let (v0, v1) = split(value);
        self.raw(&[mi(mi_op::STORE_DATA_IMM, 3 | 1 << 21), low, high, v0, v1])
    }

    /// Copies a dword between per-process addresses.
    pub fn copy_u32(&mut self, to: u64, from: u64) -> &mut Self {
        let (t0, t1) = split(to);
        let (f0, f1) = split(from);
        self.raw(&[mi(mi_op::COPY_MEM_MEM, 3), t0, t1, f0, f1])
    }

    /// Loads registers.
    pub fn load_registers(&mut self, pairs: &[(u32, u32)]) -> &mut Self {
        let length = u32::try_from(pairs.len() * 2)
            .unwrap_or(0)
            .saturating_sub(1);
        self.raw(&[mi(mi_op::LOAD_REGISTER_IMM, length)]);
        for &(register, value) in pairs {
            self.raw(&[register, value]);
        }
        self
    }

    /// Stores a register at a per-process address.
    pub fn store_register(&mut self, register: u32, address: u64) -> &mut Self {
        let (low, high) = split(address);
        self.raw(&[mi(mi_op::STORE_REGISTER_MEM, 2), register, low, high])
    }

    /// Runs ALU instructions.
    pub fn math(&mut self, instructions: &[u32]) -> &mut Self {
        let length = u32::try_from(instructions.len())
            .unwrap_or(0)
            .saturating_sub(1);
        self.raw(&[mi(mi_op::MATH, length)]).raw(instructions)
    }

    /// Writes a dword at a GGTT address when all before is done, with a
    /// PIPE_CONTROL (render engine only).
    pub fn pipe_control_write(&mut self, ggtt: u32, value: u32) -> &mut Self {
        const CS_STALL: u32 = 1 << 20;
        let flags = pipe_control::POST_SYNC_QW | pipe_control::GGTT | CS_STALL;
        self.raw(&[0x7a00_0004, flags, ggtt, 0, value, 0])
    }

    /// Writes a dword at a GGTT address when all before is done, with an
    /// MI_FLUSH_DW.
    pub fn flush_write(&mut self, ggtt: u32, value: u32) -> &mut Self {
        const STORE_DWORD: u32 = 1 << 14;
        const USE_GGTT: u32 = 1 << 2;
        self.raw(&[
            mi(mi_op::FLUSH_DW, 2 | STORE_DWORD),
            ggtt | USE_GGTT,
            0,
            value,
        ])
    }

    /// Jumps to a per-process batch.
    pub fn start(&mut self, address: u64) -> &mut Self {
        let (low, high) = split(address);
        self.raw(&[mi(mi_op::BATCH_BUFFER_START, 1 | 1 << 8), low, high])
    }

    /// Asks for an interrupt.
    pub fn interrupt(&mut self) -> &mut Self {
        self.raw(&[mi(mi_op::USER_INTERRUPT, 0)])
    }

    /// Ends the batch.
    pub fn end(&mut self) -> &mut Self {
        self.raw(&[mi(mi_op::BATCH_BUFFER_END, 0)])
    }

    /// Fills a rectangle with a colour.
    pub fn fill(&mut self, to: &Surface, rect: Rect, colour: u32) -> &mut Self {
        let (low, high) = split(to.address);
        let flags = 3 << 20 | u32::from(to.tiling != Tiling::Linear) << 11;
        let ctl = 3 << 24 | 0xf0 << 16 | to.pitch_field();
        self.raw(&[2 << 29 | blt_op::XY_COLOR_BLT << 22 | flags | 5, ctl])
            .raw(&[
                point(rect.x, rect.y),
                point(rect.x + rect.w, rect.y + rect.h),
            ])
            .raw(&[low, high, colour])
    }

    /// Copies a rectangle.
    pub fn copy(&mut self, to: &Surface, rect: Rect, from: &Surface, x: u32, y: u32) -> &mut Self {
        let (t0, t1) = split(to.address);
        let (f0, f1) = split(from.address);
        let flags = 3 << 20
            | u32::from(from.tiling != Tiling::Linear) << 15
            | u32::from(to.tiling != Tiling::Linear) << 11;
        let ctl = 3 << 24 | 0xcc << 16 | to.pitch_field();
        self.raw(&[2 << 29 | blt_op::XY_SRC_COPY_BLT << 22 | flags | 8, ctl])
            .raw(&[
                point(rect.x, rect.y),
                point(rect.x + rect.w, rect.y + rect.h),
            ])
            .raw(&[t0, t1, point(x, y), from.pitch_field(), f0, f1])
    }

    /// Selects Y tiling for tiled sources and destinations of later blits.
    pub fn y_tiling(&mut self, source: bool, destination: bool) -> &mut Self {
        let bits = u32::from(source) | u32::from(destination) << 1;
        self.load_registers(&[(gen8::ring::BCS_SWCTRL, 3 << 16 | bits)])
    }

    /// The dwords, padded to an even number with MI_NOOP.
    #[must_use]
    pub fn finish(&self) -> Vec<u32> {
        let mut dwords = self.dwords.clone();
        if !dwords.len().is_multiple_of(2) {
            dwords.push(0);
        }
        dwords
    }
}

const fn point(x: u32, y: u32) -> u32 {
    y << 16 | x
}

/// How a surface lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// Row after row.
    Linear,
    /// Tiles of 512 bytes by 8 rows.
    X,
    /// Tiles of 128 bytes by 32 rows, in columns of 16 bytes.
    Y,
}

/// A 32-bit-per-pixel surface.
#[derive(Clone, Copy, Debug)]
pub struct Surface {
    /// Per-process address.
    pub address: u64,
    /// Bytes from row to row.
    pub pitch: u32,
    /// Layout.
    pub tiling: Tiling,
}

impl Surface {
    /// The pitch as blitter commands want it: dwords when tiled.
    const fn pitch_field(&self) -> u32 {
        match self.tiling {
            Tiling::Linear => self.pitch,
            Tiling::X | Tiling::Y => self.pitch / 4,
        }
    }

    /// Byte offset of a pixel from the surface's start.
    #[must_use]
    pub const fn offset(&self, x: u32, y: u32) -> u32 {
        let byte = x * 4;
        match self.tiling {
            Tiling::Linear => y * self.pitch + byte,
            Tiling::X => {
                let tile = y / 8 * (self.pitch / 512) + byte / 512;
                tile * 4096 + y % 8 * 512 + byte % 512
            }
            Tiling::Y => {
                let tile = y / 32 * (self.pitch / 128) + byte / 128;
                tile * 4096 + byte % 128 / 16 * 512 + y % 32 * 16 + byte % 16
            }
        }
    }
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug)]
pub struct Rect {
    /// Left.
    pub x: u32,
    /// Top.
    pub y: u32,
    /// Width.
    pub w: u32,
    /// Height.
    pub h: u32,
}
