//! MI commands: client 0, opcode in bits 28:23.

use super::field::{Bits, Bytes, Effect, Space, StatusField, both, read, register, write};
use super::flags::{atomic, flush_dw};
use super::row::{Command, Dwords, Flow};
use crate::{Engine, EngineSet, ring};

/// Opcodes, bits 28:23 of the first dword.
#[expect(missing_docs, reason = "the names are the documentation's own")]
pub mod opcode {
    pub const NOOP: u32 = 0x00;
    pub const SET_PREDICATE: u32 = 0x01;
    pub const USER_INTERRUPT: u32 = 0x02;
    pub const WAIT_FOR_EVENT: u32 = 0x03;
    pub const ARB_CHECK: u32 = 0x05;
    pub const RS_CONTROL: u32 = 0x06;
    pub const REPORT_HEAD: u32 = 0x07;
    pub const ARB_ON_OFF: u32 = 0x08;
    pub const URB_ATOMIC_ALLOC: u32 = 0x09;
    pub const BATCH_BUFFER_END: u32 = 0x0a;
    pub const SUSPEND_FLUSH: u32 = 0x0b;
    pub const PREDICATE: u32 = 0x0c;
    pub const TOPOLOGY_FILTER: u32 = 0x0d;
    pub const SET_APPID: u32 = 0x0e;
    pub const RS_CONTEXT: u32 = 0x0f;
    pub const LOAD_SCAN_LINES_INCL: u32 = 0x12;
    pub const LOAD_SCAN_LINES_EXCL: u32 = 0x13;
    pub const DISPLAY_FLIP: u32 = 0x14;
    pub const SET_CONTEXT: u32 = 0x18;
    pub const URB_CLEAR: u32 = 0x19;
    pub const MATH: u32 = 0x1a;
    pub const SEMAPHORE_SIGNAL: u32 = 0x1b;
    pub const SEMAPHORE_WAIT: u32 = 0x1c;
    pub const STORE_DATA_IMM: u32 = 0x20;
    pub const STORE_DATA_INDEX: u32 = 0x21;
    pub const LOAD_REGISTER_IMM: u32 = 0x22;
    pub const UPDATE_GTT: u32 = 0x23;
    pub const STORE_REGISTER_MEM: u32 = 0x24;
    pub const FLUSH_DW: u32 = 0x26;
    pub const CLFLUSH: u32 = 0x27;
    pub const REPORT_PERF_COUNT: u32 = 0x28;
    pub const LOAD_REGISTER_MEM: u32 = 0x29;
    pub const LOAD_REGISTER_REG: u32 = 0x2a;
    pub const RS_STORE_DATA_IMM: u32 = 0x2b;
    pub const LOAD_URB_MEM: u32 = 0x2c;
    pub const STORE_URB_MEM: u32 = 0x2d;
    pub const COPY_MEM_MEM: u32 = 0x2e;
    pub const ATOMIC: u32 = 0x2f;
    pub const BATCH_BUFFER_START: u32 = 0x31;
    pub const CONDITIONAL_BATCH_BUFFER_END: u32 = 0x36;
}

use opcode as op;

const ALL: EngineSet = EngineSet::ALL;
const RCS: EngineSet = EngineSet::of(&[Engine::Rcs]);
const RCS_BCS: EngineSet = EngineSet::of(&[Engine::Rcs, Engine::Bcs]);

/// One dword long.
pub(super) const fn mi(name: &'static str, opcode: u32, engines: EngineSet) -> Command {
    Command::new(name, 0xff80_0000, opcode << 23, engines)
}

const fn sets(register: &'static str, offset: u32, dwords: u32, when: Bits) -> Effect {
    Effect {
        register,
        offset,
        dwords,
        when,
    }
}

/// MI commands.
pub static MI: &[Command] = &[
    // Bits 21:0 are a number that bit 22 has written to NOPID.
    mi("MI_NOOP", op::NOOP, ALL).sets(&[sets("NOPID", ring::NOPID, 1, Bits::of(0, 1 << 22, 0))]),
    // It could skip the end of a batch.
    mi("MI_SET_PREDICATE", op::SET_PREDICATE, ALL).refused(),
    mi("MI_USER_INTERRUPT", op::USER_INTERRUPT, ALL).interrupts(Bits::ALWAYS),
    mi("MI_WAIT_FOR_EVENT", op::WAIT_FOR_EVENT, RCS_BCS)
        .privileged()
        .nothing(),
    mi("MI_ARB_CHECK", op::ARB_CHECK, ALL),
    mi("MI_RS_CONTROL", op::RS_CONTROL, RCS),
    // To the engine's status page, which is vgpud's.
    mi("MI_REPORT_HEAD", op::REPORT_HEAD, ALL)
        .privileged()
        .refused(),
    mi("MI_ARB_ON_OFF", op::ARB_ON_OFF, ALL).privileged(),
    mi("MI_URB_ATOMIC_ALLOC", op::URB_ATOMIC_ALLOC, RCS),
    mi("MI_BATCH_BUFFER_END", op::BATCH_BUFFER_END, ALL).flow(Flow::EndsBatch),
    mi("MI_SUSPEND_FLUSH", op::SUSPEND_FLUSH, ALL)
        .privileged()
        .nothing(),
    mi("MI_PREDICATE", op::PREDICATE, RCS).sets(&[sets(
        "MI_PREDICATE_RESULT",
        ring::PREDICATE_RESULT,
        1,
        Bits::ALWAYS,
    )]),
    mi("MI_TOPOLOGY_FILTER", op::TOPOLOGY_FILTER, ALL),
    mi("MI_SET_APPID", op::SET_APPID, ALL),
    mi("MI_RS_CONTEXT", op::RS_CONTEXT, RCS),
    mi("MI_LOAD_SCAN_LINES_INCL", op::LOAD_SCAN_LINES_INCL, RCS_BCS)
        .field(6, Dwords::Exactly(2))
        .privileged()
        .nothing(),
    mi("MI_LOAD_SCAN_LINES_EXCL", op::LOAD_SCAN_LINES_EXCL, RCS_BCS)
        .field(6, Dwords::Exactly(2))
        .privileged()
        .nothing(),
    // A flip would program the physical display.
    mi("MI_DISPLAY_FLIP", op::DISPLAY_FLIP, RCS_BCS)
        .field(8, Dwords::Between(3, 5))
        .refused()
        .addresses(&[read(2, 12).low().space(Space::Ggtt)]),
    // Contexts come by execlist; this way would load any image.
    mi("MI_SET_CONTEXT", op::SET_CONTEXT, RCS)
        .long(2)
        .privileged()
        .refused()
        .addresses(&[both(1, 12).low().space(Space::Ggtt)]),
    mi("MI_URB_CLEAR", op::URB_CLEAR, RCS).long(2),
    // gen8.xml has six bits of length, media-driver eight: both agree up to
    // here.
    mi("MI_MATH", op::MATH, ALL)
        .field(8, Dwords::Between(2, 65))
        .sets(&[sets(
            "CS_GPR",
            ring::GPR0,
            ring::GPR_COUNT * 2,
            Bits::ALWAYS,
        )]),
    // Signals by context id would cross guests.
    mi("MI_SEMAPHORE_SIGNAL", op::SEMAPHORE_SIGNAL, ALL)
        .long(2)
        .refused(),
    mi("MI_SEMAPHORE_WAIT", op::SEMAPHORE_WAIT, ALL)
        .long(4)
        .flow(Flow::Waits)
        .addresses(&[read(2, 2).ggtt(0, 22).bytes(Bytes::Known(4))]),
    mi("MI_STORE_DATA_IMM", op::STORE_DATA_IMM, ALL)
        .field(10, Dwords::Between(4, 5))
        .addresses(&[write(1, 2).ggtt(0, 22).bytes(Bytes::If {
            bit: 21,
            set: 8,
            clear: 4,
        })]),
    // Bit 21: the context's status page
    // (Linux `gt/intel_gpu_commands.h:MI_STORE_DWORD_INDEX`).
    mi("MI_STORE_DATA_INDEX", op::STORE_DATA_INDEX, ALL)
        .field(8, Dwords::Between(3, 4))
        .status(StatusField {
            dword: 1,
            flags: 0,
            when: Bits::ALWAYS,
            writes: Bits::ALWAYS,
            own: 1 << 21,
        }),
    mi("MI_LOAD_REGISTER_IMM", op::LOAD_REGISTER_IMM, ALL)
        .field(8, Dwords::AtLeast(3))
        .registers(&[register(1, true).value(1).each(2, 0)]),
    // Dword 1 is the number of the first entry, the rest are entries.
    mi("MI_UPDATE_GTT", op::UPDATE_GTT, ALL)
        .field(10, Dwords::AtLeast(4))
        .privileged()
        .refused(),
    mi("MI_STORE_REGISTER_MEM", op::STORE_REGISTER_MEM, ALL)
        .long(4)
        .registers(&[register(1, false)])
        .addresses(&[write(2, 2).ggtt(0, 22).bytes(Bytes::Known(4))]),
    // Bits above the length have other meanings.
    mi("MI_FLUSH_DW", op::FLUSH_DW, ALL)
        .field(6, Dwords::Between(3, 5))
        .interrupts(Bits::of(0, flush_dw::NOTIFY, 0))
        .status(StatusField {
            dword: 1,
            flags: flush_dw::ADDRESS_GGTT,
            when: Bits::of(0, flush_dw::STORE_INDEX, 0),
            writes: Bits::of(0, flush_dw::POST_SYNC_MASK, 0),
            own: 0,
        })
        .addresses(&[write(1, 3).ggtt(1, 2).bytes(Bytes::Known(8)).when(
            0,
            flush_dw::POST_SYNC_MASK,
            flush_dw::STORE_INDEX,
        )]),
    // The pages that follow the first are told by the dwords after it: it
    // could flush past a window.
    mi("MI_CLFLUSH", op::CLFLUSH, RCS)
        .field(10, Dwords::AtLeast(3))
        .refused()
        .addresses(&[both(1, 12).ggtt(0, 22)]),
    mi("MI_REPORT_PERF_COUNT", op::REPORT_PERF_COUNT, RCS)
        .field(6, Dwords::Exactly(4))
        .refused()
        .addresses(&[write(1, 6).ggtt(1, 0).bytes(Bytes::AtMost(256))]),
    mi("MI_LOAD_REGISTER_MEM", op::LOAD_REGISTER_MEM, ALL)
        .long(4)
        .registers(&[register(1, true)])
        .addresses(&[read(2, 2).ggtt(0, 22).bytes(Bytes::Known(4))]),
    mi("MI_LOAD_REGISTER_REG", op::LOAD_REGISTER_REG, ALL)
        .long(3)
        .registers(&[register(1, false), register(2, true)]),
    mi("MI_RS_STORE_DATA_IMM", op::RS_STORE_DATA_IMM, RCS)
        .long(4)
        .refused()
        .addresses(&[write(1, 2).ggtt(0, 22).bytes(Bytes::Known(4))]),
    mi("MI_LOAD_URB_MEM", op::LOAD_URB_MEM, RCS)
        .long(4)
        .refused()
        .addresses(&[read(2, 6)]),
    mi("MI_STORE_URB_MEM", op::STORE_URB_MEM, RCS)
        .long(4)
        .refused()
        .addresses(&[write(2, 6)]),
    mi("MI_COPY_MEM_MEM", op::COPY_MEM_MEM, ALL)
        .long(5)
        .addresses(&[
            write(1, 2).ggtt(0, 21).bytes(Bytes::Known(4)),
            read(3, 2).ggtt(0, 22).bytes(Bytes::Known(4)),
        ]),
    // Its width stands in the operation and in bits 20:19. Bit 16 returns
    // what was there in registers 4 and 5 (Broadwell PRM volume 2a).
    mi("MI_ATOMIC", op::ATOMIC, ALL)
        .field(8, Dwords::Between(3, 11))
        .sets(&[sets(
            "CS_GPR4",
            ring::GPR0 + 4 * 8,
            4,
            Bits::of(0, atomic::RETURN, 0),
        )])
        .addresses(&[both(1, 2).ggtt(0, 22).bytes(Bytes::Atomic)]),
    mi("MI_BATCH_BUFFER_START", op::BATCH_BUFFER_START, ALL)
        .long(3)
        .flow(Flow::StartsBatch)
        .predicated(15)
        .addresses(&[read(1, 2).space(Space::GgttUnless { bit: 8 })]),
    // media-driver, igt and GVT-g have 4 dwords. gen8.xml has 3, which is one
    // too few for the address in it.
    mi(
        "MI_CONDITIONAL_BATCH_BUFFER_END",
        op::CONDITIONAL_BATCH_BUFFER_END,
        ALL,
    )
    .long(4)
    .flow(Flow::MayEndBatch)
    .addresses(&[read(2, 3).ggtt(0, 22).bytes(Bytes::Known(4))]),
];
