//! What Gen9 (Kaby Lake) has besides Gen8's commands, or in another form.
//!
//! Sources: Mesa `src/intel/genxml/gen9.xml`; Intel's media-driver
//! `agnostic/gen9*/hw`, where Skylake's and Kaby Lake's forms differ both
//! lengths; Linux `gt/intel_gpu_commands.h`, `gt/intel_migrate.c`.

use super::blit::{blt_op, dst, src};
use super::field::{AddressField, both, read, write};
use super::row::Dwords::{self, AtLeast, Between, Exactly};
use super::row::{Command, Dwords::Unsure};
use super::{media, mi, render, video};
use crate::EngineSet;

/// As on Gen8, and of bindless surfaces.
const BASES: &[AddressField] = &[
    both(1, 12).when(1, 1, 0),
    both(4, 12).when(4, 1, 0),
    read(6, 12).when(6, 1, 0),
    read(8, 12).when(8, 1, 0),
    read(10, 12).when(10, 1, 0),
    read(16, 12).when(16, 1, 0),
];

/// As on Gen8, with a scaled reference and, on Kaby Lake, slice sizes.
const PICTURE: &[AddressField] = &[
    both(1, 6),
    both(4, 6),
    read(7, 6),
    both(10, 6).each(3, 3),
    read(19, 6).each(2, 16),
    both(52, 6).each(3, 3),
    both(62, 6),
    both(65, 6),
];

/// Nine line and column buffers behind the picture, motion vectors, eight
/// references, the source, stream-outs, collocated motion vectors, VP9's
/// buffers.
const HEVC_PICTURE: &[AddressField] = &[
    both(1, 6).each(3, 11),
    read(37, 6).each(2, 8),
    read(54, 6),
    both(57, 6).each(3, 3),
    read(66, 6).each(2, 8),
    both(83, 6).each(3, 4),
];

/// Three scaled references, the source, stream-in, row store, collocated
/// motion vectors, four references, statistics.
const ENCODER_PICTURE: &[AddressField] = &[both(1, 6).each(3, 12)];

/// As on Gen8, with tables of contrast and gamma.
const ENHANCER_STATE: &[AddressField] = &[read(2, 12).each(2, 7)];

/// As on Gen8, with a histogram and skin scores.
const ENHANCER_FRAMES: &[AddressField] = &[
    read(2, 12).each(2, 3),
    write(8, 12).each(2, 5),
    read(18, 12),
    write(20, 12).each(2, 2),
];

/// HEVC and VP9: bit 23 and upwards are 7.
const fn hcp(name: &'static str, b: u32, dwords: Dwords) -> Command {
    video::mfx(name, 3, 4 | b >> 5, b & 0x1f, dwords)
}

/// The microcontroller of the video engine.
const fn huc(name: &'static str, b: u32, dwords: Dwords) -> Command {
    video::mfx(name, 5, 4 | b >> 5, b & 0x1f, dwords)
}

/// The low-power encoder.
const fn vdenc(name: &'static str, b: u32, dwords: Dwords) -> Command {
    video::mfx(name, 0, 4, b, dwords)
}

/// Scaler and format conversion behind the video engines.
const fn sfc(name: &'static str, b: u32, dwords: Dwords) -> Command {
    let both = video::VIDEO_ENGINES;
    video::packet(name, 5, 0, b, both).field(12, dwords)
}

/// Commands of Gen9 that are not as on Gen8.
pub static GEN9_ONLY: &[Command] = &[
    // It would keep the hardware awake.
    mi::mi("MI_FORCE_WAKEUP", 0x1d, EngineSet::ALL)
        .long(2)
        .refused(),
    super::blit::blt("XY_FAST_COPY_BLT", blt_op::XY_FAST_COPY_BLT)
        .long(10)
        .addresses(&[dst(4), src(8)]),
    render::p0("STATE_BASE_ADDRESS", 1, 0x01)
        .long(19)
        .addresses(BASES),
    render::p3("3DSTATE_DS", 0, 0x1d).long(11).through_state(),
    render::p3("3DSTATE_SBE", 0, 0x1f).long(6),
    render::p3("3DSTATE_WM_DEPTH_STENCIL", 0, 0x4e).long(4),
    render::p3("3DSTATE_RS_CONSTANT_POINTER", 0, 0x54)
        .long(4)
        .addresses(&[both(2, 6)]),
    render::p3("3DSTATE_VF_COMPONENT_PACKING", 0, 0x55).long(5),
    render::p3("3DSTATE_URB_CLEAR", 1, 0x1d).long(2),
    media::media("MEDIA_POOL_STATE", 0, 0x05).field(16, Exactly(6)),
    video::mfx("MFX_PIPE_BUF_ADDR_STATE", 0, 0, 0x02, Between(65, 68)).addresses(PICTURE),
    video::mfx("MFX_AVC_IMG_STATE", 1, 0, 0x00, Between(16, 21)),
    video::work("MFD_AVC_SLICEADDR", 1, 1, 0x07, Between(3, 4)),
    video::work("MFD_AVC_BSD_OBJECT", 1, 1, 0x08, Between(6, 7)),
    vdenc("VDENC_PIPE_MODE_SELECT", 0x00, Exactly(2)),
    vdenc("VDENC_SRC_SURFACE_STATE", 0x01, Exactly(6)),
    vdenc("VDENC_REF_SURFACE_STATE", 0x02, Exactly(6)),
    vdenc("VDENC_DS_REF_SURFACE_STATE", 0x03, AtLeast(6)),
    vdenc("VDENC_PIPE_BUF_ADDR_STATE", 0x04, Exactly(37)).addresses(ENCODER_PICTURE),
    vdenc("VDENC_IMG_STATE", 0x05, Exactly(35)),
    vdenc("VDENC_CONST_QPT_STATE", 0x06, Exactly(61)),
    vdenc("VDENC_WALKER_STATE", 0x07, Between(2, 4)).through_state(),
    vdenc("VDENC_WEIGHTSOFFSETS_STATE", 0x08, AtLeast(3)),
    hcp("HCP_PIPE_MODE_SELECT", 0x00, Between(4, 6)),
    hcp("HCP_SURFACE_STATE", 0x01, Exactly(3)),
    hcp("HCP_PIPE_BUF_ADDR_STATE", 0x02, Between(95, 104)).addresses(HEVC_PICTURE),
    hcp("HCP_IND_OBJ_BASE_ADDR_STATE", 0x03, Exactly(14)).addresses(&[
        read(1, 12),
        both(6, 12),
        both(9, 12),
    ]),
    hcp("HCP_QM_STATE", 0x04, Exactly(18)),
    hcp("HCP_FQM_STATE", 0x05, Exactly(34)),
    hcp("HEVC_VP9_RDOQ_STATE", 0x08, Exactly(130)),
    hcp("HCP_PIC_STATE", 0x10, Between(19, 32)),
    hcp("HCP_TILE_STATE", 0x11, Exactly(13)),
    hcp("HCP_REF_IDX_STATE", 0x12, Exactly(18)),
    hcp("HCP_WEIGHTOFFSET_STATE", 0x13, Exactly(34)),
    hcp("HCP_SLICE_STATE", 0x14, Between(9, 11)),
    hcp("HCP_BSD_OBJECT", 0x20, Exactly(3)).through_state(),
    hcp("HCP_PAK_OBJECT", 0x21, Unsure).through_state(),
    hcp("HCP_PAK_INSERT_OBJECT", 0x22, AtLeast(2)).through_state(),
    hcp("HCP_VP9_PIC_STATE", 0x30, AtLeast(19)),
    hcp("HCP_VP9_SEGMENT_STATE", 0x32, Between(7, 8)),
    sfc("SFC_LOCK", 0x00, Exactly(2)),
    sfc("SFC_STATE", 0x01, Exactly(34)).addresses(&[write(17, 12), both(20, 12), both(23, 12)]),
    sfc("SFC_AVS_STATE", 0x02, Exactly(3)),
    sfc("SFC_IEF_STATE", 0x03, Exactly(24)),
    sfc("SFC_FRAME_START", 0x04, Exactly(2)).through_state(),
    sfc("SFC_AVS_LUMA_COEFF_TABLE", 0x05, Exactly(129)),
    sfc("SFC_AVS_CHROMA_COEFF_TABLE", 0x06, Exactly(65)),
    huc("HUC_PIPE_MODE_SELECT", 0x00, Exactly(3)),
    // Its firmware lies in the write-once memory that the kernel set up.
    huc("HUC_IMEM_STATE", 0x01, Exactly(5)).through_state(),
    huc("HUC_DMEM_STATE", 0x02, Exactly(6)).addresses(&[read(1, 6)]),
    huc("HUC_CFG_STATE", 0x03, Exactly(2)),
    huc("HUC_VIRTUAL_ADDR_STATE", 0x04, Exactly(49)).addresses(&[both(1, 12).each(3, 16)]),
    huc("HUC_IND_OBJ_BASE_ADDR_STATE", 0x05, Exactly(11)).addresses(&[read(1, 12), write(6, 12)]),
    huc("HUC_STREAM_OBJECT", 0x20, Exactly(5)).through_state(),
    huc("HUC_START", 0x21, Exactly(2)).through_state(),
    video::mfx("VD_PIPELINE_FLUSH", 7, 4, 0x00, Exactly(2)),
    video::veb("VEBOX_SURFACE_STATE", 0x00, Exactly(9)),
    video::veb("VEBOX_TILING_CONVERT", 0x01, Exactly(5))
        .addresses(&[read(1, 12), write(3, 12)])
        .through_state(),
    video::veb("VEBOX_STATE", 0x02, Exactly(16)).addresses(ENHANCER_STATE),
    video::veb("VEB_DI_IECP", 0x03, Exactly(24))
        .addresses(ENHANCER_FRAMES)
        .through_state(),
];
