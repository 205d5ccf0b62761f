//! Register accesses of any size and alignment, as accesses to whole dwords
//! with the bytes concerned.

use gen8::fence;
use gen8::vreg::{Access, Handler, REGISTER_BYTES, pvinfo};
use vgpu_ring::Request;

use crate::core::{Core, Seams};
use crate::engines::apply_mask;
use crate::interrupts::BankId;
use crate::kept::low;

/// The dwords an access touches: offset of each, how far its bytes are
/// shifted in the access (negative when the access starts inside it), and
/// the mask of its bits.
fn dwords(offset: u32, size: usize) -> impl Iterator<Item = (u32, i32, u32)> {
    let first = offset & !3;
    let skip = i32::try_from(offset & 3).unwrap_or(0);
    let bytes = i32::try_from(size.min(8)).unwrap_or(0);
    (0..3_i32).filter_map(move |n| {
        let start = n * 4 - skip;
        let from = start.max(0);
        let to = (start + 4).min(bytes);
        if from >= to {
            return None;
        }
        let len = u32::try_from(to - from).ok()?;
        let at = u32::try_from(from - start).ok()?;
        let mask = (u32::MAX >> (32 - 8 * len)) << (8 * at);
        let dword = first.checked_add(u32::try_from(n * 4).ok()?)?;
        Some((dword, start * 8, mask))
    })
}

impl Core {
    /// Reads `size` bytes, 1 to 8, of register space. There is nothing
    /// behind its first 2 MiB: that reads 0.
    pub(crate) fn read_mmio(&mut self, seams: &Seams, offset: u32, size: usize) -> u64 {
        let mut value = 0;
        for (at, shift, mask) in dwords(offset, size) {
            let dword = u64::from(self.read_register(seams, at) & mask);
            value |= if shift < 0 {
                dword >> shift.unsigned_abs()
            } else {
                dword << shift.unsigned_abs()
            };
        }
        value
    }

    /// Writes `size` bytes, 1 to 8, of register space, lowest dword first.
    pub(crate) fn write_mmio(&mut self, seams: &Seams, offset: u32, size: usize, value: u64) {
        for (at, shift, mask) in dwords(offset, size) {
            let dword = if shift < 0 {
                low(value << shift.unsigned_abs())
            } else {
                low(value >> shift.unsigned_abs())
            };
            self.write_register(seams, at, dword & mask, mask);
        }
        self.settle(seams);
    }

    pub(crate) fn read_register(&mut self, seams: &Seams, offset: u32) -> u32 {
        if offset >= REGISTER_BYTES {
            return 0;
        }
        self.count(offset);
        let Access::Handled(handler) = self.regs.behaviour(offset).access else {
            return self.regs.get(offset);
        };
        match handler {
            Handler::Master => self.irqs.master(),
            Handler::Isr | Handler::Imr | Handler::Iir | Handler::Ier => {
                let Some(bank) = BankId::of_register(offset) else {
                    return 0;
                };
                let bank = self.irqs.bank(bank);
                match handler {
                    Handler::Imr => bank.imr,
                    Handler::Iir => bank.iir,
                    Handler::Ier => bank.ier,
                    // Events are edges here: no status stays.
                    _ => 0,
                }
            }
            Handler::Notify | Handler::Fence => self.regs.get(offset),
            Handler::RingState
            | Handler::MiMode
            | Handler::ResetCtl
            | Handler::Elsp
            | Handler::ExeclistStatus
            | Handler::Timestamp
            | Handler::Gdrst => self.read_engine(seams, handler, offset),
            _ => self.read_display(seams, handler, offset),
        }
    }

    fn write_register(&mut self, seams: &Seams, offset: u32, value: u32, mask: u32) {
        if offset >= REGISTER_BYTES {
            return;
        }
        self.count(offset);
        let old = self.regs.get(offset);
        let merged = old & !mask | value;
        match self.regs.behaviour(offset).access {
            Access::Storage => self.store(offset, merged),
            Access::Masked => self.store(offset, apply_mask(old, value)),
            Access::WriteOneToClear => self.store(offset, old & !value),
            Access::ReadOnly => {}
            Access::Handled(handler) => match handler {
                Handler::Master => self.irqs.set_master(value),
                Handler::Isr | Handler::Imr | Handler::Iir | Handler::Ier => {
                    self.write_bank(seams, handler, offset, value, mask);
                }
                Handler::Fence => {
                    self.regs.set(offset, merged);
                    if let Some(number) = fence::number(offset) {
                        self.fences_written |= 1 << number;
                    }
                }
                Handler::Notify => {
                    self.regs.set(offset, merged);
                    self.notify(merged);
                }
                Handler::RingState
                | Handler::MiMode
                | Handler::ResetCtl
                | Handler::Elsp
                | Handler::ExeclistStatus
                | Handler::Timestamp
                | Handler::Gdrst => self.write_engine(seams, handler, offset, value, merged),
                _ => self.write_display(seams, handler, offset, merged),
            },
        }
    }

    fn write_bank(&mut self, seams: &Seams, handler: Handler, offset: u32, value: u32, mask: u32) {
        let Some(id) = BankId::of_register(offset) else {
            return;
        };
        // Blanks that passed while the guest did not care stay past.
        if handler != Handler::Iir && self.pipes.iter().any(Option::is_some) {
            self.pass_blanks(seams.clock.now_ns());
        }
        let bank = self.irqs.bank_mut(id);
        match handler {
            Handler::Imr => bank.imr = bank.imr & !mask | value,
            Handler::Ier => bank.ier = bank.ier & !mask | value,
            Handler::Iir => bank.iir &= !value,
            _ => {}
        }
        self.deadline_moved |= handler != Handler::Iir;
    }

    fn notify(&mut self, message: u32) {
        let low = self.regs.get(pvinfo::PDP0);
        let high = self.regs.get(pvinfo::PDP0 + 4);
        let root = u64::from(high) << 32 | u64::from(low);
        match message {
            pvinfo::L4_CREATE => self.send(Request::CreatePageTable { root }),
            pvinfo::L4_DESTROY => self.send(Request::DestroyPageTable { root }),
            _ => self.incidents.unknown_notifications += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_split_into_dwords() {
        let split = |o, s| dwords(o, s).collect::<Vec<_>>();
        assert_eq!(split(4, 4), [(4, 0, u32::MAX)]);
        assert_eq!(split(8, 8), [(8, 0, u32::MAX), (12, 32, u32::MAX)]);
        assert_eq!(split(5, 1), [(4, -8, 0xff00)]);
        assert_eq!(split(6, 4), [(4, -16, 0xffff_0000), (8, 16, 0xffff)]);
        assert_eq!(
            split(1, 8),
            [(0, -8, 0xffff_ff00), (4, 24, u32::MAX), (8, 56, 0xff)]
        );
        assert_eq!(split(0, 0), []);
        assert_eq!(split(u32::MAX, 8).len(), 1, "no wrap");
    }
}
