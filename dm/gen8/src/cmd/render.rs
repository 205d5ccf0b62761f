//! Commands of the render engine: client 3, sub-clients 0 (common), 1
//! (single dword) and 3 (3D) in bits 28:27, opcode in 26:24, sub-opcode in
//! 23:16. Sub-client 2 is in `media`.
//!
//! Their addresses go through the context's own page tables, PIPE_CONTROL's
//! post-sync write excepted. What most of the state points to is an offset
//! from a base of STATE_BASE_ADDRESS, not an address: such commands are
//! marked `through_state`.

use super::field::{AddressField, Bits, Bytes, StatusField, both, read, register, write};
use super::flags::pipe_control as pc;
use super::row::Command;
use super::row::Dwords::{AtLeast, Between, Unsure};
use crate::{Engine, EngineSet};

const RCS: EngineSet = EngineSet::of(&[Engine::Rcs]);

const fn packet(name: &'static str, sub_client: u32, opcode: u32, sub_opcode: u32) -> Command {
    let value = 3 << 29 | sub_client << 27 | opcode << 24 | sub_opcode << 16;
    Command::new(name, 0xffff_0000, value, RCS)
}

/// Common.
pub(super) const fn p0(name: &'static str, opcode: u32, sub_opcode: u32) -> Command {
    packet(name, 0, opcode, sub_opcode)
}

/// Of one dword, whatever its low bits say.
const fn p1(name: &'static str, opcode: u32, sub_opcode: u32) -> Command {
    packet(name, 1, opcode, sub_opcode)
}

/// 3D.
pub(super) const fn p3(name: &'static str, opcode: u32, sub_opcode: u32) -> Command {
    packet(name, 3, opcode, sub_opcode)
}

/// Whatever has no row of its own; the sub-client says where the length is
/// (Linux `i915_cmd_parser.c:gen7_render_get_cmd_length_mask`).
const fn others(name: &'static str, sub_client: u32) -> Command {
    Command::new(name, 0xf800_0000, 3 << 29 | sub_client << 27, RCS)
}

/// Bases of general, surface, dynamic and indirect state and of
/// instructions, each only when its lowest bit says so.
const BASES: &[AddressField] = &[
    both(1, 12).when(1, 1, 0),
    both(4, 12).when(4, 1, 0),
    read(6, 12).when(6, 1, 0),
    read(8, 12).when(8, 1, 0),
    read(10, 12).when(10, 1, 0),
];

/// A depth or stencil surface.
const SURFACE: &[AddressField] = &[both(2, 0)];

/// Four constant buffers.
const CONSTANTS: &[AddressField] = &[read(3, 5).each(2, 4)];

/// The post-sync write is an address unless it goes to a register or by
/// offset into a status page.
const PIPE_CONTROL: Command = p3("PIPE_CONTROL", 2, 0x00)
    .long(6)
    .interrupts(Bits::of(1, pc::NOTIFY, 0))
    .status(StatusField {
        dword: 2,
        flags: 0,
        when: Bits::of(1, pc::STORE_INDEX, pc::LRI_POST_SYNC),
        writes: Bits::of(1, pc::POST_SYNC_MASK, 0),
        own: 0,
    })
    .registers(&[register(2, true).value(2).when(1, pc::LRI_POST_SYNC, 0)])
    .addresses(&[write(2, 2).ggtt(1, 24).bytes(Bytes::Known(8)).when(
        1,
        pc::POST_SYNC_MASK,
        pc::STORE_INDEX | pc::LRI_POST_SYNC,
    )]);

/// Render commands.
pub static RENDER: &[Command] = &[
    // 0, 0
    p0("STATE_PREFETCH", 0, 0x03)
        .long(2)
        .addresses(&[read(1, 6).low()]),
    // 0, 1
    p0("STATE_BASE_ADDRESS", 1, 0x01).long(16).addresses(BASES),
    p0("STATE_SIP", 1, 0x02).long(3).through_state(),
    p0("SWTESS_BASE_ADDRESS", 1, 0x03)
        .field(8, Unsure)
        .addresses(&[read(1, 12)]),
    p0("GPGPU_CSR_BASE_ADDRESS", 1, 0x04)
        .long(3)
        .addresses(&[both(1, 12)]),
    // 1, 0
    p1("3DSTATE_VF_STATISTICS", 0, 0x0b),
    // 1, 1
    p1("PIPELINE_SELECT", 1, 0x04),
    // 3, 0
    p3("3DSTATE_CLEAR_PARAMS", 0, 0x04).long(3),
    p3("3DSTATE_DEPTH_BUFFER", 0, 0x05)
        .long(8)
        .addresses(SURFACE),
    p3("3DSTATE_STENCIL_BUFFER", 0, 0x06)
        .long(5)
        .addresses(SURFACE),
    p3("3DSTATE_HIER_DEPTH_BUFFER", 0, 0x07)
        .long(5)
        .addresses(SURFACE),
    p3("3DSTATE_VERTEX_BUFFERS", 0, 0x08)
        .field(8, Between(5, 133))
        .addresses(&[read(2, 0).each(4, 0)]),
    p3("3DSTATE_VERTEX_ELEMENTS", 0, 0x09).field(8, Between(3, 69)),
    p3("3DSTATE_INDEX_BUFFER", 0, 0x0a)
        .long(5)
        .addresses(&[read(2, 0)]),
    p3("3DSTATE_VF", 0, 0x0c).long(2),
    p3("3DSTATE_MULTISAMPLE", 0, 0x0d).long(2),
    p3("3DSTATE_CC_STATE_POINTERS", 0, 0x0e)
        .long(2)
        .through_state(),
    p3("3DSTATE_SCISSOR_STATE_POINTERS", 0, 0x0f)
        .long(2)
        .through_state(),
    p3("3DSTATE_VS", 0, 0x10).long(9).through_state(),
    p3("3DSTATE_GS", 0, 0x11).long(10).through_state(),
    p3("3DSTATE_CLIP", 0, 0x12).long(4),
    p3("3DSTATE_SF", 0, 0x13).long(4),
    p3("3DSTATE_WM", 0, 0x14).long(2),
    p3("3DSTATE_CONSTANT_VS", 0, 0x15)
        .long(11)
        .addresses(CONSTANTS),
    p3("3DSTATE_CONSTANT_GS", 0, 0x16)
        .long(11)
        .addresses(CONSTANTS),
    p3("3DSTATE_CONSTANT_PS", 0, 0x17)
        .long(11)
        .addresses(CONSTANTS),
    p3("3DSTATE_SAMPLE_MASK", 0, 0x18).long(2),
    p3("3DSTATE_CONSTANT_HS", 0, 0x19)
        .long(11)
        .addresses(CONSTANTS),
    p3("3DSTATE_CONSTANT_DS", 0, 0x1a)
        .long(11)
        .addresses(CONSTANTS),
    p3("3DSTATE_HS", 0, 0x1b).long(9).through_state(),
    p3("3DSTATE_TE", 0, 0x1c).long(4),
    p3("3DSTATE_DS", 0, 0x1d).long(9).through_state(),
    p3("3DSTATE_STREAMOUT", 0, 0x1e).long(5),
    p3("3DSTATE_SBE", 0, 0x1f).long(4),
    p3("3DSTATE_PS", 0, 0x20).long(12).through_state(),
    p3("3DSTATE_VIEWPORT_STATE_POINTERS_SF_CLIP", 0, 0x21)
        .long(2)
        .through_state(),
    p3("3DSTATE_VIEWPORT_STATE_POINTERS_CC", 0, 0x23)
        .long(2)
        .through_state(),
    p3("3DSTATE_BLEND_STATE_POINTERS", 0, 0x24)
        .long(2)
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_POINTERS_VS", 0, 0x26)
        .long(2)
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_POINTERS_HS", 0, 0x27)
        .long(2)
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_POINTERS_DS", 0, 0x28)
        .long(2)
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_POINTERS_GS", 0, 0x29)
        .long(2)
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_POINTERS_PS", 0, 0x2a)
        .long(2)
        .through_state(),
    p3("3DSTATE_SAMPLER_STATE_POINTERS_VS", 0, 0x2b)
        .long(2)
        .through_state(),
    p3("3DSTATE_SAMPLER_STATE_POINTERS_HS", 0, 0x2c)
        .long(2)
        .through_state(),
    p3("3DSTATE_SAMPLER_STATE_POINTERS_DS", 0, 0x2d)
        .long(2)
        .through_state(),
    p3("3DSTATE_SAMPLER_STATE_POINTERS_GS", 0, 0x2e)
        .long(2)
        .through_state(),
    p3("3DSTATE_SAMPLER_STATE_POINTERS_PS", 0, 0x2f)
        .long(2)
        .through_state(),
    p3("3DSTATE_URB_VS", 0, 0x30).long(2),
    p3("3DSTATE_URB_HS", 0, 0x31).long(2),
    p3("3DSTATE_URB_DS", 0, 0x32).long(2),
    p3("3DSTATE_URB_GS", 0, 0x33).long(2),
    p3("3DSTATE_GATHER_CONSTANT_VS", 0, 0x34)
        .field(8, AtLeast(3))
        .through_state(),
    p3("3DSTATE_GATHER_CONSTANT_GS", 0, 0x35)
        .field(8, AtLeast(3))
        .through_state(),
    p3("3DSTATE_GATHER_CONSTANT_HS", 0, 0x36)
        .field(8, AtLeast(3))
        .through_state(),
    p3("3DSTATE_GATHER_CONSTANT_DS", 0, 0x37)
        .field(8, AtLeast(3))
        .through_state(),
    p3("3DSTATE_GATHER_CONSTANT_PS", 0, 0x38)
        .field(8, AtLeast(3))
        .through_state(),
    p3("3DSTATE_DX9_CONSTANTF_VS", 0, 0x39).field(11, Unsure),
    p3("3DSTATE_DX9_CONSTANTF_PS", 0, 0x3a).field(11, Unsure),
    p3("3DSTATE_DX9_CONSTANTI_VS", 0, 0x3b).field(8, Unsure),
    p3("3DSTATE_DX9_CONSTANTI_PS", 0, 0x3c).field(8, Unsure),
    p3("3DSTATE_DX9_CONSTANTB_VS", 0, 0x3d).field(8, Unsure),
    p3("3DSTATE_DX9_CONSTANTB_PS", 0, 0x3e).field(8, Unsure),
    p3("3DSTATE_DX9_LOCAL_VALID_VS", 0, 0x3f).field(8, Unsure),
    p3("3DSTATE_DX9_LOCAL_VALID_PS", 0, 0x40).field(8, Unsure),
    p3("3DSTATE_DX9_GENERATE_ACTIVE_VS", 0, 0x41).field(8, Unsure),
    p3("3DSTATE_DX9_GENERATE_ACTIVE_PS", 0, 0x42).field(8, Unsure),
    p3("3DSTATE_BINDING_TABLE_EDIT_VS", 0, 0x43)
        .field(9, AtLeast(2))
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_EDIT_GS", 0, 0x44)
        .field(9, AtLeast(2))
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_EDIT_HS", 0, 0x45)
        .field(9, AtLeast(2))
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_EDIT_DS", 0, 0x46)
        .field(9, AtLeast(2))
        .through_state(),
    p3("3DSTATE_BINDING_TABLE_EDIT_PS", 0, 0x47)
        .field(9, AtLeast(2))
        .through_state(),
    p3("3DSTATE_VF_INSTANCING", 0, 0x49).long(3),
    p3("3DSTATE_VF_SGVS", 0, 0x4a).long(2),
    p3("3DSTATE_VF_TOPOLOGY", 0, 0x4b).long(2),
    p3("3DSTATE_WM_CHROMAKEY", 0, 0x4c).long(2),
    p3("3DSTATE_PS_BLEND", 0, 0x4d).long(2),
    p3("3DSTATE_WM_DEPTH_STENCIL", 0, 0x4e).long(3),
    p3("3DSTATE_PS_EXTRA", 0, 0x4f).long(2),
    p3("3DSTATE_RASTER", 0, 0x50).long(5),
    p3("3DSTATE_SBE_SWIZ", 0, 0x51).long(11),
    p3("3DSTATE_WM_HZ_OP", 0, 0x52).long(5).through_state(),
    // 3, 1
    p3("3DSTATE_DRAWING_RECTANGLE", 1, 0x00).long(4),
    p3("3DSTATE_SAMPLER_PALETTE_LOAD0", 1, 0x02).field(8, Between(2, 257)),
    p3("3DSTATE_CHROMA_KEY", 1, 0x04).long(4),
    p3("3DSTATE_POLY_STIPPLE_OFFSET", 1, 0x06).long(2),
    p3("3DSTATE_POLY_STIPPLE_PATTERN", 1, 0x07).long(33),
    p3("3DSTATE_LINE_STIPPLE", 1, 0x08).long(3),
    p3("3DSTATE_AA_LINE_PARAMETERS", 1, 0x0a).long(3),
    p3("3DSTATE_GS_SVB_INDEX", 1, 0x0b).field(8, Unsure),
    p3("3DSTATE_SAMPLER_PALETTE_LOAD1", 1, 0x0c).field(8, Between(2, 257)),
    p3("3DSTATE_MONOFILTER_SIZE", 1, 0x11).long(2),
    p3("3DSTATE_PUSH_CONSTANT_ALLOC_VS", 1, 0x12).long(2),
    p3("3DSTATE_PUSH_CONSTANT_ALLOC_HS", 1, 0x13).long(2),
    p3("3DSTATE_PUSH_CONSTANT_ALLOC_DS", 1, 0x14).long(2),
    p3("3DSTATE_PUSH_CONSTANT_ALLOC_GS", 1, 0x15).long(2),
    p3("3DSTATE_PUSH_CONSTANT_ALLOC_PS", 1, 0x16).long(2),
    p3("3DSTATE_SO_DECL_LIST", 1, 0x17).field(9, Between(3, 259)),
    p3("3DSTATE_SO_BUFFER", 1, 0x18)
        .long(8)
        .addresses(&[write(2, 2), both(5, 2).bytes(Bytes::Known(4))]),
    p3("3DSTATE_BINDING_TABLE_POOL_ALLOC", 1, 0x19)
        .long(4)
        .addresses(&[read(1, 12)]),
    p3("3DSTATE_GATHER_POOL_ALLOC", 1, 0x1a)
        .long(4)
        .addresses(&[both(1, 12)]),
    p3("3DSTATE_DX9_CONSTANT_BUFFER_POOL_ALLOC", 1, 0x1b)
        .long(4)
        .addresses(&[read(1, 12)]),
    p3("3DSTATE_SAMPLE_PATTERN", 1, 0x1c).long(9),
    // 3, 2
    PIPE_CONTROL,
    // 3, 3
    p3("3DPRIMITIVE", 3, 0x00)
        .long(7)
        .predicated(8)
        .through_state(),
    // What has no row of its own.
    others("common render packet", 0).field(8, Unsure),
    others("single-dword render packet", 1),
    others("3D packet", 3).field(8, Unsure),
];
