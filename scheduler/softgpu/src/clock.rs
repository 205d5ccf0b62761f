//! The GPU's time base.

use std::time::Instant;

use gen8::platform::Rate;

/// A counter that starts with the GPU and never runs back.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// The timestamps' units.
    rate: Rate,
}

impl Clock {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            start: Instant::now(),
            rate,
        }
    }

    /// Nanoseconds since the GPU started.
    pub(crate) fn ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Timestamp units since the GPU started.
    pub(crate) fn ticks(&self) -> u64 {
        self.rate.ticks(self.ns())
    }
}
