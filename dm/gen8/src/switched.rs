//! Registers that belong to whichever guest an engine runs: what a switch
//! between guests must carry over.
//!
//! Source: Linux `gvt/mmio_context.c:gen8_engine_mmio_list`; offsets from
//! `gt/intel_gt_regs.h`, `gt/intel_engine_regs.h`.

use crate::Engine;

/// How the hardware keeps a register across context switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Outside the context image: only software can carry it over.
    Outside,
    /// Inside the context image: the hardware saves and restores it.
    InContext,
}

/// One register that a switch concerns.
#[derive(Clone, Copy, Debug)]
pub struct Switched {
    /// Name in the documentation.
    pub name: &'static str,
    /// The engine it belongs to.
    pub engine: Engine,
    /// BAR0 offset.
    pub offset: u32,
    /// Whether bits 31:16 of a write select which of bits 15:0 change.
    pub masked: bool,
    /// Where the hardware keeps it.
    pub kept: Kept,
    /// The value after an engine reset.
    pub reset: u32,
}

use Engine::{Bcs, Rcs};
use Kept::{InContext, Outside};

const fn r(
    name: &'static str,
    engine: Engine,
    offset: u32,
    masked: bool,
    kept: Kept,
    reset: u32,
) -> Switched {
    Switched {
        name,
        engine,
        offset,
        masked,
        kept,
        reset,
    }
}

/// Where FORCE_TO_NONPRIV slots point when unused: RING_NOPID
/// (Linux `gt/intel_workarounds.c:intel_engine_apply_whitelist`, `RING_NOPID`).
pub const NOPID: u32 = 0x94;

/// The Gen8 list.
pub static GEN8: &[Switched] = &[
    r("GFX_MODE", Rcs, 0x229c, true, Outside, 0),
    r("CTX_PREEMPT", Rcs, 0x2248, false, Outside, 0),
    r("HWSTAM", Rcs, 0x2098, false, Outside, 0),
    r("INSTPM", Rcs, 0x20c0, true, InContext, 0),
    r(
        "FORCE_TO_NONPRIV0",
        Rcs,
        0x24d0,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV1",
        Rcs,
        0x24d4,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV2",
        Rcs,
        0x24d8,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV3",
        Rcs,
        0x24dc,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV4",
        Rcs,
        0x24e0,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV5",
        Rcs,
        0x24e4,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV6",
        Rcs,
        0x24e8,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV7",
        Rcs,
        0x24ec,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV8",
        Rcs,
        0x24f0,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV9",
        Rcs,
        0x24f4,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV10",
        Rcs,
        0x24f8,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r(
        "FORCE_TO_NONPRIV11",
        Rcs,
        0x24fc,
        false,
        Outside,
        0x2000 + NOPID,
    ),
    r("CACHE_MODE_1", Rcs, 0x7004, true, InContext, 0),
    r("GT_MODE", Rcs, 0x7008, true, InContext, 0),
    r("CACHE_MODE_0", Rcs, 0x7000, true, InContext, 0),
    r("COMMON_SLICE_CHICKEN1", Rcs, 0x7010, true, InContext, 0),
    r("HDC_CHICKEN0", Rcs, 0x7300, true, InContext, 0),
    r("VF_GUARDBAND", Rcs, 0x83a4, true, InContext, 0),
    r("GFX_MODE", Bcs, 0x2_229c, true, Outside, 0),
    r("MI_MODE", Bcs, 0x2_209c, true, Outside, 0),
    r("INSTPM", Bcs, 0x2_20c0, true, Outside, 0),
    r("HWSTAM", Bcs, 0x2_2098, false, Outside, 0),
    r("EXCC", Bcs, 0x2_2028, true, Outside, 0),
];

/// The entry for a BAR0 offset.
#[must_use]
pub fn find(offset: u32) -> Option<&'static Switched> {
    GEN8.iter().find(|s| s.offset == offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_22_render_and_5_blitter_registers_each_once() {
        let count = |e| GEN8.iter().filter(|s| s.engine == e).count();
        assert_eq!((count(Rcs), count(Bcs)), (22, 5));
        for (i, s) in GEN8.iter().enumerate() {
            assert!(
                GEN8.iter().skip(i + 1).all(|t| t.offset != s.offset),
                "{}",
                s.name
            );
        }
    }
}
