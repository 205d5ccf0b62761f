//! The commands of Gen8's command streamers: how long each is, who may run
//! it, and which of its dwords are addresses.
//!
//! Source: Linux `gt/intel_gpu_commands.h` for opcodes and flag bits,
//! `gvt/cmd_parser.c` for the places of address fields.

pub mod alu;
pub mod flags;
mod mi;
mod packet;

pub use mi::{MI, opcode as mi_op};
pub use packet::{BLT, RENDER, blt_op, pipe_control};

use crate::{Engine, EngineSet};

/// How the number of dwords follows from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Always this many.
    Fixed(u32),
    /// The field under this mask, plus two.
    Field(u32),
}

/// Which address space an address field names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Always the context's own page tables.
    Ppgtt,
    /// The global table when this bit of that dword is set, else the
    /// context's own.
    GgttIf {
        /// Dword of the command.
        dword: u8,
        /// Bit in it.
        bit: u8,
    },
    /// The global table when the bit of dword 0 is clear.
    GgttUnless {
        /// Bit in dword 0.
        bit: u8,
    },
}

/// An address of 64 bits, low dword first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressField {
    /// Dword of the low half.
    pub dword: u8,
    /// Which space it is in.
    pub space: Space,
    /// Whether the GPU writes there.
    pub write: bool,
}

/// Whether a command may run outside a privileged buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// In any buffer; register and global accesses are limited by the
    /// hardware in an unprivileged one.
    Any,
    /// Only in a ring or privileged batch.
    Privileged,
    /// Not for guests at all: it would reach what only vgpud may touch.
    Refused,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name in the hardware documentation.
    pub name: &'static str,
    /// Bits of dword 0 that identify it.
    pub mask: u32,
    /// Their value.
    pub value: u32,
    /// Its length.
    pub length: Length,
    /// Where it exists.
    pub engines: EngineSet,
    /// Who may run it.
    pub privilege: Privilege,
    /// Its address fields.
    pub addresses: &'static [AddressField],
}

impl Command {
    /// Number of dwords, from the first.
    #[must_use]
    pub const fn dwords(&self, dw0: u32) -> u32 {
        match self.length {
            Length::Fixed(n) => n,
            Length::Field(mask) => (dw0 & mask) + 2,
        }
    }
}

/// The longest any command can be, in dwords: a 16-bit length field plus two.
pub const MAX_DWORDS: u32 = 0xffff + 2;

/// The command that `dw0` starts on `engine`, or `None` when the command
/// streamer cannot decode it.
#[must_use]
pub fn decode(engine: Engine, dw0: u32) -> Option<&'static Command> {
    let table: &'static [Command] = match dw0 >> 29 {
        0 => {
            // MI opcodes are dense in bits 28:23.
            return MI
                .get(usize::try_from(dw0 >> 23).ok()?)?
                .as_ref()
                .filter(|c| c.engines.contains(engine));
        }
        2 => BLT,
        3 => RENDER,
        _ => return None,
    };
    table
        .iter()
        .find(|c| dw0 & c.mask == c.value && c.engines.contains(engine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_i915_uses() {
        let cases = [
            (Engine::Rcs, 0x0000_0000, "MI_NOOP", 1),
            (Engine::Rcs, 0x1140_0000 | 9, "MI_LOAD_REGISTER_IMM", 11),
            (Engine::Bcs, 0x1300_0001 | 1 << 14, "MI_FLUSH_DW", 3),
            (Engine::Bcs, 0x1300_0002, "MI_FLUSH_DW", 4),
            // Bit 7 invalidates the video pipeline's cache.
            (Engine::Vcs, 0x1324_4082, "MI_FLUSH_DW", 4),
            (
                Engine::Vcs,
                0x1880_0001 | 1 << 8,
                "MI_BATCH_BUFFER_START",
                3,
            ),
            (Engine::Rcs, 0x1000_0002 | 1 << 22, "MI_STORE_DATA_IMM", 4),
            (Engine::Rcs, 0x7a00_0004, "PIPE_CONTROL", 6),
            (Engine::Rcs, 0x6904_0000, "PIPELINE_SELECT", 1),
            (Engine::Rcs, 0x680b_0001, "3DSTATE_VF_STATISTICS", 1),
            (Engine::Bcs, 0x5430_0004 | 1, "XY_COLOR_BLT", 7),
            (Engine::Bcs, 0x54f0_0008, "XY_SRC_COPY_BLT", 10),
        ];
        for (engine, dw0, name, len) in cases {
            let c = decode(engine, dw0).unwrap_or_else(|| panic!("{name} not found"));
            assert_eq!((c.name, c.dwords(dw0)), (name, len), "{dw0:#x}");
        }
    }

    #[test]
    fn what_an_engine_lacks_does_not_decode() {
        assert!(decode(Engine::Rcs, 0x54f0_0008).is_none());
        assert!(decode(Engine::Bcs, 0x7a00_0004).is_none());
        assert!(decode(Engine::Rcs, 0x2000_0000).is_none());
        assert!(decode(Engine::Vcs, 0xffff_ffff).is_none());
    }

    #[test]
    fn each_mi_entry_stands_at_its_opcode() {
        for (i, c) in MI.iter().enumerate() {
            if let Some(c) = c {
                assert_eq!(usize::try_from(c.value >> 23).unwrap(), i, "{}", c.name);
            }
        }
    }

    #[test]
    fn every_address_lies_within_the_shortest_form() {
        let all = MI.iter().flatten().chain(BLT).chain(RENDER);
        for c in all {
            for a in c.addresses {
                assert!(a.dword >= 1, "{}", c.name);
            }
        }
    }
}
