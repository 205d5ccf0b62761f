//! Work of the blitter: fills in changing patterns, copies between changing
//! pitches, and a combination of rows.
//!
//! The buffer is the log page and two surfaces, A and B, of the same size. A
//! pass fills A with a grid of 4 by 4 colours and copies it to B, whose rows
//! may be longer or shorter: then columns of A become blocks of rows of B, or
//! the other way about. Every few passes a row of B is combined (exclusive or)
//! into the log: often enough to notice a stretch that is missing, and seldom
//! enough that checking costs the guest much less than the work does the GPU.

use gen8::Engine;
use gen8::cmd::blt_op as op;
use gen8::cmd::flags::blt;

use super::{Commands, Load, Places, Request, Turn, dword_address, halves, log, mix};

/// Pitches of surfaces, pixels of 4 bytes.
const PITCHES: [usize; 3] = [128, 256, 512];
/// Rows and columns of the grid.
const GRID: usize = 4;
/// Pixels of the combined row.
const ROW: usize = 128;
/// The first of so many passes has a row combined.
const COMBINED: u32 = 8;

/// Raster operations (Linux `gt/intel_gpu_commands.h:BLT_ROP_*`; the last is
/// source exclusive-or destination).
const ROP_COLOUR: u32 = 0xf0 << 16;
const ROP_COPY: u32 = 0xcc << 16;
const ROP_XOR: u32 = 0x66 << 16;
/// 32 bits a pixel (`BLT_DEPTH_32`).
const DEPTH_32: u32 = 3 << 24;

/// See above.
pub struct Blit {
    seed: u32,
    passes: u32,
    /// Pixels of a surface, a power of two.
    pixels: usize,
    image: Vec<u32>,
}

/// A rectangle of a surface, in pixels.
#[derive(Clone, Copy)]
struct Area {
    base: u64,
    pitch: usize,
    x: usize,
    y: usize,
}

/// One pass of one request.
struct Pass {
    seed: u32,
    number: u32,
    pass: u32,
    /// Pixels from one row to the next, of A and of B.
    pitch: [usize; 2],
    pixels: usize,
}

impl Pass {
    fn new(load: &Blit, number: u32, pass: u32) -> Self {
        let mut choice = mix([load.seed, number, pass, 1 << 16]);
        let mut pitch = || {
            let (index, rest) = (choice % 3, choice / 3);
            choice = rest;
            PITCHES[usize::try_from(index).unwrap_or(0)]
        };
        Self {
            seed: load.seed,
            number,
            pass,
            pitch: [pitch(), pitch()],
            pixels: load.pixels,
        }
    }

    fn colour(&self, row: usize, column: usize) -> u32 {
        let place = u32::try_from(row * GRID + column).unwrap_or(0);
        mix([self.seed, self.number, self.pass, place])
    }

    fn rows(&self, surface: usize) -> usize {
        self.pixels / self.pitch[surface]
    }

    /// The row of B that is combined, if one is.
    fn row(&self) -> Option<usize> {
        let choice = mix([self.seed, self.number, self.pass, 2 << 16]);
        let row = usize::try_from(choice).unwrap_or(0) % self.rows(1);
        self.pass.is_multiple_of(COMBINED).then_some(row)
    }

    /// What pixel (x, y) of A becomes.
    fn filled(&self, x: usize, y: usize) -> u32 {
        let column = x / (self.pitch[0] / GRID);
        self.colour(y / (self.rows(0) / GRID), column)
    }

    /// Where pixel (x, y) of B comes from.
    fn source(&self, x: usize, y: usize) -> (usize, usize) {
        let [from, to] = self.pitch;
        if from >= to {
            let rows = self.rows(0);
            (y / rows * to + x, y % rows)
        } else {
            (x % from, x / from * self.rows(1) + y)
        }
    }

    fn copied(&self, x: usize, y: usize) -> u32 {
        let (x, y) = self.source(x, y);
        self.filled(x, y)
    }

    fn commands(&self, batch: &mut Commands, places: Places) {
        let base = |surface| dword_address(places.data, log::DWORDS + surface * self.pixels);
        let area = |surface: usize, x, y| Area {
            base: base(surface),
            pitch: self.pitch[surface],
            x,
            y,
        };
        let (width, height) = (self.pitch[0] / GRID, self.rows(0) / GRID);
        for row in 0..GRID {
            for column in 0..GRID {
                let to = area(0, column * width, row * height);
                fill(batch, to, width, height, self.colour(row, column));
            }
        }
        batch.flush();
        let [a, b] = self.pitch;
        let (width, height) = (a.min(b), self.rows(0).min(self.rows(1)));
        for part in 0..a.max(b) / width {
            let (from, to) = if a >= b {
                (area(0, part * width, 0), area(1, 0, part * height))
            } else {
                (area(0, 0, part * height), area(1, part * width, 0))
            };
            copy(batch, from, to, width, height, ROP_COPY);
        }
        batch.flush();
        if let Some(row) = self.row() {
            let to = Area {
                base: dword_address(places.data, log::ROW),
                pitch: ROW,
                x: 0,
                y: 0,
            };
            copy(batch, area(1, 0, row), to, ROW, 1, ROP_XOR);
        }
        batch.increment(dword_address(places.data, log::PASSES));
    }
}

/// Two 16-bit halves: y above x.
fn corner(x: usize, y: usize) -> u32 {
    let half = |v: usize| u32::try_from(v).unwrap_or(0) & 0xffff;
    (half(y) << 16) | half(x)
}

fn pitch(area: Area) -> u32 {
    u32::try_from(area.pitch * 4).unwrap_or(0) & 0xffff
}

/// The first dword of a blitter packet of `dwords`.
fn packet(opcode: u32, dwords: u32) -> u32 {
    (2 << 29) | (opcode << 22) | blt::WRITE_ALPHA | blt::WRITE_RGB | (dwords - 2)
}

fn fill(batch: &mut Commands, to: Area, width: usize, height: usize, colour: u32) {
    batch.words.extend([
        packet(op::XY_COLOR_BLT, 7),
        DEPTH_32 | ROP_COLOUR | pitch(to),
        corner(to.x, to.y),
        corner(to.x + width, to.y + height),
    ]);
    batch.words.extend(halves(to.base));
    batch.words.push(colour);
}

fn copy(batch: &mut Commands, from: Area, to: Area, width: usize, height: usize, rop: u32) {
    batch.words.extend([
        packet(op::XY_SRC_COPY_BLT, 10),
        DEPTH_32 | rop | pitch(to),
        corner(to.x, to.y),
        corner(to.x + width, to.y + height),
    ]);
    batch.words.extend(halves(to.base));
    batch.words.extend([corner(from.x, from.y), pitch(from)]);
    batch.words.extend(halves(from.base));
}

impl Blit {
    /// The smallest surface: four rows of the longest pitch.
    pub const MIN_PIXELS: usize = 4 * PITCHES[2];
    /// The largest: rows of the shortest pitch are counted with 15 bits.
    pub const MAX_PIXELS: usize = PITCHES[0] << 14;

    /// Surfaces of `pixels`, a power of two within the limits above, gone
    /// through `passes` times a request.
    pub fn new(seed: u32, pixels: usize, passes: u32) -> Self {
        Self {
            seed,
            passes,
            pixels,
            image: vec![0; log::DWORDS + 2 * pixels],
        }
    }

    /// What the last pass leaves in both surfaces.
    fn surfaces(&mut self, pass: &Pass) {
        let (a, b) = self.image[log::DWORDS..].split_at_mut(self.pixels);
        // Pixels that are alike come in runs of this length or a multiple.
        let run = (pass.pitch[0] / GRID).min(pass.pitch[1]);
        for (at, pixels) in (0..).step_by(run).zip(a.chunks_mut(run)) {
            pixels.fill(pass.filled(at % pass.pitch[0], at / pass.pitch[0]));
        }
        for (at, pixels) in (0..).step_by(run).zip(b.chunks_mut(run)) {
            pixels.fill(pass.copied(at % pass.pitch[1], at / pass.pitch[1]));
        }
    }
}

impl Load for Blit {
    fn request(&mut self, places: Places, turn: Turn) -> Request {
        let at = |dword| dword_address(places.data, dword);
        let mut batch = Commands::new(Engine::Bcs);
        for number in 0..self.passes {
            let pass = Pass::new(self, turn.number, number);
            pass.commands(&mut batch, places);
            if let Some(y) = pass.row() {
                for (x, pixel) in self.image[log::ROW..][..ROW].iter_mut().enumerate() {
                    *pixel ^= pass.copied(x, y);
                }
            }
            if number + 1 == self.passes {
                self.surfaces(&pass);
            }
        }
        batch.store(at(log::NUMBER), turn.number);
        batch.flush_and_store(at(log::FLUSHED), turn.number);
        self.image[log::PASSES] = self.image[log::PASSES].wrapping_add(self.passes);
        self.image[log::NUMBER] = turn.number;
        self.image[log::FLUSHED] = turn.number;
        Request {
            batch: batch.end(),
            body: Vec::new(),
        }
    }

    fn image(&self) -> &[u32] {
        &self.image
    }

    fn adopt(&mut self, found: &[u32]) {
        self.image.copy_from_slice(found);
    }

    fn room(&self) -> (usize, usize) {
        let passes = usize::try_from(self.passes).unwrap_or(0);
        // 16 fills, up to 4 copies and the combination, two flushes, a count.
        (32 + passes * (GRID * GRID * 7 + 5 * 10 + 2 * 4 + 3), 0)
    }
}
