//! What the hardware gets for a guest's value. vgpud itself depends on some
//! of the registers.

use gen8::regs::Rules;
use gen8::switched::{self, Kept, Switched};
use gen8::{Engine, ring};

/// Whether a guest may open `offset` to its unprivileged batches on RCS by a
/// FORCE_TO_NONPRIV slot: what its privileged commands may write anyway.
#[must_use]
pub fn allowed_nonpriv(rules: &Rules, offset: u32) -> bool {
    rules.may_write(Engine::Rcs, offset, None)
}

/// Bits of a slot that are the register's offset
/// (Linux `gt/intel_engine_regs.h:RING_FORCE_TO_NONPRIV_ADDRESS_MASK`).
pub const SLOT_OFFSET: u32 = 0x03ff_fffc;

/// How a guest's value becomes the hardware's.
#[derive(Clone, Copy, Debug)]
pub enum Grant {
    /// Always this.
    Fixed(u32),
    /// These bits of it.
    Bits(u32),
    /// A FORCE_TO_NONPRIV slot.
    Slot {
        /// What it holds when it opens nothing.
        closed: u32,
        /// They say what it may open.
        rules: &'static Rules,
    },
}

impl Grant {
    /// The rule for a register.
    pub fn of(rules: &'static Rules, register: &Switched) -> Self {
        let base = register.row.engine.mmio_base();
        let relative = register.offset().checked_sub(base);
        let slots = ring::FORCE_TO_NONPRIV;
        let slots = slots..slots + ring::FORCE_TO_NONPRIV_SLOTS * 4;
        match relative {
            Some(ring::MODE) => Self::Fixed(ring::MODE_RUN_LIST),
            // Events belong in the status buffer only.
            Some(ring::HWSTAM) => Self::Fixed(u32::MAX),
            Some(o) if slots.contains(&o) => Self::Slot {
                closed: base + ring::NOPID,
                rules,
            },
            _ if register.offset() == switched::TRTTE => Self::Fixed(register.row.reset),
            _ if register.is_volatile() => Self::Fixed(register.row.reset),
            Some(ring::MI_MODE) => {
                Self::Bits(0xffff & !(ring::MI_MODE_STOP_RING | register.momentary()))
            }
            _ => Self::Bits(register.width() & !register.momentary()),
        }
    }

    /// What the hardware gets.
    pub fn apply(self, value: u32) -> u32 {
        match self {
            Self::Fixed(fixed) => fixed,
            Self::Bits(bits) => value & bits,
            Self::Slot { closed, rules } => {
                let offset = value & SLOT_OFFSET;
                if allowed_nonpriv(rules, offset) {
                    offset
                } else {
                    closed
                }
            }
        }
    }

    /// The bits that go back to the guest's value when the hardware's is
    /// saved. What is not granted is the guest's own affair: it keeps what it
    /// wrote. A context's registers are saved by the hardware.
    pub fn saved(self, register: &Switched) -> u32 {
        match self {
            Self::Bits(bits) if register.row.kept == Kept::Outside => bits,
            _ => 0,
        }
    }
}
