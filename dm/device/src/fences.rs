//! The guest's fences, as an access to the aperture finds them.
//!
//! Registers are behind the device's lock and the aperture is not: a copy
//! here follows each write. All 32 are the guest's own. No fence of the GPU
//! is involved, since no access of a guest's CPU reaches the GPU.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gen8::fence::{self, Fence, Unusable};

use crate::registers::RegisterFile;

const COUNT: usize = fence::COUNT as usize;

/// What the fence registers hold, readable without a lock.
pub(crate) struct Fences {
    /// Fences that are valid, a bit each.
    valid: AtomicU32,
    registers: [AtomicU64; COUNT],
}

impl Default for Fences {
    fn default() -> Self {
        Self {
            valid: AtomicU32::new(0),
            registers: [const { AtomicU64::new(0) }; COUNT],
        }
    }
}

impl Fences {
    /// What the register file says.
    pub(crate) fn of(regs: &RegisterFile) -> Self {
        let this = Self::default();
        this.follow(regs, u32::MAX);
        this
    }

    /// Takes over the registers of the fences in `numbers`, a bit each. Both
    /// halves change at once.
    pub(crate) fn follow(&self, regs: &RegisterFile, numbers: u32) {
        for (number, register) in (0..).zip(&self.registers) {
            if numbers & 1 << number == 0 {
                continue;
            }
            let at = fence::offsets(number).start;
            let value = u64::from(regs.get(at + 4)) << 32 | u64::from(regs.get(at));
            register.store(value, Ordering::Release);
            if value & fence::VALID == 0 {
                self.valid.fetch_and(!(1 << number), Ordering::Release);
            } else {
                self.valid.fetch_or(1 << number, Ordering::Release);
            }
        }
    }

    /// The fence whose range holds a global address. Where several do, which
    /// confuses hardware (Linux `gt/intel_ggtt_fencing.c:fence_update`), the
    /// one with the lowest number.
    pub(crate) fn at(&self, address: u32) -> Option<Fence> {
        self.decoded()
            .find_map(|(_, decoded)| decoded.ok().filter(|f| f.contains(address)))
    }

    /// The valid ones by number. One that cannot be meant is passed over: its
    /// range is linear.
    pub(crate) fn decoded(&self) -> impl Iterator<Item = (u32, Result<Fence, Unusable>)> {
        let mut left = self.valid.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let number = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(number)
        })
        .filter_map(|number| {
            let register = self.registers.get(usize::try_from(number).ok()?)?;
            let decoded = Fence::decode(register.load(Ordering::Acquire)).transpose()?;
            Some((number, decoded))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn set(regs: &mut RegisterFile, number: u32, low: u32, high: u32) {
        let at = fence::offsets(number).start;
        regs.set(at, low);
        regs.set(at + 4, high);
    }

    #[test]
    fn the_lowest_usable_fence_counts() {
        let mut regs = RegisterFile::new(&Config::default());
        // Pages 1 and 2 of 2 KiB rows; page 2 of 1 KiB rows; a wrong pitch.
        set(&mut regs, 31, 0x1001, 0x200f);
        set(&mut regs, 7, 0x2003, 0x2007);
        set(&mut regs, 0, 0x1001, 0x2000);
        let fences = Fences::of(&regs);
        let pitch = |fences: &Fences, at| fences.at(at).map(Fence::pitch);
        assert_eq!(pitch(&fences, 0xfff), None);
        assert_eq!(pitch(&fences, 0x1000), Some(2048));
        assert_eq!(pitch(&fences, 0x2000), Some(1024));
        assert_eq!(pitch(&fences, 0x3000), None);
        let numbers: Vec<u32> = fences.decoded().map(|(n, _)| n).collect();
        assert_eq!(numbers, [0, 7, 31]);
        set(&mut regs, 7, 0, 0);
        assert_eq!(pitch(&fences, 0x2000), Some(1024));
        fences.follow(&regs, 1 << 7);
        assert_eq!(pitch(&fences, 0x2000), Some(2048));
    }
}
