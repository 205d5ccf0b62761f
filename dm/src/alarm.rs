//! The device's clock, and its alarm: a ring of the doorbell that the event
//! thread sleeps on.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use vgpu_device::Clock;
use vgpu_ring::{Doorbell, EventBell};

/// Time since the device was made.
pub(crate) struct Alarm {
    start: Instant,
    /// Only a mutex because a doorbell need not be shared between threads.
    bell: Mutex<EventBell>,
}

impl Alarm {
    /// `bell` is another handle of the doorbell that vgpud rings.
    pub(crate) fn new(bell: EventBell) -> Self {
        Self {
            start: Instant::now(),
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
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn alarm(&self, _at_ns: u64) {
        // The thread asks the device when, and remembers rings while it is
        // awake.
        self.ring();
    }
}
