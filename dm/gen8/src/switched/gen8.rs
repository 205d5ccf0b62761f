//! Broadwell.

use super::{GVT, Group, NOOP, Row, Table, USER, excc, instpm, mi_mode, moment};
use crate::Engine::{Bcs, Rcs, Vcs, Vecs};
use crate::ring::NOPID;

const ACCESS: &str = "gen8::access: a ring's commands may write it";

const fn streamer(name: &'static str, engine: crate::Engine, offset: u32) -> Row {
    Row::new(name, engine, offset, Group::Streamer, GVT)
}

const fn pipeline(name: &'static str, offset: u32) -> Row {
    Row::new(name, Rcs, offset, Group::Pipeline, GVT)
        .masked()
        .in_context()
}

/// Gen8's registers: GVT-g's 22 of the render engine and 5 of the blitter,
/// and what guests can write besides.
pub static GEN8: Table = Table {
    name: "gen8",
    rows: &[
        streamer("GFX_MODE", Rcs, 0x229c).masked(),
        streamer("CTX_PREEMPT", Rcs, 0x2248),
        streamer("HWSTAM", Rcs, 0x2098),
        instpm(Rcs, GVT).in_context(),
        mi_mode(Rcs, ACCESS),
        Row::new("FORCE_TO_NONPRIV", Rcs, 0x24d0, Group::NonPriv, GVT)
            .times(12)
            .reset(0x2000 + NOPID),
        pipeline("CACHE_MODE_0", 0x7000),
        pipeline("CACHE_MODE_1", 0x7004),
        pipeline("GT_MODE", 0x7008),
        pipeline("COMMON_SLICE_CHICKEN1", 0x7010),
        pipeline("HDC_CHICKEN0", 0x7300),
        pipeline("VF_GUARDBAND", 0x83a4),
        // The workaround that changes it for a moment ends by loading it from
        // memory (Linux gt/intel_lrc.c:gen8_emit_flush_coherentl3_wa, which
        // has the value after reset, too).
        Row::new(
            "L3SQCREG4",
            Rcs,
            0xb118,
            Group::L3,
            "Linux gt/intel_lrc.c:gen8_emit_flush_coherentl3_wa",
        )
        .reset(0x4040_0000),
        moment("NOPID", Rcs, NOPID, USER),
        moment("BB_OFFSET", Rcs, 0x158, USER),
        moment("OACTXID", Rcs, 0x364, USER),
        streamer("GFX_MODE", Bcs, 0x2_229c).masked(),
        mi_mode(Bcs, GVT),
        instpm(Bcs, GVT),
        streamer("HWSTAM", Bcs, 0x2_2098),
        excc(Bcs),
        moment("NOPID", Bcs, NOPID, NOOP),
        mi_mode(Vcs, ACCESS),
        instpm(Vcs, ACCESS),
        moment("NOPID", Vcs, NOPID, NOOP),
        mi_mode(Vecs, ACCESS),
        instpm(Vecs, ACCESS),
        moment("NOPID", Vecs, NOPID, NOOP),
    ],
    touches_context: true,
};
