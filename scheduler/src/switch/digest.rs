//! Digests of groups of registers.
//!
//! The digest of a group is the sum of each value times the register's key,
//! modulo the prime 2^61 - 1. One register's change moves it by the key times
//! the difference, so keeping it costs one multiplication a change. Keys are
//! drawn when the process starts and never leave it: whoever chooses values
//! without knowing them makes two different groups equal with probability
//! 2^-61, since for all keys but one of a register that differs the sums
//! differ.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

const PRIME: u64 = (1 << 61) - 1;

/// The secret key of the register at `offset`.
pub fn key(offset: u32) -> u64 {
    static SECRET: OnceLock<RandomState> = OnceLock::new();
    let secret = SECRET.get_or_init(RandomState::new);
    // A keyed function of a hidden key: as good as drawn each for itself.
    (0_u32..)
        .map(|draw| secret.hash_one((offset, draw)) >> 3)
        .find(|k| (1..PRIME).contains(k))
        .unwrap_or(1)
}

fn reduce(x: u128) -> u64 {
    let prime = u128::from(PRIME);
    let folded = (x & prime) + (x >> 61);
    let once = if folded >= prime {
        folded - prime
    } else {
        folded
    };
    // A product of 61 and 32 bits folds to less than twice the prime.
    u64::try_from(once).unwrap_or(0)
}

/// A group's digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// A register with `key` goes from `old` to `new`.
    pub fn change(&mut self, key: u64, old: u32, new: u32) {
        let product = |by: u32| reduce(u128::from(key) * u128::from(by));
        let step = if new >= old {
            product(new - old)
        } else {
            PRIME - product(old - new)
        };
        let sum = self.0 + step;
        self.0 = if sum >= PRIME { sum - PRIME } else { sum };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the values came about, equal ones have equal digests.
        #[test]
        fn a_digest_depends_on_the_values_alone(
            steps in prop::collection::vec((0_usize..5, any::<u32>()), 0..40),
        ) {
            let keys: Vec<u64> = (0..5).map(|i| key(0x2000 + i * 4)).collect();
            let mut values = [0; 5];
            let mut digest = Digest::default();
            for (i, value) in steps {
                digest.change(keys[i], values[i], value);
                values[i] = value;
            }
            let mut direct = Digest::default();
            for (k, v) in keys.iter().zip(values) {
                direct.change(*k, 0, v);
            }
            prop_assert_eq!(digest, direct);
            prop_assert!(digest.0 < PRIME);
        }
    }

    #[test]
    fn swapped_values_and_balanced_changes_are_seen() {
        let (a, b) = (key(0x24d0), key(0x24d4));
        assert_ne!(a, b);
        let of = |x, y| {
            let mut d = Digest::default();
            d.change(a, 0, x);
            d.change(b, 0, y);
            d
        };
        assert_ne!(of(1, 2), of(2, 1));
        assert_ne!(of(5, 5), of(4, 6));
        assert_ne!(of(u32::MAX, 0), of(0, u32::MAX));
    }
}
