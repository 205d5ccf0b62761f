//! A set of an engine's registers, by index.

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// At most 256 registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    low: u128,
    high: u128,
}

impl Bits {
    /// Indices below this fit.
    pub const CAPACITY: usize = 256;
    /// None.
    pub const NONE: Self = Self { low: 0, high: 0 };

    pub const fn has(self, index: usize) -> bool {
        let half = if index < 128 { self.low } else { self.high };
        half & (1 << (index % 128)) != 0
    }

    pub const fn set(&mut self, index: usize) {
        *self.half(index) |= 1 << (index % 128);
    }

    pub const fn clear(&mut self, index: usize) {
        *self.half(index) &= !(1 << (index % 128));
    }

    const fn half(&mut self, index: usize) -> &mut u128 {
        if index < 128 {
            &mut self.low
        } else {
            &mut self.high
        }
    }

    pub const fn is_empty(self) -> bool {
        self.low | self.high == 0
    }

    /// Whether every one of `other` is in it.
    pub const fn covers(self, other: Self) -> bool {
        other.low & !self.low == 0 && other.high & !self.high == 0
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let (half, first) = if rest.low == 0 {
                (&mut rest.high, 128)
            } else {
                (&mut rest.low, 0)
            };
            if *half == 0 {
                return None;
            }
            let index = half.trailing_zeros();
            *half &= *half - 1;
            usize::try_from(first + index).ok()
        })
    }
}

impl BitAnd for Bits {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self {
            low: self.low & other.low,
            high: self.high & other.high,
        }
    }
}

impl BitOr for Bits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self {
            low: self.low | other.low,
            high: self.high | other.high,
        }
    }
}

impl BitOrAssign for Bits {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl Not for Bits {
    type Output = Self;
    fn not(self) -> Self {
        Self {
            low: !self.low,
            high: !self.high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_are_one_set() {
        let mut bits = Bits::NONE;
        let indices = [0, 5, 127, 128, 200, 255];
        for i in indices {
            bits.set(i);
        }
        assert_eq!(bits.iter().collect::<Vec<_>>(), indices);
        assert!(bits.has(255) && !bits.has(254));
        let mut fewer = bits;
        fewer.clear(200);
        assert!(bits.covers(fewer) && !fewer.covers(bits));
        assert_eq!((bits & !fewer).iter().collect::<Vec<_>>(), [200]);
        assert_eq!((fewer | bits), bits);
        assert_eq!((!Bits::NONE).iter().count(), Bits::CAPACITY);
    }
}
