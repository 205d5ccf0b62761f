//! A set of an engine's registers, by index.

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

const WORDS: usize = 4;

/// At most 256 registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits([u64; WORDS]);

impl Bits {
    /// Indices below this fit.
    pub const CAPACITY: usize = WORDS * 64;
    /// None.
    pub const NONE: Self = Self([0; WORDS]);

    pub const fn has(self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    pub const fn set(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    pub const fn clear(&mut self, index: usize) {
        self.0[index / 64] &= !(1 << (index % 64));
    }

    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Whether every one of `other` is in it.
    pub fn covers(self, other: Self) -> bool {
        (other & !self).is_empty()
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..).step_by(64).zip(self.0).flat_map(|(first, word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let index = usize::try_from(rest.trailing_zeros()).ok()?;
                rest &= rest - 1;
                Some(first + index)
            })
        })
    }

    fn each(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| with(self.0[i], other.0[i])))
    }
}

impl BitAnd for Bits {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        self.each(other, |a, b| a & b)
    }
}

impl BitOr for Bits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.each(other, |a, b| a | b)
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
        Self(self.0.map(|word| !word))
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
