//! Page-table entries of the global and the per-process tables
//! (Linux `gt/intel_gtt.h`, `gt/intel_ggtt.c:gen8_ggtt_pte_encode`, `gt/gen8_ppgtt.c`).

/// Bit 0: the entry maps something.
pub const PRESENT: u64 = 1 << 0;
/// Bit 1: writes are allowed (per-process tables).
pub const WRITABLE: u64 = 1 << 1;
/// Bit 7 in a directory entry: a 2 MiB page.
pub const PDE_2M: u64 = 1 << 7;
/// Bits 38:12: the frame's bus address.
pub const ADDRESS: u64 = 0x7f_ffff_f000;
/// Entries of one table at any level.
pub const ENTRIES: usize = 512;

/// Levels of a 48-bit per-process table, from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Root: each entry covers 512 GiB.
    Pml4,
    /// Each entry covers 1 GiB.
    Pdp,
    /// Each entry covers 2 MiB.
    Pd,
    /// Each entry covers 4 KiB.
    Pt,
}

impl Level {
    /// The level below, or `None` under a page table.
    #[must_use]
    pub const fn below(self) -> Option<Self> {
        match self {
            Self::Pml4 => Some(Self::Pdp),
            Self::Pdp => Some(Self::Pd),
            Self::Pd => Some(Self::Pt),
            Self::Pt => None,
        }
    }

    /// The lowest address bit an entry of this level decodes.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::Pml4 => 39,
            Self::Pdp => 30,
            Self::Pd => 21,
            Self::Pt => 12,
        }
    }

    /// The index of `address`'s entry in a table of this level.
    #[must_use]
    pub const fn index(self, address: u64) -> usize {
        // Nine bits.
        let b = ((address >> self.shift()) & 0x1ff).to_le_bytes();
        u16::from_le_bytes([b[0], b[1]]) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_an_index_at_each_level() {
        let a = (1 << 39) | (2 << 30) | (3 << 21) | (511 << 12) | 0xfff;
        assert_eq!(Level::Pml4.index(a), 1);
        assert_eq!(Level::Pdp.index(a), 2);
        assert_eq!(Level::Pd.index(a), 3);
        assert_eq!(Level::Pt.index(a), 511);
        assert_eq!(Level::Pt.below(), None);
    }
}
