//! How long a vCPU thread looks for the next request before it sleeps.

use std::time::Duration;

/// Requests closer together than this belong to one burst: the driver reads
/// and writes a dozen registers, then computes.
const BURST: Duration = Duration::from_millis(2);

/// Learns how far apart the requests of a burst are, here, and looks for
/// about twice that. On hardware that is a few microseconds, under an
/// emulator hundreds; a fixed time is right on one of them only.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Mean distance of requests in a burst.
    distance: Duration,
    /// Looks in vain since one paid.
    wasted: u32,
    most: Duration,
}

impl Spin {
    /// At most `most`; zero never looks twice.
    pub(crate) fn new(most: Duration) -> Self {
        Self {
            distance: most / 2,
            wasted: 0,
            most,
        }
    }

    /// How long to look this time. Less the longer it has not helped, but
    /// never nothing, so that the next burst is noticed.
    pub(crate) fn get(&self) -> Duration {
        (self.distance * 2).min(self.most) / (1 << self.wasted.min(4))
    }

    /// A request came, `after` the last one was answered.
    pub(crate) fn came(&mut self, after: Duration) {
        if after <= BURST {
            self.distance = (self.distance * 7 + after) / 8;
        }
    }

    /// It came while we looked.
    pub(crate) fn paid(&mut self) {
        self.wasted = 0;
    }

    /// None came while we looked.
    pub(crate) fn wasted(&mut self) {
        self.wasted = self.wasted.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(960);

    #[test]
    fn it_learns_the_distance_within_bursts() {
        let mut spin = Spin::new(MOST);
        for _ in 0..100 {
            spin.came(Duration::from_micros(4));
            spin.came(Duration::from_secs(1));
        }
        assert!(spin.get() < Duration::from_micros(10), "{spin:?}");
        for _ in 0..100 {
            spin.came(Duration::from_micros(300));
        }
        assert!(spin.get() > Duration::from_micros(550), "{spin:?}");
        for _ in 0..100 {
            spin.came(BURST);
        }
        assert_eq!(spin.get(), MOST);
    }

    #[test]
    fn looking_in_vain_gets_shorter_until_it_pays() {
        let mut spin = Spin::new(MOST);
        for _ in 0..100 {
            spin.wasted();
        }
        assert_eq!(spin.get(), MOST / 16);
        spin.paid();
        assert_eq!(spin.get(), MOST);
        assert_eq!(Spin::new(Duration::ZERO).get(), Duration::ZERO);
    }
}
