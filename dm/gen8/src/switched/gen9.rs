//! Skylake to Kaby Lake. Offsets: Linux `gt/intel_gt_regs.h`,
//! `gt/intel_mocs.c`, `gvt/mmio_context.c`.

use super::{GVT, Group, NOOP, Row, Table, USER, excc, instpm, mi_mode, moment};
use crate::Engine::{self, Bcs, Rcs, Vcs, Vecs};
use crate::ring::NOPID;

const ACCESS: &str = "gen8::access: a ring's commands may write it";
const MOCS: &str = "Linux gvt/mmio_context.c:switch_mocs, gt/intel_mocs.c:mocs_offset";
const OWN_MOCS: &str = "Linux gt/intel_mocs.c:mocs_offset";
const WHILE_RESTORED: &str = "Linux gt/intel_lrc.c:gen9_init_indirectctx_bb";
const PREEMPTION: &str = "Linux gt/intel_workarounds.c:rcs_engine_wa_init";
/// In order: the table's address and what its entries mean, then the area it
/// is for, then the enable bits.
const TRTT: &str = "Linux gvt/mmio_context.c, gvt/handlers.c (TR-TT)";

const fn row(name: &'static str, offset: u32, group: Group) -> Row {
    Row::new(name, Rcs, offset, group, GVT)
}

const fn pipeline(name: &'static str, offset: u32) -> Row {
    row(name, offset, Group::Pipeline).masked().in_context()
}

const fn tiled(name: &'static str, offset: u32, order: u8) -> Row {
    Row::new(name, Rcs, offset, Group::Memory, TRTT)
        .in_context()
        .order(order)
}

const fn mocs(engine: Engine, offset: u32) -> Row {
    Row::new("MOCS", engine, offset, Group::Mocs, MOCS).times(64)
}

/// Gen9's registers. The render engine's own MOCS table is in its context: a
/// context that was never saved starts with what the driver wrote. GVT-g lists 0x2248 twice, so its 53 are 52.
pub static GEN9: Table = Table {
    name: "gen9",
    rows: &[
        row("GFX_MODE", 0x229c, Group::Streamer).masked(),
        row("CTX_PREEMPT", 0x2248, Group::Streamer),
        row("HWSTAM", 0x2098, Group::Streamer),
        instpm(Rcs, GVT).in_context(),
        mi_mode(Rcs, ACCESS),
        row("FORCE_TO_NONPRIV", 0x24d0, Group::NonPriv)
            .times(12)
            .reset(0x2000 + NOPID),
        row("CS_DEBUG_MODE1", 0x20ec, Group::Streamer).masked(),
        row("CSFE_CHICKEN1", 0x20d4, Group::Streamer).masked(),
        row("FF_THREAD_MODE", 0x20a0, Group::Streamer),
        row("FF_SLICE_CS_CHICKEN2", 0x20e4, Group::Streamer).masked(),
        // GVT-g leaves these to each guest's batch at the context's restore.
        Row::new(
            "FF_SLICE_CHICKEN",
            Rcs,
            0x2088,
            Group::Streamer,
            WHILE_RESTORED,
        )
        .masked(),
        Row::new("3D_CHICKEN3", Rcs, 0x2090, Group::Streamer, WHILE_RESTORED).masked(),
        Row::new(
            "FF_SLICE_CS_CHICKEN1",
            Rcs,
            0x20e0,
            Group::Streamer,
            PREEMPTION,
        )
        .masked(),
        row("0x20d8", 0x20d8, Group::Streamer).masked().in_context(),
        row("CS_CHICKEN1", 0x2580, Group::Streamer)
            .masked()
            .in_context(),
        pipeline("CACHE_MODE_0", 0x7000),
        pipeline("CACHE_MODE_1", 0x7004),
        pipeline("GT_MODE", 0x7008),
        pipeline("COMMON_SLICE_CHICKEN1", 0x7010),
        pipeline("COMMON_SLICE_CHICKEN2", 0x7014),
        pipeline("HDC_CHICKEN0", 0x7300),
        pipeline("HDC_CHICKEN1", 0x7304),
        pipeline("VF_GUARDBAND", 0x83a4),
        pipeline("HALF_SLICE_CHICKEN1", 0xe100),
        pipeline("HALF_SLICE_CHICKEN2", 0xe180),
        pipeline("HALF_SLICE_CHICKEN3", 0xe184),
        pipeline("HALF_SLICE_CHICKEN5", 0xe188),
        pipeline("HALF_SLICE_CHICKEN7", 0xe194),
        pipeline("ROW_CHICKEN", 0xe4f0),
        // Halves of one register of 64 bits.
        row("PRIVATE_PAT_LO", 0x40e0, Group::Memory).order(1),
        row("PRIVATE_PAT_HI", 0x40e4, Group::Memory).order(2),
        row("GAMT_ECO_REG_RW_IA", 0x4ab0, Group::Memory),
        row("GAMT_CHKN_BIT_REG", 0x4ab8, Group::Memory),
        tiled("TRVATTL3PTRDW0", 0x4de0, 3),
        tiled("TRVATTL3PTRDW1", 0x4de4, 4),
        tiled("TRNULLDETCT", 0x4de8, 5),
        tiled("TRINVTILEDETCT", 0x4dec, 6),
        tiled("TRVADR", 0x4df0, 7),
        tiled("TRTTE", 0x4df4, 8),
        tiled("0x4dfc", 0x4dfc, 9),
        row("UCGCTL4", 0x940c, Group::L3),
        row("GARBCNTL", 0xb004, Group::L3),
        row("SCRATCH_LNCF1", 0xb008, Group::L3),
        row("L3SQCREG4", 0xb118, Group::L3).reset(0x4040_0000),
        row("SCRATCH1", 0xb11c, Group::L3),
        Row::new("LNCFCMOCS", Rcs, 0xb020, Group::L3cc, MOCS).times(32),
        Row::new("MOCS", Rcs, 0xc800, Group::Mocs, OWN_MOCS)
            .in_context()
            .times(64),
        moment("NOPID", Rcs, NOPID, USER),
        moment("BB_OFFSET", Rcs, 0x158, USER),
        moment("OACTXID", Rcs, 0x364, USER),
        Row::new("GFX_MODE", Bcs, 0x2_229c, Group::Streamer, GVT).masked(),
        mi_mode(Bcs, GVT),
        instpm(Bcs, GVT),
        Row::new("HWSTAM", Bcs, 0x2_2098, Group::Streamer, GVT),
        excc(Bcs),
        moment("NOPID", Bcs, NOPID, NOOP),
        mocs(Bcs, 0xcc00),
        // GVT-g lists the second video engine's, which GT2 parts lack.
        excc(Vcs),
        mi_mode(Vcs, ACCESS),
        instpm(Vcs, ACCESS),
        moment("NOPID", Vcs, NOPID, NOOP),
        mocs(Vcs, 0xc900),
        excc(Vecs),
        mi_mode(Vecs, ACCESS),
        instpm(Vecs, ACCESS),
        moment("NOPID", Vecs, NOPID, NOOP),
        mocs(Vecs, 0xcb00),
    ],
    touches_context: false,
};
