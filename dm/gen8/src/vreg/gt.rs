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

pub(super) static BDW: &[Register] = &[
    // One slice with all three of its subslices.
    fixed(
        "GEN8_FUSE2",
        at(0x9120),
        1 << 25,
        "Linux gt/intel_sseu.c:bdw_sseu_info_init",
    ),
];

const WAKE: &str = "Linux intel_uncore.c:intel_uncore_fw_domains_init";
const GT_LIST: &str = "Linux gt/intel_workarounds.c:gen9_gt_workarounds_init";
const KBL_LIST: &str = "Linux gt/intel_workarounds.c:kbl_gt_workarounds_init";
const RCS_LIST: &str = "Linux gt/intel_workarounds.c:rcs_engine_wa_init";
const CTX_LIST: &str = "Linux gt/intel_workarounds.c:gen9_ctx_workarounds_init";
const AT_RESTORE: &str = "Linux gt/intel_lrc.c:gen9_init_indirectctx_bb";
const GVT: &str = "Linux gvt/mmio_context.c:gen9_engine_mmio_list";
const MOCS: &str = "Linux gt/intel_mocs.c:intel_mocs_init_engine";

/// i915 reads back what its workarounds set and says "lost" of what differs
/// (Linux `gt/intel_workarounds.c:wa_list_verify`).
pub(super) static KBL: &[Register] = &[
    // One slice; three subslices, the fourth fused off.
    fixed(
        "GEN8_FUSE2",
        at(0x9120),
        1 << 25 | 0x8 << 20,
        "Linux gt/intel_sseu.c:gen9_sseu_info_init",
    ),
    // The command streamers' clock: 24 MHz, shifted right by 3 - 2.
    fixed(
        "CTC_MODE",
        at(0xa26c),
        2 << 1,
        "Linux gt/intel_gt_clock_utils.c:gen9_read_clock_frequency",
    ),
    masked("FORCEWAKE_MEDIA", at(0xa270), WAKE),
    masked("FORCEWAKE_RENDER", at(0xa278), WAKE),
    handled(
        "FORCEWAKE_ACK_RENDER",
        row(0xd84, 2, 4),
        Handler::ForcewakeAck,
        0,
        Saved::Derived,
        WAKE,
    ),
    // Two channels with a module of 8 GiB each, one rank, by 8.
    fixed(
        "MAD_DIMM",
        row(0x14_500c, 2, 4),
        8,
        "Linux intel_dram.c:skl_dram_get_channels_info",
    ),
    // Its microcontroller is in reset and stays there: nobody loads firmware.
    fixed(
        "GUC_STATUS",
        at(0xc000),
        1 << 0,
        "Linux gt/uc/intel_uc.c:__intel_uc_reset_hw",
    ),
    plain("MCR_SELECTOR", at(0xfdc), 0, GT_LIST),
    plain("GAM_ECOCHK", at(0x4090), 0, GT_LIST),
    plain("MMCD_MISC_CTRL", at(0x4ddc), 0, GT_LIST),
    plain("GAMT_ECO_REG_RW_IA", at(0x4ab0), 0, KBL_LIST),
    plain("GAMT_CHKN_BIT_REG", at(0x4ab8), 0, KBL_LIST),
    plain("UCGCTL4", at(0x940c), 0, KBL_LIST),
    plain("GARBCNTL", at(0xb004), 0, RCS_LIST),
    plain("SCRATCH_LNCF1", at(0xb008), 0, RCS_LIST),
    plain("SCRATCH1", at(0xb11c), 0, RCS_LIST),
    masked("CSFE_CHICKEN1", at(0x20d4), RCS_LIST),
    masked("FF_SLICE_CS_CHICKEN1", at(0x20e0), RCS_LIST),
    masked("FF_SLICE_CS_CHICKEN2", at(0x20e4), GVT),
    masked("CS_DEBUG_MODE1", at(0x20ec), GVT),
    masked("0x20d8", at(0x20d8), GVT),
    plain("FF_THREAD_MODE", at(0x20a0), 0, GVT),
    masked("FF_SLICE_CHICKEN", at(0x2088), AT_RESTORE),
    masked("3D_CHICKEN3", at(0x2090), AT_RESTORE),
    masked("COMMON_SLICE_CHICKEN2", at(0x7014), AT_RESTORE),
    masked("CS_CHICKEN1", at(0x2580), CTX_LIST),
    masked("HDC_CHICKEN1", at(0x7304), GVT),
    masked("HALF_SLICE_CHICKEN1", at(0xe100), CTX_LIST),
    masked("HALF_SLICE_CHICKEN2", at(0xe180), CTX_LIST),
    masked("HALF_SLICE_CHICKEN3", at(0xe184), CTX_LIST),
    masked("HALF_SLICE_CHICKEN5", at(0xe188), CTX_LIST),
    masked("HALF_SLICE_CHICKEN7", at(0xe194), CTX_LIST),
    masked("ROW_CHICKEN", at(0xe4f0), CTX_LIST),
    plain("TRVATTL3PTRDW0", row(0x4de0, 6, 4), 0, GVT),
    plain("0x4dfc", at(0x4dfc), 0, GVT),
    plain("LNCFCMOCS", row(0xb020, 32, 4), 0, MOCS),
    plain("GFX_MOCS", row(0xc800, 64, 4), 0, MOCS),
    plain("MFX0_MOCS", row(0xc900, 64, 4), 0, MOCS),
    plain("VEBOX_MOCS", row(0xcb00, 64, 4), 0, MOCS),
    plain("BLT_MOCS", row(0xcc00, 64, 4), 0, MOCS),
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
