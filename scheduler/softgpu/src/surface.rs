//! Surfaces: where a row's bytes are in memory.

use std::ops::Range;

/// How a surface's bytes are arranged. Gen8 has no bit-6 swizzle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiling {
    /// Row after row.
    Linear,
    /// Tiles of 512 bytes by 8 rows, row after row.
    X,
    /// Tiles of 128 bytes by 32 rows, in columns of 16 bytes.
    Y,
}

const TILE: i64 = 4096;

/// A surface in graphics memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surface {
    pub(crate) base: u64,
    /// Bytes from one row to the next; may be negative when linear.
    pub(crate) pitch: i64,
    pub(crate) tiling: Tiling,
}

impl Surface {
    /// Address of byte `x` in row `y`, and how many bytes from there lie
    /// together.
    fn locate(&self, x: i64, y: i64) -> (u64, i64) {
        let (offset, run) = match self.tiling {
            Tiling::Linear => (y * self.pitch + x, i64::MAX),
            Tiling::X => {
                let tile = y.div_euclid(8) * 8 * self.pitch + x.div_euclid(512) * TILE;
                let inside = x.rem_euclid(512);
                (tile + y.rem_euclid(8) * 512 + inside, 512 - inside)
            }
            Tiling::Y => {
                let tile = y.div_euclid(32) * 32 * self.pitch + x.div_euclid(128) * TILE;
                let inside = x.rem_euclid(128);
                let column = inside.div_euclid(16) * 512;
                let byte = inside.rem_euclid(16);
                (tile + column + y.rem_euclid(32) * 16 + byte, 16 - byte)
            }
        };
        let base = match self.tiling {
            Tiling::Linear => self.base,
            // Tiled surfaces start at a page.
            Tiling::X | Tiling::Y => self.base & !0xfff,
        };
        (base.wrapping_add_signed(offset), run)
    }

    /// The pieces of `len` bytes from byte `x` of row `y`: each address with
    /// the part of the row it holds.
    pub(crate) fn pieces(
        self,
        x: i64,
        y: i64,
        len: usize,
    ) -> impl Iterator<Item = (u64, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= len {
                return None;
            }
            let passed = i64::try_from(done).ok()?;
            let (address, run) = self.locate(x + passed, y);
            let run = usize::try_from(run).unwrap_or(usize::MAX);
            let range = done..done + run.min(len - done);
            done = range.end;
            Some((address, range))
        })
    }

    /// Whether `rows` rows of `len` bytes, from byte `x` of row `y` on, lie
    /// where as many of another surface may.
    pub(crate) fn meets(
        &self,
        from: (i64, i64),
        to: (Self, i64, i64),
        rows: i64,
        len: i64,
    ) -> bool {
        let (first, end) = self.extent(from, rows, len);
        let (to_first, to_end) = to.0.extent((to.1, to.2), rows, len);
        first < to_end && to_first < end
    }

    /// Where these rows lie: the first byte and the end.
    fn extent(&self, (x, y): (i64, i64), rows: i64, len: i64) -> (i128, i128) {
        let wide = |v: i64| i128::from(v);
        let (base, pitch) = (i128::from(self.base), wide(self.pitch));
        let height = match self.tiling {
            Tiling::Linear => {
                let (a, b) = (wide(y) * pitch, wide(y + rows - 1) * pitch);
                let first = base + wide(x);
                return (first + a.min(b), first + a.max(b) + wide(len));
            }
            Tiling::X => 8,
            Tiling::Y => 32,
        };
        // Whole rows of tiles, in either direction.
        let (a, b) = (
            wide(y.div_euclid(height) * height) * pitch,
            wide((y + rows - 1).div_euclid(height) * height + height) * pitch,
        );
        let base = base & !0xfff;
        (base + a.min(b), base + a.max(b))
    }

    /// A number that orders rows and bytes as their places in memory do,
    /// for surfaces that overlap sensibly.
    pub(crate) fn order(&self, x: i64, y: i64) -> u64 {
        match self.tiling {
            Tiling::Linear => self.locate(x, y).0,
            // Whole rows are read before they are written, so within one
            // base only the row matters.
            Tiling::X | Tiling::Y => self.base.wrapping_add_signed(y * self.pitch.abs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tiles_have_their_shape() {
        let s = |tiling| Surface {
            base: 0x10_0000,
            pitch: 1024,
            tiling,
        };
        // X: second row of a tile is 512 bytes on, second tile a page on.
        assert_eq!(s(Tiling::X).locate(0, 1).0, 0x10_0200);
        assert_eq!(s(Tiling::X).locate(512, 0).0, 0x10_1000);
        assert_eq!(s(Tiling::X).locate(0, 8).0, 0x10_2000);
        // Y: 16 bytes, then down 32 rows, then the next column.
        assert_eq!(s(Tiling::Y).locate(0, 1).0, 0x10_0010);
        assert_eq!(s(Tiling::Y).locate(16, 0).0, 0x10_0200);
        assert_eq!(s(Tiling::Y).locate(128, 0).0, 0x10_1000);
        assert_eq!(s(Tiling::Y).locate(0, 32).0, 0x10_8000);
        assert_eq!(s(Tiling::Linear).locate(3, 2).0, 0x10_0803);
    }

    proptest! {
        /// Pieces cover the row once, and each byte is where it is located.
        #[test]
        fn pieces_cover_a_row(
            tiling in prop::sample::select(vec![Tiling::Linear, Tiling::X, Tiling::Y]),
            x in -600i64..3000, y in -40i64..200, len in 0usize..3000,
        ) {
            let s = Surface { base: 1 << 30, pitch: 4096, tiling };
            let mut next = 0;
            for (address, range) in s.pieces(x, y, len) {
                prop_assert_eq!(range.start, next);
                next = range.end;
                for (i, at) in range.zip(address..) {
                    prop_assert_eq!(s.locate(x + i64::try_from(i).unwrap(), y).0, at);
                }
            }
            prop_assert_eq!(next, len);
        }

        /// No two bytes of a tiled surface share a place.
        #[test]
        fn tiling_is_one_to_one(tiling in prop::sample::select(vec![Tiling::X, Tiling::Y])) {
            let s = Surface { base: 0, pitch: 1024, tiling };
            let mut seen = vec![false; 1024 * 64];
            for y in 0..64 {
                for x in 0..1024 {
                    let at = usize::try_from(s.locate(x, y).0).unwrap();
                    prop_assert!(!std::mem::replace(&mut seen[at], true));
                }
            }
        }
    }
}
