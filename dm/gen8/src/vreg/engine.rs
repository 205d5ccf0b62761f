//! Registers that each engine has in its block.

use super::{
    Access, Handler, Place, Register, Reset, Saved, clearing, fixed, handled, masked, plain,
};
use crate::ring::{self, NOPID};

const fn each(offset: u32) -> Place {
    Place::Engines(offset)
}

const REGS: &str = "Linux gt/intel_engine_regs.h";
const LRC: &str = "Linux gt/intel_execlists_submission.c";

pub(super) static TABLE: &[Register] = &[
    masked("EXCC", each(0x28), REGS),
    ring_state("RING_TAIL", ring::TAIL),
    ring_state("RING_HEAD", ring::HEAD),
    ring_state("RING_START", ring::START),
    ring_state("RING_CTL", ring::CTL),
    ring_state("RING_ACTHD_UDW", ring::ACTHD_UDW),
    plain("RING_IPEIR", each(ring::IPEIR), 0, REGS),
    plain("RING_IPEHR", each(ring::IPEHR), 0, REGS),
    // All ones: every unit is done.
    plain("RING_INSTDONE", each(ring::INSTDONE), u32::MAX, REGS),
    ring_state("RING_ACTHD", ring::ACTHD),
    plain(
        "RING_HWS_PGA",
        each(ring::HWS_PGA),
        0,
        "Linux gt/intel_execlists_submission.c:enable_execlists",
    ),
    plain("RING_HWSTAM", each(ring::HWSTAM), 0, REGS),
    handled(
        "RING_MI_MODE",
        each(ring::MI_MODE),
        Handler::MiMode,
        0,
        Saved::Image,
        "Linux gt/intel_engine_cs.c:intel_engine_stop_cs",
    ),
    plain(
        "RING_IMR",
        each(ring::IMR),
        u32::MAX,
        "Linux gt/intel_execlists_submission.c:gen8_logical_ring_enable_irq",
    ),
    clearing(
        "RING_EIR",
        each(ring::EIR),
        "Linux gt/intel_execlists_submission.c:execlists_irq_handler",
    ),
    plain("RING_EMR", each(ring::EMR), u32::MAX, LRC),
    // Not fixed(): a fault sets it, a reset clears it.
    Register::new(
        "RING_ESR",
        each(ring::ESR),
        Access::ReadOnly,
        0,
        Saved::Image,
        "Linux gt/intel_execlists_submission.c:enable_error_interrupt",
    ),
    masked("RING_INSTPM", each(ring::INSTPM), REGS),
    handled(
        "RING_RESET_CTL",
        each(ring::RESET_CTL),
        Handler::ResetCtl,
        0,
        Saved::Image,
        "Linux gt/intel_reset.c:gen8_engine_reset_prepare",
    ),
    plain("RING_BBSTATE", each(ring::BB_STATE), 0, REGS),
    plain("RING_BBADDR", each(ring::BB_ADDR), 0, REGS),
    plain("RING_BBADDR_UDW", each(ring::BB_ADDR_UDW), 0, REGS),
    handled(
        "RING_ELSP",
        each(ring::ELSP),
        Handler::Elsp,
        0,
        Saved::Part,
        "Linux gt/intel_execlists_submission.c:write_desc",
    ),
    handled(
        "RING_EXECLIST_STATUS_LO",
        each(ring::EXECLIST_STATUS_LO),
        Handler::ExeclistStatus,
        0,
        Saved::Part,
        REGS,
    ),
    handled(
        "RING_EXECLIST_STATUS_HI",
        each(ring::EXECLIST_STATUS_HI),
        Handler::ExeclistStatus,
        0,
        Saved::Part,
        "Linux gt/intel_execlists_submission.c:active_ccid",
    ),
    masked("RING_CONTEXT_CONTROL", each(ring::CONTEXT_CONTROL), REGS),
    plain("CTX_PREEMPT", each(0x248), 0, "Linux gvt/mmio_context.c"),
    Register::new(
        "RING_PDP",
        Place::EngineRow {
            first: ring::PDP0_LO,
            count: 8,
        },
        Access::Storage,
        0,
        Saved::Image,
        REGS,
    ),
    masked(
        "RING_MODE",
        each(ring::MODE),
        "Linux gt/intel_execlists_submission.c:enable_execlists",
    ),
    handled(
        "RING_TIMESTAMP",
        each(ring::TIMESTAMP),
        Handler::Timestamp,
        0,
        Saved::Derived,
        "Linux gt/intel_gt_clock_utils.c",
    ),
    handled(
        "RING_TIMESTAMP_UDW",
        each(ring::TIMESTAMP_UDW),
        Handler::Timestamp,
        0,
        Saved::Derived,
        REGS,
    ),
    Register::new(
        "RING_CONTEXT_STATUS_BUF",
        Place::EngineRow {
            first: ring::CSB_MIRROR,
            count: 12,
        },
        Access::ReadOnly,
        0,
        Saved::Image,
        "Linux gt/intel_lrc_reg.h:GEN8_EXECLISTS_STATUS_BUF",
    ),
    // Write pointer 5: the next event goes to entry 0.
    Register::new(
        "RING_CONTEXT_STATUS_PTR",
        each(ring::CSB_PTR),
        Access::Masked,
        0x0505,
        Saved::Image,
        "Linux gt/intel_execlists_submission.c:reset_csb_pointers",
    ),
    plain("RING_CTX_TIMESTAMP", each(ring::CTX_TIMESTAMP), 0, REGS),
    Register {
        name: "RING_FORCE_TO_NONPRIV",
        place: Place::EngineRow {
            first: 0x4d0,
            count: 12,
        },
        access: Access::Storage,
        reset: Reset::EngineBase(NOPID),
        saved: Saved::Image,
        source: "Linux gt/intel_workarounds.c:intel_engine_apply_whitelist",
    },
    Register::new(
        "CS_GPR",
        Place::EngineRow {
            first: ring::GPR0,
            count: 2 * ring::GPR_COUNT,
        },
        Access::Storage,
        0,
        Saved::Image,
        "Linux gt/intel_engine_regs.h:GEN8_RING_CS_GPR",
    ),
    fixed(
        "RING_NOPID",
        each(NOPID),
        0,
        "Linux gt/intel_engine_regs.h:RING_NOPID",
    ),
];

/// What i915 sets on Kaby Lake alone.
pub(super) static KBL: &[Register] = &[plain(
    "RING_SEMA_WAIT_POLL",
    each(0x24c),
    0,
    "Linux gt/intel_workarounds.c:xcs_engine_wa_init",
)];

const fn ring_state(name: &'static str, offset: u32) -> Register {
    handled(
        name,
        each(offset),
        Handler::RingState,
        0,
        Saved::Image,
        "Linux gt/intel_engine_cs.c:ring_is_idle",
    )
}
