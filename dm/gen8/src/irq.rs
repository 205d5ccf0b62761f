//! Graphics interrupt registers (Linux `gt/intel_gt_irq.c`, `i915_reg.h`).

use crate::Engine;

/// GEN8_MASTER_IRQ.
pub const MASTER: u32 = 0x4_4200;
/// MASTER: interrupts are delivered.
pub const MASTER_ENABLE: u32 = 1 << 31;
/// GEN8_GT_ISR(0); bank n is 0x10 n on.
pub const GT_ISR0: u32 = 0x4_4300;
/// GEN8_GT_IMR(0).
pub const GT_IMR0: u32 = 0x4_4304;
/// GEN8_GT_IIR(0).
pub const GT_IIR0: u32 = 0x4_4308;
/// GEN8_GT_IER(0).
pub const GT_IER0: u32 = 0x4_430c;
/// Distance between banks.
pub const GT_BANK_STRIDE: u32 = 0x10;

/// Per-engine half: a command asked for an interrupt.
pub const USER: u16 = 1 << 0;
/// Per-engine half: the command streamer hit an error.
pub const ERROR: u16 = 1 << 3;
/// Per-engine half: a flush with notify finished
/// (Linux `i915_reg.h:GT_RENDER_PIPECTL_NOTIFY_INTERRUPT`).
pub const FLUSH_NOTIFY: u16 = 1 << 4;
/// Per-engine half: a context-status event was written.
pub const CONTEXT_SWITCH: u16 = 1 << 8;
/// Per-engine half: a semaphore wait did not pass at once.
pub const WAIT_SEMAPHORE: u16 = 1 << 11;

impl Engine {
    /// The GT interrupt bank and the bit where the engine's 16 bits start
    /// (Linux `gt/intel_gt_irq.c:gen8_gt_irq_handler`).
    #[must_use]
    pub const fn irq_bank(self) -> (u32, u32) {
        match self {
            Self::Rcs => (0, 0),
            Self::Bcs => (0, 16),
            Self::Vcs => (1, 0),
            Self::Vecs => (3, 0),
        }
    }

    /// The engine's bit in MASTER
    /// (Linux `i915_reg.h`: `GEN8_GT_*_IRQ`).
    #[must_use]
    pub const fn master_bit(self) -> u32 {
        match self {
            Self::Rcs => 1 << 0,
            Self::Bcs => 1 << 1,
            Self::Vcs => 1 << 2,
            Self::Vecs => 1 << 6,
        }
    }
}
