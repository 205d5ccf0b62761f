//! The page by which a driver recognises a virtual GPU
//! (Linux `i915_pvinfo.h`, `i915_vgpu.c`).

use super::{Handler, Register, Saved, at, fixed, handled, plain, row};

/// BAR0 offset of the page.
pub const BASE: u32 = 0x7_8000;
/// Offset of the page's field that holds the first usable address that the
/// CPU can reach through BAR2, and from there base and size of both ranges.
pub const MAPPABLE_BASE: u32 = BASE + 0x40;
/// Size of the range the CPU can reach.
pub const MAPPABLE_SIZE: u32 = BASE + 0x44;
/// First usable address beyond BAR2.
pub const NON_MAPPABLE_BASE: u32 = BASE + 0x48;
/// Size of the range beyond BAR2.
pub const NON_MAPPABLE_SIZE: u32 = BASE + 0x4c;
/// Page-table root of a notification, low half; the high half follows.
pub const PDP0: u32 = BASE + 0x838;

/// The guest writes 1 when its driver is up.
pub const DISPLAY_READY: u32 = BASE + 0x804;

/// Capabilities: full PPGTT (bit 2) and status-page emulation (bit 3), both
/// of which i915 demands. Not bit 4, huge GTT pages: Gen8 i915 uses 4 KiB
/// pages anyway (Linux `i915_driver.c:i915_driver_hw_probe`).
pub const CAPS: u32 = 1 << 2 | 1 << 3;

/// Notification: a 48-bit page table is about to be used.
pub const L4_CREATE: u32 = 4;
/// Notification: a 48-bit page table is no longer used.
pub const L4_DESTROY: u32 = 5;

const SRC: &str = "Linux i915_pvinfo.h:vgt_if";
const BALLOON: &str = "Linux i915_vgpu.c:intel_vgt_balloon";

pub(super) static TABLE: &[Register] = &[
    // The magic, read as one qword.
    fixed("VGT_MAGIC_LO", at(BASE), 0x7654_4776, SRC),
    fixed("VGT_MAGIC_HI", at(BASE + 4), 0x4776_5447, SRC),
    // Major version in the low half.
    fixed("VGT_VERSION", at(BASE + 8), 1, SRC),
    fixed("VGT_ID", at(BASE + 0xc), 0, SRC),
    fixed("VGT_CAPS", at(BASE + 0x10), CAPS, SRC),
    // The device fills these in from the size of BAR2.
    fixed("VGT_MAPPABLE_BASE", at(MAPPABLE_BASE), 0, BALLOON),
    fixed("VGT_MAPPABLE_SIZE", at(MAPPABLE_SIZE), 0, BALLOON),
    fixed("VGT_NON_MAPPABLE_BASE", at(NON_MAPPABLE_BASE), 0, BALLOON),
    fixed("VGT_NON_MAPPABLE_SIZE", at(NON_MAPPABLE_SIZE), 0, BALLOON),
    fixed(
        "VGT_FENCE_NUM",
        at(BASE + 0x50),
        crate::fence::COUNT,
        "Linux gt/intel_ggtt_fencing.c:intel_ggtt_init_fences",
    ),
    plain(
        "VGT_DISPLAY_READY",
        at(DISPLAY_READY),
        0,
        "Linux i915_vgpu.c:intel_vgpu_register",
    ),
    handled(
        "VGT_G2V_NOTIFY",
        at(BASE + 0x818),
        Handler::Notify,
        0,
        Saved::Image,
        "Linux gt/gen8_ppgtt.c:gen8_ppgtt_notify_vgt",
    ),
    plain("VGT_CURSOR_HOT", row(BASE + 0x830, 2, 4), u32::MAX, SRC),
    plain("VGT_PDP", row(PDP0, 8, 4), 0, SRC),
    plain("VGT_EXECLIST_CONTEXT", row(BASE + 0x858, 2, 4), 0, SRC),
];
