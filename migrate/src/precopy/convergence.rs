//! When more rounds are of no more use.

use std::time::Duration;

/// Decides for a carrier that is free to choose when the guest stops. Rounds
/// go on while the stop phase would become clearly shorter by them, and stop
/// when it is at its shortest again.
#[derive(Clone, Copy, Debug)]
pub struct Convergence {
    best: Duration,
    rounds: u32,
    /// Rounds since it last became clearly shorter.
    stale: u32,
    /// How long the first round took.
    first: Duration,
}

/// Rounds without gain after which it is time.
const STALE: u32 = 8;
/// The same if the rounds take long: if those after the first together took
/// half as long as it did.
const STALE_SLOW: u32 = 3;
/// Rounds after which it is time in any case.
const MOST: u32 = 60;

impl Default for Convergence {
    fn default() -> Self {
        Self {
            best: Duration::MAX,
            rounds: 0,
            stale: 0,
            first: Duration::ZERO,
        }
    }
}

impl Convergence {
    /// Whether the guest should stop now, when the stop phase is predicted to
    /// take `predicted`. To be asked after each round, `elapsed` after the
    /// first began.
    pub fn reached(&mut self, predicted: Duration, elapsed: Duration) -> bool {
        self.rounds += 1;
        if self.rounds == 1 {
            self.first = elapsed;
        }
        // A tenth less is clearly shorter.
        if predicted < self.best.saturating_sub(self.best / 10) {
            self.best = predicted;
            self.stale = 0;
            return self.rounds >= MOST;
        }
        self.stale += 1;
        let slow = elapsed.saturating_sub(self.first) > self.first / 2;
        let most = if slow { STALE_SLOW } else { STALE };
        let good = predicted <= self.best.saturating_add(self.best / 10);
        self.rounds >= MOST || self.stale >= 2 * most || (self.stale >= most && good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a first round of a second, and others of so many milliseconds.
    fn rounds_of(each: u32, predicted: impl Fn(u32) -> u64) -> u32 {
        let mut convergence = Convergence::default();
        let elapsed = |n| Duration::from_millis(1000) + Duration::from_millis(1) * each * n;
        let mut reached = |n| convergence.reached(Duration::from_millis(predicted(n)), elapsed(n));
        (0..).find(|&n| reached(n)).unwrap()
    }

    fn rounds(predicted: impl Fn(u32) -> u64) -> u32 {
        rounds_of(10, predicted)
    }

    #[test]
    fn long_rounds_are_fewer() {
        assert_eq!(rounds_of(400, |_| 20), STALE_SLOW);
    }

    #[test]
    fn it_goes_on_while_there_is_gain() {
        assert_eq!(rounds(|_| 20), STALE);
        assert_eq!(
            rounds(|n| 1000_u64.saturating_sub(200 * u64::from(n))),
            5 + STALE
        );
    }

    #[test]
    fn it_waits_for_a_good_moment_but_not_for_ever() {
        // Now long, now short.
        assert_eq!(rounds(|n| if n % 7 == 0 { 10 } else { 50 }), 14);
        assert_eq!(rounds(|n| if n == 0 { 10 } else { 50 }), 2 * STALE);
        assert!(rounds(|n| u64::MAX >> (n + 1)) <= MOST);
    }
}
