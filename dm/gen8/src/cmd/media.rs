//! Media and GPGPU commands of the render engine: client 3, sub-client 2.
//!
//! Threads they start reach memory through surfaces and stateless accesses;
//! the commands carry offsets only. All but the last three have sixteen bits
//! of length.

use super::row::Command;
use super::row::Dwords::{AtLeast, Exactly, Unsure};
use crate::{Engine, EngineSet};

const RCS: EngineSet = EngineSet::of(&[Engine::Rcs]);

pub(super) const fn media(name: &'static str, opcode: u32, sub_opcode: u32) -> Command {
    let value = 3 << 29 | 2 << 27 | opcode << 24 | sub_opcode << 16;
    Command::new(name, 0xffff_0000, value, RCS)
}

/// Media and GPGPU commands.
pub static MEDIA: &[Command] = &[
    media("MEDIA_VFE_STATE", 0, 0x00)
        .field(16, Exactly(9))
        .through_state(),
    media("MEDIA_CURBE_LOAD", 0, 0x01)
        .field(16, Exactly(4))
        .through_state(),
    media("MEDIA_INTERFACE_DESCRIPTOR_LOAD", 0, 0x02)
        .field(16, Exactly(4))
        .through_state(),
    // Known by GVT-g only.
    media("MEDIA_GATEWAY_STATE", 0, 0x03).field(16, Unsure),
    media("MEDIA_STATE_FLUSH", 0, 0x04).field(16, Exactly(2)),
    media("MEDIA_POOL_STATE", 0, 0x05).field(16, Unsure),
    media("MEDIA_OBJECT", 1, 0x00)
        .field(16, AtLeast(6))
        .through_state(),
    media("MEDIA_OBJECT_PRT", 1, 0x02)
        .field(16, Exactly(16))
        .through_state(),
    media("MEDIA_OBJECT_WALKER", 1, 0x03)
        .field(16, AtLeast(17))
        .through_state(),
    media("MEDIA_OBJECT_GRPID", 1, 0x06)
        .field(16, AtLeast(7))
        .through_state(),
    // Bits 8 and 10 are flags: predicate, and parameters from registers.
    media("GPGPU_OBJECT", 1, 0x04)
        .field(8, Unsure)
        .predicated(8)
        .through_state(),
    media("GPGPU_WALKER", 1, 0x05)
        .long(15)
        .predicated(8)
        .through_state(),
    // What has no row of its own (Linux
    // `i915_cmd_parser.c:gen7_render_get_cmd_length_mask`).
    Command::new("media packet", 0xf800_0000, 3 << 29 | 2 << 27, RCS).field(16, Unsure),
];
