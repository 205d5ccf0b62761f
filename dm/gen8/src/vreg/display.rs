//! North display: pipes, planes, clocks, ports, interrupts
//! (Linux `i915_reg.h`, `display/`).

use super::gt::bank;
use super::{Handler, Register, Saved, at, clearing, fixed, handled, plain, row};

/// Pipes.
pub const PIPES: u32 = 3;
/// Bytes from one pipe's registers to the next's.
pub const PIPE_STRIDE: u32 = 0x1000;

/// HTOTAL of transcoder A: total - 1 in bits 28:16, active - 1 below.
pub const HTOTAL_A: u32 = 0x6_0000;
/// VTOTAL of transcoder A: total - 1 in bits 28:16, active - 1 below.
pub const VTOTAL_A: u32 = 0x6_000c;
/// VBLANK of transcoder A: end - 1 in bits 28:16, start - 1 below.
pub const VBLANK_A: u32 = 0x6_0010;
/// PIPESRC of pipe A: width - 1 in bits 28:16, height - 1 below.
pub const PIPESRC_A: u32 = 0x6_001c;
/// TRANS_DDI_FUNC_CTL of transcoder A: bit 31 enable, 30:28 port.
pub const TRANS_DDI_FUNC_CTL_A: u32 = 0x6_0400;
/// PIPEDSL of pipe A.
pub const PIPEDSL_A: u32 = 0x7_0000;
/// PIPECONF of transcoder A: bit 31 enable, bit 30 state.
pub const PIPECONF_A: u32 = 0x7_0008;
/// Frame counter of pipe A.
pub const FRMCOUNT_A: u32 = 0x7_0040;
/// Flip counter of pipe A.
pub const FLIPCOUNT_A: u32 = 0x7_0044;
/// DSPCNTR of plane A, on Kaby Lake PLANE_CTL: bit 31 enable, bit 9
/// asynchronous flips.
pub const DSPCNTR_A: u32 = 0x7_0180;
/// DSPSTRIDE of plane A.
pub const DSPSTRIDE_A: u32 = 0x7_0188;
/// DSPSURF of plane A: GGTT address in bits 31:12.
pub const DSPSURF_A: u32 = 0x7_019c;
/// DSPSURFLIVE of plane A.
pub const DSPSURFLIVE_A: u32 = 0x7_01ac;
/// PORT_CLK_SEL of port A: clock in bits 31:29, 4 and 5 are the WRPLLs.
pub const PORT_CLK_SEL_A: u32 = 0x4_6100;
/// WRPLL_CTL 1; the second is 0x20 on.
pub const WRPLL_CTL1: u32 = 0x4_6040;
/// LCPLL1_CTL, which is DPLL 0's; bit 31 enables.
pub const LCPLL1: u32 = 0x4_6010;
/// LCPLL2_CTL, which is DPLL 1's; DPLL 2 and 3 have [`WRPLL_CTL1`] and the
/// second.
pub const LCPLL2: u32 = 0x4_6014;
/// DPLL_CFGCR1 of DPLL 1; CFGCR2 follows, then DPLL 2's and 3's.
pub const DPLL_CFGCR1: u32 = 0x6_c040;
/// DPLL_CTRL2: for port n the clock off in bit n + 15, and the PLL in the two
/// bits from 3 n + 1.
pub const DPLL_CTRL2: u32 = 0x6_c05c;
/// LCPLL_CTL.
pub const LCPLL: u32 = 0x13_0040;
/// HSW_PWR_WELL_CTL 1 to 4: the requests of BIOS, driver, KVMR and debug.
pub const POWER_WELL1: u32 = 0x4_5400;

/// LCPLL_CTL: the driver turns the clock off.
pub const LCPLL_DISABLE: u32 = 1 << 31;
/// LCPLL_CTL: the clock is locked.
pub const LCPLL_LOCK: u32 = 1 << 30;
/// LCPLL_CTL: the driver wants the display clock from FCLK.
pub const LCPLL_SOURCE_FCLK: u32 = 1 << 21;
/// LCPLL_CTL: it comes from FCLK.
pub const LCPLL_SOURCE_FCLK_DONE: u32 = 1 << 19;

const fn pipe(first: u32) -> super::Place {
    row(first, PIPES, PIPE_STRIDE)
}

const REG: &str = "Linux i915_reg.h";
const MODESET: &str = "Linux display/intel_display.c:hsw_crtc_enable";
const DDI: &str = "Linux display/intel_ddi.c:intel_ddi_pre_enable_hdmi";
const PLANE: &str = "Linux display/i9xx_plane.c:i9xx_plane_update_arm";
const IRQ: &str = "Linux i915_irq.c:gen8_de_irq_handler";

pub(super) static TABLE: &[Register] = &[
    // Bit 31 set: the VGA plane is off, so i915 leaves the boot VGA's ports
    // alone.
    plain(
        "CPU_VGACNTRL",
        at(0x4_1000),
        1 << 31,
        "Linux display/intel_vga.c:intel_vga_disable",
    ),
    fixed(
        "FUSE_STRAP",
        at(0x4_2014),
        0,
        "Linux intel_device_info.c:intel_device_info_runtime_init",
    ),
    plain("GEN7_ERR_INT", at(0x4_4040), 0, REG),
    bank("GEN8_DE_PIPE_ISR", 0x4_4400, PIPES, Handler::Isr, 0, IRQ),
    bank(
        "GEN8_DE_PIPE_IMR",
        0x4_4404,
        PIPES,
        Handler::Imr,
        u32::MAX,
        IRQ,
    ),
    bank("GEN8_DE_PIPE_IIR", 0x4_4408, PIPES, Handler::Iir, 0, IRQ),
    bank("GEN8_DE_PIPE_IER", 0x4_440c, PIPES, Handler::Ier, 0, IRQ),
    bank("GEN8_DE_PORT_ISR", 0x4_4440, 1, Handler::Isr, 0, IRQ),
    bank("GEN8_DE_PORT_IMR", 0x4_4444, 1, Handler::Imr, u32::MAX, IRQ),
    bank("GEN8_DE_PORT_IIR", 0x4_4448, 1, Handler::Iir, 0, IRQ),
    bank("GEN8_DE_PORT_IER", 0x4_444c, 1, Handler::Ier, 0, IRQ),
    bank("GEN8_DE_MISC_ISR", 0x4_4460, 1, Handler::Isr, 0, IRQ),
    bank("GEN8_DE_MISC_IMR", 0x4_4464, 1, Handler::Imr, u32::MAX, IRQ),
    bank("GEN8_DE_MISC_IIR", 0x4_4468, 1, Handler::Iir, 0, IRQ),
    bank("GEN8_DE_MISC_IER", 0x4_446c, 1, Handler::Ier, 0, IRQ),
    bank("GEN8_PCU_ISR", 0x4_44e0, 1, Handler::Isr, 0, IRQ),
    bank("GEN8_PCU_IMR", 0x4_44e4, 1, Handler::Imr, u32::MAX, IRQ),
    bank("GEN8_PCU_IIR", 0x4_44e8, 1, Handler::Iir, 0, IRQ),
    bank("GEN8_PCU_IER", 0x4_44ec, 1, Handler::Ier, 0, IRQ),
    handled(
        "HSW_PWR_WELL_CTL",
        row(POWER_WELL1, 4, 4),
        Handler::PowerWell,
        0,
        Saved::Image,
        "Linux display/intel_display_power_well.c:hsw_power_well_enable",
    ),
    plain("TRANS_CLK_SEL", row(0x4_6140, 3, 4), 0, DDI),
    plain("HTOTAL", pipe(HTOTAL_A), 0, MODESET),
    plain("HBLANK", pipe(0x6_0004), 0, MODESET),
    plain("HSYNC", pipe(0x6_0008), 0, MODESET),
    plain("VTOTAL", pipe(VTOTAL_A), 0, MODESET),
    plain("VBLANK", pipe(VBLANK_A), 0, MODESET),
    plain("VSYNC", pipe(0x6_0014), 0, MODESET),
    plain("PIPESRC", pipe(PIPESRC_A), 0, MODESET),
    plain("TRANS_MULT", pipe(0x6_002c), 0, MODESET),
    plain("TRANS_DDI_FUNC_CTL", pipe(TRANS_DDI_FUNC_CTL_A), 0, DDI),
    plain("TRANS_DDI_FUNC_CTL_EDP", at(0x6_f400), 0, DDI),
    handled(
        "DDI_BUF_CTL",
        row(0x6_4000, 5, 0x100),
        Handler::DdiBuffer,
        1 << 7,
        Saved::Image,
        "Linux display/intel_ddi.c:intel_wait_ddi_buf_idle",
    ),
    clearing("EDP_PSR_IIR", at(0x6_4838), IRQ),
    handled(
        "PIPEDSL",
        pipe(PIPEDSL_A),
        Handler::ScanLine,
        0,
        Saved::Derived,
        "Linux i915_irq.c:__intel_get_crtc_scanline",
    ),
    handled(
        "PIPECONF",
        pipe(PIPECONF_A),
        Handler::PipeConf,
        0,
        Saved::Image,
        "Linux display/intel_display.c:intel_wait_for_pipe_off",
    ),
    handled(
        "PIPECONF_EDP",
        at(0x7_f008),
        Handler::PipeConf,
        0,
        Saved::Image,
        "Linux display/intel_display.c:intel_wait_for_pipe_off",
    ),
    handled(
        "PIPE_FRMCOUNT",
        pipe(FRMCOUNT_A),
        Handler::FrameCount,
        0,
        Saved::Derived,
        "Linux i915_irq.c:g4x_get_vblank_counter",
    ),
    plain("PIPE_FLIPCOUNT", pipe(FLIPCOUNT_A), 0, REG),
    plain("CURCNTR", pipe(0x7_0080), 0, "Linux display/intel_cursor.c"),
    plain("CURBASE", pipe(0x7_0084), 0, "Linux display/intel_cursor.c"),
    plain("CURPOS", pipe(0x7_0088), 0, "Linux display/intel_cursor.c"),
    plain("DSPCNTR", pipe(DSPCNTR_A), 0, PLANE),
    plain("DSPSTRIDE", pipe(DSPSTRIDE_A), 0, PLANE),
    handled(
        "DSPSURF",
        pipe(DSPSURF_A),
        Handler::Surface,
        0,
        Saved::Image,
        PLANE,
    ),
    plain("DSPOFFSET", pipe(0x7_01a4), 0, PLANE),
    handled(
        "DSPSURFLIVE",
        pipe(DSPSURFLIVE_A),
        Handler::SurfaceLive,
        0,
        Saved::Derived,
        PLANE,
    ),
    plain("SPRCTL", pipe(0x7_0280), 0, "Linux display/intel_sprite.c"),
    plain("SPRSURF", pipe(0x7_029c), 0, "Linux display/intel_sprite.c"),
];

pub(super) static BDW: &[Register] = &[
    plain(
        "SPLL_CTL",
        at(0x4_6020),
        0,
        "Linux display/intel_dpll_mgr.c",
    ),
    plain(
        "WRPLL_CTL",
        row(WRPLL_CTL1, 2, 0x20),
        0,
        "Linux display/intel_dpll_mgr.c:hsw_ddi_wrpll_enable",
    ),
    // No clock: i915 says so of a port that is off and has one.
    plain(
        "PORT_CLK_SEL",
        row(PORT_CLK_SEL_A, 5, 4),
        7 << 29,
        "Linux display/intel_ddi.c:intel_ddi_sanitize_encoder_pll_mapping",
    ),
    plain(
        "CDCLK_FREQ",
        at(0x4_6200),
        0,
        "Linux display/intel_cdclk.c:bdw_set_cdclk",
    ),
    // Locked, 540 MHz.
    handled(
        "LCPLL_CTL",
        at(LCPLL),
        Handler::Lcpll,
        LCPLL_LOCK | 1 << 26,
        Saved::Image,
        "Linux display/intel_cdclk.c:bdw_get_cdclk",
    ),
    handled(
        "DPA_AUX_CH_CTL",
        at(0x6_4010),
        Handler::Aux,
        0,
        Saved::Image,
        "Linux display/intel_dp_aux.c:intel_dp_aux_xfer",
    ),
];

const CDCLK: &str = "Linux display/intel_cdclk.c:skl_get_cdclk, skl_sanitize_cdclk";
const DPLL: &str = "Linux display/intel_dpll_mgr.c:skl_ddi_pll_enable";

/// As firmware leaves it: DPLL 0 locked at 8100 MHz, from it a display clock of
/// 337.5 MHz, which is enough for one pipe.
pub(super) static KBL: &[Register] = &[
    // Every pipe is there.
    fixed(
        "SKL_DFSM",
        at(0x5_1000),
        0,
        "Linux intel_device_info.c:intel_device_info_runtime_init",
    ),
    // Power gates 0 to 2 have power.
    fixed(
        "SKL_FUSE_STATUS",
        at(0x4_2000),
        0x7 << 25,
        "Linux display/intel_display_power_well.c:gen9_wait_for_power_well_fuses",
    ),
    handled(
        "DBUF_CTL",
        at(0x4_5008),
        Handler::Follows,
        0,
        Saved::Image,
        "Linux display/intel_display_power.c:gen9_dbuf_slice_set",
    ),
    plain(
        "DC_STATE_EN",
        at(0x4_5504),
        0,
        "Linux display/intel_display_power_well.c:gen9_write_dc_state",
    ),
    // Bits 10:0: twice the MHz less two.
    plain("CDCLK_CTL", at(0x4_6000), 2 << 26 | 673, CDCLK),
    handled(
        "LCPLL1_CTL",
        at(LCPLL1),
        Handler::Follows,
        1 << 31,
        Saved::Image,
        CDCLK,
    ),
    plain("LCPLL2_CTL", at(LCPLL2), 0, DPLL),
    plain("WRPLL_CTL", row(WRPLL_CTL1, 2, 0x20), 0, DPLL),
    // Not 0: firmware has set the display up.
    plain("SWF18", at(0x4_f060), 1, CDCLK),
    plain("DPLL_CFGCR", row(DPLL_CFGCR1, 6, 4), 0, DPLL),
    // DPLL 0: overridden, 810 MHz a link.
    plain("DPLL_CTRL1", at(0x6_c058), 2 << 1 | 1 << 0, DPLL),
    // No clock to any port.
    plain(
        "DPLL_CTRL2",
        at(DPLL_CTRL2),
        0x1f << 15,
        "Linux display/intel_ddi.c:skl_ddi_is_clock_enabled",
    ),
    handled(
        "DPLL_STATUS",
        at(0x6_c060),
        Handler::DpllStatus,
        0,
        Saved::Derived,
        DPLL,
    ),
    handled(
        "DDI_AUX_CTL",
        row(0x6_4010, 5, 0x100),
        Handler::Aux,
        0,
        Saved::Image,
        "Linux display/intel_dp_aux.c:skl_aux_ctl_reg",
    ),
];
