//! Commands of the video engines: client 3, pipeline in bits 28:27, opcode in
//! 26:24, sub-opcodes in 23:21 and 20:16. Of sub-opcode A, 0 is common, 1
//! decodes and 2 encodes.
//!
//! Their addresses go through the context's own page tables.

use super::field::{AddressField, both, read, write};
use super::row::Command;
use super::row::Dwords::{self, AtLeast, Between, Exactly, Unsure};
use crate::{Engine, EngineSet};

const VCS: EngineSet = EngineSet::of(&[Engine::Vcs]);
const VECS: EngineSet = EngineSet::of(&[Engine::Vecs]);
pub(super) const VIDEO_ENGINES: EngineSet = EngineSet::of(&[Engine::Vcs, Engine::Vecs]);

pub(super) const fn packet(
    name: &'static str,
    opcode: u32,
    a: u32,
    b: u32,
    engines: EngineSet,
) -> Command {
    let value = 3 << 29 | 2 << 27 | opcode << 24 | a << 21 | b << 16;
    Command::new(name, 0xffff_0000, value, engines)
}

/// Of the video decoder and encoder, with twelve bits of length.
pub(super) const fn mfx(
    name: &'static str,
    opcode: u32,
    a: u32,
    b: u32,
    dwords: Dwords,
) -> Command {
    packet(name, opcode, a, b, VCS).field(12, dwords)
}

/// Of the video enhancer, with twelve bits of length.
pub(super) const fn veb(name: &'static str, b: u32, dwords: Dwords) -> Command {
    packet(name, 4, 0, b, VECS).field(12, dwords)
}

/// Starts work on a picture, slice or block set up before.
pub(super) const fn work(
    name: &'static str,
    opcode: u32,
    a: u32,
    b: u32,
    dwords: Dwords,
) -> Command {
    mfx(name, opcode, a, b, dwords).through_state()
}

/// Whatever has no row of its own
/// (Linux `i915_cmd_parser.c:gen7_bsd_get_cmd_length_mask`).
const fn others(name: &'static str, mask: u32, value: u32) -> Command {
    Command::new(name, mask, 3 << 29 | value, VIDEO_ENGINES)
}

/// Surfaces and scratch of a picture.
const PICTURE: &[AddressField] = &[
    // Before and after deblocking.
    both(1, 6),
    both(4, 6),
    // The picture to encode.
    read(7, 6),
    // Stream-out, intra and deblocking row stores.
    both(10, 6),
    both(13, 6),
    both(16, 6),
    // Sixteen reference pictures.
    read(19, 6).each(2, 16),
    // Macroblock or error status, and two stream-outs.
    both(52, 6),
    both(55, 6),
    both(58, 6),
];

/// Bitstream, motion vectors, coefficients, deblocking data, output.
const INDIRECT: &[AddressField] = &[
    both(1, 12),
    both(6, 12),
    read(11, 12),
    read(16, 12),
    both(21, 12),
];

/// Sixteen motion-vector buffers of references, and the picture's own.
const DIRECT_AVC: &[AddressField] = &[read(1, 6).each(2, 16), write(34, 6)];

/// Header, intermediate, final frame, stream-out; coefficients in; token
/// statistics and row store.
const VP8_OUTPUT: &[AddressField] = &[both(1, 6), both(4, 6), both(16, 6), both(20, 6).each(3, 4)];

/// State of denoise, colour, gamut, vertices and capture.
const ENHANCER_STATE: &[AddressField] = &[read(2, 12).each(2, 5)];

/// Four inputs; seven outputs with the statistics; alpha and vignette.
const ENHANCER_FRAMES: &[AddressField] = &[
    read(2, 12).each(2, 3),
    write(8, 12).each(2, 5),
    read(18, 12),
];

/// Video commands.
pub static VIDEO: &[Command] = &[
    mfx("MFX_PIPE_MODE_SELECT", 0, 0, 0x00, Exactly(5)),
    mfx("MFX_SURFACE_STATE", 0, 0, 0x01, Exactly(6)),
    mfx("MFX_PIPE_BUF_ADDR_STATE", 0, 0, 0x02, Exactly(61)).addresses(PICTURE),
    mfx("MFX_IND_OBJ_BASE_ADDR_STATE", 0, 0, 0x03, Exactly(26)).addresses(INDIRECT),
    mfx("MFX_BSP_BUF_BASE_ADDR_STATE", 0, 0, 0x04, Exactly(10)).addresses(&[
        both(1, 6),
        both(4, 6),
        both(7, 6),
    ]),
    mfx("MFX_AES_STATE", 0, 0, 0x05, Unsure),
    mfx("MFX_STATE_POINTER", 0, 0, 0x06, Unsure).through_state(),
    mfx("MFX_QM_STATE", 0, 0, 0x07, Exactly(18)),
    mfx("MFX_FQM_STATE", 0, 0, 0x08, Exactly(34)),
    work("MFD_IT_OBJECT", 0, 1, 0x09, AtLeast(7)),
    work("MFX_PAK_INSERT_OBJECT", 0, 2, 0x08, AtLeast(2)),
    work("MFX_STITCH_OBJECT", 0, 2, 0x0a, Unsure),
    // AVC. Two drivers differ in the first by a dword.
    mfx("MFX_AVC_IMG_STATE", 1, 0, 0x00, Between(16, 17)),
    mfx("MFX_AVC_QM_STATE", 1, 0, 0x01, Unsure),
    mfx("MFX_AVC_DIRECTMODE_STATE", 1, 0, 0x02, Exactly(71)).addresses(DIRECT_AVC),
    mfx("MFX_AVC_SLICE_STATE", 1, 0, 0x03, Exactly(11)),
    mfx("MFX_AVC_REF_IDX_STATE", 1, 0, 0x04, Exactly(10)),
    mfx("MFX_AVC_WEIGHTOFFSET_STATE", 1, 0, 0x05, Exactly(98)),
    mfx("MFD_AVC_PICID_STATE", 1, 1, 0x05, Exactly(10)),
    mfx("MFD_AVC_DPB_STATE", 1, 1, 0x06, Exactly(27)),
    work("MFD_AVC_SLICEADDR", 1, 1, 0x07, Exactly(3)),
    work("MFD_AVC_BSD_OBJECT", 1, 1, 0x08, Exactly(6)),
    mfx("MFC_AVC_FQM_STATE", 1, 2, 0x02, Unsure),
    work("MFC_AVC_INSERT_OBJECT", 1, 2, 0x08, AtLeast(2)),
    work("MFC_AVC_PAK_OBJECT", 1, 2, 0x09, Exactly(12)),
    // VC-1.
    mfx("MFX_VC1_PIC_STATE", 2, 0, 0x00, Unsure),
    mfx("MFX_VC1_PRED_PIPE_STATE", 2, 0, 0x01, Exactly(6)),
    mfx("MFX_VC1_DIRECTMODE_STATE", 2, 0, 0x02, Exactly(7)).addresses(&[write(1, 6), read(4, 6)]),
    mfx("MFD_VC1_SHORT_PIC_STATE", 2, 1, 0x00, Exactly(5)),
    mfx("MFD_VC1_LONG_PIC_STATE", 2, 1, 0x01, Exactly(6)),
    work("MFD_VC1_BSD_OBJECT", 2, 1, 0x08, Exactly(5)),
    // MPEG-2.
    mfx("MFX_MPEG2_PIC_STATE", 3, 0, 0x00, Exactly(13)),
    mfx("MFX_MPEG2_QM_STATE", 3, 0, 0x01, Unsure),
    work("MFD_MPEG2_BSD_OBJECT", 3, 1, 0x08, Exactly(5)),
    mfx("MFC_MPEG2_SLICEGROUP_STATE", 3, 2, 0x03, Exactly(8)),
    work("MFC_MPEG2_PAK_OBJECT", 3, 2, 0x09, Exactly(9)),
    // VP8, where the enhancer has its own commands.
    mfx("MFX_VP8_PIC_STATE", 4, 0, 0x00, Exactly(38)).addresses(&[both(16, 6), both(35, 6)]),
    work("MFD_VP8_BSD_OBJECT", 4, 1, 0x08, Exactly(22)),
    mfx("MFX_VP8_ENCODER_CFG", 4, 2, 0x01, Exactly(30)),
    mfx("MFX_VP8_BSP_BUF_BASE_ADDR_STATE", 4, 2, 0x03, Exactly(32)).addresses(VP8_OUTPUT),
    work("MFX_VP8_PAK_OBJECT", 4, 2, 0x09, Exactly(7)),
    // GVT-g knows these by number.
    mfx("MFX_2_6_0_0", 6, 0, 0x00, Unsure).field(16, Unsure),
    mfx("MFX_2_6_0_8", 6, 0, 0x08, Unsure).field(16, Unsure),
    mfx("MFX_2_6_0_9", 6, 0, 0x09, Unsure).field(16, Unsure),
    // JPEG.
    mfx("MFX_JPEG_PIC_STATE", 7, 0, 0x00, Exactly(3)),
    mfx("MFX_JPEG_HUFF_TABLE_STATE", 7, 0, 0x02, Exactly(53)),
    work("MFD_JPEG_BSD_OBJECT", 7, 1, 0x08, Exactly(6)),
    mfx("MFC_JPEG_HUFF_TABLE_STATE", 7, 2, 0x03, Exactly(176)),
    work("MFC_JPEG_SCAN_OBJECT", 7, 2, 0x09, Exactly(3)),
    // Enhancer. Gen7.5 and Gen9 have other lengths of the second.
    veb("VEBOX_SURFACE_STATE", 0x00, Between(6, 9)),
    veb("VEBOX_STATE", 0x02, Exactly(12)).addresses(ENHANCER_STATE),
    veb("VEB_DI_IECP", 0x03, Exactly(20))
        .addresses(ENHANCER_FRAMES)
        .through_state(),
    // One dword, though it has a length field.
    Command::new("MFX_WAIT", 0xffff_0000, 3 << 29 | 1 << 27, VIDEO_ENGINES),
    // What has no row of its own.
    others("common video packet", 0xf800_0000, 0).field(8, Unsure),
    others("single-dword video packet", 0xf800_0000, 1 << 27).field(8, Unsure),
    others("video packet", 0xf800_0000, 2 << 27).field(12, Unsure),
    others("video packet of opcode 6", 0xff00_0000, 2 << 27 | 6 << 24).field(16, Unsure),
    others("last video packet", 0xf800_0000, 3 << 27).field(8, Unsure),
];
