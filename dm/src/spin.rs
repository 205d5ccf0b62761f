//! How long a vCPU thread looks for the next request before it sleeps.

use std::time::Duration;

/// Grows while looking pays, shrinks while it does not. Requests come in
/// bursts: the driver reads and writes a dozen registers, then computes.
#[derive(Debug)]
pub(crate) struct Spin {
    now: Duration,
    most: Duration,
}

impl Spin {
    /// At most `most`; zero never looks twice.
    pub(crate) fn new(most: Duration) -> Self {
        Self { now: most, most }
    }

    /// How long to look this time.
    pub(crate) fn get(&self) -> Duration {
        self.now
    }

    /// The request came in time.
    pub(crate) fn paid(&mut self) {
        self.now = (self.now * 2).min(self.most);
    }

    /// It did not. Some looking remains, so that the next burst is noticed.
    pub(crate) fn wasted(&mut self) {
        self.now = (self.now / 2).max(self.most / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_between_its_bounds() {
        let most = Duration::from_micros(48);
        let mut spin = Spin::new(most);
        for _ in 0..10 {
            spin.wasted();
        }
        assert_eq!(spin.get(), most / 8);
        for _ in 0..10 {
            spin.paid();
        }
        assert_eq!(spin.get(), most);
        let mut none = Spin::new(Duration::ZERO);
        none.paid();
        assert_eq!(none.get(), Duration::ZERO);
    }
}
