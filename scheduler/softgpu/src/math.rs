//! MI_MATH: a 64-bit adder and logic unit over the general registers.

use gen8::cmd::alu;
use gen8::ring;

use crate::bits::{hi, join, lo};
use crate::stream::Streamer;

/// Sources, accumulator and flags. They do not outlive one command.
#[derive(Default)]
struct Alu {
    a: u64,
    b: u64,
    accu: u64,
    zero: bool,
    carry: bool,
}

impl Alu {
    /// Runs `program` over `gpr`. Undefined opcodes and operands do nothing
    /// and read zero.
    fn run(&mut self, program: &[u32], gpr: &mut [u64; 16]) {
        for &instruction in program {
            let (opcode, to, from) = alu::fields(instruction);
            match opcode {
                alu::LOAD => self.load(to, self.operand(from, gpr)),
                alu::LOADINV => self.load(to, !self.operand(from, gpr)),
                alu::LOAD0 => self.load(to, 0),
                alu::LOAD1 => self.load(to, u64::MAX),
                alu::ADD => {
                    let (v, carry) = self.a.overflowing_add(self.b);
                    self.result(v, carry);
                }
                alu::SUB => {
                    // The carry flag is the borrow.
                    let (v, borrow) = self.a.overflowing_sub(self.b);
                    self.result(v, borrow);
                }
                alu::AND => self.result(self.a & self.b, false),
                alu::OR => self.result(self.a | self.b, false),
                alu::XOR => self.result(self.a ^ self.b, false),
                alu::STORE => store(gpr, to, self.operand(from, gpr)),
                alu::STOREINV => store(gpr, to, !self.operand(from, gpr)),
                _ => {}
            }
        }
    }

    fn operand(&self, name: u32, gpr: &[u64; 16]) -> u64 {
        let flag = |f| if f { u64::MAX } else { 0 };
        match name {
            alu::SRCA => self.a,
            alu::SRCB => self.b,
            alu::ACCU => self.accu,
            alu::ZF => flag(self.zero),
            alu::CF => flag(self.carry),
            _ => gpr.get(crate::bits::index(name)).copied().unwrap_or(0),
        }
    }

    fn load(&mut self, to: u32, v: u64) {
        match to {
            alu::SRCA => self.a = v,
            alu::SRCB => self.b = v,
            _ => {}
        }
    }

    fn result(&mut self, v: u64, carry: bool) {
        self.accu = v;
        self.zero = v == 0;
        self.carry = carry;
    }
}

fn store(gpr: &mut [u64; 16], to: u32, v: u64) {
    if let Some(r) = gpr.get_mut(crate::bits::index(to)) {
        *r = v;
    }
}

impl Streamer {
    pub(crate) fn gpr(&self, n: u32) -> u64 {
        let at = ring::GPR0 + n * 8;
        join(
            self.core.ring(self.engine, at),
            self.core.ring(self.engine, at + 4),
        )
    }

    pub(crate) fn set_gpr(&mut self, n: u32, v: u64) {
        self.notes.changed = true;
        let at = ring::GPR0 + n * 8;
        self.core.set_ring(self.engine, at, lo(v));
        self.core.set_ring(self.engine, at + 4, hi(v));
    }

    pub(crate) fn math(&mut self, program: &[u32]) {
        let mut gpr = [0; 16];
        for (v, n) in gpr.iter_mut().zip(0..) {
            *v = self.gpr(n);
        }
        let before = gpr;
        Alu::default().run(program, &mut gpr);
        for ((n, old), new) in (0..).zip(before).zip(gpr) {
            if old != new {
                self.memory.touched = true;
                self.set_gpr(n, new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gen8::cmd::alu::encode;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn add_sub_and_flags() {
        let mut gpr = [0; 16];
        gpr[0] = u64::MAX;
        gpr[1] = 1;
        let program = [
            encode(alu::LOAD, alu::SRCA, 0),
            encode(alu::LOAD, alu::SRCB, 1),
            encode(alu::ADD, 0, 0),
            encode(alu::STORE, 2, alu::ACCU),
            encode(alu::STORE, 3, alu::ZF),
            encode(alu::STORE, 4, alu::CF),
            encode(alu::LOAD0, alu::SRCA, 0),
            encode(alu::SUB, 0, 0),
            encode(alu::STORE, 5, alu::ACCU),
            encode(alu::STORE, 6, alu::CF),
            encode(alu::STOREINV, 7, alu::ZF),
        ];
        Alu::default().run(&program, &mut gpr);
        assert_eq!(
            gpr[2..8],
            [0, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX]
        );
    }

    /// The same unit again, in 128-bit arithmetic and a table of places.
    fn reference(program: &[(u32, u32, u32)], gpr: &mut [u64; 16]) {
        let mut place = [0u128; 0x40];
        for (p, v) in place.iter_mut().zip(gpr.iter()) {
            *p = u128::from(*v);
        }
        let m = u128::from(u64::MAX);
        for &(op, to, from) in program {
            let from = place.get(from as usize).copied().unwrap_or(0);
            let (a, b) = (place[0x20], place[0x21]);
            let mut set = |to: u32, v: u128, ok: bool| {
                if ok {
                    place[to as usize] = v & m;
                }
            };
            let source = to == 0x20 || to == 0x21;
            match op {
                alu::LOAD => set(to, from, source),
                alu::LOADINV => set(to, !from, source),
                alu::LOAD0 => set(to, 0, source),
                alu::LOAD1 => set(to, m, source),
                alu::STORE => set(to, from, to < 16),
                alu::STOREINV => set(to, !from, to < 16),
                alu::ADD | alu::SUB | alu::AND | alu::OR | alu::XOR => {
                    let wide = match op {
                        alu::ADD => a + b,
                        alu::SUB => a.wrapping_sub(b),
                        alu::AND => a & b,
                        alu::OR => a | b,
                        _ => a ^ b,
                    };
                    set(0x31, wide, true);
                    set(0x32, if wide & m == 0 { m } else { 0 }, true);
                    set(0x33, if wide >> 64 == 0 { 0 } else { m }, true);
                }
                _ => {}
            }
        }
        for (v, p) in gpr.iter_mut().zip(place) {
            *v = lo128(p);
        }
    }

    fn lo128(v: u128) -> u64 {
        u64::try_from(v & u128::from(u64::MAX)).unwrap()
    }

    fn instruction() -> impl Strategy<Value = (u32, u32, u32)> {
        let op = prop::sample::select(vec![
            alu::NOOP,
            alu::LOAD,
            alu::LOADINV,
            alu::LOAD0,
            alu::LOAD1,
            alu::ADD,
            alu::SUB,
            alu::AND,
            alu::OR,
            alu::XOR,
            alu::STORE,
            alu::STOREINV,
            0x7ff,
        ]);
        let place = || {
            prop::sample::select(vec![
                0,
                1,
                2,
                15,
                16,
                alu::SRCA,
                alu::SRCB,
                alu::ACCU,
                alu::ZF,
                alu::CF,
                0x3ff,
            ])
        };
        (op, place(), place())
    }

    proptest! {
        #[test]
        fn agrees_with_the_reference(
            program in prop::collection::vec(instruction(), 0..64),
            start in prop::array::uniform16(any::<u64>()),
        ) {
            let encoded: Vec<u32> = program.iter().map(|&(o, a, b)| encode(o, a, b)).collect();
            let (mut got, mut want) = (start, start);
            Alu::default().run(&encoded, &mut got);
            reference(&program, &mut want);
            prop_assert_eq!(got, want);
        }
    }
}
