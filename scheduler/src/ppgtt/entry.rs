//! What a guest's table entry asks for.

use gen8::pte::{ADDRESS, Level, PDE_2M, PRESENT, WRITABLE};
use guest_memory::Gfn;

use crate::ggtt;

/// Bits 3 and 4, and in an entry that maps a page bit 7: how it is cached
/// (Linux `gt/intel_gtt.h:GEN8_PPAT`, `gt/gen8_ppgtt.c:gen8_pte_encode`).
const CACHE: u64 = 0b1_1000;
const PAT: u64 = 1 << 7;
/// The same bit where bit 7 says 2 MiB.
const PAT_2M: u64 = 1 << 12;

/// An entry, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Maps nothing, or what this generation cannot map.
    Nothing,
    /// Names a table one level down.
    Table {
        /// Where the guest has it.
        gfn: Gfn,
        /// Its level.
        below: Level,
        /// Bits carried over.
        flags: u64,
    },
    /// Maps 4 KiB.
    Page {
        /// The frame.
        gfn: Gfn,
        /// Bits carried over.
        flags: u64,
    },
    /// Maps 2 MiB.
    Large {
        /// The first frame.
        gfn: Gfn,
        /// Bits carried over.
        flags: u64,
    },
}

impl Entry {
    /// The entry `raw` of a table at `level`. Only bits known to be harmless
    /// are carried over.
    pub fn read(raw: u64, level: Level) -> Self {
        let Some(gfn) = ggtt::frame(raw) else {
            return Self::Nothing;
        };
        let flags = PRESENT | raw & (WRITABLE | CACHE);
        match level.below() {
            None => Self::Page {
                gfn,
                flags: flags | raw & PAT,
            },
            Some(_) if level == Level::Pd && raw & PDE_2M != 0 => Self::Large {
                gfn: Gfn((raw & ADDRESS & !0x1f_ffff) >> 12),
                flags: flags | PDE_2M | raw & PAT_2M,
            },
            // 1 GiB pages do not exist on Gen8; bit 7 is not looked at there.
            Some(below) => Self::Table { gfn, below, flags },
        }
    }
}
