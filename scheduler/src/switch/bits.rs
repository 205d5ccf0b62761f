//! A set of an engine's registers, by index.

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// At most 128 registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits(u128);

impl Bits {
    /// Indices below this fit.
    pub const CAPACITY: usize = 128;
    /// None.
    pub const NONE: Self = Self(0);

    pub const fn has(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    pub const fn set(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub const fn clear(&mut self, index: usize) {
        self.0 &= !(1 << index);
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether every one of `other` is in it.
    pub const fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let index = rest.trailing_zeros();
            rest &= rest - 1;
            usize::try_from(index).ok()
        })
    }
}

impl BitAnd for Bits {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Bits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Bits {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl Not for Bits {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}
