//! The GPU's time base.

use std::time::Instant;

/// Nanoseconds of one timestamp unit: Broadwell counts at 12.5 MHz
/// (Linux `gt/intel_gt_clock_utils.c:gen5_read_clock_frequency` and its
/// Gen8 neighbour).
const TICK_NS: u64 = 80;

/// A counter that starts with the GPU and never runs back.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Nanoseconds since the GPU started.
    pub(crate) fn ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Timestamp units since the GPU started.
    pub(crate) fn ticks(&self) -> u64 {
        self.ns() / TICK_NS
    }
}
