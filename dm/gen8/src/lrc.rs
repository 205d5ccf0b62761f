//! The logical ring context image (Linux `gt/intel_lrc_reg.h`,
//! `gt/intel_lrc.c:gen8_rcs_offsets`, `gen8_xcs_offsets`).
//!
//! Page 0 is the per-process status page, page 1 holds the registers as
//! pairs of offset and value behind LRI headers. The indices below are
//! dwords in page 1 and name values. i915 writes the headers and offsets
//! itself, so only these positions are a contract; a GPU may keep what else
//! it saves from [`PRIVATE`] on.

/// The page of the image that is the per-process hardware status page.
pub const PPHWSP_PAGE: u32 = 0;
/// The page of the image that holds the registers.
pub const REGISTER_PAGE: u32 = 1;

/// CTX_CONTROL, masked.
pub const CONTEXT_CONTROL: usize = 0x03;
/// RING_HEAD.
pub const RING_HEAD: usize = 0x05;
/// RING_TAIL.
pub const RING_TAIL: usize = 0x07;
/// RING_START, a GGTT address.
pub const RING_START: usize = 0x09;
/// RING_CTL.
pub const RING_CTL: usize = 0x0b;
/// Batch head, high half.
pub const BB_HEAD_UDW: usize = 0x0d;
/// Batch head, low half.
pub const BB_HEAD: usize = 0x0f;
/// Batch state.
pub const BB_STATE: usize = 0x11;
/// Second-level batch head, high half.
pub const SBB_HEAD_UDW: usize = 0x13;
/// Second-level batch head, low half.
pub const SBB_HEAD: usize = 0x15;
/// Second-level batch state.
pub const SBB_STATE: usize = 0x17;
/// Per-context batch: GGTT address, bit 0 valid (RCS only).
pub const PER_CTX_BB: usize = 0x19;
/// Indirect context: GGTT address, bits 5:0 its length in cache lines (RCS only).
pub const INDIRECT_CTX: usize = 0x1b;
/// Where in the restore the indirect context runs (RCS only).
pub const INDIRECT_CTX_OFFSET: usize = 0x1d;
/// Run time of the context in timestamp units.
pub const CTX_TIMESTAMP: usize = 0x23;
/// PDP3 high; the other pointers follow at descending number.
pub const PDP3_UDW: usize = 0x25;
/// PDP0 high: PML4 address, high half.
pub const PDP0_UDW: usize = 0x31;
/// PDP0 low: PML4 address, low half.
pub const PDP0_LDW: usize = 0x33;
/// Render power clock state (RCS only).
pub const R_PWR_CLK_STATE: usize = 0x43;
/// From this dword on the image's content is the GPU's own.
pub const PRIVATE: usize = 0x100;
/// Dwords in a page.
pub const PAGE_DWORDS: usize = 1024;

/// One MI_LOAD_REGISTER_IMM of the register page.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The dword of its header. Pairs of offset and value follow.
    pub header: usize,
    /// The registers, as offsets in the engine's block.
    pub registers: &'static [u32],
}

impl Load {
    /// The dword that holds the value of register number `n`.
    #[must_use]
    pub const fn value(&self, n: usize) -> usize {
        self.header + 2 + 2 * n
    }
}

const PAGE_TABLES: Load = Load {
    header: 0x21,
    registers: &[
        0x3a8, 0x28c, 0x288, 0x284, 0x280, 0x27c, 0x278, 0x274, 0x270,
    ],
};

const RING: Load = Load {
    header: 1,
    registers: &[
        0x244, 0x034, 0x030, 0x038, 0x03c, 0x168, 0x140, 0x110, 0x11c, 0x114, 0x118, 0x1c0, 0x1c4,
        0x1c8,
    ],
};

/// Without what runs at a restore.
const SHORT_RING: Load = Load {
    header: 1,
    registers: &[
        0x244, 0x034, 0x030, 0x038, 0x03c, 0x168, 0x140, 0x110, 0x11c, 0x114, 0x118,
    ],
};

const fn state(registers: &'static [u32]) -> Load {
    Load {
        header: 0x41,
        registers,
    }
}

/// How an engine's context image is made.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Pages: the per-process status page, the register page, and on RCS the
    /// rest of the render state.
    pub pages: u32,
    /// The commands of the register page below [`PRIVATE`] that a GPU obeys.
    pub loads: [Load; 3],
}

impl Layout {
    /// Whether the image names what runs when the context is restored:
    /// [`INDIRECT_CTX`] and [`PER_CTX_BB`].
    #[must_use]
    pub const fn runs_at_restore(&self) -> bool {
        // RING_BB_PER_CTX_PTR is the register behind the second level's.
        self.loads[0].registers.len() > 11
    }
}

/// Broadwell's images, by [`crate::Engine::index`]
/// (Linux `gt/intel_engine_cs.c:GEN8_LR_CONTEXT_RENDER_SIZE`).
pub static GEN8: [Layout; crate::Engine::COUNT] = [
    Layout {
        pages: 20,
        loads: [RING, PAGE_TABLES, state(&[0x0c8])],
    },
    GEN8_OTHER,
    GEN8_OTHER,
    GEN8_OTHER,
];

const GEN8_OTHER: Layout = Layout {
    pages: 2,
    loads: [SHORT_RING, PAGE_TABLES, state(&[0x200, 0x028])],
};

/// Kaby Lake's images (Linux `gt/intel_lrc.c:gen9_rcs_offsets`,
/// `gen9_xcs_offsets`, `gt/intel_engine_cs.c:GEN9_LR_CONTEXT_RENDER_SIZE`).
/// i915 also writes the offsets of a fourth load, at 0x52: engine state from
/// EXCC to the general registers. It counts as the GPU's own here, as what
/// lies behind [`PRIVATE`] does: nothing is loaded by what a guest put there.
pub static GEN9: [Layout; crate::Engine::COUNT] = [
    Layout {
        pages: 22,
        loads: [RING, PAGE_TABLES, state(&[0x0c8])],
    },
    GEN9_OTHER,
    GEN9_OTHER,
    GEN9_OTHER,
];

const GEN9_OTHER: Layout = Layout {
    pages: 2,
    loads: [RING, PAGE_TABLES, state(&[0x200])],
};

/// CTX_CONTROL bit 0: do not restore the engine state from the image.
pub const RESTORE_INHIBIT: u32 = 1 << 0;
/// CTX_CONTROL bit 2: do not save the engine state.
pub const SAVE_INHIBIT: u32 = 1 << 2;
/// CTX_CONTROL bit 3: do not wait for the switch to finish.
pub const INHIBIT_SYNC_SWITCH: u32 = 1 << 3;

/// Bytes of a ring from its RING_CTL value: bits 20:12 are pages - 1.
#[must_use]
pub const fn ring_bytes(ctl: u32) -> u32 {
    (ctl & 0x1f_f000) + 0x1000
}

/// The bits of RING_HEAD that are a byte offset; the rest count wraps.
pub const HEAD_OFFSET: u32 = 0x1f_fffc;
/// The bits of RING_TAIL that are a byte offset.
pub const TAIL_OFFSET: u32 = 0x1f_fff8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, ring};

    #[test]
    fn the_loads_agree_with_the_named_positions() {
        let named = [
            (CONTEXT_CONTROL, ring::CONTEXT_CONTROL),
            (RING_HEAD, ring::HEAD),
            (RING_TAIL, ring::TAIL),
            (RING_START, ring::START),
            (RING_CTL, ring::CTL),
            (BB_HEAD_UDW, ring::BB_ADDR_UDW),
            (BB_HEAD, ring::BB_ADDR),
            (BB_STATE, ring::BB_STATE),
            (SBB_HEAD_UDW, ring::SBB_ADDR_UDW),
            (SBB_HEAD, ring::SBB_ADDR),
            (SBB_STATE, ring::SBB_STATE),
            (CTX_TIMESTAMP, ring::CTX_TIMESTAMP),
            (PDP0_UDW, ring::PDP0_LO + 4),
            (PDP0_LDW, ring::PDP0_LO),
        ];
        for (n, layout) in GEN8.iter().chain(&GEN9).enumerate() {
            let at = |index| {
                layout.loads.iter().find_map(|l| {
                    let n = (0..l.registers.len()).find(|n| l.value(*n) == index)?;
                    Some(l.registers[n])
                })
            };
            for (index, register) in named {
                assert_eq!(at(index), Some(register), "{n} {index:#x}");
            }
            let render = layout.runs_at_restore();
            assert_eq!(render, n == 0 || n >= Engine::COUNT);
            let only_render = [
                (PER_CTX_BB, ring::PER_CTX_BB),
                (INDIRECT_CTX, ring::INDIRECT_CTX),
                (INDIRECT_CTX_OFFSET, ring::INDIRECT_CTX_OFFSET),
            ];
            for (index, register) in only_render {
                assert_eq!(at(index), render.then_some(register));
            }
        }
    }
}
