//! Registers of the graphics core outside the engines' blocks.

use super::{Handler, Register, Saved, at, clearing, fixed, handled, masked, plain, row};
use crate::{fence, irq, ring};

const REGS: &str = "Linux gt/intel_gt_regs.h";
const IRQ: &str = "Linux gt/intel_gt_irq.c";

pub(super) static TABLE: &[Register] = &[
    plain("PRIVATE_PAT", row(0x40e0, 2, 4), 0, REGS),
    plain(
        "HSW_GTT_CACHE_EN",
        at(0x4024),
        0,
        "Linux gt/intel_gtt.c:gtt_write_workarounds",
    ),
    plain(
        "GEN8_RING_FAULT",
        at(0x4094),
        0,
        "Linux gt/intel_gt.c:gen8_check_faults",
    ),
    plain("DONE_REG", at(0x40b0), u32::MAX, REGS),
    // Invalidation is done by the time its request has been written: nothing
    // here caches translations across submissions.
    fixed(
        "GEN8_TLB_INVALIDATE",
        row(0x4260, 5, 4),
        0,
        "Linux gt/intel_gt.c:mmio_invalidate_full",
    ),
    plain("GEN8_FAULT_TLB_DATA", row(0x4b10, 2, 4), 0, REGS),
    masked("CACHE_MODE_0", at(0x7000), "Linux gvt/mmio_context.c"),
    masked("CACHE_MODE_1", at(0x7004), "Linux gvt/mmio_context.c"),
    masked("GT_MODE", at(0x7008), "Linux gvt/mmio_context.c"),
    masked(
        "COMMON_SLICE_CHICKEN1",
        at(0x7010),
        "Linux gvt/mmio_context.c",
    ),
    masked("HDC_CHICKEN0", at(0x7300), "Linux gvt/mmio_context.c"),
    masked("VF_GUARDBAND", at(0x83a4), "Linux gvt/mmio_context.c"),
    plain(
        "L3SQCREG4",
        at(0xb118),
        0x4040_0000,
        "Linux gt/intel_lrc.c:gen8_emit_flush_coherentl3_wa",
    ),
    masked(
        "BCS_SWCTRL",
        at(ring::BCS_SWCTRL),
        "Linux gt/intel_engine_regs.h",
    ),
    // One slice with all three of its subslices.
    fixed(
        "GEN8_FUSE2",
        at(0x9120),
        1 << 25,
        "Linux gt/intel_sseu.c:bdw_sseu_info_init",
    ),
    fixed(
        "GEN8_EU_DISABLE",
        row(0x9134, 3, 4),
        0,
        "Linux gt/intel_sseu.c:bdw_sseu_info_init",
    ),
    handled(
        "GDRST",
        at(ring::GDRST),
        Handler::Gdrst,
        0,
        Saved::Part,
        "Linux gt/intel_reset.c:gen6_hw_domain_reset",
    ),
    masked("FORCEWAKE_MT", at(0xa188), "Linux intel_uncore.c"),
    handled(
        "FORCEWAKE_ACK_HSW",
        at(0x13_0044),
        Handler::ForcewakeAck,
        0,
        Saved::Derived,
        "Linux intel_uncore.c:fw_domain_wait_ack_set",
    ),
    plain("GFX_FLSH_CNTL", at(ring::GFX_FLSH_CNTL), 0, REGS),
    handled(
        "FENCE",
        row(fence::FIRST, 2 * fence::COUNT, 4),
        Handler::Fence,
        0,
        Saved::Image,
        "Linux gt/intel_ggtt_fencing.c:i965_write_fence_reg",
    ),
    fixed("HSW_EDRAM_CAP", at(0x12_0010), 0, "Linux intel_dram.c"),
    handled(
        "GEN6_PCODE_MAILBOX",
        at(0x13_8124),
        Handler::Mailbox,
        0,
        Saved::Image,
        "Linux intel_pcode.c:__snb_pcode_rw",
    ),
    plain(
        "GEN6_PCODE_DATA",
        row(0x13_8128, 2, 4),
        0,
        "Linux i915_reg.h",
    ),
    // No frequency range: the driver leaves frequency control off.
    fixed(
        "GEN6_RP_STATE_CAP",
        at(0x14_5998),
        0,
        "Linux gt/intel_rps.c:gen6_rps_init",
    ),
    // 0 makes i915 leave display watermarks alone.
    fixed(
        "MCH_SSKPD",
        row(0x14_5d10, 2, 4),
        0,
        "Linux intel_pm.c:intel_init_pm",
    ),
    handled(
        "GEN8_MASTER_IRQ",
        at(irq::MASTER),
        Handler::Master,
        0,
        Saved::Part,
        "Linux i915_irq.c:gen8_irq_handler",
    ),
    bank("GEN8_GT_ISR", irq::GT_ISR0, 4, Handler::Isr, 0, IRQ),
    bank("GEN8_GT_IMR", irq::GT_IMR0, 4, Handler::Imr, u32::MAX, IRQ),
    bank("GEN8_GT_IIR", irq::GT_IIR0, 4, Handler::Iir, 0, IRQ),
    bank("GEN8_GT_IER", irq::GT_IER0, 4, Handler::Ier, 0, IRQ),
    clearing(
        "FPGA_DBG",
        at(0x4_2300),
        "Linux intel_uncore.c:fpga_check_for_unclaimed_mmio",
    ),
];

/// A row of one register of several interrupt banks, 0x10 apart.
pub(super) const fn bank(
    name: &'static str,
    first: u32,
    count: u32,
    handler: Handler,
    reset: u32,
    source: &'static str,
) -> Register {
    handled(
        name,
        row(first, count, irq::GT_BANK_STRIDE),
        handler,
        reset,
        Saved::Part,
        source,
    )
}
