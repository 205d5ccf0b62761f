//! Blitter commands: client 2, opcode in bits 28:22.
//!
//! Their addresses always go through the context's own page tables. i915
//! writes the two forms marked so (Linux `gt/intel_migrate.c`); no public
//! Gen8 source tells of the others, whose lengths follow from Gen7's
//! (libdrm `intel/intel_decode.c:decode_2d`) and an upper dword for each
//! address, the way the two known ones did. All have eight bits of length
//! (Linux `i915_cmd_parser.c:gen9_blt_cmds`).

use super::field::{AddressField, Bytes, both, read};
use super::row::{Command, Dwords};
use crate::{Engine, EngineSet};

/// Blitter opcodes, bits 28:22 of the first dword.
#[expect(missing_docs, reason = "the names are the documentation's own")]
pub mod blt_op {
    pub const XY_SETUP_BLT: u32 = 0x01;
    pub const XY_SETUP_CLIP_BLT: u32 = 0x03;
    pub const XY_SETUP_MONO_PATTERN_SL_BLT: u32 = 0x11;
    pub const XY_PIXEL_BLT: u32 = 0x24;
    pub const XY_SCANLINES_BLT: u32 = 0x25;
    pub const XY_TEXT_BLT: u32 = 0x26;
    pub const XY_TEXT_IMMEDIATE_BLT: u32 = 0x31;
    pub const COLOR_BLT: u32 = 0x40;
    pub const XY_FAST_COPY_BLT: u32 = 0x42;
    pub const SRC_COPY_BLT: u32 = 0x43;
    pub const XY_COLOR_BLT: u32 = 0x50;
    pub const XY_PAT_BLT: u32 = 0x51;
    pub const XY_MONO_PAT_BLT: u32 = 0x52;
    pub const XY_SRC_COPY_BLT: u32 = 0x53;
    pub const XY_MONO_SRC_COPY_BLT: u32 = 0x54;
    pub const XY_FULL_BLT: u32 = 0x55;
    pub const XY_FULL_MONO_SRC_BLT: u32 = 0x56;
    pub const XY_FULL_MONO_PATTERN_BLT: u32 = 0x57;
    pub const XY_FULL_MONO_PATTERN_MONO_SRC_BLT: u32 = 0x58;
    pub const XY_MONO_PAT_FIXED_BLT: u32 = 0x59;
    pub const XY_MONO_SRC_COPY_IMMEDIATE_BLT: u32 = 0x71;
    pub const XY_PAT_BLT_IMMEDIATE: u32 = 0x72;
    pub const XY_SRC_COPY_CHROMA_BLT: u32 = 0x73;
    pub const XY_FULL_IMMEDIATE_PATTERN_BLT: u32 = 0x74;
    pub const XY_FULL_MONO_SRC_IMMEDIATE_PATTERN_BLT: u32 = 0x75;
    pub const XY_PAT_CHROMA_BLT: u32 = 0x76;
    pub const XY_PAT_CHROMA_BLT_IMMEDIATE: u32 = 0x77;
}

use blt_op as op;

const BCS: EngineSet = EngineSet::of(&[Engine::Bcs]);

/// A command whose length no Gen8 source tells.
const fn inferred(name: &'static str, opcode: u32, least: u32, most: u32) -> Command {
    blt(name, opcode).field(8, Dwords::Inferred(least, most))
}

pub(super) const fn blt(name: &'static str, opcode: u32) -> Command {
    Command::new(name, 0xffc0_0000, (2 << 29) | (opcode << 22), BCS)
}

/// A destination: raster operations may read it, too.
pub(super) const fn dst(dword: u8) -> AddressField {
    both(dword, 0).bytes(Bytes::Shape)
}

pub(super) const fn src(dword: u8) -> AddressField {
    read(dword, 0).bytes(Bytes::Shape)
}

/// A colour pattern of eight by eight pixels of at most four bytes.
const fn pattern(dword: u8) -> AddressField {
    read(dword, 6).bytes(Bytes::AtMost(256))
}

/// The destination and pattern of an XY_SETUP_BLT serve the commands that
/// follow; no bound is known there.
const SETUP: &[AddressField] = &[both(4, 0), read(8, 6)];
const DST: &[AddressField] = &[dst(4)];
const DST_SRC: &[AddressField] = &[dst(4), src(8)];
const DST_MONO_SRC: &[AddressField] = &[dst(4), src(6)];
const DST_PATTERN: &[AddressField] = &[dst(4), pattern(6)];

/// Blitter commands.
pub static BLT: &[Command] = &[
    inferred("XY_SETUP_BLT", op::XY_SETUP_BLT, 10, 10).addresses(SETUP),
    inferred("XY_SETUP_CLIP_BLT", op::XY_SETUP_CLIP_BLT, 3, 3),
    inferred(
        "XY_SETUP_MONO_PATTERN_SL_BLT",
        op::XY_SETUP_MONO_PATTERN_SL_BLT,
        10,
        10,
    )
    .addresses(&[both(4, 0)]),
    inferred("XY_PIXEL_BLT", op::XY_PIXEL_BLT, 2, 2).through_state(),
    inferred("XY_SCANLINES_BLT", op::XY_SCANLINES_BLT, 3, 3).through_state(),
    inferred("XY_TEXT_BLT", op::XY_TEXT_BLT, 5, 5)
        .addresses(&[src(3)])
        .through_state(),
    inferred("XY_TEXT_IMMEDIATE_BLT", op::XY_TEXT_IMMEDIATE_BLT, 5, 134).through_state(),
    inferred("COLOR_BLT", op::COLOR_BLT, 6, 6).addresses(&[dst(3)]),
    inferred("SRC_COPY_BLT", op::SRC_COPY_BLT, 8, 8).addresses(&[dst(3), src(6)]),
    // Known: i915 writes it.
    blt("XY_COLOR_BLT", op::XY_COLOR_BLT).long(7).addresses(DST),
    inferred("XY_PAT_BLT", op::XY_PAT_BLT, 8, 8).addresses(DST_PATTERN),
    inferred("XY_MONO_PAT_BLT", op::XY_MONO_PAT_BLT, 10, 10).addresses(DST),
    // Known: i915 writes it.
    blt("XY_SRC_COPY_BLT", op::XY_SRC_COPY_BLT)
        .long(10)
        .addresses(DST_SRC),
    inferred("XY_MONO_SRC_COPY_BLT", op::XY_MONO_SRC_COPY_BLT, 10, 10).addresses(DST_MONO_SRC),
    inferred("XY_FULL_BLT", op::XY_FULL_BLT, 12, 12).addresses(&[dst(4), src(8), pattern(10)]),
    inferred("XY_FULL_MONO_SRC_BLT", op::XY_FULL_MONO_SRC_BLT, 12, 12).addresses(&[
        dst(4),
        src(6),
        pattern(10),
    ]),
    inferred(
        "XY_FULL_MONO_PATTERN_BLT",
        op::XY_FULL_MONO_PATTERN_BLT,
        14,
        14,
    )
    .addresses(DST_SRC),
    inferred(
        "XY_FULL_MONO_PATTERN_MONO_SRC_BLT",
        op::XY_FULL_MONO_PATTERN_MONO_SRC_BLT,
        14,
        14,
    )
    .addresses(DST_MONO_SRC),
    inferred("XY_MONO_PAT_FIXED_BLT", op::XY_MONO_PAT_FIXED_BLT, 8, 8).addresses(DST),
    inferred(
        "XY_MONO_SRC_COPY_IMMEDIATE_BLT",
        op::XY_MONO_SRC_COPY_IMMEDIATE_BLT,
        10,
        138,
    )
    .addresses(DST),
    inferred("XY_PAT_BLT_IMMEDIATE", op::XY_PAT_BLT_IMMEDIATE, 8, 136).addresses(DST),
    inferred("XY_SRC_COPY_CHROMA_BLT", op::XY_SRC_COPY_CHROMA_BLT, 12, 12).addresses(DST_SRC),
    inferred(
        "XY_FULL_IMMEDIATE_PATTERN_BLT",
        op::XY_FULL_IMMEDIATE_PATTERN_BLT,
        11,
        139,
    )
    .addresses(DST_SRC),
    inferred(
        "XY_FULL_MONO_SRC_IMMEDIATE_PATTERN_BLT",
        op::XY_FULL_MONO_SRC_IMMEDIATE_PATTERN_BLT,
        12,
        140,
    )
    .addresses(DST_MONO_SRC),
    inferred("XY_PAT_CHROMA_BLT", op::XY_PAT_CHROMA_BLT, 10, 10).addresses(DST_PATTERN),
    inferred(
        "XY_PAT_CHROMA_BLT_IMMEDIATE",
        op::XY_PAT_CHROMA_BLT_IMMEDIATE,
        10,
        138,
    )
    .addresses(DST),
];
