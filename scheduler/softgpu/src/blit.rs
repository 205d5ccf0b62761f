//! The blitter's packets: what each asks to be drawn.
//!
//! Packet layouts: Linux `gt/intel_migrate.c:emit_copy`, `emit_clear`,
//! xf86-video-intel `src/sna/sna_accel.c` for text, and the Broadwell PRM
//! volume 2a for the rest.

use gen8::cmd::blt_op as op;
use gen8::cmd::flags::blt;
use gen8::ring;

use crate::bits::{index, join};
use crate::memory::Space;
use crate::pattern::{Colours, Data, Mono, Pattern};
use crate::raster::{COPY_SOURCE, Job, Source};
use crate::stream::{Stop, Streamer, address, operand};
use crate::surface::{Surface, Tiling};

/// A rectangle; right and bottom are outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clip {
    pub(crate) left: i64,
    pub(crate) top: i64,
    pub(crate) right: i64,
    pub(crate) bottom: i64,
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

    pub(crate) fn intersect(self, other: Self) -> Self {
        Self {
            left: self.left.max(other.left),
            top: self.top.max(other.top),
            right: self.right.min(other.right),
            bottom: self.bottom.min(other.bottom),
        }
    }

    pub(crate) fn empty(self) -> bool {
        self.left >= self.right || self.top >= self.bottom
    }
}

/// A signed 16-bit field.
fn half(v: u32, shift: u32) -> i64 {
    let b = (v >> shift).to_le_bytes();
    i64::from(i16::from_le_bytes([b[0], b[1]]))
}

impl Streamer {
    /// Executes one blitter packet. Forms without a case here have been
    /// parsed and draw nothing: no public source tells what the fixed patterns
    /// look like, nor all about chroma keys.
    pub(crate) fn blit(&mut self, packet: &[u32]) -> Result<(), Stop> {
        let dw0 = operand(packet, 0)?;
        let pattern =
            |p: &mut Self, i| p.colour_pattern(dw0, operand(packet, 1)?, address(packet, i)?);
        let mut job = match (dw0 >> 22) & 0x7f {
            op::XY_SETUP_BLT => {
                self.setup = Setup::new(packet, None)?;
                return Ok(());
            }
            op::XY_SETUP_MONO_PATTERN_SL_BLT => {
                self.setup = Setup::new(packet, Some(rows(packet, 8)?))?;
                return Ok(());
            }
            op::XY_SETUP_CLIP_BLT => {
                self.setup.clip = Clip::from_corners(operand(packet, 1)?, operand(packet, 2)?);
                return Ok(());
            }
            op::XY_PIXEL_BLT => {
                let at = operand(packet, 1)?;
                let mut area = Clip::from_corners(at, 0);
                (area.right, area.bottom) = (area.left + 1, area.top + 1);
                self.setup_job(dw0, area)
            }
            op::XY_SCANLINES_BLT => {
                let area = Clip::from_corners(operand(packet, 1)?, operand(packet, 2)?);
                let mut job = self.setup_job(dw0, area);
                let setup = self.setup;
                job.pattern = match setup.rows {
                    Some(rows) => Pattern::mono(
                        rows,
                        setup.colours(blt::PATTERN_TRANSPARENT),
                        blt::pattern_seed(dw0),
                    ),
                    None => self.colour_pattern(dw0, setup.br13, setup.pattern)?,
                };
                job
            }
            op::XY_TEXT_BLT | op::XY_TEXT_IMMEDIATE_BLT => {
                let area = Clip::from_corners(operand(packet, 1)?, operand(packet, 2)?);
                let mut job = self.setup_job(dw0, area);
                let data = if (dw0 >> 22) & 0x7f == op::XY_TEXT_BLT {
                    Data::Memory(address_bytes(packet, 3)?)
                } else {
                    Data::Inline(packet.get(3..).unwrap_or_default())
                };
                let width = area.right - area.left;
                let first = blt::first_bit(dw0);
                let stride = if dw0 & blt::TEXT_BYTE_PACKED != 0 {
                    (i64::from(first) + width + 7) & !7
                } else {
                    width
                };
                let colours = self.setup.colours(blt::SOURCE_TRANSPARENT);
                job.source = Source::Mono(Mono::new(data, first, stride, colours));
                job
            }
            op::XY_COLOR_BLT => self.xy_job(packet, Pattern::Solid(operand(packet, 6)?))?,
            op::XY_PAT_BLT => {
                let pattern = pattern(self, 6)?;
                self.xy_job(packet, pattern)?
            }
            op::XY_PAT_BLT_IMMEDIATE => self.xy_job(packet, inline_pattern(packet, 6)?)?,
            op::XY_MONO_PAT_BLT => self.xy_job(packet, mono_pattern(packet, 6)?)?,
            op::XY_SRC_COPY_BLT => {
                let job = self.xy_job(packet, Pattern::Solid(0))?;
                self.with_source(packet, job)?
            }
            op::XY_MONO_SRC_COPY_BLT => {
                let job = self.xy_job(packet, Pattern::Solid(0))?;
                with_mono(packet, job, Data::Memory(address_bytes(packet, 6)?), 8)?
            }
            op::XY_MONO_SRC_COPY_IMMEDIATE_BLT => {
                let job = self.xy_job(packet, Pattern::Solid(0))?;
                let data = packet.get(8..).unwrap_or_default();
                with_mono(packet, job, Data::Inline(data), 6)?
            }
            op::XY_FULL_BLT => {
                let pattern = pattern(self, 10)?;
                let job = self.xy_job(packet, pattern)?;
                self.with_source(packet, job)?
            }
            op::XY_FULL_MONO_SRC_BLT => {
                let pattern = pattern(self, 10)?;
                let job = self.xy_job(packet, pattern)?;
                with_mono(packet, job, Data::Memory(address_bytes(packet, 6)?), 8)?
            }
            op::XY_FULL_MONO_PATTERN_BLT => {
                let job = self.xy_job(packet, mono_pattern(packet, 10)?)?;
                self.with_source(packet, job)?
            }
            op::XY_FULL_MONO_PATTERN_MONO_SRC_BLT => {
                let job = self.xy_job(packet, mono_pattern(packet, 10)?)?;
                with_mono(packet, job, Data::Memory(address_bytes(packet, 6)?), 8)?
            }
            op::XY_FULL_IMMEDIATE_PATTERN_BLT => {
                let job = self.xy_job(packet, inline_pattern(packet, 10)?)?;
                self.with_source(packet, job)?
            }
            op::XY_FULL_MONO_SRC_IMMEDIATE_PATTERN_BLT => {
                let job = self.xy_job(packet, inline_pattern(packet, 10)?)?;
                with_mono(packet, job, Data::Memory(address_bytes(packet, 6)?), 8)?
            }
            op::XY_FAST_COPY_BLT => match fast_copy(packet)? {
                Some(job) => job,
                None => return Ok(()),
            },
            op::COLOR_BLT => {
                let mut job = linear_job(packet)?;
                job.pattern = Pattern::Solid(operand(packet, 5)?);
                job
            }
            op::SRC_COPY_BLT => {
                let mut job = linear_job(packet)?;
                let from = surface(address_bytes(packet, 6)?, operand(packet, 5)?, false, false);
                job.source = Source::Surface(from, 0, 0);
                job
            }
            _ => return Ok(()),
        };
        job.clip(self.setup.clip);
        self.draw(&job)
    }

    /// A colour pattern in memory.
    fn colour_pattern(&mut self, dw0: u32, br13: u32, at: u64) -> Result<Pattern, Stop> {
        let n = usize::try_from(blt::pixel_bytes(br13)).unwrap_or(4);
        let mut bytes = [0; 256];
        if let Some(bytes) = bytes.get_mut(..64 * n) {
            self.memory.read(Space::Ppgtt, at & !0x3f, bytes)?;
        }
        Ok(Pattern::colour(&bytes, n, blt::pattern_seed(dw0)))
    }

    /// A job on the destination that was set up, of its foreground.
    fn setup_job(&self, dw0: u32, area: Clip) -> Job<'static> {
        let setup = &self.setup;
        let tiled = dw0 & blt::DST_TILED != 0;
        let y = self.swctrl() & blt::SWCTRL_DST_Y != 0;
        Job {
            destination: surface(setup.base, setup.br13, tiled, y),
            area,
            corner: (area.left, area.top),
            clipped: setup.br13 & blt::CLIP != 0,
            pixel: blt::pixel_bytes(setup.br13),
            rop: blt::rop(setup.br13),
            mask: byte_mask(setup.dw0, setup.br13),
            pattern: Pattern::Solid(setup.foreground),
            source: Source::None,
        }
    }

    /// The job with the source surface in dwords 6 to 9.
    fn with_source<'a>(&self, packet: &[u32], mut job: Job<'a>) -> Result<Job<'a>, Stop> {
        let tiled = operand(packet, 0)? & blt::SRC_TILED != 0;
        let y = self.swctrl() & blt::SWCTRL_SRC_Y != 0;
        let from = surface(address_bytes(packet, 8)?, operand(packet, 7)?, tiled, y);
        let at = operand(packet, 6)?;
        job.source = Source::Surface(from, half(at, 0), half(at, 16));
        Ok(job)
    }

    fn swctrl(&self) -> u32 {
        self.core.registers.get(ring::BCS_SWCTRL)
    }

    /// What all with corners and a destination of their own have in common.
    fn xy_job(&self, packet: &[u32], pattern: Pattern) -> Result<Job<'static>, Stop> {
        let dw0 = operand(packet, 0)?;
        let br13 = operand(packet, 1)?;
        let tiled = dw0 & blt::DST_TILED != 0;
        let y = self.swctrl() & blt::SWCTRL_DST_Y != 0;
        let area = Clip::from_corners(operand(packet, 2)?, operand(packet, 3)?);
        Ok(Job {
            destination: surface(address_bytes(packet, 4)?, br13, tiled, y),
            area,
            corner: (area.left, area.top),
            clipped: br13 & blt::CLIP != 0,
            pixel: blt::pixel_bytes(br13),
            rop: blt::rop(br13),
            mask: byte_mask(dw0, br13),
            pattern,
            source: Source::None,
        })
    }
}

/// Which bytes of a pixel are written.
fn byte_mask(dw0: u32, br13: u32) -> [u8; 4] {
    let on = |bit| if dw0 & bit != 0 { 0xff } else { 0 };
    if blt::pixel_bytes(br13) == 4 {
        let rgb = on(blt::WRITE_RGB);
        [rgb, rgb, rgb, on(blt::WRITE_ALPHA)]
    } else {
        [0xff; 4]
    }
}

/// The job with a monochrome source, whose colours are in dwords `colours` and
/// the next. Its rows are whole words (xf86-video-intel
/// `src/sna/sna_accel.c:sna_put_xybitmap_blt`).
fn with_mono<'a>(
    packet: &[u32],
    mut job: Job<'a>,
    data: Data<'a>,
    colours: u32,
) -> Result<Job<'a>, Stop> {
    let first = blt::first_bit(operand(packet, 0)?);
    let width = job.area.right - job.area.left;
    let stride = (i64::from(first) + width + 15) & !15;
    let colours = Colours {
        background: operand(packet, colours)?,
        foreground: operand(packet, colours + 1)?,
        transparent: operand(packet, 1)? & blt::SOURCE_TRANSPARENT != 0,
    };
    job.source = Source::Mono(Mono::new(data, first, stride, colours));
    Ok(job)
}

/// A monochrome pattern: two colours, then eight rows of bits.
fn mono_pattern(packet: &[u32], at: u32) -> Result<Pattern, Stop> {
    let colours = Colours {
        background: operand(packet, at)?,
        foreground: operand(packet, at + 1)?,
        transparent: operand(packet, 1)? & blt::PATTERN_TRANSPARENT != 0,
    };
    let seed = blt::pattern_seed(operand(packet, 0)?);
    Ok(Pattern::mono(rows(packet, at + 2)?, colours, seed))
}

/// Eight rows of eight bits.
fn rows(packet: &[u32], at: u32) -> Result<[u8; 8], Stop> {
    Ok(join(operand(packet, at)?, operand(packet, at + 1)?).to_le_bytes())
}

/// A colour pattern in the command; what it is short of is 0.
fn inline_pattern(packet: &[u32], at: u32) -> Result<Pattern, Stop> {
    let n = usize::try_from(blt::pixel_bytes(operand(packet, 1)?)).unwrap_or(4);
    let mut bytes = [0; 256];
    let words = packet.get(index(at)..).unwrap_or_default();
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    let seed = blt::pattern_seed(operand(packet, 0)?);
    Ok(Pattern::colour(&bytes, n, seed))
}

/// What an XY_SETUP command leaves for text, pixels and scan lines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup {
    dw0: u32,
    br13: u32,
    clip: Clip,
    base: u64,
    background: u32,
    foreground: u32,
    /// Address of a colour pattern.
    pattern: u64,
    /// A monochrome one instead.
    rows: Option<[u8; 8]>,
}

impl Setup {
    fn new(packet: &[u32], rows: Option<[u8; 8]>) -> Result<Self, Stop> {
        Ok(Self {
            dw0: operand(packet, 0)?,
            br13: operand(packet, 1)?,
            clip: Clip::from_corners(operand(packet, 2)?, operand(packet, 3)?),
            base: address_bytes(packet, 4)?,
            background: operand(packet, 6)?,
            foreground: operand(packet, 7)?,
            pattern: address(packet, 8)?,
            rows,
        })
    }

    fn colours(&self, transparent: u32) -> Colours {
        Colours {
            background: self.background,
            foreground: self.foreground,
            transparent: self.br13 & transparent != 0,
        }
    }
}

/// XY_FAST_COPY_BLT: a copy without masks, raster operation or clipping.
/// `None` for tiles other than X and Y, which nobody here makes.
fn fast_copy(packet: &[u32]) -> Result<Option<Job<'static>>, Stop> {
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
    let area = Clip::from_corners(operand(packet, 2)?, operand(packet, 3)?);
    Ok(Some(Job {
        destination: surface(address_bytes(packet, 4)?, dw1, to.0, to.1),
        area,
        corner: (area.left, area.top),
        clipped: false,
        pixel,
        rop: COPY_SOURCE,
        mask: [0xff; 4],
        pattern: Pattern::Solid(0),
        source: Source::Surface(source, half(at, 0), half(at, 16)),
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
fn linear_job(packet: &[u32]) -> Result<Job<'static>, Stop> {
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
        corner: (0, 0),
        clipped: false,
        pixel,
        rop: blt::rop(br13),
        mask: [0xff; 4],
        pattern: Pattern::Solid(0),
        source: Source::None,
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
    fn rectangles_are_signed_and_half_open() {
        let c = Clip::from_corners(0xffff_fffe, 0x0002_0003);
        assert_eq!((c.left, c.top, c.right, c.bottom), (-2, -1, 3, 2));
        assert!(!c.empty());
        assert!(c.intersect(Clip { right: -2, ..c }).empty());
        assert!(Clip::from_corners(5, 5).empty());
    }
}
