//! Time, as something a test can set.

use std::time::{Duration, Instant};

/// Time since a fixed start.
pub trait Clock: Send + Sync {
    /// Never goes back.
    fn now(&self) -> Duration;
}

/// Nanoseconds of a time; one that does not fit, after 584 years, is at least
/// that long.
#[must_use]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The system's monotonic clock.
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
