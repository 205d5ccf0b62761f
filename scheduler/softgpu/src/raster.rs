//! Drawing: rows are read, combined and written.

use crate::blit::Clip;
use crate::journal::Effect;
use crate::memory::Space;
use crate::pattern::{Data, Mono, Pattern};
use crate::stream::{Stop, Streamer};
use crate::surface::Surface;

/// What is drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    None,
    /// A surface, with the place of its that goes to the corner.
    Surface(Surface, i64, i64),
    /// A bitmap that begins at the corner.
    Mono(Mono<'a>),
}

/// What a blit does, whatever packet asked for it.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) destination: Surface,
    pub(crate) area: Clip,
    /// Left and top of the area before it was clipped.
    pub(crate) corner: (i64, i64),
    pub(crate) clipped: bool,
    pub(crate) pixel: u32,
    pub(crate) rop: u8,
    /// Which bytes of a pixel are written.
    pub(crate) mask: [u8; 4],
    pub(crate) pattern: Pattern,
    pub(crate) source: Source<'a>,
}

impl Job<'_> {
    /// Draws no more than what is inside, if it is to be clipped at all.
    pub(crate) fn clip(&mut self, to: Clip) {
        if self.clipped {
            self.area = self.area.intersect(to);
        }
    }
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

pub(crate) const COPY_SOURCE: u8 = 0xcc;
const COPY_PATTERN: u8 = 0xf0;

/// A row being drawn.
struct Row {
    x: i64,
    y: i64,
    /// Columns and rows from the corner.
    from: (i64, i64),
}

impl Streamer {
    pub(crate) fn draw(&mut self, job: &Job<'_>) -> Result<(), Stop> {
        if job.area.empty() || job.mask == [0; 4] {
            return Ok(());
        }
        let pixel = i64::from(job.pixel);
        let width = (job.area.right - job.area.left) * pixel;
        let Ok(len) = usize::try_from(width) else {
            return Ok(());
        };
        let rows = job.area.bottom - job.area.top;
        let (left, top) = (job.area.left - job.corner.0, job.area.top - job.corner.1);
        // Clipping the destination moves the source along.
        let source = match job.source {
            Source::Surface(s, x, y) if reads_source(job.rop) => Some((s, x + left, y + top)),
            _ => None,
        };
        let backwards = source.is_some_and(|(s, sx, sy)| {
            let to = job.destination.order(job.area.left * pixel, job.area.top);
            to > s.order(sx * pixel, sy)
        });
        // Without a bitmap all pixels of a row are alike in what is done.
        let plain = match (&job.pattern, job.source) {
            (Pattern::Solid(colour), Source::None | Source::Surface(..)) => Some(*colour),
            _ => None,
        };

        let mut row = std::mem::take(&mut self.row);
        let mut dst = std::mem::take(&mut self.row_under);
        row.clear();
        row.resize(len, 0);
        dst.clear();
        dst.resize(len, 0);
        if let Some(colour) = plain
            && source.is_none()
        {
            // The row is the same each time.
            for (p, c) in row.iter_mut().zip(pixels(colour, job.pixel)) {
                *p = c;
            }
        }
        let drawn = self.notes.drawn();
        let once = reads_destination(job.rop)
            || source.is_some_and(|(s, sx, sy)| {
                let to = (job.destination, job.area.left * pixel, job.area.top);
                s.meets((sx * pixel, sy), to, rows, width)
            });
        let mut result = match drawn {
            Some(Effect::Once) => Err(Stop::Instruction),
            _ => Ok(()),
        };
        for (number, i) in (0..).zip(0..rows) {
            if result.is_err() {
                break;
            }
            if self.unit().must_stop() {
                result = Err(Stop::Reset);
                break;
            }
            let i = if backwards { rows - 1 - i } else { i };
            self.notes.row = once.then_some(number);
            if let Some(Effect::Row(drawn)) = &drawn
                && number <= drawn.number
            {
                if number == drawn.number {
                    let (x, y) = (job.area.left * pixel, job.area.top + i);
                    result = self.write_row(job.destination, x, y, &drawn.bytes);
                }
                continue;
            }
            if let Some((s, sx, sy)) = source {
                result = self.read_row(s, sx * pixel, sy + i, &mut row);
            }
            let at = Row {
                x: job.area.left,
                y: job.area.top + i,
                from: (left, top + i),
            };
            result = result.and_then(|()| match plain {
                Some(colour) => self.plain_row(job, colour, source.is_some(), &at, &row, &mut dst),
                None => self.mixed_row(job, source.is_some(), &at, &mut row, &mut dst),
            });
            if result.is_err() {
                break;
            }
        }
        self.notes.row = None;
        self.row = row;
        self.row_under = dst;
        let drawn = usize::try_from(rows).unwrap_or(0).saturating_mul(len);
        self.pace.drawn(drawn);
        result
    }

    /// A row of one colour, or of a surface's pixels, which `row` holds.
    fn plain_row(
        &mut self,
        job: &Job<'_>,
        colour: u32,
        sourced: bool,
        at: &Row,
        row: &[u8],
        dst: &mut [u8],
    ) -> Result<(), Stop> {
        let x = at.x * i64::from(job.pixel);
        let under = reads_destination(job.rop) || job.mask != [0xff; 4];
        // Rows that need no combining. A fill that asks for the source it
        // does not have gets zeros, from the general case.
        let copy = sourced && job.rop == COPY_SOURCE;
        if !under && (copy || (job.rop == COPY_PATTERN && !sourced)) {
            return self.write_row(job.destination, x, at.y, row);
        }
        if under {
            self.read_row(job.destination, x, at.y, dst)?;
        }
        let n = usize::try_from(job.pixel).unwrap_or(4);
        let pattern = colour.to_le_bytes();
        for (k, (s, d)) in row.iter().zip(dst.iter_mut()).enumerate() {
            let byte = k % n;
            let s = if sourced { *s } else { 0 };
            let v = combine(job.rop, pattern[byte], s, *d);
            *d = (v & job.mask[byte]) | (*d & !job.mask[byte]);
        }
        self.write_row(job.destination, x, at.y, dst)
    }

    /// A row with a pattern or from a bitmap, pixel by pixel.
    fn mixed_row(
        &mut self,
        job: &Job<'_>,
        sourced: bool,
        at: &Row,
        row: &mut [u8],
        dst: &mut [u8],
    ) -> Result<(), Stop> {
        let n = usize::try_from(job.pixel).unwrap_or(4);
        let x = at.x * i64::from(job.pixel);
        self.read_row(job.destination, x, at.y, dst)?;
        let bits = match &job.source {
            Source::Mono(mono) => {
                let (bytes, skip) = self.bitmap_row(mono, at.from, row.len() / n)?;
                Some((mono, bytes, skip))
            }
            Source::None | Source::Surface(..) => None,
        };
        let pixels = row.chunks_exact(n).zip(dst.chunks_exact_mut(n));
        for (column, (k, (s, d))) in (at.x..).zip(pixels.enumerate()) {
            let source = match &bits {
                Some((mono, bytes, skip)) => mono.colour(bytes, skip + k).map(u32::to_le_bytes),
                None => {
                    let mut wide = [0; 4];
                    if sourced {
                        wide.iter_mut().zip(s).for_each(|(to, from)| *to = *from);
                    }
                    Some(wide)
                }
            };
            let pattern = job.pattern.at(column, at.y).map(u32::to_le_bytes);
            let (Some(source), Some(pattern)) = (source, pattern) else {
                continue;
            };
            let sides = pattern.iter().zip(source).zip(job.mask);
            for (d, ((p, s), mask)) in d.iter_mut().zip(sides) {
                let v = combine(job.rop, *p, s, *d);
                *d = (v & mask) | (*d & !mask);
            }
        }
        self.write_row(job.destination, x, at.y, dst)
    }

    /// Bytes of a bitmap that hold a row of `count` pixels, and the bit in the
    /// first at which they begin.
    fn bitmap_row(
        &mut self,
        mono: &Mono<'_>,
        (column, row): (i64, i64),
        count: usize,
    ) -> Result<(Vec<u8>, usize), Stop> {
        let (offset, len, skip) = mono.span(column, row, count);
        let mut bytes = vec![0; len];
        match mono.data {
            Data::Memory(base) => {
                self.memory
                    .read(Space::Ppgtt, base.wrapping_add(offset), &mut bytes)?;
            }
            Data::Inline(words) => {
                let all = words.iter().flat_map(|w| w.to_le_bytes());
                let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
                for (to, from) in bytes.iter_mut().zip(all.skip(skipped)) {
                    *to = from;
                }
            }
        }
        Ok((bytes, skip))
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
        self.about_row(row);
        for (at, part) in s.pieces(x, y, row.len()) {
            if let Some(part) = row.get(part) {
                self.memory.write(Space::Ppgtt, at, part)?;
            }
        }
        Ok(())
    }
}

/// The bytes of pixels of a colour, without end.
fn pixels(colour: u32, pixel: u32) -> impl Iterator<Item = u8> {
    let n = usize::try_from(pixel).unwrap_or(4);
    colour.to_le_bytes().into_iter().take(n).cycle()
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
}
