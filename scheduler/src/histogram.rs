//! How durations are spread, in a fixed amount of memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bits of a value below its highest that tell buckets apart: a bucket is at
/// most 1/16 of its values wide.
const SUB_BITS: u32 = 4;
const SUBS: usize = 1 << SUB_BITS;

/// Values are cut to this many bits: of nanoseconds, 18 minutes.
const VALUE_BITS: u32 = 40;
const MAX_VALUE: u64 = (1 << VALUE_BITS) - 1;

/// Buckets of one value each below [`SUBS`], then [`SUBS`] for each power of
/// two.
const BUCKETS: usize = (VALUE_BITS - SUB_BITS + 1) as usize * SUBS;

/// Counts durations by size: exact below 16 ns, then within 6.25 %, up to 18
/// minutes, where the longest are counted too.
///
/// Counting neither locks nor allocates, from any number of threads.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Histogram {
    /// Counts a duration.
    pub fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(MAX_VALUE);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Buckets that are not empty, the shortest durations first: the longest
    /// duration a bucket holds, in nanoseconds, and how many are in it.
    #[must_use]
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let counts = self.buckets.iter().map(|b| b.load(Ordering::Relaxed));
        (0..)
            .zip(counts)
            .filter(|(_, count)| *count > 0)
            .map(|(bucket, count)| (longest_in(bucket), count))
            .collect()
    }
}

/// The bucket of a duration in nanoseconds.
fn bucket_of(ns: u64) -> usize {
    let value = ns.min(MAX_VALUE);
    let Some(shift) = value.max(1).ilog2().checked_sub(SUB_BITS) else {
        return usize::try_from(value).unwrap_or(0);
    };
    // 16 to 31: which of the power's buckets, and 16 for the power itself.
    let sub = usize::try_from(value >> shift).unwrap_or(0);
    let power = usize::try_from(shift).unwrap_or(0);
    power * SUBS + sub
}

/// The longest duration in a bucket, in nanoseconds.
fn longest_in(bucket: u64) -> u64 {
    let subs = 1 << SUB_BITS;
    if bucket < subs {
        return bucket;
    }
    let shift = bucket / subs - 1;
    let sub = subs + bucket % subs;
    ((sub + 1) << shift) - 1
}

/// The value that `percent` of all values do not exceed, of buckets as
/// [`Histogram::buckets`] gives them; `None` when there are none.
#[must_use]
pub fn percentile(buckets: &[(u64, u64)], percent: u8) -> Option<u64> {
    let total: u128 = buckets.iter().map(|(_, n)| u128::from(*n)).sum();
    let rank = (total * u128::from(percent.min(100))).div_ceil(100).max(1);
    let mut seen = 0;
    buckets.iter().find_map(|(longest, n)| {
        seen += u128::from(*n);
        (seen >= rank).then_some(*longest)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_join_without_gaps() {
        let mut first = 0;
        for bucket in 0..u64::try_from(BUCKETS).unwrap() {
            let last = longest_in(bucket);
            assert_eq!(bucket_of(first), usize::try_from(bucket).unwrap());
            assert_eq!(bucket_of(last), usize::try_from(bucket).unwrap());
            first = last + 1;
        }
        assert_eq!(first, MAX_VALUE + 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_one_has_no_percentile() {
        assert_eq!(percentile(&Histogram::default().buckets(), 99), None);
    }

    #[test]
    fn the_longest_are_counted() {
        let histogram = Histogram::default();
        histogram.record(Duration::MAX);
        assert_eq!(percentile(&histogram.buckets(), 50), Some(MAX_VALUE));
    }

    proptest! {
        /// Against sorting.
        #[test]
        fn percentiles_are_those_of_the_sorted_values(
            values in prop::collection::vec((0_u32..40, any::<u64>()), 1..400),
            percent in 0_u8..=100,
        ) {
            // As many short as long ones.
            let mut values: Vec<u64> = values
                .into_iter()
                .map(|(bits, v)| v % (1 << bits))
                .collect();
            let histogram = Histogram::default();
            for v in &values {
                histogram.record(Duration::from_nanos(*v));
            }
            values.sort_unstable();
            let rank = (values.len() * usize::from(percent)).div_ceil(100).max(1);
            let exact = values[rank - 1];
            let found = percentile(&histogram.buckets(), percent).unwrap();
            prop_assert!(exact <= found, "{exact} {found}");
            prop_assert!(found - exact <= exact / 16, "{exact} {found}");
        }
    }
}
