//! Interrupt banks and the master control
//! (Linux `i915_irq.c:gen8_irq_handler`, `gt/intel_gt_irq.c`).

use gen8::{Engine, irq};
use serde::{Deserialize, Serialize};

use crate::kept::{join, low, place, split};

/// A bank, by its place in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BankId(usize);

/// A bank's name, the offset of its first register (status; mask, identity
/// and enable follow), and the bits of the bank each MASTER bit stands for.
type Layout = (&'static str, u32, &'static [(u32, u32)]);

const BANKS: [Layout; 11] = [
    ("gt0", 0x4_4300, &[(1 << 0, 0xffff), (1 << 1, 0xffff_0000)]),
    ("gt1", 0x4_4310, &[(1 << 2, 0xffff), (1 << 3, 0xffff_0000)]),
    ("gt2", 0x4_4320, &[(1 << 4, u32::MAX)]),
    ("gt3", 0x4_4330, &[(1 << 6, u32::MAX)]),
    ("pipe a", 0x4_4400, &[(1 << 16, u32::MAX)]),
    ("pipe b", 0x4_4410, &[(1 << 17, u32::MAX)]),
    ("pipe c", 0x4_4420, &[(1 << 18, u32::MAX)]),
    ("port", 0x4_4440, &[(1 << 20, u32::MAX)]),
    ("misc", 0x4_4460, &[(1 << 22, u32::MAX)]),
    ("pcu", 0x4_44e0, &[(1 << 30, u32::MAX)]),
    ("pch", 0xc_4000, &[(1 << 23, u32::MAX)]),
];

impl BankId {
    /// The bank of an engine, and where its 16 bits start in it.
    pub(crate) fn of_engine(engine: Engine) -> (Self, u32) {
        match engine.irq_bank() {
            (0, shift) => (Self(0), shift),
            (1, shift) => (Self(1), shift),
            (_, shift) => (Self(3), shift),
        }
    }

    /// The bank of pipe 0, 1 or 2.
    pub(crate) fn of_pipe(pipe: usize) -> Self {
        Self(4 + pipe.min(2))
    }

    /// The bank of a register.
    pub(crate) fn of_register(offset: u32) -> Option<Self> {
        let at = |(_, first, _): &Layout| offset.checked_sub(*first).is_some_and(|o| o < 0x10);
        BANKS.iter().position(at).map(Self)
    }
}

/// One bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BankV1 {
    /// Mask: 1 keeps an event out of the identity register.
    pub imr: u32,
    /// Identity: events not cleared yet.
    pub iir: u32,
    /// Enables: 1 lets an event through to the master.
    pub ier: u32,
}

/// The part's saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptsV1 {
    /// The master enable.
    pub enabled: bool,
    /// The banks: GT 0 to 3, pipes A to C, port, misc, PCU, PCH.
    pub banks: Vec<BankV1>,
}

/// A saved interrupt part that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("saved state has {0} interrupt banks, allowed: 11")]
pub struct BadInterrupts(usize);

/// The banks.
#[derive(Debug)]
pub(crate) struct Interrupts {
    enabled: bool,
    banks: [BankV1; BANKS.len()],
}

impl Default for Interrupts {
    fn default() -> Self {
        let bank = BankV1 {
            imr: u32::MAX,
            iir: 0,
            ier: 0,
        };
        Self {
            enabled: false,
            banks: [bank; BANKS.len()],
        }
    }
}

impl Interrupts {
    /// MASTER as read: the enable, and a bit for each bank with something
    /// enabled and pending.
    pub(crate) fn master(&self) -> u32 {
        let mut value = if self.enabled { irq::MASTER_ENABLE } else { 0 };
        for (bank, (_, _, parts)) in self.banks.iter().zip(BANKS) {
            let live = bank.iir & bank.ier;
            for (bit, part) in parts {
                if live & part != 0 {
                    value |= bit;
                }
            }
        }
        value
    }

    pub(crate) fn set_master(&mut self, value: u32) {
        self.enabled = value & irq::MASTER_ENABLE != 0;
    }

    /// Whether the device has something to interrupt for.
    pub(crate) fn pending(&self) -> bool {
        self.enabled && self.master() & !irq::MASTER_ENABLE != 0
    }

    /// Events happen; masked ones are lost, as in hardware.
    pub(crate) fn raise(&mut self, bank: BankId, bits: u32) {
        let bank = self.bank_mut(bank);
        bank.iir |= bits & !bank.imr;
    }

    pub(crate) fn bank(&self, bank: BankId) -> &BankV1 {
        &self.banks[bank.0]
    }

    pub(crate) fn bank_mut(&mut self, bank: BankId) -> &mut BankV1 {
        &mut self.banks[bank.0]
    }

    /// Each bank with its name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &BankV1)> {
        BANKS.iter().map(|(name, ..)| *name).zip(&self.banks)
    }

    /// Puts what a successor needs.
    pub(crate) fn keep(&self, put: &mut impl FnMut(usize, u64)) {
        let Self { enabled, banks } = self;
        put(place::INTERRUPTS, u64::from(*enabled));
        for (n, BankV1 { imr, iir, ier }) in banks.iter().enumerate() {
            let at = place::INTERRUPTS + 1 + 2 * n;
            put(at, join(*imr, *iir));
            put(at + 1, u64::from(*ier));
        }
    }

    /// The part as kept. Any bits are possible.
    pub(crate) fn kept(get: impl Fn(usize) -> u64) -> Self {
        let bank = |n: usize| {
            let at = place::INTERRUPTS + 1 + 2 * n;
            let (imr, iir) = split(get(at));
            let ier = low(get(at + 1));
            BankV1 { imr, iir, ier }
        };
        Self {
            enabled: get(place::INTERRUPTS) & 1 != 0,
            banks: std::array::from_fn(bank),
        }
    }

    pub(crate) fn save(&self) -> InterruptsV1 {
        let Self { enabled, banks } = self;
        InterruptsV1 {
            enabled: *enabled,
            banks: banks.to_vec(),
        }
    }

    pub(crate) fn restore(state: &InterruptsV1) -> Result<Self, BadInterrupts> {
        let InterruptsV1 { enabled, banks } = state;
        Ok(Self {
            enabled: *enabled,
            banks: banks
                .as_slice()
                .try_into()
                .map_err(|_| BadInterrupts(banks.len()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banks_are_where_the_table_says() {
        use gen8::vreg::{Access, Handler};
        let platforms = gen8::platform::PLATFORMS.iter();
        for row in platforms.flat_map(|p| p.registers.rows()) {
            let bank = matches!(
                row.access,
                Access::Handled(Handler::Isr | Handler::Imr | Handler::Iir | Handler::Ier)
            );
            for offset in row.offsets() {
                assert_eq!(BankId::of_register(offset).is_some(), bank, "{offset:#x}");
            }
        }
        for e in Engine::ALL {
            let (bank, shift) = BankId::of_engine(e);
            let mut i = Interrupts::default();
            i.set_master(irq::MASTER_ENABLE);
            i.bank_mut(bank).imr = 0;
            i.bank_mut(bank).ier = u32::MAX;
            i.raise(bank, 1 << shift);
            assert_eq!(i.master(), irq::MASTER_ENABLE | e.master_bit(), "{e:?}");
        }
    }

    #[test]
    fn a_masked_event_is_lost_and_a_disabled_one_waits() {
        let mut i = Interrupts::default();
        let bank = BankId::of_pipe(0);
        i.set_master(u32::MAX);
        i.raise(bank, 1);
        assert_eq!(i.bank(bank).iir, 0);
        i.bank_mut(bank).imr = !1;
        i.raise(bank, 3);
        assert_eq!(i.bank(bank).iir, 1);
        assert!(!i.pending());
        i.bank_mut(bank).ier = 1;
        assert!(i.pending());
        i.set_master(0);
        assert!(!i.pending());
        assert_eq!(i.master(), 1 << 16);
    }
}
