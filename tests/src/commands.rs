//! Command streams: of every command there is, with fields that are often
//! plausible, and of the nasty ones by name.

use gen8::cmd::{self, CLIENTS, Length, mi_op};
use gen8::{Engine, ring};

use crate::Bytes;
use crate::bytes::{high, low};
use crate::layout::{BATCH_VA, DATA_VA, Place};

/// Dwords a stream may have: a page less the end.
const MOST: usize = 1000;

fn mi(opcode: u32, flags: u32) -> u32 {
    opcode << 23 | flags
}

/// An address a command may name.
fn address(b: &mut Bytes<'_>, n: usize) -> u64 {
    match b.u8() % 8 {
        0..=2 => DATA_VA + u64::from(b.u16() % 0x3000),
        3 => BATCH_VA + u64::from(b.u16() & 0xffc),
        4 => Place::of(n).data() + u64::from(b.u16() % 0x3000),
        // Tables and images, by global address.
        5 => Place::of(b.u8().into()).image() + u64::from(b.u32() % 0x2_0000),
        6 => 0x7fff_ffff_f000 + u64::from(b.u16()),
        _ => b.value(),
    }
}

/// A register a command may name.
fn register(b: &mut Bytes<'_>, engine: Engine) -> u32 {
    let base = if b.rarely(4) {
        b.pick(&Engine::ALL).mmio_base()
    } else {
        engine.mmio_base()
    };
    match b.u8() % 6 {
        0..=2 => base + ring::GPR0 + u32::from(b.u8() % 32) * 4,
        3 => base + u32::from(b.u16() & 0x7fc),
        4 => b.pick(&[
            ring::BCS_SWCTRL,
            ring::GDRST,
            base + ring::ELSP,
            base + ring::TAIL,
            base + ring::FORCE_TO_NONPRIV,
            base + ring::PREDICATE_RESULT,
            0xb118,
            0x7_8000,
        ]),
        _ => b.value_u32(),
    }
}

fn any(b: &mut Bytes<'_>, engine: Engine, n: usize, out: &mut Vec<u32>) {
    let (_, rows) = b.pick(&CLIENTS);
    let command = b.pick(rows);
    let mut dw0 = command.value;
    let len = match command.length {
        Length::Fixed(n) => n,
        Length::Field { mask, bias } => {
            let least = command.lengths.least();
            let natural = match command.lengths.most() {
                Some(most) => least + u32::from(b.u8()) % (most - least + 1),
                None => least + u32::from(b.u8() % 4),
            };
            let field = if b.rarely(16) {
                b.value_u32()
            } else {
                natural - bias
            };
            dw0 |= field & mask;
            // What follows is as long as it should be, whatever it says.
            natural
        }
    };
    if b.rarely(3) {
        dw0 |= b.value_u32() & !command.mask;
    }
    let start = out.len();
    out.push(dw0);
    for _ in 1..len.min(64) {
        let dword = match b.u8() % 4 {
            0 => register(b, engine),
            _ => b.value_u32(),
        };
        out.push(dword);
    }
    for field in command.addresses {
        let at = start + usize::from(field.dword);
        let a = address(b, n);
        for (to, dword) in out.iter_mut().skip(at).zip([low(a), high(a)]) {
            *to = dword;
        }
    }
}

fn known(b: &mut Bytes<'_>, engine: Engine, n: usize, out: &mut Vec<u32>) {
    let a = address(b, n);
    let (a0, a1) = (low(a), high(a));
    let ggtt = u32::from(b.flag()) << 22;
    match b.u8() % 12 {
        0 => out.extend([mi(mi_op::STORE_DATA_IMM, 2 | ggtt), a0, a1, b.value_u32()]),
        1 => out.extend([
            mi(mi_op::LOAD_REGISTER_IMM, 1),
            register(b, engine),
            b.value_u32(),
        ]),
        2 => out.extend([
            mi(mi_op::STORE_REGISTER_MEM, 2 | ggtt),
            register(b, engine),
            a0,
            a1,
        ]),
        3 => out.extend([
            mi(mi_op::LOAD_REGISTER_MEM, 2 | ggtt),
            register(b, engine),
            a0,
            a1,
        ]),
        // A loop, a jump to somewhere, a batch in the global table.
        4 => {
            let flags = 1 | u32::from(b.flag()) << 8 | u32::from(b.flag()) << 22;
            out.extend([mi(mi_op::BATCH_BUFFER_START, flags), a0, a1]);
        }
        // Waits for what may never come.
        5 => out.extend([
            mi(mi_op::SEMAPHORE_WAIT, 2 | 1 << 15 | ggtt) | u32::from(b.u8() % 8) << 12,
            b.value_u32(),
            a0,
            a1,
        ]),
        6 => {
            let len = u32::from(b.u8() % 8);
            out.push(mi(mi_op::MATH, len));
            for _ in 0..=len {
                let opcode = b.pick(&[0x080_u32, 0x480, 0x180, 0x580, 0x100, 0x101, 0x104, 0xfff]);
                out.push(opcode << 20 | b.u32() & 0xf_ffff);
            }
        }
        7 => out.extend([mi(mi_op::ATOMIC, 1) | u32::from(b.u8()) << 8 | ggtt, a0, a1]),
        // Rectangles that may be huge or inside out.
        8 => out.extend([
            2 << 29 | cmd::blt_op::XY_COLOR_BLT << 22 | 3 << 20 | 5 | b.u32() & 0x800,
            3 << 24 | 0xf0 << 16 | u32::from(b.u16()),
            b.value_u32(),
            b.value_u32(),
            a0,
            a1,
            b.u32(),
        ]),
        9 => out.extend([
            2 << 29 | cmd::blt_op::XY_SRC_COPY_BLT << 22 | 3 << 20 | 8 | b.u32() & 0x8800,
            3 << 24 | 0xcc << 16 | u32::from(b.u16()),
            b.value_u32(),
            b.value_u32(),
            a0,
            a1,
            b.value_u32(),
            b.u16().into(),
            a0,
            a1,
        ]),
        10 => out.push(mi(mi_op::USER_INTERRUPT, 0)),
        _ => out.push(mi(mi_op::BATCH_BUFFER_END, 0)),
    }
}

/// A stream for context `n` on `engine`, at most a page long.
pub(crate) fn stream(b: &mut Bytes<'_>, engine: Engine, n: usize) -> Vec<u32> {
    let mut out = Vec::new();
    for _ in 0..b.u8() % 16 {
        match b.u8() % 8 {
            0 => out.push(b.value_u32()),
            1..=3 => any(b, engine, n, &mut out),
            _ => known(b, engine, n, &mut out),
        }
    }
    out.truncate(MOST);
    if !b.rarely(4) {
        out.push(mi(mi_op::BATCH_BUFFER_END, 0));
    }
    if out.len() % 2 == 1 {
        out.push(0);
    }
    out
}
