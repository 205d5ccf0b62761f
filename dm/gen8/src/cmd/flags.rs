//! Flag bits in the first dword of MI commands and in blits
//! (Linux `gt/intel_gpu_commands.h`; fields it does not name are from the
//! Broadwell PRM, volume 2a).

/// Bit 22 of most MI commands: the address is global.
pub const USE_GGTT: u32 = 1 << 22;

/// MI_STORE_DATA_IMM.
pub mod store_data {
    /// Store 64 bits.
    pub const QWORD: u32 = 1 << 21;
}

/// MI_LOAD_REGISTER_IMM.
pub mod load_register {
    /// Bits 11:8: bytes of the register that are left alone.
    pub const BYTE_DISABLES: u32 = 0xf << 8;
}

/// MI_COPY_MEM_MEM.
pub mod copy_mem {
    /// The destination is global; bit 22 is the source.
    pub const DESTINATION_GGTT: u32 = 1 << 21;
}

/// MI_FLUSH_DW.
pub mod flush_dw {
    /// Forget cached translations.
    pub const TLB_INVALIDATE: u32 = 1 << 18;
    /// The address is an offset into the per-process status page.
    pub const STORE_INDEX: u32 = 1 << 21;
    /// Bits 15:14: what is written.
    pub const POST_SYNC_MASK: u32 = 3 << 14;
    /// Write the immediate.
    pub const POST_SYNC_WRITE: u32 = 1 << 14;
    /// Write the timestamp.
    pub const POST_SYNC_TIMESTAMP: u32 = 3 << 14;
    /// Raise the notify interrupt.
    pub const NOTIFY: u32 = 1 << 8;
    /// In dword 1: the address is global.
    pub const ADDRESS_GGTT: u32 = 1 << 2;
}

/// MI_BATCH_BUFFER_START.
pub mod batch_start {
    /// The batch is in the context's own tables and has no privilege.
    pub const PPGTT: u32 = 1 << 8;
    /// The batch uses the resource streamer.
    pub const RESOURCE_STREAMER: u32 = 1 << 10;
    /// Start only when the predicate holds (render engine).
    pub const PREDICATE: u32 = 1 << 15;
    /// A second-level batch: its end returns to this one.
    pub const SECOND_LEVEL: u32 = 1 << 22;
    /// Flag bits with a meaning here. Of the others of bits 22:8, bit 16 adds
    /// BB_OFFSET, which users may write, to the address.
    pub const KNOWN: u32 = PPGTT | RESOURCE_STREAMER | PREDICATE | SECOND_LEVEL;
}

/// MI_SEMAPHORE_WAIT: what memory must be, compared with the inline value.
pub mod semaphore {
    use crate::Engine;

    /// Poll memory instead of waiting for a signal.
    pub const POLL: u32 = 1 << 15;
    /// Poll a register (Gen12 on).
    pub const REGISTER_POLL: u32 = 1 << 16;
    /// The engine that MI_SEMAPHORE_SIGNAL names, bits 17:15
    /// (Linux 4.6 `intel_ringbuffer.c:gen8_rcs_signal`).
    #[must_use]
    pub const fn target(dw0: u32) -> Option<Engine> {
        match (dw0 >> 15) & 7 {
            0 => Some(Engine::Rcs),
            1 => Some(Engine::Vcs),
            2 => Some(Engine::Bcs),
            3 => Some(Engine::Vecs),
            _ => None,
        }
    }
    /// The comparison, bits 14:12.
    #[must_use]
    pub const fn comparison(dw0: u32) -> u32 {
        (dw0 >> 12) & 7
    }
    /// Memory greater.
    pub const GT: u32 = 0;
    /// Memory greater or equal.
    pub const GTE: u32 = 1;
    /// Memory less.
    pub const LT: u32 = 2;
    /// Memory less or equal.
    pub const LTE: u32 = 3;
    /// Equal.
    pub const EQ: u32 = 4;
    /// Not equal.
    pub const NEQ: u32 = 5;
}

/// MI_ATOMIC.
pub mod atomic {
    /// Operands follow in the command instead of standing in registers.
    pub const INLINE: u32 = 1 << 18;
    /// The old value goes to a register.
    pub const RETURN: u32 = 1 << 16;
    /// The operation, bits 15:8. Bits 7:5 of it are the width: 0 is 32
    /// bits, 1 is 64, 2 is 128.
    #[must_use]
    pub const fn operation(dw0: u32) -> u32 {
        (dw0 >> 8) & 0xff
    }
    /// Bitwise and.
    pub const AND: u32 = 1;
    /// Bitwise or.
    pub const OR: u32 = 2;
    /// Bitwise exclusive or.
    pub const XOR: u32 = 3;
    /// Store operand 1.
    pub const MOVE: u32 = 4;
    /// Add one.
    pub const INC: u32 = 5;
    /// Subtract one.
    pub const DEC: u32 = 6;
    /// Add operand 1.
    pub const ADD: u32 = 7;
    /// Subtract operand 1.
    pub const SUB: u32 = 8;
    /// Operand 1 minus memory.
    pub const RSUB: u32 = 9;
    /// Signed maximum.
    pub const IMAX: u32 = 10;
    /// Signed minimum.
    pub const IMIN: u32 = 11;
    /// Unsigned maximum.
    pub const UMAX: u32 = 12;
    /// Unsigned minimum.
    pub const UMIN: u32 = 13;
    /// Store operand 2 when memory equals operand 1.
    pub const CMPWR: u32 = 14;
    /// Subtract one, return the new value.
    pub const PREDEC: u32 = 15;
}

/// MI_PREDICATE.
pub mod predicate {
    /// Load, bits 7:6: leave the state alone.
    pub const LOAD_KEEP: u32 = 0;
    /// Load the result.
    pub const LOAD: u32 = 2;
    /// Load the inverse of the result.
    pub const LOAD_INVERSE: u32 = 3;
    /// Combine with the old state, bits 4:3: ignore it.
    pub const COMBINE_SET: u32 = 0;
    /// And.
    pub const COMBINE_AND: u32 = 1;
    /// Or.
    pub const COMBINE_OR: u32 = 2;
    /// Exclusive or.
    pub const COMBINE_XOR: u32 = 3;
    /// Compare, bits 1:0: true.
    pub const COMPARE_TRUE: u32 = 0;
    /// False.
    pub const COMPARE_FALSE: u32 = 1;
    /// SRC0 equals SRC1.
    pub const COMPARE_SRCS_EQUAL: u32 = 2;
    /// SRC0 - SRC1 equals DATA.
    pub const COMPARE_DELTAS_EQUAL: u32 = 3;
}

/// Flag bits of PIPE_CONTROL's dword 1.
pub mod pipe_control {
    /// Bits 15:14: what the post-sync operation writes.
    pub const POST_SYNC_MASK: u32 = 3 << 14;
    /// Write the immediate qword.
    pub const POST_SYNC_QW: u32 = 1 << 14;
    /// Write the depth count.
    pub const POST_SYNC_DEPTH: u32 = 2 << 14;
    /// Write the timestamp.
    pub const POST_SYNC_TIMESTAMP: u32 = 3 << 14;
    /// Raise the notify interrupt.
    pub const NOTIFY: u32 = 1 << 8;
    /// The post-sync address is an offset into the per-process status page.
    pub const STORE_INDEX: u32 = 1 << 21;
    /// The post-sync operation writes a register.
    pub const LRI_POST_SYNC: u32 = 1 << 23;
    /// The post-sync address is global.
    pub const GGTT: u32 = 1 << 24;
    /// Forget cached translations.
    pub const TLB_INVALIDATE: u32 = 1 << 18;
}

/// Blits: bits of dword 0 and of BR13 (dword 1).
pub mod blt {
    /// Dword 0: write the alpha byte of 32-bit pixels.
    pub const WRITE_ALPHA: u32 = 1 << 21;
    /// Dword 0: write the colour bytes of 32-bit pixels.
    pub const WRITE_RGB: u32 = 1 << 20;
    /// Dword 0: the source is tiled.
    pub const SRC_TILED: u32 = 1 << 15;
    /// Dword 0: the destination is tiled.
    pub const DST_TILED: u32 = 1 << 11;
    /// BR13: clip to the rectangle of XY_SETUP_CLIP_BLT.
    pub const CLIP: u32 = 1 << 30;
    /// BR13: pixels whose bit of a monochrome source is 0 are left alone.
    pub const SOURCE_TRANSPARENT: u32 = 1 << 29;
    /// BR13: the same for a monochrome pattern.
    pub const PATTERN_TRANSPARENT: u32 = 1 << 28;
    /// Dword 0 of text: each row begins at a byte, instead of right behind
    /// the one before.
    pub const TEXT_BYTE_PACKED: u32 = 1 << 16;
    /// Dword 0: the bit, from the highest, with which each row of a monochrome
    /// source begins.
    #[must_use]
    pub const fn first_bit(dw0: u32) -> u32 {
        dw0 >> 17 & 7
    }
    /// Dword 0: column and row of the pattern at the surface's corner.
    #[must_use]
    pub const fn pattern_seed(dw0: u32) -> (u32, u32) {
        (dw0 >> 12 & 7, dw0 >> 8 & 7)
    }
    /// BR13: bytes of a pixel.
    #[must_use]
    pub const fn pixel_bytes(br13: u32) -> u32 {
        match (br13 >> 24) & 3 {
            0 => 1,
            1 | 2 => 2,
            _ => 4,
        }
    }
    /// BR13: the raster operation, a truth table over pattern, source and
    /// destination.
    #[must_use]
    pub const fn rop(br13: u32) -> u8 {
        br13.to_le_bytes()[2]
    }
    /// XY_FAST_COPY_BLT, dword 0: how the source is arranged, from this bit
    /// on; 0 linear, 1 X tiles, 2 Y tiles, 3 Ys tiles
    /// (igt `lib/intel_reg.h`: `XY_FAST_COPY_SRC_TILING_*`).
    pub const FAST_SRC_TILING: u32 = 20;
    /// The same of the destination.
    pub const FAST_DST_TILING: u32 = 13;
    /// XY_FAST_COPY_BLT, dword 1: the source's Y tiles are Yf tiles.
    pub const FAST_SRC_YF: u32 = 1 << 31;
    /// The same of the destination.
    pub const FAST_DST_YF: u32 = 1 << 30;
    /// XY_FAST_COPY_BLT, dword 1: bytes of a pixel; `None` for a depth that
    /// is none (igt `lib/intel_reg.h`: `XY_FAST_COPY_COLOR_DEPTH_*`).
    #[must_use]
    pub const fn fast_pixel_bytes(dw1: u32) -> Option<u32> {
        match (dw1 >> 24) & 7 {
            0 => Some(1),
            1 => Some(2),
            3 => Some(4),
            4 => Some(8),
            5 => Some(16),
            _ => None,
        }
    }
    /// BCS_SWCTRL: a tiled source is Y-tiled.
    pub const SWCTRL_SRC_Y: u32 = 1 << 0;
    /// BCS_SWCTRL: a tiled destination is Y-tiled.
    pub const SWCTRL_DST_Y: u32 = 1 << 1;
}
