//! Instructions of MI_MATH (Linux `gt/intel_gpu_commands.h:MI_MATH_INSTR`).

/// Do nothing.
pub const NOOP: u32 = 0x000;
/// Operand 1 := operand 2.
pub const LOAD: u32 = 0x080;
/// Operand 1 := bitwise inverse of operand 2.
pub const LOADINV: u32 = 0x480;
/// Operand 1 := 0.
pub const LOAD0: u32 = 0x081;
/// Operand 1 := all ones.
pub const LOAD1: u32 = 0x481;
/// ACCU := SRCA + SRCB.
pub const ADD: u32 = 0x100;
/// ACCU := SRCA - SRCB.
pub const SUB: u32 = 0x101;
/// ACCU := SRCA and SRCB.
pub const AND: u32 = 0x102;
/// ACCU := SRCA or SRCB.
pub const OR: u32 = 0x103;
/// ACCU := SRCA xor SRCB.
pub const XOR: u32 = 0x104;
/// Register operand 1 := operand 2.
pub const STORE: u32 = 0x180;
/// Register operand 1 := bitwise inverse of operand 2.
pub const STOREINV: u32 = 0x580;

/// Operand: first source.
pub const SRCA: u32 = 0x20;
/// Operand: second source.
pub const SRCB: u32 = 0x21;
/// Operand: the accumulator.
pub const ACCU: u32 = 0x31;
/// Operand: the zero flag.
pub const ZF: u32 = 0x32;
/// Operand: the carry flag.
pub const CF: u32 = 0x33;

/// An instruction: opcode in bits 31:20, operands in 19:10 and 9:0.
#[must_use]
pub const fn encode(opcode: u32, operand1: u32, operand2: u32) -> u32 {
    (opcode << 20) | ((operand1 & 0x3ff) << 10) | (operand2 & 0x3ff)
}

/// Opcode and both operands of an instruction.
#[must_use]
pub const fn fields(instruction: u32) -> (u32, u32, u32) {
    (
        instruction >> 20,
        (instruction >> 10) & 0x3ff,
        instruction & 0x3ff,
    )
}
