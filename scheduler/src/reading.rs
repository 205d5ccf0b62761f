//! How fast a vGPU's submit ring is read.
//!
//! A device model can write its ring as fast as vgpud empties it, and each
//! request costs CPU time that others' work on the same CPUs then lacks. So
//! a vGPU has an allowance. One that goes beyond is in debt, and its ring is
//! left alone until that is paid: it fills, and whoever writes it waits.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::clock::nanos;
use crate::policy::Bucket;

/// Percent of one CPU that a vGPU's requests may take, over and over.
const PERCENT: u8 = 50;
/// What a request costs beside the reader's time: those it wakes, its answer.
const BESIDE: Duration = Duration::from_micros(20);
/// What is paid off before a ring is read again, so that pauses are not many
/// and short.
const AHEAD: Duration = Duration::from_millis(1);
/// Requests until the reader's time is looked at, a call of the kernel.
const MANY: u32 = 32;
/// The same for requests that take long.
const LONG: Duration = Duration::from_micros(200);

/// What one vGPU's requests have cost, kept by the thread that serves them.
pub struct Allowance {
    bucket: Option<Bucket>,
    start: Instant,
    /// When the reader's time was looked at.
    looked: Instant,
    /// The reader's time then.
    cpu: Duration,
    requests: u32,
}

impl Default for Allowance {
    fn default() -> Self {
        Self::new()
    }
}

impl Allowance {
    /// A whole one, for the calling thread.
    #[must_use]
    pub fn new() -> Self {
        let start = Instant::now();
        Self {
            bucket: Bucket::new(PERCENT, Duration::ZERO),
            start,
            looked: start,
            cpu: own_time(),
            requests: 0,
        }
    }

    /// A request was served. How long to serve none, if the vGPU is in debt.
    pub fn served(&mut self) -> Option<Duration> {
        self.requests += 1;
        if self.requests < MANY && self.looked.elapsed() < LONG {
            return None;
        }
        let cpu = own_time();
        let took = cpu.saturating_sub(self.cpu);
        self.cpu = cpu;
        self.looked = Instant::now();
        let requests = std::mem::take(&mut self.requests);
        self.spend(took + BESIDE * requests, self.looked - self.start)
    }

    fn spend(&mut self, cost: Duration, now: Duration) -> Option<Duration> {
        let bucket = self.bucket.as_mut()?;
        bucket.spend(nanos(cost).into(), now);
        if bucket.enough_at(0, 0, now) <= now {
            return None;
        }
        let ahead = nanos(AHEAD).into();
        Some(bucket.enough_at(ahead, 0, now).saturating_sub(now))
    }
}

/// CPU time of this thread.
fn own_time() -> Duration {
    // A time of the kernel's is never negative.
    clock_gettime(ClockId::ThreadCPUTime)
        .try_into()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of one kind that are served in ten seconds, one after the
    /// other with `between` between them, and the longest pause.
    fn ten_seconds(cost: Duration, between: Duration) -> (u32, Duration) {
        let mut allowance = Allowance::new();
        let (mut now, mut served, mut longest) = (Duration::ZERO, 0, Duration::ZERO);
        while now < Duration::from_secs(10) {
            now += cost + between;
            served += 1;
            let pause = allowance.spend(cost + BESIDE, now).unwrap_or_default();
            longest = longest.max(pause);
            now += pause;
        }
        (served, longest)
    }

    #[test]
    fn a_flood_is_read_at_a_rate() {
        // A ping takes a microsecond: half a CPU's time for 21 µs each.
        let (served, _) = ten_seconds(Duration::from_micros(1), Duration::ZERO);
        let most = 10_050_000 / 2 / 21 + 2400;
        assert!((235_000..most).contains(&served), "{served}");
        // What takes long gets half a CPU, and pauses no longer than it took.
        let cost = Duration::from_millis(10);
        let (served, longest) = ten_seconds(cost, Duration::ZERO);
        assert!((490..510).contains(&served), "{served}");
        assert!(longest < cost * 3, "{longest:?}");
    }

    #[test]
    fn who_works_is_not_slowed() {
        // A load of 15 µs, ten thousand times a second.
        let cost = Duration::from_micros(15);
        let (_, longest) = ten_seconds(cost, Duration::from_micros(85));
        assert_eq!(longest, Duration::ZERO);
    }

    #[test]
    fn the_readers_own_time_is_looked_at_now_and_then() {
        let mut allowance = Allowance::new();
        let before = allowance.cpu;
        while own_time() < before + Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        assert_eq!(allowance.served(), None);
        assert!(allowance.cpu >= before + Duration::from_millis(2));
        assert_eq!(allowance.requests, 0);
    }
}
