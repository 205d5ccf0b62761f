//! Registers that commands in a guest's ring, or in another privileged
//! buffer, may reach. The hardware does not limit those, so the audit does;
//! what batches without privilege may write is in [`Rules::rows`], and the
//! hardware's own affair.

use crate::regs::{At, Block, Rules};
use crate::{Engine, EngineSet, ring};

/// What a command may do to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Write any value, and read.
    Any,
    /// Masked: write only these bits of the low half, and read.
    Bits(u16),
    /// Read.
    Read,
}

/// Registers with their reach.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Which.
    pub block: Block,
    /// What may be done.
    pub reach: Reach,
}

const RCS: EngineSet = EngineSet::of(&[Engine::Rcs]);

const fn rcs(name: &'static str, offset: u32, reach: Reach) -> Access {
    Access {
        block: Block {
            name,
            at: At::Bar(offset),
            dwords: 1,
            engines: RCS,
        },
        reach,
    }
}

const fn each(name: &'static str, offset: u32, dwords: u32, reach: Reach) -> Access {
    Access {
        block: Block {
            name,
            at: At::Engine(offset),
            dwords,
            engines: EngineSet::ALL,
        },
        reach,
    }
}

/// What any guest's may reach. What matches nothing may be written when batches
/// without privilege may write it.
///
/// Sources: Linux `gt/intel_workarounds.c:gen8_ctx_workarounds_init` and
/// `bdw_ctx_workarounds_init` (loaded by LRI in the ring),
/// `gt/intel_lrc.c:gen8_emit_flush_coherentl3_wa` (L3SQCREG4),
/// `gvt/handlers.c` (which of them a guest's commands may touch).
pub static PRIVILEGED: &[Access] = &[
    // STOP_RING would stop the engine, and IDLE is read-only.
    each(
        "RING_MI_MODE",
        ring::MI_MODE,
        1,
        Reach::Bits(!(1 << 8 | 1 << 9)),
    ),
    each("RING_INSTPM", ring::INSTPM, 1, Reach::Any),
    each("RING_TIMESTAMP", ring::TIMESTAMP, 2, Reach::Read),
    each("RING_CTX_TIMESTAMP", ring::CTX_TIMESTAMP, 1, Reach::Read),
    // Performance counters report into memory by physical means of their own.
    rcs("OA_CTX_CONTROL", 0x2360, Reach::Read),
    rcs("OACTXID", 0x2364, Reach::Read),
    rcs("COMMON_SLICE_CHICKEN1", 0x7010, Reach::Any),
    rcs("COMMON_SLICE_CHICKEN2", 0x7014, Reach::Any),
    rcs("HDC_CHICKEN0", 0x7300, Reach::Any),
    rcs("VF_GUARDBAND", 0x83a4, Reach::Any),
    rcs("L3SQCREG4", 0xb118, Reach::Any),
    rcs("HALF_SLICE_CHICKEN3", 0xe184, Reach::Any),
    rcs("ROW_CHICKEN", 0xe4f0, Reach::Any),
    rcs("ROW_CHICKEN2", 0xe4f4, Reach::Any),
];

/// What Kaby Lake's guests may reach besides.
///
/// Sources: Linux `gt/intel_workarounds.c:gen9_ctx_workarounds_init` and
/// `kbl_ctx_workarounds_init`, `gt/intel_lrc.c:gen9_init_indirectctx_bb`;
/// for CTX_PREEMPT `gt/intel_workarounds.c:gen9_whitelist_build` and
/// `gvt/handlers.c:force_nonpriv_white_list`.
pub static GEN9_MORE: &[Access] = &[
    rcs("FF_SLICE_CHICKEN", 0x2088, Reach::Any),
    rcs("3D_CHICKEN3", 0x2090, Reach::Any),
    rcs("CTX_PREEMPT", 0x2248, Reach::Any),
    rcs("CS_CHICKEN1", 0x2580, Reach::Any),
    rcs("HDC_CHICKEN1", 0x7304, Reach::Any),
    rcs("HALF_SLICE_CHICKEN1", 0xe100, Reach::Any),
    rcs("HALF_SLICE_CHICKEN2", 0xe180, Reach::Any),
    rcs("HALF_SLICE_CHICKEN5", 0xe188, Reach::Any),
    rcs("HALF_SLICE_CHICKEN7", 0xe194, Reach::Any),
];

impl Rules {
    /// What a privileged command on `engine` may do to the register at
    /// `offset`; `None` is nothing at all.
    #[must_use]
    pub fn privileged(&self, engine: Engine, offset: u32) -> Option<Reach> {
        let mut listed = self.privileged.iter().flat_map(|rows| *rows);
        let listed = listed.find(|a| a.block.contains(engine, offset));
        let user = || self.user_writable(engine, offset).then_some(Reach::Any);
        listed.map(|a| a.reach).or_else(user)
    }

    /// Whether a privileged command may write `value`; `None` stands for a
    /// value that is not known before it runs.
    #[must_use]
    pub fn may_write(&self, engine: Engine, offset: u32, value: Option<u32>) -> bool {
        match (self.privileged(engine, offset), value) {
            (Some(Reach::Any), _) => true,
            (Some(Reach::Bits(bits)), Some(value)) => (value >> 16) & !u32::from(bits) == 0,
            _ => false,
        }
    }

    /// Whether a privileged command may read the register.
    #[must_use]
    pub fn may_read(&self, engine: Engine, offset: u32) -> bool {
        self.privileged(engine, offset).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::{GEN8, GEN9};

    #[test]
    fn the_workarounds_of_broadwell_pass() {
        for offset in [
            0x20c0, 0x209c, 0xe4f0, 0x7300, 0x7000, 0x7004, 0x7008, 0xe4f4, 0xe184, 0xb118,
        ] {
            assert!(
                GEN8.may_write(Engine::Rcs, offset, Some(0x4000_4000)),
                "{offset:#x}"
            );
        }
    }

    #[test]
    fn the_workarounds_of_kaby_lake_pass_on_it_alone() {
        for offset in [
            0x2088, 0x2090, 0x2580, 0x7304, 0xe100, 0xe180, 0xe188, 0xe194,
        ] {
            let value = Some(0x4000_4000);
            assert!(GEN9.may_write(Engine::Rcs, offset, value), "{offset:#x}");
            assert!(!GEN8.may_write(Engine::Rcs, offset, value), "{offset:#x}");
        }
    }

    #[test]
    fn what_would_escape_or_stop_the_engine_does_not() {
        let offsets = [
            ring::TAIL,
            ring::START,
            ring::HWS_PGA,
            ring::ELSP,
            ring::PDP0_LO,
            ring::MODE,
            ring::RESET_CTL,
            ring::IMR,
            ring::CSB_PTR,
            ring::FORCE_TO_NONPRIV,
            ring::TIMESTAMP,
        ];
        for rules in [&GEN8, &GEN9] {
            for e in Engine::ALL {
                for o in offsets {
                    let at = e.mmio_base() + o;
                    assert!(!rules.may_write(e, at, Some(0)), "{e:?} {o:#x}");
                }
                let mi_mode = e.mmio_base() + ring::MI_MODE;
                assert!(!rules.may_write(e, mi_mode, Some(0x0100_0100)));
                assert!(!rules.may_write(e, mi_mode, None));
            }
            for o in [ring::GDRST, crate::irq::MASTER, 0x2360, 0x45400, 0x4df4] {
                assert!(!rules.may_write(Engine::Rcs, o, Some(0)), "{o:#x}");
            }
        }
    }

    #[test]
    fn an_engine_reaches_no_other() {
        assert!(GEN8.may_read(Engine::Vcs, 0x1_2358));
        assert!(!GEN8.may_read(Engine::Vcs, 0x2358));
        assert!(!GEN8.may_read(Engine::Rcs, 0x2038));
    }
}
