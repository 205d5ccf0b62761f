//! Fence registers: ranges of global address space that the CPU sees row
//! after row through the aperture while memory holds them in tiles
//! (Linux `gt/intel_ggtt_fencing.c:i965_write_fence_reg`, `i915_reg.h`).
//!
//! On Gen4 and later only the CPU's accesses go through fences
//! (`gt/intel_ggtt_fencing.c:gpu_uses_fence_registers`), and on Gen8 no
//! address bit 6 is swizzled in a tile (`detect_bit_6_swizzle`).

use core::ops::Range;

/// How many there are (Linux `gt/intel_ggtt_fencing.c:intel_ggtt_init_fences`).
pub const COUNT: u32 = 32;
/// BAR0 offset of the first; each has 8 bytes.
pub const FIRST: u32 = 0x10_0000;
/// Bit 0: the fence counts.
pub const VALID: u64 = 1 << 0;
/// Bit 1: Y tiles, else X tiles.
pub const TILE_Y: u64 = 1 << 1;
/// Bits 31:12: the first page.
pub const START: u64 = 0xffff_f000;
/// Bits 42:32: bytes of a row in units of [`PITCH_UNIT`], less one
/// (Linux `i915_reg.h:GEN7_FENCE_MAX_PITCH_VAL`).
pub const PITCH: u64 = 0x7ff << 32;
/// Bits 63:44: the last page.
pub const LAST: u64 = 0xffff_f000 << 32;
/// Bytes that a step of the pitch stands for.
pub const PITCH_UNIT: u32 = 128;
/// Bytes of a tile of either kind.
pub const TILE_BYTES: u32 = 4096;

/// How tiles are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tiling {
    /// 512 bytes by 8 rows, row after row.
    X,
    /// 128 bytes by 32 rows, in columns of 16 bytes.
    Y,
}

impl Tiling {
    /// Bytes of a tile's row.
    #[must_use]
    pub const fn width(self) -> u32 {
        match self {
            Self::X => 512,
            Self::Y => 128,
        }
    }

    /// Rows of a tile.
    #[must_use]
    pub const fn height(self) -> u32 {
        TILE_BYTES / self.width()
    }

    /// Bytes of a tile's row that lie together in memory.
    #[must_use]
    pub const fn run(self) -> u32 {
        match self {
            Self::X => 512,
            Self::Y => 16,
        }
    }

    /// Bytes from one run of a tile's row to the next.
    #[must_use]
    pub const fn stride(self) -> u32 {
        self.run() * self.height()
    }
}

/// Where a byte is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its global address.
    pub address: u32,
    /// How many bytes from there lie together, up to the end of the tile's
    /// row or column.
    pub run: u32,
    /// How many bytes from there, in runs [`Tiling::stride`] apart, are the
    /// rest of the tile's row.
    pub row: u32,
}

/// Why a valid fence register describes no fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The last page is before the first.
    Empty,
    /// Rows are not a whole number of tiles wide.
    Pitch,
}

/// What a fence register says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    start: u32,
    last: u32,
    pitch: u32,
    tiling: Tiling,
}

/// A 32-bit half of a register, masked to fit.
const fn half(value: u64) -> u32 {
    let b = value.to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

impl Fence {
    /// The fence in a register's 64 bits; `Ok(None)` when it is off.
    ///
    /// # Errors
    /// [`Unusable`]: there is nothing the range could mean.
    pub const fn decode(register: u64) -> Result<Option<Self>, Unusable> {
        if register & VALID == 0 {
            return Ok(None);
        }
        let tiling = if register & TILE_Y == 0 {
            Tiling::X
        } else {
            Tiling::Y
        };
        let start = half(register & START);
        let last = half((register & LAST) >> 32);
        // At most 2^11 units.
        let pitch = (half((register & PITCH) >> 32) + 1) * PITCH_UNIT;
        if last < start {
            return Err(Unusable::Empty);
        }
        if !pitch.is_multiple_of(tiling.width()) {
            return Err(Unusable::Pitch);
        }
        Ok(Some(Self {
            start,
            last,
            pitch,
            tiling,
        }))
    }

    /// Global address of the first byte.
    #[must_use]
    pub const fn start(self) -> u32 {
        self.start
    }

    /// Global address of the last page.
    #[must_use]
    pub const fn last_page(self) -> u32 {
        self.last
    }

    /// Bytes of a row.
    #[must_use]
    pub const fn pitch(self) -> u32 {
        self.pitch
    }

    /// The kind of its tiles.
    #[must_use]
    pub const fn tiling(self) -> Tiling {
        self.tiling
    }

    /// Whether the fence's range holds a global address.
    #[must_use]
    pub const fn contains(self, address: u32) -> bool {
        let page = address & !0xfff;
        self.start <= page && page <= self.last
    }

    /// Where memory holds the byte that the CPU sees at an address of the
    /// range.
    ///
    /// A range that is not a whole number of rows of tiles ends in tiles of
    /// which a part lies behind it. Addresses wrap at 4 GiB.
    #[must_use]
    pub const fn locate(self, address: u32) -> Place {
        let Self { start, pitch, .. } = self;
        let (width, height) = (self.tiling.width(), self.tiling.height());
        let (run, stride) = (self.tiling.run(), self.tiling.stride());
        let linear = address.wrapping_sub(start);
        let (x, y) = (linear % pitch, linear / pitch);
        // A row of tiles begins at or before the row. What follows is less
        // than 32 rows of 256 KiB.
        let tile_row = y / height * height * pitch;
        let tile = x / width * TILE_BYTES;
        let inside = x % width / run * stride + y % height * run + x % run;
        Place {
            address: start.wrapping_add(tile_row.wrapping_add(tile + inside)),
            run: run - x % run,
            row: width - x % width,
        }
    }
}

/// The number of the fence whose register holds the BAR0 offset.
#[must_use]
pub const fn number(offset: u32) -> Option<u32> {
    let end = FIRST + COUNT * 8;
    if offset < FIRST || offset >= end {
        return None;
    }
    Some((offset - FIRST) / 8)
}

/// BAR0 offsets of a fence's register.
#[must_use]
pub const fn offsets(number: u32) -> Range<u32> {
    let at = FIRST + number % COUNT * 8;
    at..at + 8
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;

    /// The value Linux would write.
    fn register(start: u32, size: u32, pitch: u32, tiling: Tiling) -> u64 {
        let last = u64::from(start + size - 4096);
        let y = if tiling == Tiling::Y { TILE_Y } else { 0 };
        last << 32 | u64::from(start) | u64::from(pitch / 128 - 1) << 32 | y | VALID
    }

    fn fence(start: u32, size: u32, pitch: u32, tiling: Tiling) -> Fence {
        Fence::decode(register(start, size, pitch, tiling))
            .unwrap()
            .unwrap()
    }

    #[test]
    fn a_register_is_decoded() {
        let f = fence(0x30_0000, 0x2_0000, 256 << 10, Tiling::Y);
        assert_eq!((f.start(), f.last_page()), (0x30_0000, 0x31_f000));
        assert_eq!((f.pitch(), f.tiling()), (256 << 10, Tiling::Y));
        assert!(f.contains(0x31_ffff) && !f.contains(0x32_0000) && !f.contains(0x2f_ffff));
        assert_eq!(Fence::decode(!VALID), Ok(None));
        // X rows of 640 bytes; a range that ends before it begins.
        assert_eq!(Fence::decode(4 << 32 | VALID), Err(Unusable::Pitch));
        assert_eq!(Fence::decode(0x5000 | VALID), Err(Unusable::Empty));
        assert_eq!(number(FIRST + 8 * 31 + 7), Some(31));
        assert_eq!((number(FIRST - 1), number(FIRST + 256)), (None, None));
        assert_eq!(offsets(2), 0x10_0010..0x10_0018);
    }

    #[test]
    fn tiles_have_their_shape() {
        let x = fence(0x10_0000, 0x1_0000, 1024, Tiling::X);
        let place = |f: Fence, at| {
            let p = f.locate(at);
            (p.address, p.run, p.row)
        };
        assert_eq!(place(x, 0x10_0000), (0x10_0000, 512, 512));
        assert_eq!(place(x, 0x10_0201), (0x10_1001, 511, 511));
        assert_eq!(place(x, 0x10_0400), (0x10_0200, 512, 512));
        assert_eq!(place(x, 0x10_2000), (0x10_2000, 512, 512));
        let y = fence(0x10_0000, 0x1_0000, 1024, Tiling::Y);
        assert_eq!(place(y, 0x10_0003), (0x10_0003, 13, 125));
        assert_eq!(place(y, 0x10_0010), (0x10_0200, 16, 112));
        assert_eq!(place(y, 0x10_0080), (0x10_1000, 16, 128));
        assert_eq!(place(y, 0x10_0400), (0x10_0010, 16, 128));
        assert_eq!(place(y, 0x10_8000), (0x10_8000, 16, 128));
        assert_eq!(Tiling::Y.stride(), 512);
    }

    /// Every byte of a surface in the order in which memory holds them, as
    /// (x, y): tile by tile, in each as it is built.
    fn in_memory_order(pitch: u32, rows: u32, tiling: Tiling) -> std::vec::Vec<(u32, u32)> {
        let (width, height) = match tiling {
            Tiling::X => (512, 8),
            Tiling::Y => (128, 32),
        };
        let mut order = std::vec::Vec::new();
        for top in (0..rows).step_by(height) {
            for left in (0..pitch).step_by(width) {
                match tiling {
                    Tiling::X => {
                        for y in top..top + 8 {
                            order.extend((left..left + 512).map(|x| (x, y)));
                        }
                    }
                    Tiling::Y => {
                        for column in (left..left + 128).step_by(16) {
                            for y in top..top + 32 {
                                order.extend((column..column + 16).map(|x| (x, y)));
                            }
                        }
                    }
                }
            }
        }
        order
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Each byte is where walking the tiles one after the other finds it.
        #[test]
        fn a_byte_is_where_the_tiles_have_it(
            tiling in prop::sample::select(std::vec![Tiling::X, Tiling::Y]),
            wide in 1_u32..5, tall in 1_u32..4, start in 0_u32..0xf_0000,
        ) {
            let (pitch, rows) = (wide * tiling.width(), tall * tiling.height());
            let start = start << 12;
            let f = fence(start, pitch * rows, pitch, tiling);
            for (place, (x, y)) in (start..).zip(in_memory_order(pitch, rows, tiling)) {
                let found = f.locate(start + y * pitch + x);
                prop_assert_eq!(found.address, place);
                prop_assert_eq!(found.run, tiling.run() - x % tiling.run());
                prop_assert_eq!(found.row, tiling.width() - x % tiling.width());
            }
        }

        /// Any register and address: no panic, and a run stays in its page.
        #[test]
        fn nothing_overflows(register in any::<u64>(), address in any::<u32>()) {
            if let Ok(Some(f)) = Fence::decode(register | VALID) {
                let Place { address, run, row } = f.locate(address);
                prop_assert!(0 < run && run <= row);
                let runs = (row - run) / f.tiling().run();
                let last = address % 4096 + runs * f.tiling().stride();
                prop_assert!(last + run.min(row) <= 4096);
            }
        }
    }
}
