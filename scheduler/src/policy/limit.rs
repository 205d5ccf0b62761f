//! How long a workload may hold an engine.

use std::time::Duration;

/// How long a workload may hold an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimit(pub Duration);

impl RunLimit {
    /// Whether a workload that started at `since` has had its time at `now`;
    /// both count from the same start.
    #[must_use]
    pub fn exceeded(self, since: Duration, now: Duration) -> bool {
        now.saturating_sub(since) >= self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_reached_at_its_end() {
        let limit = RunLimit(Duration::from_secs(10));
        let at = Duration::from_secs;
        assert!(!limit.exceeded(at(5), at(14)));
        assert!(limit.exceeded(at(5), at(15)));
        assert!(!limit.exceeded(at(5), at(4)));
    }
}
