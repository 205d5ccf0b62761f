//! MI_ATOMIC.

use std::sync::PoisonError;

use gen8::cmd::flags::{self, atomic as op};

use crate::bits::{join, lo};
use crate::journal::Atomic;
use crate::stream::{Stop, Streamer, address, operand};

/// The general registers that hold operands and take the old value when
/// they are not inline (Broadwell PRM volume 2a, MI_ATOMIC).
const OPERAND1: u32 = 0;
const OPERAND2: u32 = 1;
const RETURNED: u32 = 4;

/// What memory becomes and what is returned. `None`: no such operation.
/// Values are zero-extended from the operation's width.
fn apply(operation: u32, wide: bool, memory: u64, one: u64, two: u64) -> Option<(u64, u64)> {
    let mask = if wide { u64::MAX } else { 0xffff_ffff };
    // Moving the sign to bit 63 lets one comparison serve both widths.
    let key = |v: u64| {
        let v = if wide { v } else { v << 32 };
        v ^ (1 << 63)
    };
    let new = match operation {
        op::AND => memory & one,
        op::OR => memory | one,
        op::XOR => memory ^ one,
        op::MOVE => one,
        op::INC => memory.wrapping_add(1),
        op::DEC | op::PREDEC => memory.wrapping_sub(1),
        op::ADD => memory.wrapping_add(one),
        op::SUB => memory.wrapping_sub(one),
        op::RSUB => one.wrapping_sub(memory),
        op::IMAX if key(one) > key(memory) => one,
        op::IMIN if key(one) < key(memory) => one,
        op::IMAX | op::IMIN => memory,
        op::UMAX => memory.max(one),
        op::UMIN => memory.min(one),
        op::CMPWR if memory == one => two,
        op::CMPWR => memory,
        _ => return None,
    };
    let new = new & mask;
    let returned = if operation == op::PREDEC { new } else { memory };
    Some((new, returned))
}

impl Streamer {
    /// Operations on 32 and 64 bits; 128 bits are not modelled.
    pub(crate) fn atomic(&mut self, packet: &[u32]) -> Result<(), Stop> {
        let dw0 = operand(packet, 0)?;
        let code = op::operation(dw0);
        let wide = match code >> 5 {
            0 => false,
            1 => true,
            _ => return Err(Stop::Instruction),
        };
        let at = address(packet, 1)?;
        let space = self.operand_space(dw0 & flags::USE_GGTT != 0);
        let (one, two) = if dw0 & op::INLINE != 0 {
            // Dwords of both operands alternate.
            let high = |i| if wide { operand(packet, i) } else { Ok(0) };
            (
                join(operand(packet, 3)?, high(5)?),
                join(operand(packet, 4)?, high(6)?),
            )
        } else {
            let trim = |v| if wide { v } else { u64::from(lo(v)) };
            (trim(self.gpr(OPERAND1)), trim(self.gpr(OPERAND2)))
        };
        let core = self.core.clone();
        let guard = core.atomics.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = if wide {
            self.memory.read_u64(space, at)?
        } else {
            u64::from(self.memory.read_u32(space, at)?)
        };
        let effect = if let Some(effect) = self.notes.atomic() {
            effect
        } else {
            let (after, returned) =
                apply(code & 0x1f, wide, memory, one, two).ok_or(Stop::Instruction)?;
            Atomic {
                before: memory,
                after,
                returned,
            }
        };
        self.about_atomic(effect);
        // A GPU that died had done it, or was about to: memory says which.
        if memory == effect.before {
            if wide {
                self.memory.write_u64(space, at, effect.after)?;
            } else {
                self.memory.write_u32(space, at, lo(effect.after))?;
            }
        }
        drop(guard);
        if dw0 & op::RETURN != 0 {
            self.set_gpr(RETURNED, effect.returned);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation() {
        let a = |o, m, x, y| apply(o, false, m, x, y);
        assert_eq!(a(op::ADD, 0xffff_ffff, 2, 0), Some((1, 0xffff_ffff)));
        assert_eq!(a(op::SUB, 1, 2, 0), Some((0xffff_ffff, 1)));
        assert_eq!(a(op::RSUB, 1, 3, 0), Some((2, 1)));
        assert_eq!(a(op::INC, 7, 0, 0), Some((8, 7)));
        assert_eq!(a(op::PREDEC, 7, 0, 0), Some((6, 6)));
        assert_eq!(a(op::DEC, 7, 0, 0), Some((6, 7)));
        assert_eq!(a(op::MOVE, 7, 9, 0), Some((9, 7)));
        assert_eq!(a(op::CMPWR, 7, 7, 5), Some((5, 7)));
        assert_eq!(a(op::CMPWR, 7, 8, 5), Some((7, 7)));
        assert_eq!(a(op::IMAX, 0xffff_ffff, 0, 0), Some((0, 0xffff_ffff)));
        assert_eq!(a(op::IMIN, 0xffff_ffff, 0, 0).unwrap().0, 0xffff_ffff);
        assert_eq!(a(op::UMAX, 0xffff_ffff, 0, 0).unwrap().0, 0xffff_ffff);
        assert_eq!(a(op::UMIN, 5, 4, 0).unwrap().0, 4);
        assert_eq!(a(op::AND, 6, 3, 0).unwrap().0, 2);
        assert_eq!(a(op::OR, 6, 3, 0).unwrap().0, 7);
        assert_eq!(a(op::XOR, 6, 3, 0).unwrap().0, 5);
        assert_eq!(a(0, 6, 3, 0), None);
        let wide = apply(op::IMAX, true, 1 << 63, 1, 0);
        assert_eq!(wide, Some((1, 1 << 63)));
        assert_eq!(apply(op::ADD, true, u64::MAX, 1, 0).unwrap().0, 0);
    }
}
