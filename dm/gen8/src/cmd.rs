//! The commands of Gen8's command streamers: one row a command says how long
//! it is, who may run it, which of its dwords are addresses or registers, and
//! what else it does.
//!
//! Decoding, the scan of what guests submit, the software GPU,
//! `docs/commands.md` and the tests all read these rows.
//!
//! Sources: Linux `gt/intel_gpu_commands.h`, `i915_cmd_parser.c` and
//! `gvt/cmd_parser.c` for opcodes, engines and length fields; Mesa
//! `src/intel/genxml/gen8.xml` for lengths and addresses of render commands;
//! Intel's media-driver `agnostic/gen8*/hw` and intel-vaapi-driver
//! `src/gen8_m*.c` for video; libdrm `intel/intel_decode.c` for blits.

pub mod alu;
mod blit;
mod field;
pub mod flags;
mod gen9;
mod index;
mod media;
mod mi;
mod render;
mod row;
mod table;
mod video;
mod walk;

pub use blit::{BLT, blt_op};
pub use field::{
    Address, AddressField, Bits, Bytes, Each, Effect, RegisterField, Space, StatusField, Touch,
    Width,
};
pub use flags::pipe_control;
pub use gen9::GEN9_ONLY;
pub use media::MEDIA;
pub use mi::{MI, opcode as mi_op};
pub use render::RENDER;
pub use row::{Command, Dwords, Flow, Guests, Length, Privilege};
pub use table::{CLIENTS, GEN8, GEN9, Table};
pub use video::VIDEO;
pub use walk::{Item, Walk, WalkError};

use crate::Engine;

/// The longest any command can be, in dwords: a 16-bit length field plus two.
pub const MAX_DWORDS: u32 = 0xffff + 2;

/// Every row of Gen8.
pub fn all() -> impl Iterator<Item = &'static Command> {
    GEN8.rows()
}

/// The Gen8 command that `dw0` starts on `engine`, or `None` when the command
/// streamer cannot decode it.
#[must_use]
#[inline]
pub fn decode(engine: Engine, dw0: u32) -> Option<&'static Command> {
    GEN8.decode(engine, dw0)
}

/// The Gen8 commands in `words`: [`Table::walk`].
#[must_use]
pub const fn walk(engine: Engine, words: &[u32]) -> Walk<'_> {
    GEN8.walk(engine, words)
}

#[cfg(test)]
mod tests;
