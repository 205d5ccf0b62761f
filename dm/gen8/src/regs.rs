//! Which registers are special: masked writes, writable by users' batches,
//! part of a context.

use crate::access::Access;
use crate::{Engine, EngineSet, access, ring};

/// Where a block of registers starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At this BAR0 offset.
    Bar(u32),
    /// At this offset from the engine's block.
    Engine(u32),
}

/// Consecutive registers that are alike.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Name of the first.
    pub name: &'static str,
    /// Where they start.
    pub at: At,
    /// How many, 4 bytes each.
    pub dwords: u32,
    /// The command streamers they belong to.
    pub engines: EngineSet,
}

impl Block {
    /// The BAR0 offset of the first register on `engine`.
    #[must_use]
    pub const fn start(&self, engine: Engine) -> u32 {
        match self.at {
            At::Bar(offset) => offset,
            At::Engine(offset) => engine.mmio_base() + offset,
        }
    }

    /// Whether `offset` is one of them, as `engine` sees it.
    #[must_use]
    pub fn contains(&self, engine: Engine, offset: u32) -> bool {
        self.engines.contains(engine)
            && offset
                .checked_sub(self.start(engine))
                .is_some_and(|o| o < self.dwords * 4)
    }
}

const RCS: EngineSet = EngineSet::of(&[Engine::Rcs]);
const BCS: EngineSet = EngineSet::of(&[Engine::Bcs]);

const fn rcs(name: &'static str, offset: u32, dwords: u32) -> Block {
    Block {
        name,
        at: At::Bar(offset),
        dwords,
        engines: RCS,
    }
}

/// Consecutive registers that batches without privilege can write, or that
/// belong to a context, or both.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which.
    pub block: Block,
    /// A batch without privilege may write them: the hardware turns its other
    /// register writes into no-ops.
    pub user: bool,
    /// They are saved and restored with a context.
    pub context: bool,
}

const fn both(name: &'static str, offset: u32, dwords: u32) -> Row {
    Row {
        block: rcs(name, offset, dwords),
        user: true,
        context: true,
    }
}

const fn user(name: &'static str, offset: u32, dwords: u32) -> Row {
    Row {
        context: false,
        ..both(name, offset, dwords)
    }
}

const fn context_only(name: &'static str, offset: u32, dwords: u32) -> Row {
    Row {
        user: false,
        ..both(name, offset, dwords)
    }
}

/// What guests' commands may do to registers on a generation of GPUs, and
/// which of them a context holds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What batches without privilege write and what a context holds, in the
    /// order that the software GPU saves it.
    pub rows: &'static [&'static [Row]],
    /// What privileged commands may reach besides; the first match counts.
    pub privileged: &'static [&'static [Access]],
}

/// Broadwell's.
pub static GEN8: Rules = Rules {
    rows: &[TABLE],
    privileged: &[access::PRIVILEGED],
};

/// Kaby Lake's.
pub static GEN9: Rules = Rules {
    rows: &[TABLE, GEN9_MORE],
    privileged: &[access::PRIVILEGED, access::GEN9_MORE],
};

impl Rules {
    /// Whether a batch without privilege on `engine` may write `offset`.
    #[must_use]
    pub fn user_writable(&self, engine: Engine, offset: u32) -> bool {
        let mut rows = self.rows.iter().flat_map(|rows| *rows);
        rows.any(|r| r.user && r.block.contains(engine, offset))
    }

    /// BAR0 offsets of the registers in `engine`'s context, in the order of
    /// [`Rules::rows`].
    pub fn context(&self, engine: Engine) -> impl Iterator<Item = u32> + use<> {
        self.rows
            .iter()
            .flat_map(|rows| *rows)
            .filter(move |r| r.context && r.block.engines.contains(engine))
            .map(|r| r.block)
            .flat_map(move |b| (0..b.dwords).map(move |i| b.start(engine) + i * 4))
    }
}

/// What unprivileged batches write and what a context holds from Broadwell
/// on.
///
/// Sources: igt `tests/i915/gem_ctx_isolation.c:nonpriv_registers` (measured
/// on hardware), Linux `i915_cmd_parser.c:gen7_render_regs` and
/// `gen9_blt_regs`, `gt/intel_gt_regs.h` for the offsets; for what is in the
/// context alone `gt/intel_workarounds.c:bdw_ctx_workarounds_init` and
/// `gvt/mmio_context.c:gen8_engine_mmio_list`.
pub static TABLE: &[Row] = &[
    Row {
        block: Block {
            name: "CS_GPR",
            at: At::Engine(ring::GPR0),
            dwords: ring::GPR_COUNT * 2,
            engines: EngineSet::ALL,
        },
        user: true,
        context: true,
    },
    Row {
        block: Block {
            name: "BCS_SWCTRL",
            at: At::Bar(ring::BCS_SWCTRL),
            dwords: 1,
            engines: BCS,
        },
        user: true,
        context: true,
    },
    // SRC0, SRC1 and DATA of two dwords each, RESULT, RESULT_1.
    both("MI_PREDICATE", 0x2400, 8),
    both("MI_PREDICATE_RESULT_2", 0x23bc, 1),
    both("INSTPM", 0x20c0, 1),
    user("NOPID", 0x2094, 1),
    user("BB_OFFSET", 0x2158, 1),
    both("GPGPU_THREADS_DISPATCHED", 0x2290, 2),
    both("PS_INVOCATION_COUNT_0", 0x22c8, 2),
    both("PS_DEPTH_COUNT_0", 0x22d8, 2),
    both("PS_INVOCATION_COUNT_1", 0x22f0, 2),
    both("PS_DEPTH_COUNT_1", 0x22f8, 2),
    // HS, DS, IA, VS, GS, CL, PS counters, two dwords each.
    both("HS_INVOCATION_COUNT", 0x2300, 22),
    both("OA_CTX_CONTROL", 0x2360, 1),
    user("OACTXID", 0x2364, 1),
    both("3DPRIM_END_OFFSET", 0x2420, 1),
    both("3DPRIM_START_VERTEX", 0x2430, 5),
    both("PS_INVOCATION_COUNT_2", 0x2448, 2),
    both("PS_DEPTH_COUNT_2", 0x2450, 2),
    both("GPGPU_DISPATCHDIM", 0x2500, 3),
    both("SO_NUM_PRIMS_WRITTEN", 0x5200, 8),
    both("SO_PRIM_STORAGE_NEEDED", 0x5240, 8),
    both("SO_WRITE_OFFSET", 0x5280, 4),
    both("CACHE_MODE_0", 0x7000, 1),
    both("CACHE_MODE_1", 0x7004, 1),
    both("GT_MODE", 0x7008, 1),
    context_only("COMMON_SLICE_CHICKEN1", 0x7010, 1),
    context_only("COMMON_SLICE_CHICKEN2", 0x7014, 1),
    both("L3CNTLREG", 0x7034, 1),
    context_only("HDC_CHICKEN0", 0x7300, 1),
    context_only("VF_GUARDBAND", 0x83a4, 1),
    context_only("HALF_SLICE_CHICKEN3", 0xe184, 1),
    both("TD_CTL", 0xe400, 2),
    context_only("ROW_CHICKEN", 0xe4f0, 1),
    context_only("ROW_CHICKEN2", 0xe4f4, 1),
];

/// What a Gen9 context holds besides. Sources: Linux
/// `gvt/mmio_context.c:gen9_engine_mmio_list` (those in the context),
/// `gt/intel_mocs.c:mocs_offset` and `gvt/mmio_context.c:switch_mocs` (the
/// render engine's table of memory object control states).
pub static GEN9_MORE: &[Row] = &[
    context_only("0x20d8", 0x20d8, 1),
    context_only("CS_CHICKEN1", 0x2580, 1),
    context_only("TRVATTL3PTRDW0", 0x4de0, 6),
    context_only("0x4dfc", 0x4dfc, 1),
    context_only("HDC_CHICKEN1", 0x7304, 1),
    context_only("GFX_MOCS", 0xc800, 64),
    context_only("HALF_SLICE_CHICKEN1", 0xe100, 1),
    context_only("HALF_SLICE_CHICKEN2", 0xe180, 1),
    context_only("HALF_SLICE_CHICKEN5", 0xe188, 1),
    context_only("HALF_SLICE_CHICKEN7", 0xe194, 1),
];

/// Offsets in every engine's block whose registers are masked: a write's
/// high half says which bits of its low half count.
pub static MASKED_ENGINE: &[u32] = &[
    0x28, // EXCC
    0x50, // PSMI_CTL
    ring::MI_MODE,
    ring::INSTPM,
    ring::RESET_CTL,
    ring::CONTEXT_CONTROL,
    ring::MODE,
    ring::CSB_PTR,
];

/// BAR0 offsets of masked registers outside [`MASKED_ENGINE`], ascending
/// (Linux `gvt/handlers.c`: entries with `F_MODE_MASK` on Broadwell and Kaby
/// Lake; `intel_uncore.c:FORCEWAKE_MT`). Broadwell has none of those that
/// only Kaby Lake's driver writes.
pub static MASKED: &[u32] = &[
    0x2088, // FF_SLICE_CHICKEN
    0x2090, // 3D_CHICKEN3
    0x20d4, // CSFE_CHICKEN1
    0x20d8, //
    0x20dc, // GFX_MODE of older parts
    0x20e0, // FF_SLICE_CS_CHICKEN1
    0x20e4, // FF_SLICE_CS_CHICKEN2
    0x20ec, // CS_DEBUG_MODE1
    0x2120, // CACHE_MODE_0 of older parts
    0x2124, //
    0x2470, //
    0x2580, // CS_CHICKEN1
    0x4030, // ARB_MODE
    0x7000, // CACHE_MODE_0
    0x7004, // CACHE_MODE_1
    0x7008, // GT_MODE
    0x7010, // COMMON_SLICE_CHICKEN1
    0x7014, // COMMON_SLICE_CHICKEN2
    0x7018, // HIZ_CHICKEN
    0x7300, // HDC_CHICKEN0
    0x7304, // HDC_CHICKEN1
    0x83a4, // VF_GUARDBAND
    0xa188, // FORCEWAKE_MT
    0xa270, // FORCEWAKE_MEDIA
    0xa278, // FORCEWAKE_RENDER
    0xe100, // HALF_SLICE_CHICKEN1
    0xe180, // HALF_SLICE_CHICKEN2
    0xe184, // HALF_SLICE_CHICKEN3
    0xe188, // HALF_SLICE_CHICKEN5
    0xe194, // HALF_SLICE_CHICKEN7
    0xe49c, // ROW_CHICKEN3
    0xe4f0, // ROW_CHICKEN
    0xe4f4, // ROW_CHICKEN2
    ring::BCS_SWCTRL,
];

/// Whether a write to `offset` applies only the bits its high half names.
#[must_use]
pub fn masked(offset: u32) -> bool {
    if let Some((_, o)) = Engine::from_mmio(offset)
        && MASKED_ENGINE.contains(&o)
    {
        return true;
    }
    MASKED.binary_search(&offset).is_ok()
}

/// What a masked register holds after `write`.
#[must_use]
pub const fn apply_masked(old: u32, write: u32) -> u32 {
    let mask = write >> 16;
    (old & !mask) | (write & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masked_table_is_sorted() {
        assert!(MASKED.windows(2).all(|w| w[0] < w[1]));
        assert!(masked(0x2_2200) && masked(0x1_209c) && masked(0x7300));
        assert!(!masked(0x2230) && !masked(0x4_4200));
    }

    #[test]
    fn a_masked_write_touches_what_its_mask_names() {
        assert_eq!(apply_masked(0x00f0, 0x0011_0001), 0x00e1);
        assert_eq!(apply_masked(0x1234, 0x0000_ffff), 0x1234);
    }

    #[test]
    fn users_reach_their_own_engine_only() {
        assert!(GEN8.user_writable(Engine::Rcs, 0x2600));
        assert!(GEN8.user_writable(Engine::Bcs, 0x2_267c));
        assert!(!GEN8.user_writable(Engine::Bcs, 0x2_2680));
        assert!(!GEN8.user_writable(Engine::Bcs, 0x2600));
        assert!(GEN8.user_writable(Engine::Bcs, 0x2_2200));
        assert!(!GEN8.user_writable(Engine::Rcs, 0x2_2200));
        assert!(!GEN8.user_writable(Engine::Rcs, 0x2230));
    }

    #[test]
    fn no_register_is_saved_twice() {
        for rules in [&GEN8, &GEN9] {
            for e in Engine::ALL {
                for (i, a) in rules.context(e).enumerate() {
                    let mut later = rules.context(e).skip(i + 1);
                    assert!(later.all(|b| a != b), "{e:?} {a:#x}");
                }
            }
            assert_eq!(rules.context(Engine::Vcs).count(), 32);
        }
    }
}
