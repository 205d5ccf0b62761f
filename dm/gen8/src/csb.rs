//! Execlists: context descriptors and the context status buffer
//! (Linux `gt/intel_lrc.c:lrc_descriptor`, `gt/intel_execlists_submission.c:gen8_csb_parse`).

use crate::lrc;

/// Entries of the status buffer; the write pointer wraps here.
pub const ENTRIES: u32 = 6;
/// Byte offset of entry 0 in the engine's status page
/// (Linux `gt/intel_engine.h:I915_HWS_CSB_BUF0_INDEX`).
pub const HWSP_BUFFER: u32 = 0x40;
/// Byte offset of the write pointer in the engine's status page
/// (Linux `gt/intel_engine.h:I915_HWS_CSB_WRITE_INDEX`).
pub const HWSP_WRITE_POINTER: u32 = 0x7c;

/// The engine was idle and became active.
pub const IDLE_TO_ACTIVE: u32 = 1 << 0;
/// A running list was replaced.
pub const PREEMPTED: u32 = 1 << 1;
/// The second element of the list runs now.
pub const ELEMENT_SWITCH: u32 = 1 << 2;
/// The engine became idle.
pub const ACTIVE_TO_IDLE: u32 = 1 << 3;
/// The context reached its tail.
pub const CONTEXT_COMPLETE: u32 = 1 << 4;
/// A new list named the context that was running.
pub const LITE_RESTORE: u32 = 1 << 15;

/// A 64-bit context descriptor as written to ELSP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Descriptor(pub u64);

impl Descriptor {
    /// Bit 0: the element is used.
    #[must_use]
    pub const fn valid(self) -> bool {
        self.0 & 1 != 0
    }

    /// Bit 2: reload the context even when it is the running one.
    #[must_use]
    pub const fn force_restore(self) -> bool {
        self.0 & 4 != 0
    }

    /// Bits 4:3: 3 is 48-bit page tables
    /// (Linux `gt/intel_lrc.h:INTEL_LEGACY_64B_CONTEXT`).
    #[must_use]
    pub const fn addressing_mode(self) -> u8 {
        // Two bits.
        ((self.0 >> 3) & 3).to_le_bytes()[0]
    }

    /// The addressing mode of 48-bit page tables.
    pub const MODE_PPGTT48: u8 = 3;

    /// Bits 31:12: GGTT address of the context image.
    #[must_use]
    pub const fn lrca(self) -> u32 {
        let b = self.0.to_le_bytes();
        u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0xffff_f000
    }

    /// The upper dword: the id the driver gave the context.
    #[must_use]
    pub const fn context_id(self) -> u32 {
        let b = self.0.to_le_bytes();
        u32::from_le_bytes([b[4], b[5], b[6], b[7]])
    }

    /// Whether both name the same context: same image, same id.
    #[must_use]
    pub const fn same_context(self, other: Self) -> bool {
        self.lrca() == other.lrca() && self.context_id() == other.context_id()
    }

    /// The descriptor with another image address (page aligned).
    #[must_use]
    pub fn with_lrca(self, lrca: u32) -> Self {
        Self((self.0 & !0xffff_f000) | u64::from(lrca & 0xffff_f000))
    }

    /// GGTT address of the context's register page.
    #[must_use]
    pub const fn register_page(self) -> u32 {
        self.lrca().wrapping_add(lrc::REGISTER_PAGE * 4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_keeps_its_parts() {
        let d = Descriptor(0x0000_0060_0001_3019 | 4);
        assert!(d.valid() && d.force_restore());
        assert_eq!(d.addressing_mode(), Descriptor::MODE_PPGTT48);
        assert_eq!(d.lrca(), 0x1_3000);
        assert_eq!(d.context_id(), 0x60);
        assert_eq!(d.register_page(), 0x1_4000);
        assert!(d.with_lrca(0xffff_f123).lrca() == 0xffff_f000);
        assert!(!d.same_context(d.with_lrca(0)));
    }
}
