//! MI commands: client 0, opcode in bits 28:23.

use super::{AddressField, Command, Length, Privilege, Space};
use crate::{Engine, EngineSet};

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
    pub const DISPLAY_FLIP: u32 = 0x14;
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

/// Bits 7:0, the length field of MI commands of variable length.
const LEN8: Length = Length::Field(0xff);
/// Bits 5:0, where the bits above have other meanings.
const LEN6: Length = Length::Field(0x3f);
const ONE: Length = Length::Fixed(1);

const fn ggtt22(dword: u8, write: bool) -> AddressField {
    AddressField {
        dword,
        space: Space::GgttIf { dword: 0, bit: 22 },
        write,
    }
}

const fn mi(
    name: &'static str,
    opcode: u32,
    length: Length,
    engines: EngineSet,
    privilege: Privilege,
    addresses: &'static [AddressField],
) -> Command {
    Command {
        name,
        mask: 0xff80_0000,
        value: opcode << 23,
        length,
        engines,
        privilege,
        addresses,
    }
}

use Privilege::{Any, Privileged, Refused};

const LIST: &[Command] = &[
    mi("MI_NOOP", op::NOOP, ONE, ALL, Any, &[]),
    mi("MI_SET_PREDICATE", op::SET_PREDICATE, ONE, ALL, Any, &[]),
    mi("MI_USER_INTERRUPT", op::USER_INTERRUPT, ONE, ALL, Any, &[]),
    mi(
        "MI_WAIT_FOR_EVENT",
        op::WAIT_FOR_EVENT,
        ONE,
        RCS_BCS,
        Privileged,
        &[],
    ),
    mi("MI_ARB_CHECK", op::ARB_CHECK, ONE, ALL, Any, &[]),
    mi("MI_RS_CONTROL", op::RS_CONTROL, ONE, RCS, Any, &[]),
    mi("MI_REPORT_HEAD", op::REPORT_HEAD, ONE, ALL, Privileged, &[]),
    mi("MI_ARB_ON_OFF", op::ARB_ON_OFF, ONE, ALL, Privileged, &[]),
    mi(
        "MI_URB_ATOMIC_ALLOC",
        op::URB_ATOMIC_ALLOC,
        ONE,
        RCS,
        Any,
        &[],
    ),
    mi(
        "MI_BATCH_BUFFER_END",
        op::BATCH_BUFFER_END,
        ONE,
        ALL,
        Any,
        &[],
    ),
    mi(
        "MI_SUSPEND_FLUSH",
        op::SUSPEND_FLUSH,
        ONE,
        ALL,
        Privileged,
        &[],
    ),
    mi("MI_PREDICATE", op::PREDICATE, ONE, RCS, Any, &[]),
    mi(
        "MI_TOPOLOGY_FILTER",
        op::TOPOLOGY_FILTER,
        ONE,
        ALL,
        Any,
        &[],
    ),
    mi("MI_SET_APPID", op::SET_APPID, ONE, ALL, Any, &[]),
    mi("MI_RS_CONTEXT", op::RS_CONTEXT, ONE, RCS, Any, &[]),
    mi(
        "MI_LOAD_SCAN_LINES_INCL",
        op::LOAD_SCAN_LINES_INCL,
        LEN8,
        RCS_BCS,
        Privileged,
        &[],
    ),
    // A flip would program the physical display.
    mi(
        "MI_DISPLAY_FLIP",
        op::DISPLAY_FLIP,
        LEN8,
        RCS_BCS,
        Refused,
        &[],
    ),
    mi("MI_URB_CLEAR", op::URB_CLEAR, LEN8, RCS, Any, &[]),
    mi("MI_MATH", op::MATH, LEN8, ALL, Any, &[]),
    // Signals and waits by context id would cross guests.
    mi(
        "MI_SEMAPHORE_SIGNAL",
        op::SEMAPHORE_SIGNAL,
        LEN8,
        ALL,
        Refused,
        &[],
    ),
    mi(
        "MI_SEMAPHORE_WAIT",
        op::SEMAPHORE_WAIT,
        LEN8,
        ALL,
        Any,
        &[ggtt22(2, false)],
    ),
    mi(
        "MI_STORE_DATA_IMM",
        op::STORE_DATA_IMM,
        LEN8,
        ALL,
        Any,
        &[ggtt22(1, true)],
    ),
    // Its offset is into the context's own status page.
    mi(
        "MI_STORE_DATA_INDEX",
        op::STORE_DATA_INDEX,
        LEN8,
        ALL,
        Any,
        &[],
    ),
    mi(
        "MI_LOAD_REGISTER_IMM",
        op::LOAD_REGISTER_IMM,
        LEN8,
        ALL,
        Any,
        &[],
    ),
    mi("MI_UPDATE_GTT", op::UPDATE_GTT, LEN8, ALL, Refused, &[]),
    mi(
        "MI_STORE_REGISTER_MEM",
        op::STORE_REGISTER_MEM,
        LEN8,
        ALL,
        Any,
        &[ggtt22(2, true)],
    ),
    mi(
        "MI_FLUSH_DW",
        op::FLUSH_DW,
        LEN6,
        ALL,
        Any,
        &[AddressField {
            dword: 1,
            space: Space::GgttIf { dword: 1, bit: 2 },
            write: true,
        }],
    ),
    mi(
        "MI_CLFLUSH",
        op::CLFLUSH,
        LEN8,
        RCS,
        Any,
        &[ggtt22(1, false)],
    ),
    mi(
        "MI_REPORT_PERF_COUNT",
        op::REPORT_PERF_COUNT,
        LEN6,
        RCS,
        Refused,
        &[AddressField {
            dword: 1,
            space: Space::GgttIf { dword: 1, bit: 0 },
            write: true,
        }],
    ),
    mi(
        "MI_LOAD_REGISTER_MEM",
        op::LOAD_REGISTER_MEM,
        LEN8,
        ALL,
        Any,
        &[ggtt22(2, false)],
    ),
    mi(
        "MI_LOAD_REGISTER_REG",
        op::LOAD_REGISTER_REG,
        LEN8,
        ALL,
        Any,
        &[],
    ),
    mi(
        "MI_RS_STORE_DATA_IMM",
        op::RS_STORE_DATA_IMM,
        LEN8,
        RCS,
        Refused,
        &[ggtt22(1, true)],
    ),
    mi("MI_LOAD_URB_MEM", op::LOAD_URB_MEM, LEN8, RCS, Refused, &[]),
    mi(
        "MI_STORE_URB_MEM",
        op::STORE_URB_MEM,
        LEN8,
        RCS,
        Refused,
        &[],
    ),
    mi(
        "MI_COPY_MEM_MEM",
        op::COPY_MEM_MEM,
        LEN8,
        ALL,
        Any,
        &[
            AddressField {
                dword: 1,
                space: Space::GgttIf { dword: 0, bit: 21 },
                write: true,
            },
            ggtt22(3, false),
        ],
    ),
    mi("MI_ATOMIC", op::ATOMIC, LEN8, ALL, Any, &[ggtt22(1, true)]),
    mi(
        "MI_BATCH_BUFFER_START",
        op::BATCH_BUFFER_START,
        LEN8,
        ALL,
        Any,
        &[AddressField {
            dword: 1,
            space: Space::GgttUnless { bit: 8 },
            write: false,
        }],
    ),
    mi(
        "MI_CONDITIONAL_BATCH_BUFFER_END",
        op::CONDITIONAL_BATCH_BUFFER_END,
        LEN8,
        ALL,
        Any,
        &[ggtt22(2, false)],
    ),
];

/// Every MI command at the index of its opcode.
pub static MI: [Option<Command>; 64] = {
    let mut table = [None; 64];
    let mut i = 0;
    while i < LIST.len() {
        table[(LIST[i].value >> 23) as usize] = Some(LIST[i]);
        i += 1;
    }
    table
};
