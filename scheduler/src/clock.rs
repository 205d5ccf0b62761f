//! Time, as something a test can set.

use std::time::{Duration, Instant};

/// Time since a fixed start.
pub trait Clock: Send + Sync {
    /// Never goes back.
    fn now(&self) -> Duration;
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
