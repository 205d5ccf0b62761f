//! The device's clock, and its alarm: a ring of the doorbell that the event
//! thread sleeps on.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use vgpu_device::kept::server_word;
use vgpu_device::{Clock, Kept};
use vgpu_ring::{Doorbell, EventBell};

/// Where the moment is kept at which the clock was 0.
const ORIGIN: usize = server_word(0);

/// Time since the device was made.
pub(crate) struct Alarm {
    start: Instant,
    /// What the clock was then.
    before: Duration,
    /// Only a mutex because a doorbell need not be shared between threads.
    bell: Mutex<EventBell>,
}

impl Alarm {
    /// A clock that starts now. `bell` is another handle of the doorbell that
    /// vgpud rings.
    pub(crate) fn new(bell: EventBell, kept: &dyn Kept) -> Self {
        kept.store(ORIGIN, monotonic_ns());
        Self::since(bell, Duration::ZERO)
    }

    /// The clock of a former device model, which goes on. One that was made
    /// before this kernel ran starts anew.
    pub(crate) fn going_on(bell: EventBell, kept: &dyn Kept) -> Self {
        let before = monotonic_ns().checked_sub(kept.load(ORIGIN));
        Self::since(bell, Duration::from_nanos(before.unwrap_or(0)))
    }

    fn since(bell: EventBell, before: Duration) -> Self {
        Self {
            start: Instant::now(),
            before,
            bell: Mutex::new(bell),
        }
    }

    /// How long it is until `at_ns`.
    pub(crate) fn until(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(at_ns.saturating_sub(self.now_ns()))
    }

    /// Wakes the event thread.
    pub(crate) fn ring(&self) {
        self.bell
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ring();
    }
}

impl Clock for Alarm {
    fn now_ns(&self) -> u64 {
        // 584 years.
        u64::try_from((self.before + self.start.elapsed()).as_nanos()).unwrap_or(u64::MAX)
    }

    fn alarm(&self, _at_ns: u64) {
        // The thread asks the device when, and remembers rings while it is
        // awake.
        self.ring();
    }
}

/// The monotonic clock, which all processes of a kernel share.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
