//! Offsets in an engine's register block, and GT registers beside it.
//!
//! Relative offsets are added to [`crate::Engine::mmio_base`]. Source:
//! Linux `gt/intel_engine_regs.h`, `gt/intel_gt_regs.h`, unless noted.

/// RING_TAIL, ring offset in bytes, bits 20:3.
pub const TAIL: u32 = 0x30;
/// RING_HEAD, ring offset in bytes, bits 20:2.
pub const HEAD: u32 = 0x34;
/// RING_START, GGTT address of the ring.
pub const START: u32 = 0x38;
/// RING_CTL: size in bits 20:12 (pages - 1), bit 0 valid.
pub const CTL: u32 = 0x3c;
/// RING_IPEIR.
pub const IPEIR: u32 = 0x64;
/// RING_IPEHR: header of the command last executed.
pub const IPEHR: u32 = 0x68;
/// RING_INSTDONE.
pub const INSTDONE: u32 = 0x6c;
/// RING_ACTHD: address of the command being executed, low half.
pub const ACTHD: u32 = 0x74;
/// RING_ACTHD_UDW: the high half.
pub const ACTHD_UDW: u32 = 0x5c;
/// RING_HWS_PGA: GGTT address of the engine's hardware status page.
pub const HWS_PGA: u32 = 0x80;
/// RING_HWSTAM: status-page write mask.
pub const HWSTAM: u32 = 0x98;
/// RING_MI_MODE, masked.
pub const MI_MODE: u32 = 0x9c;
/// MI_MODE: stop the ring.
pub const MI_MODE_STOP_RING: u32 = 1 << 8;
/// MI_MODE: the ring is idle, read-only.
pub const MI_MODE_IDLE: u32 = 1 << 9;
/// RING_IMR: which of the engine's interrupts are masked.
pub const IMR: u32 = 0xa8;
/// RING_EIR: error identity, write one to clear.
pub const EIR: u32 = 0xb0;
/// RING_EMR: error mask.
pub const EMR: u32 = 0xb4;
/// RING_ESR: error status.
pub const ESR: u32 = 0xb8;
/// EIR/ESR bit 0: a command that cannot be decoded
/// (Linux `i915_reg.h:I915_ERROR_INSTRUCTION`).
pub const ERROR_INSTRUCTION: u32 = 1 << 0;
/// EIR/ESR bit 4: an address that no table maps
/// (Linux `i915_reg.h:I915_ERROR_PAGE_TABLE`).
pub const ERROR_PAGE_TABLE: u32 = 1 << 4;
/// RING_INSTPM, masked.
pub const INSTPM: u32 = 0xc0;
/// RING_RESET_CTL, masked.
pub const RESET_CTL: u32 = 0xd0;
/// RESET_CTL: the driver asks the engine to get ready for reset.
pub const RESET_CTL_REQUEST: u32 = 1 << 0;
/// RESET_CTL: the engine is ready.
pub const RESET_CTL_READY: u32 = 1 << 1;
/// R_PWR_CLK_STATE (render engine).
pub const R_PWR_CLK_STATE: u32 = 0xc8;
/// RING_BBSTATE.
pub const BB_STATE: u32 = 0x110;
/// BBSTATE: the batch is in the context's own tables, without privilege
/// (Linux `gt/intel_engine_regs.h:RING_BB_PPGTT`).
pub const BB_STATE_PPGTT: u32 = 1 << 5;
/// RING_SBBADDR: the second-level batch, low half.
pub const SBB_ADDR: u32 = 0x114;
/// RING_SBBSTATE.
pub const SBB_STATE: u32 = 0x118;
/// RING_SBBADDR_UDW.
pub const SBB_ADDR_UDW: u32 = 0x11c;
/// RING_BBADDR, low half.
pub const BB_ADDR: u32 = 0x140;
/// RING_BBADDR_UDW.
pub const BB_ADDR_UDW: u32 = 0x168;
/// RING_BB_PER_CTX_PTR.
pub const PER_CTX_BB: u32 = 0x1c0;
/// RING_INDIRECT_CTX.
pub const INDIRECT_CTX: u32 = 0x1c4;
/// RING_INDIRECT_CTX_OFFSET.
pub const INDIRECT_CTX_OFFSET: u32 = 0x1c8;
/// RING_EXECLIST_SUBMIT_PORT (ELSP).
pub const ELSP: u32 = 0x230;
/// RING_EXECLIST_STATUS, low half.
pub const EXECLIST_STATUS_LO: u32 = 0x234;
/// RING_EXECLIST_STATUS, high half: the running context's id.
pub const EXECLIST_STATUS_HI: u32 = 0x238;
/// RING_CONTEXT_CONTROL, masked.
pub const CONTEXT_CONTROL: u32 = 0x244;
/// Page-directory pointer 0, low half; PML4 address in 48-bit mode. Pointer
/// n is 8n on, its high half 4 on.
pub const PDP0_LO: u32 = 0x270;
/// RING_MODE_GEN7, masked: bit 15 selects execlists.
pub const MODE: u32 = 0x29c;
/// MODE: run lists instead of the ring register.
pub const MODE_RUN_LIST: u32 = 1 << 15;
/// RING_TIMESTAMP, low half, 80 ns units on Gen8.
pub const TIMESTAMP: u32 = 0x358;
/// RING_TIMESTAMP_UDW.
pub const TIMESTAMP_UDW: u32 = 0x35c;
/// Context status buffer mirror: entry n at 8n.
pub const CSB_MIRROR: u32 = 0x370;
/// RING_CONTEXT_STATUS_PTR: write pointer 2:0, read pointer 10:8, masked.
pub const CSB_PTR: u32 = 0x3a0;
/// RING_CTX_TIMESTAMP.
pub const CTX_TIMESTAMP: u32 = 0x3a8;
/// MI_PREDICATE_RESULT_2.
pub const PREDICATE_RESULT_2: u32 = 0x3bc;
/// MI_PREDICATE_SRC0, 64 bits.
pub const PREDICATE_SRC0: u32 = 0x400;
/// MI_PREDICATE_SRC1, 64 bits.
pub const PREDICATE_SRC1: u32 = 0x408;
/// MI_PREDICATE_DATA, 64 bits.
pub const PREDICATE_DATA: u32 = 0x410;
/// NOPID (Linux `gt/intel_gt_regs.h:NOPID`); unused FORCE_TO_NONPRIV slots point at it
/// (`gt/intel_workarounds.c:intel_engine_apply_whitelist`).
pub const NOPID: u32 = 0x94;
/// MI_PREDICATE_RESULT.
pub const PREDICATE_RESULT: u32 = 0x418;
/// RING_FORCE_TO_NONPRIV: slot n is 4n on and holds the offset of a
/// register that batches without privilege may write.
pub const FORCE_TO_NONPRIV: u32 = 0x4d0;
/// Slots of FORCE_TO_NONPRIV (`RING_MAX_NONPRIV_SLOTS`).
pub const FORCE_TO_NONPRIV_SLOTS: u32 = 12;
/// General-purpose register n is 8n on, 64 bits (`GEN8_RING_CS_GPR`).
pub const GPR0: u32 = 0x600;
/// Number of general-purpose registers.
pub const GPR_COUNT: u32 = 16;

/// GEN6_GDRST: reset domains, self-clearing.
pub const GDRST: u32 = 0x941c;
/// GFX_FLSH_CNTL_GEN6: written after GGTT updates.
pub const GFX_FLSH_CNTL: u32 = 0x10_1008;
/// BCS_SWCTRL, absolute, masked: bit 0 source, bit 1 destination Y-tiled
/// (Linux `gt/intel_gt_regs.h:BCS_SWCTRL`).
pub const BCS_SWCTRL: u32 = 0x2_2200;

/// GEN8_RING_FAULT_REG: bit 0 valid, 2:1 type, 10:3 source, 11 global
/// table, 14:12 engine.
pub const FAULT: u32 = 0x4094;
/// FAULT: a fault is recorded.
pub const FAULT_VALID: u32 = 1 << 0;
/// FAULT: the address was global.
pub const FAULT_GGTT: u32 = 1 << 11;
/// GEN8_FAULT_TLB_DATA0: address bits 43:12.
pub const FAULT_TLB_DATA0: u32 = 0x4b10;
/// GEN8_FAULT_TLB_DATA1: address bits 47:44, bit 4 global table.
pub const FAULT_TLB_DATA1: u32 = 0x4b14;
