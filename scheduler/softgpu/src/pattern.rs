//! What a blit combines besides surfaces: patterns and monochrome bitmaps.

/// What the bits of a bitmap become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Colours {
    pub(crate) background: u32,
    pub(crate) foreground: u32,
    /// Pixels of the background are left alone.
    pub(crate) transparent: bool,
}

impl Colours {
    /// The colour of a bit; `None`: the pixel is left alone.
    fn of(self, bit: bool) -> Option<u32> {
        match bit {
            true => Some(self.foreground),
            false if self.transparent => None,
            false => Some(self.background),
        }
    }
}

/// Eight by eight pixels, repeated over the surface, or one colour.
#[derive(Debug)]
pub(crate) enum Pattern {
    Solid(u32),
    Colour {
        pixels: Box<[u32; 64]>,
        seed: (u32, u32),
    },
    Mono {
        rows: [u8; 8],
        colours: Colours,
        seed: (u32, u32),
    },
}

impl Pattern {
    /// From 64 pixels of `n` bytes.
    pub(crate) fn colour(bytes: &[u8; 256], n: usize, seed: (u32, u32)) -> Self {
        let mut pixels = Box::new([0; 64]);
        for (pixel, raw) in pixels.iter_mut().zip(bytes.chunks_exact(n.max(1))) {
            let mut wide = [0; 4];
            for (to, from) in wide.iter_mut().zip(raw) {
                *to = *from;
            }
            *pixel = u32::from_le_bytes(wide);
        }
        Self::Colour { pixels, seed }
    }

    /// From rows of bits, the leftmost pixel in the highest.
    pub(crate) const fn mono(rows: [u8; 8], colours: Colours, seed: (u32, u32)) -> Self {
        Self::Mono {
            rows,
            colours,
            seed,
        }
    }

    /// Its pixel at a place of the surface; `None`: that is left alone.
    pub(crate) fn at(&self, x: i64, y: i64) -> Option<u32> {
        let cell = |(column, row): (u32, u32)| {
            let of = |place: i64, seed: u32| {
                let cell = (place + i64::from(seed)).rem_euclid(8);
                usize::try_from(cell).unwrap_or(0)
            };
            (of(x, column), of(y, row))
        };
        match self {
            Self::Solid(colour) => Some(*colour),
            Self::Colour { pixels, seed } => {
                let (column, row) = cell(*seed);
                pixels.get(row * 8 + column).copied()
            }
            Self::Mono {
                rows,
                colours,
                seed,
            } => {
                let (column, row) = cell(*seed);
                let bits = rows.get(row).copied().unwrap_or(0);
                colours.of(bits << column & 0x80 != 0)
            }
        }
    }
}

/// Where a bitmap's bits are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    /// At an address of the context.
    Memory(u64),
    /// In the command. Past its end they are 0.
    Inline(&'a [u32]),
}

/// A bitmap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mono<'a> {
    pub(crate) data: Data<'a>,
    /// The bit of the first pixel.
    first: i64,
    /// Bits from one row to the next.
    stride: i64,
    colours: Colours,
}

impl<'a> Mono<'a> {
    pub(crate) fn new(data: Data<'a>, first: u32, stride: i64, colours: Colours) -> Self {
        Self {
            data,
            first: first.into(),
            stride,
            colours,
        }
    }

    /// Bytes that hold `count` pixels from a place on: offset of the first of
    /// them, how many, and the bit in the first. None lies before the bitmap.
    pub(crate) fn span(&self, column: i64, row: i64, count: usize) -> (u64, usize, usize) {
        let bit = self.first + row * self.stride + column;
        let bit = u64::try_from(bit).unwrap_or(0);
        // Both are below 8.
        let skip = usize::try_from(bit % 8).unwrap_or(0);
        (bit / 8, (skip + count).div_ceil(8), skip)
    }

    /// The colour of pixel `at` of such bytes.
    pub(crate) fn colour(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let byte = bytes.get(at / 8).copied().unwrap_or(0);
        self.colours.of(byte << (at % 8) & 0x80 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLOURS: Colours = Colours {
        background: 1,
        foreground: 2,
        transparent: false,
    };

    #[test]
    fn a_pattern_repeats_from_its_seed() {
        let rows = [0x80, 0x40, 0, 0, 0, 0, 0, 1];
        let p = Pattern::mono(rows, COLOURS, (0, 0));
        let set: Vec<_> = (-8..8)
            .flat_map(|y| (-8..8).map(move |x| (x, y)))
            .filter(|(x, y)| p.at(*x, *y) == Some(2))
            .collect();
        assert_eq!(set.len(), 12);
        for at in [(0, 0), (-8, -8), (1, 1), (-7, 1), (7, 7), (-1, -1)] {
            assert!(set.contains(&at), "{at:?}");
        }
        let moved = Pattern::mono(rows, COLOURS, (3, 1));
        assert_eq!(moved.at(-3, -1), Some(2));
        assert_eq!(moved.at(5, 7), Some(2));
        let clear = Colours {
            transparent: true,
            ..COLOURS
        };
        assert_eq!(Pattern::mono(rows, clear, (0, 0)).at(1, 0), None);
    }

    #[test]
    fn bits_are_found_by_row_and_column() {
        let mono = Mono::new(Data::Inline(&[]), 3, 16, COLOURS);
        assert_eq!(mono.span(0, 0, 5), (0, 1, 3));
        assert_eq!(mono.span(0, 0, 6), (0, 2, 3));
        assert_eq!(mono.span(7, 2, 1), (5, 1, 2));
        assert_eq!(mono.colour(&[0x20], 2), Some(2));
        assert_eq!(mono.colour(&[0x20], 3), Some(1));
        assert_eq!(mono.colour(&[0x20], 30), Some(1));
    }
}
