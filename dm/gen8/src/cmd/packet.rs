//! Blitter (client 2) and render, media (client 3) packets.
//!
//! Addresses in these packets always go through the context's own page
//! tables, PIPE_CONTROL's post-sync write excepted, so only that one is
//! listed with a choice.

use super::{AddressField, Command, Length, Privilege, Space};
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

/// Flag bits of PIPE_CONTROL's dword 1.
pub mod pipe_control {
    /// Bits 15:14: what the post-sync operation writes.
    pub const POST_SYNC_MASK: u32 = 3 << 14;
    /// Write the immediate qword.
    pub const POST_SYNC_QW: u32 = 1 << 14;
    /// Write the depth count.
    pub const POST_SYNC_DEPTH: u32 = 2 << 14;
    /// Write the timestamp.
    pub const POST_SYNC_TIMESTAMP: u32 = 3 << 14;
    /// Raise the notify interrupt.
    pub const NOTIFY: u32 = 1 << 8;
    /// The post-sync address is an offset into the per-process status page.
    pub const STORE_INDEX: u32 = 1 << 21;
    /// The post-sync operation writes a register.
    pub const LRI_POST_SYNC: u32 = 1 << 23;
    /// The post-sync address is global.
    pub const GGTT: u32 = 1 << 24;
    /// Forget cached translations.
    pub const TLB_INVALIDATE: u32 = 1 << 18;
}

const BCS: EngineSet = EngineSet::of(&[Engine::Bcs]);
const RCS: EngineSet = EngineSet::of(&[Engine::Rcs]);
const VIDEO: EngineSet = EngineSet::of(&[Engine::Vcs, Engine::Vecs]);

const fn blt(name: &'static str, opcode: u32) -> Command {
    Command {
        name,
        mask: 0xffc0_0000,
        value: (2 << 29) | (opcode << 22),
        length: Length::Field(0xff),
        engines: BCS,
        privilege: Privilege::Any,
        addresses: &[],
    }
}

use blt_op as op;

/// Blitter packets.
pub static BLT: &[Command] = &[
    blt("XY_SETUP_BLT", op::XY_SETUP_BLT),
    blt("XY_SETUP_CLIP_BLT", op::XY_SETUP_CLIP_BLT),
    blt(
        "XY_SETUP_MONO_PATTERN_SL_BLT",
        op::XY_SETUP_MONO_PATTERN_SL_BLT,
    ),
    blt("XY_PIXEL_BLT", op::XY_PIXEL_BLT),
    blt("XY_SCANLINES_BLT", op::XY_SCANLINES_BLT),
    blt("XY_TEXT_BLT", op::XY_TEXT_BLT),
    blt("XY_TEXT_IMMEDIATE_BLT", op::XY_TEXT_IMMEDIATE_BLT),
    blt("COLOR_BLT", op::COLOR_BLT),
    blt("SRC_COPY_BLT", op::SRC_COPY_BLT),
    blt("XY_COLOR_BLT", op::XY_COLOR_BLT),
    blt("XY_PAT_BLT", op::XY_PAT_BLT),
    blt("XY_MONO_PAT_BLT", op::XY_MONO_PAT_BLT),
    blt("XY_SRC_COPY_BLT", op::XY_SRC_COPY_BLT),
    blt("XY_MONO_SRC_COPY_BLT", op::XY_MONO_SRC_COPY_BLT),
    blt("XY_FULL_BLT", op::XY_FULL_BLT),
    blt("XY_FULL_MONO_SRC_BLT", op::XY_FULL_MONO_SRC_BLT),
    blt("XY_FULL_MONO_PATTERN_BLT", op::XY_FULL_MONO_PATTERN_BLT),
    blt(
        "XY_FULL_MONO_PATTERN_MONO_SRC_BLT",
        op::XY_FULL_MONO_PATTERN_MONO_SRC_BLT,
    ),
    blt("XY_MONO_PAT_FIXED_BLT", op::XY_MONO_PAT_FIXED_BLT),
    blt(
        "XY_MONO_SRC_COPY_IMMEDIATE_BLT",
        op::XY_MONO_SRC_COPY_IMMEDIATE_BLT,
    ),
    blt("XY_PAT_BLT_IMMEDIATE", op::XY_PAT_BLT_IMMEDIATE),
    blt("XY_SRC_COPY_CHROMA_BLT", op::XY_SRC_COPY_CHROMA_BLT),
    blt(
        "XY_FULL_IMMEDIATE_PATTERN_BLT",
        op::XY_FULL_IMMEDIATE_PATTERN_BLT,
    ),
    blt(
        "XY_FULL_MONO_SRC_IMMEDIATE_PATTERN_BLT",
        op::XY_FULL_MONO_SRC_IMMEDIATE_PATTERN_BLT,
    ),
    blt("XY_PAT_CHROMA_BLT", op::XY_PAT_CHROMA_BLT),
    blt(
        "XY_PAT_CHROMA_BLT_IMMEDIATE",
        op::XY_PAT_CHROMA_BLT_IMMEDIATE,
    ),
];

const fn packet(
    name: &'static str,
    mask: u32,
    value: u32,
    length: Length,
    engines: EngineSet,
) -> Command {
    Command {
        name,
        mask,
        value,
        length,
        engines,
        privilege: Privilege::Any,
        addresses: &[],
    }
}

/// Render and media packets; the first that matches counts. What has no
/// entry of its own is known by its sub-client (bits 28:27), which fixes the
/// length field.
pub static RENDER: &[Command] = &[
    Command {
        name: "PIPE_CONTROL",
        mask: 0xffff_0000,
        value: 0x7a00_0000,
        length: Length::Field(0xff),
        engines: RCS,
        privilege: Privilege::Any,
        addresses: &[AddressField {
            dword: 2,
            space: Space::GgttIf { dword: 1, bit: 24 },
            write: true,
        }],
    },
    packet(
        "PIPELINE_SELECT",
        0xffff_0000,
        0x6904_0000,
        Length::Fixed(1),
        RCS,
    ),
    packet(
        "3DSTATE_VF_STATISTICS",
        0xffff_0000,
        0x680b_0000,
        Length::Fixed(1),
        RCS,
    ),
    packet(
        "single-dword render packet",
        0xf800_0000,
        0x6800_0000,
        Length::Fixed(1),
        RCS,
    ),
    packet(
        "common render packet",
        0xf800_0000,
        0x6000_0000,
        Length::Field(0xff),
        RCS,
    ),
    packet(
        "media packet",
        0xf800_0000,
        0x7000_0000,
        Length::Field(0xffff),
        RCS,
    ),
    packet(
        "3D packet",
        0xf800_0000,
        0x7800_0000,
        Length::Field(0xff),
        RCS,
    ),
    packet(
        "MFX_WAIT",
        0xffff_0000,
        0x6800_0000,
        Length::Fixed(1),
        VIDEO,
    ),
    packet(
        "video packet",
        0xf800_0000,
        0x7000_0000,
        Length::Field(0xfff),
        VIDEO,
    ),
];
