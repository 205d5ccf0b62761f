//! The blitter: fills and copies with raster operations, masks, clipping
//! and tiling. Whole rows are read, combined and written.
//!
//! Packet layouts: Linux `gt/intel_migrate.c:emit_copy`, `emit_clear`, and
//! the Broadwell PRM volume 2a for the rest.

use gen8::cmd::blt_op as op;
use gen8::cmd::flags::blt;
use gen8::ring;

use crate::bits::join;
use crate::memory::Space;
use crate::stream::{Stop, Streamer, address, operand};
use crate::surface::{Surface, Tiling};

/// A rectangle; right and bottom are outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clip {
    left: i64,
    top: i64,
    right: i64,
    bottom: i64,
}

impl Clip {
    /// From two dwords of y in the high and x in the low half, signed.
    fn from_corners(first: u32, second: u32) -> Self {
        Self {
            left: half(first, 0),
            top: half(first, 16),
            right: half(second, 0),
            bottom: half(second, 16),
        }
    }

    fn intersect(self, other: Self) -> Self {
        Self {
            left: self.left.max(other.left),
            top: self.top.max(other.top),
            right: self.right.min(other.right),
            bottom: self.bottom.min(other.bottom),
        }
    }

    fn empty(self) -> bool {
        self.left >= self.right || self.top >= self.bottom
    }
}

/// A signed 16-bit field.
fn half(v: u32, shift: u32) -> i64 {
    let b = (v >> shift).to_le_bytes();
    i64::from(i16::from_le_bytes([b[0], b[1]]))
}

/// What a blit does, whatever packet asked for it.
#[derive(Clone, Copy)]
struct Job {
    destination: Surface,
    area: Clip,
    pixel: u32,
    rop: u8,
    /// Which bytes of a pixel are written.
    mask: [u8; 4],
    /// Pattern: a colour.
    colour: u32,
    /// Source, with its position for the area's corner.
    source: Option<(Surface, i64, i64)>,
}

/// One truth table over pattern, source and destination, bit by bit: result
/// for P, S, D is bit 4P+2S+D of the operation.
fn combine(rop: u8, p: u8, s: u8, d: u8) -> u8 {
    let mut out = 0;
    for term in 0..8u8 {
        if rop >> term & 1 != 0 {
            let side = |v: u8, bit: u8| if term & bit != 0 { v } else { !v };
            out |= side(p, 4) & side(s, 2) & side(d, 1);
        }
    }
    out
}

/// Whether the operation looks at the destination.
const fn reads_destination(rop: u8) -> bool {
    (rop ^ (rop >> 1)) & 0x55 != 0
}

/// Whether the operation looks at the source.
const fn reads_source(rop: u8) -> bool {
    (rop ^ (rop >> 2)) & 0x33 != 0
}

const COPY_SOURCE: u8 = 0xcc;
const COPY_PATTERN: u8 = 0xf0;

impl Streamer {
    /// Executes one blitter packet. Forms without a case here have been
    /// parsed and draw nothing.
    pub(crate) fn blit(&mut self, packet: &[u32]) -> Result<(), Stop> {
        let dw0 = operand(packet, 0)?;
        match (dw0 >> 22) & 0x7f {
            op::XY_SETUP_BLT => {
                self.clip = Clip::from_corners(operand(packet, 2)?, operand(packet, 3)?);
            }
            op::XY_SETUP_CLIP_BLT => {
                self.clip = Clip::from_corners(operand(packet, 1)?, operand(packet, 2)?);
            }
            op::XY_COLOR_BLT => {
                let job = self.xy_job(packet, operand(packet, 6)?)?;
                self.draw(job)?;
            }
            op::XY_SRC_COPY_BLT => {
                let mut job = self.xy_job(packet, 0)?;
                let tiled = dw0 & blt::SRC_TILED != 0;
                let y = self.swctrl() & blt::SWCTRL_SRC_Y != 0;
                let from = surface(address_bytes(packet, 8)?, operand(packet, 7)?, tiled, y);
                let corner = Clip::from_corners(operand(packet, 2)?, 0);
                let at = operand(packet, 6)?;
                // Clipping the destination moves the source along.
                let x = half(at, 0) + (job.area.left - corner.left);
                let y = half(at, 16) + (job.area.top - corner.top);
                job.source = Some((from, x, y));
                self.draw(job)?;
            }
            op::XY_FAST_COPY_BLT => {
                if let Some(job) = fast_copy(packet)? {
                    self.draw(job)?;
                }
            }
            op::COLOR_BLT => {
                let mut job = linear_job(packet)?;
                job.colour = operand(packet, 5)?;
                self.draw(job)?;
            }
            op::SRC_COPY_BLT => {
                let mut job = linear_job(packet)?;
                let from = surface(address_bytes(packet, 6)?, operand(packet, 5)?, false, false);
                job.source = Some((from, 0, 0));
                self.draw(job)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn swctrl(&self) -> u32 {
        self.core.registers.get(ring::BCS_SWCTRL)
    }

    /// What XY_COLOR_BLT and XY_SRC_COPY_BLT have in common.
    fn xy_job(&self, packet: &[u32], colour: u32) -> Result<Job, Stop> {
        let dw0 = operand(packet, 0)?;
        let br13 = operand(packet, 1)?;
        let tiled = dw0 & blt::DST_TILED != 0;
        let y = self.swctrl() & blt::SWCTRL_DST_Y != 0;
        let mut area = Clip::from_corners(operand(packet, 2)?, operand(packet, 3)?);
        if br13 & blt::CLIP != 0 {
            area = area.intersect(self.clip);
        }
        let pixel = blt::pixel_bytes(br13);
        let on = |bit| if dw0 & bit != 0 { 0xff } else { 0 };
        let mask = if pixel == 4 {
            let rgb = on(blt::WRITE_RGB);
            [rgb, rgb, rgb, on(blt::WRITE_ALPHA)]
        } else {
            [0xff; 4]
        };
        Ok(Job {
            destination: surface(address_bytes(packet, 4)?, br13, tiled, y),
            area,
            pixel,
            rop: blt::rop(br13),
            mask,
            colour,
            source: None,
        })
    }

    fn draw(&mut self, job: Job) -> Result<(), Stop> {
        if job.area.empty() || job.mask == [0; 4] {
            return Ok(());
        }
        let pixel = i64::from(job.pixel);
        let width = (job.area.right - job.area.left) * pixel;
        let Ok(len) = usize::try_from(width) else {
            return Ok(());
        };
        let x = job.area.left * pixel;
        let rows = job.area.bottom - job.area.top;
        let source = job.source.filter(|_| reads_source(job.rop));
        let whole = job.mask == [0xff; 4];
        let under = reads_destination(job.rop) || !whole;
        let backwards = source.is_some_and(|(s, sx, sy)| {
            job.destination.order(x, job.area.top) > s.order(sx * pixel, sy)
        });
        // Rows that need no combining. A fill that asks for the source it
        // does not have gets zeros, from the general case.
        let copy = source.is_some() && job.rop == COPY_SOURCE;
        let plain = !under && (copy || job.rop == COPY_PATTERN);

        let mut row = std::mem::take(&mut self.row);
        let mut dst = std::mem::take(&mut self.row_under);
        row.clear();
        row.resize(len, 0);
        dst.clear();
        dst.resize(len, 0);
        let pattern = job.colour.to_le_bytes();
        // Without a source the row is the same each time.
        if source.is_none() && plain {
            let n = usize::try_from(job.pixel).unwrap_or(4);
            for p in row.chunks_exact_mut(n) {
                p.copy_from_slice(&pattern[..n]);
            }
        }
        let mut result = Ok(());
        for i in 0..rows {
            if self.unit().must_stop() {
                result = Err(Stop::Reset);
                break;
            }
            let i = if backwards { rows - 1 - i } else { i };
            let y = job.area.top + i;
            result = (|| {
                if let Some((s, sx, sy)) = source {
                    self.read_row(s, sx * pixel, sy + i, &mut row)?;
                }
                if under {
                    self.read_row(job.destination, x, y, &mut dst)?;
                }
                if plain {
                    return self.write_row(job.destination, x, y, &row);
                }
                let n = usize::try_from(job.pixel).unwrap_or(4);
                for (k, (s, d)) in row.iter().zip(dst.iter_mut()).enumerate() {
                    let byte = k % n;
                    let s = if source.is_some() { *s } else { 0 };
                    let v = combine(job.rop, pattern[byte], s, *d);
                    *d = (v & job.mask[byte]) | (*d & !job.mask[byte]);
                }
                self.write_row(job.destination, x, y, &dst)
            })();
            if result.is_err() {
                break;
            }
        }
        self.row = row;
        self.row_under = dst;
        let drawn = usize::try_from(rows).unwrap_or(0).saturating_mul(len);
        self.pace.drawn(drawn);
        result
    }

    fn read_row(&mut self, s: Surface, x: i64, y: i64, row: &mut [u8]) -> Result<(), Stop> {
        for (at, part) in s.pieces(x, y, row.len()) {
            if let Some(part) = row.get_mut(part) {
                self.memory.read(Space::Ppgtt, at, part)?;
            }
        }
        Ok(())
    }

    fn write_row(&mut self, s: Surface, x: i64, y: i64, row: &[u8]) -> Result<(), Stop> {
        for (at, part) in s.pieces(x, y, row.len()) {
            if let Some(part) = row.get(part) {
                self.memory.write(Space::Ppgtt, at, part)?;
            }
        }
        Ok(())
    }
}

/// XY_FAST_COPY_BLT: a copy without masks, raster operation or clipping.
/// `None` for tiles other than X and Y, which nobody here makes.
fn fast_copy(packet: &[u32]) -> Result<Option<Job>, Stop> {
    let dw0 = operand(packet, 0)?;
    let dw1 = operand(packet, 1)?;
    let tiles = |shift: u32, yf: u32| match (dw0 >> shift & 3, dw1 & yf != 0) {
        (0, _) => Some((false, false)),
        (1, _) => Some((true, false)),
        (2, false) => Some((true, true)),
        _ => None,
    };
    let (Some(to), Some(from), Some(pixel)) = (
        tiles(blt::FAST_DST_TILING, blt::FAST_DST_YF),
        tiles(blt::FAST_SRC_TILING, blt::FAST_SRC_YF),
        blt::fast_pixel_bytes(dw1),
    ) else {
        return Ok(None);
    };
    let at = operand(packet, 6)?;
    let source = surface(
        address_bytes(packet, 8)?,
        operand(packet, 7)?,
        from.0,
        from.1,
    );
    Ok(Some(Job {
        destination: surface(address_bytes(packet, 4)?, dw1, to.0, to.1),
        area: Clip::from_corners(operand(packet, 2)?, operand(packet, 3)?),
        pixel,
        rop: COPY_SOURCE,
        mask: [0xff; 4],
        colour: 0,
        source: Some((source, half(at, 0), half(at, 16))),
    }))
}

fn surface(base: u64, pitch: u32, tiled: bool, y: bool) -> Surface {
    let pitch = half(pitch, 0);
    Surface {
        base,
        // Tiled pitches count dwords.
        pitch: if tiled { pitch * 4 } else { pitch },
        tiling: match (tiled, y) {
            (false, _) => Tiling::Linear,
            (true, false) => Tiling::X,
            (true, true) => Tiling::Y,
        },
    }
}

/// COLOR_BLT and SRC_COPY_BLT: a linear area given by height and width in
/// bytes; they have no masks.
fn linear_job(packet: &[u32]) -> Result<Job, Stop> {
    let br13 = operand(packet, 1)?;
    let size = operand(packet, 2)?;
    let pixel = blt::pixel_bytes(br13);
    let field = |shift: u32| i64::from((size >> shift) & 0xffff);
    Ok(Job {
        destination: surface(address_bytes(packet, 3)?, br13, false, false),
        area: Clip {
            left: 0,
            top: 0,
            right: field(0) / i64::from(pixel),
            bottom: field(16),
        },
        pixel,
        rop: blt::rop(br13),
        mask: [0xff; 4],
        colour: operand(packet, 4 + 1)?,
        source: None,
    })
}

/// An address of blits: any byte.
fn address_bytes(packet: &[u32], i: u32) -> Result<u64, Stop> {
    // `address` checks that both dwords are there.
    address(packet, i)?;
    Ok(join(operand(packet, i)?, operand(packet, i + 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raster_operation_is_its_truth_table() {
        let (p, s, d) = (0b1111_0000, 0b1100_1100, 0b1010_1010);
        for rop in 0..=255 {
            // These operands run through every combination in order.
            assert_eq!(combine(rop, p, s, d), rop);
            let without = combine(rop, p, s, 0) == combine(rop, p, s, 0xff);
            assert_eq!(reads_destination(rop), !without, "{rop:#x}");
            let without = combine(rop, p, 0, d) == combine(rop, p, 0xff, d);
            assert_eq!(reads_source(rop), !without, "{rop:#x}");
        }
    }

    #[test]
    fn rectangles_are_signed_and_half_open() {
        let c = Clip::from_corners(0xffff_fffe, 0x0002_0003);
        assert_eq!((c.left, c.top, c.right, c.bottom), (-2, -1, 3, 2));
        assert!(!c.empty());
        assert!(c.intersect(Clip { right: -2, ..c }).empty());
        assert!(Clip::from_corners(5, 5).empty());
    }
}
