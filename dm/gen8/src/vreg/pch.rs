//! South display: straps, GMBUS, sideband, AUX, hot plug
//! (Linux `i915_reg.h`, `display/intel_gmbus_regs.h`).

use super::gt::bank;
use super::{Handler, Register, Saved, at, fixed, handled, plain, row};

/// GMBUS0: pin pair in bits 2:0.
pub const GMBUS0: u32 = 0xc_5100;
/// GMBUS1: the command.
pub const GMBUS1: u32 = GMBUS0 + 4;
/// GMBUS2: the status.
pub const GMBUS2: u32 = GMBUS0 + 8;
/// GMBUS3: four bytes of data, the first lowest.
pub const GMBUS3: u32 = GMBUS0 + 0xc;
/// GMBUS4: interrupt enables.
pub const GMBUS4: u32 = GMBUS0 + 0x10;
/// GMBUS5: the two-byte index.
pub const GMBUS5: u32 = GMBUS0 + 0x20;

/// SFUSE_STRAP: port B exists.
pub const SFUSE_DDI_B: u32 = 1 << 2;
/// SFUSE_STRAP: the analog output does not.
pub const SFUSE_CRT_DISABLED: u32 = 1 << 6;

const GMBUS: &str = "Linux display/intel_gmbus.c:do_gmbus_xfer";
const IRQ: &str = "Linux i915_irq.c:ibx_irq_reset";
const AUX: &str = "Linux display/intel_dp_aux.c:intel_dp_aux_xfer";

const fn gmbus(name: &'static str, offset: u32) -> Register {
    handled(name, at(offset), Handler::Gmbus, 0, Saved::Part, GMBUS)
}

pub(super) static TABLE: &[Register] = &[
    fixed(
        "SFUSE_STRAP",
        at(0xc_2014),
        SFUSE_DDI_B | SFUSE_CRT_DISABLED,
        "Linux display/intel_display.c:intel_setup_outputs",
    ),
    bank("SDEISR", 0xc_4000, 1, Handler::Isr, 0, IRQ),
    bank("SDEIMR", 0xc_4004, 1, Handler::Imr, u32::MAX, IRQ),
    bank("SDEIIR", 0xc_4008, 1, Handler::Iir, 0, IRQ),
    bank("SDEIER", 0xc_400c, 1, Handler::Ier, 0, IRQ),
    plain(
        "PCH_PORT_HOTPLUG",
        at(0xc_4030),
        0,
        "Linux i915_irq.c:ibx_hpd_detection_setup",
    ),
    super::clearing("SERR_INT", at(0xc_4040), IRQ),
    plain("GPIO_CTL", row(0xc_5010, 6, 4), 0, GMBUS),
    gmbus("GMBUS0", GMBUS0),
    gmbus("GMBUS1", GMBUS1),
    gmbus("GMBUS2", GMBUS2),
    gmbus("GMBUS3", GMBUS3),
    gmbus("GMBUS4", GMBUS4),
    gmbus("GMBUS5", GMBUS5),
    plain(
        "SBI_ADDR_DATA",
        row(0xc_6000, 2, 4),
        0,
        "Linux intel_sbi.c:intel_sbi_rw",
    ),
    handled(
        "SBI_CTL_STAT",
        at(0xc_6008),
        Handler::Sideband,
        0,
        Saved::Image,
        "Linux intel_sbi.c:intel_sbi_rw",
    ),
    // MHz; 0 would make every AUX clock divider 0.
    plain(
        "PCH_RAWCLK_FREQ",
        at(0xc_6204),
        24,
        "Linux display/intel_cdclk.c:pch_rawclk",
    ),
    handled(
        "PCH_DP_AUX_CH_CTL",
        row(0xe_4110, 3, 0x100),
        Handler::Aux,
        0,
        Saved::Image,
        AUX,
    ),
];
