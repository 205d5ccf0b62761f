//! A cap: a bucket of engine time that fills at the cap's rate.

use std::time::Duration;

use super::nanos;

/// What a full bucket holds: the cap's part of this much time.
pub const PERIOD: Duration = Duration::from_millis(100);

/// Hundredths of a nanosecond, so that a percentage of time is whole.
type Tokens = i128;

const PER_NANOSECOND: Tokens = 100;

/// Engine time that a capped vGPU may use. Work that took more than there
/// was leaves a debt, which fills up first.
#[derive(Debug)]
pub struct Bucket {
    percent: u8,
    tokens: Tokens,
    /// When `tokens` was right.
    at: Duration,
}

impl Bucket {
    /// A full bucket; none for a cap that bounds nothing.
    pub fn new(percent: u8, now: Duration) -> Option<Self> {
        (1..100).contains(&percent).then(|| Self {
            percent,
            tokens: capacity(percent),
            at: now,
        })
    }

    /// Another cap; what is owed stays owed.
    pub fn change(&mut self, percent: u8, now: Duration) {
        self.tokens = self.tokens_at(now).min(capacity(percent));
        self.percent = percent;
        self.at = now;
    }

    /// Uses nanoseconds, or gives back ones that were not used after all.
    pub fn spend(&mut self, ns: i128, now: Duration) {
        // It fills while work runs, too: only the balance can be too much.
        let balance = self.tokens + self.filled(now) - ns * PER_NANOSECOND;
        self.tokens = balance.min(capacity(self.percent));
        self.at = self.at.max(now);
    }

    /// When there is enough for `next` nanoseconds beside `promised` ones.
    /// More than a full bucket is never asked for: longer work runs on a
    /// full one and pays afterwards.
    pub fn enough_at(&self, next: i128, promised: i128, now: Duration) -> Duration {
        let need = (next * PER_NANOSECOND).min(capacity(self.percent));
        let missing = need + promised * PER_NANOSECOND - self.tokens_at(now);
        if missing <= 0 {
            return now;
        }
        let rate = i128::from(self.percent);
        // Rounded up, or it would be asked again too early.
        let wait = (missing + rate - 1) / rate;
        let wait = Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
        now.saturating_add(wait)
    }

    fn filled(&self, now: Duration) -> Tokens {
        nanos(now.saturating_sub(self.at)) * i128::from(self.percent)
    }

    fn tokens_at(&self, now: Duration) -> Tokens {
        (self.tokens + self.filled(now)).min(capacity(self.percent))
    }
}

fn capacity(percent: u8) -> Tokens {
    nanos(PERIOD) * i128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i128 = 1_000_000;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn it_fills_at_its_rate_and_no_further_than_full() {
        let mut b = Bucket::new(20, ms(0)).unwrap();
        assert_eq!(b.enough_at(20 * MS, 0, ms(0)), ms(0));
        b.spend(20 * MS, ms(0));
        assert_eq!(b.enough_at(MS, 0, ms(0)), ms(5));
        assert_eq!(b.enough_at(MS, 2 * MS, ms(1)), ms(15));
        // A year later it holds a period's worth.
        let year = ms(31_536_000_000);
        assert_eq!(b.enough_at(20 * MS, 0, year), year);
        assert_eq!(b.enough_at(20 * MS, MS, year), year + ms(5));
    }

    #[test]
    fn work_longer_than_the_bucket_runs_when_it_is_full_and_is_paid() {
        let mut b = Bucket::new(10, ms(0)).unwrap();
        assert_eq!(b.enough_at(1000 * MS, 0, ms(0)), ms(0));
        b.spend(1000 * MS, ms(1000));
        // It filled by 100 ms meanwhile: 890 ms of debt at a tenth of the
        // time, then a full bucket again.
        assert_eq!(b.enough_at(1000 * MS, 0, ms(1000)), ms(10_000));
    }

    #[test]
    fn no_cap_no_bucket() {
        assert!(Bucket::new(0, ms(0)).is_none());
        assert!(Bucket::new(100, ms(0)).is_none());
    }
}
