//! A bandwidth.

use std::time::Duration;

/// A token bucket: so many bytes a second, and a few at once. It knows no
/// clock, so that it does for a real one and for a simulated one.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    bytes_per_second: f64,
    /// How much earlier than by the bandwidth bytes may go after a pause.
    burst: Duration,
    /// When all that was taken has gone by the bandwidth.
    busy_until: Duration,
}

impl Bucket {
    /// With room for `burst` bytes after a pause. A bandwidth that is no
    /// positive number is taken for one byte a second.
    #[must_use]
    pub fn new(bytes_per_second: f64, burst: u32) -> Self {
        let bytes_per_second = if bytes_per_second >= 1.0 {
            bytes_per_second
        } else {
            1.0
        };
        Self {
            bytes_per_second,
            burst: Duration::from_secs_f64(f64::from(burst) / bytes_per_second),
            busy_until: Duration::ZERO,
        }
    }

    /// Bytes a second.
    #[must_use]
    pub const fn bytes_per_second(&self) -> f64 {
        self.bytes_per_second
    }

    /// Takes `bytes` at time `now`. They have gone at the time this gives.
    pub fn take(&mut self, bytes: u32, now: Duration) -> Duration {
        let starts = self.busy_until.max(now.saturating_sub(self.burst));
        let takes = f64::from(bytes) / self.bytes_per_second;
        self.busy_until = starts.saturating_add(Duration::from_secs_f64(takes));
        self.busy_until.max(now)
    }

    /// How long at time `now` what was taken is still going.
    #[must_use]
    pub fn backlog(&self, now: Duration) -> Duration {
        self.busy_until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn bytes_go_one_after_another() {
        let mut bucket = Bucket::new(1e6, 0);
        assert_eq!(bucket.take(1000, MS), 2 * MS);
        assert_eq!(bucket.take(2000, MS), 4 * MS);
        assert_eq!(bucket.backlog(2 * MS), 2 * MS);
        // Time in which nothing went is lost.
        assert_eq!(bucket.take(1000, 10 * MS), 11 * MS);
        assert_eq!(bucket.backlog(20 * MS), Duration::ZERO);
    }

    #[test]
    fn a_burst_is_bounded() {
        let mut bucket = Bucket::new(1e6, 3000);
        assert_eq!(bucket.take(3000, 10 * MS), 10 * MS);
        assert_eq!(bucket.take(1000, 10 * MS), 11 * MS);
    }

    #[test]
    fn nonsense_is_slow() {
        for speed in [0.0, -5.0, f64::NAN] {
            assert_eq!(Bucket::new(speed, 0).bytes_per_second(), 1.0);
        }
    }
}
