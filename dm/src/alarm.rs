//! The device's clock, and its alarm: a ring of the doorbell that the event
//! thread sleeps on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use vgpu_device::kept::server_word;
use vgpu_device::{Clock, Kept};
use vgpu_ring::{Doorbell, EventBell};

/// Where the moment is kept at which the clock was 0: before the kernel ran,
/// modulo 2^64, when it went on from another kernel's.
const ORIGIN: usize = server_word(0);

/// Where it is kept what the clock last told the device.
const TOLD: usize = server_word(6);

/// No clock comes here in 292 years. What is kept may be anything.
const MOST_NS: u64 = u64::MAX / 2;

/// Time since the device was made.
pub(crate) struct Alarm {
    start: Instant,
    /// What the clock was then.
    before: Duration,
    kept: Arc<dyn Kept>,
    /// Only a mutex because a doorbell need not be shared between threads.
    bell: Mutex<EventBell>,
}

impl Alarm {
    /// A clock that starts now. `bell` is another handle of the doorbell that
    /// vgpud rings.
    pub(crate) fn new(bell: EventBell, kept: Arc<dyn Kept>) -> Self {
        kept.store(TOLD, 0);
        Self::since(bell, kept, 0, monotonic_ns())
    }

    /// The clock of a former device model, which goes on.
    pub(crate) fn going_on(bell: EventBell, kept: Arc<dyn Kept>) -> Self {
        Self::going_on_at(bell, kept, monotonic_ns())
    }

    /// It does when the kernel's clock is at `kernel_ns`. That is another
    /// kernel's when a domain died: where it is behind, the clock goes on from
    /// what it told last, for it never goes back.
    fn going_on_at(bell: EventBell, kept: Arc<dyn Kept>, kernel_ns: u64) -> Self {
        let age = kernel_ns.wrapping_sub(kept.load(ORIGIN));
        let told = kept.load(TOLD).min(MOST_NS);
        let before = if age <= MOST_NS { age.max(told) } else { told };
        Self::since(bell, kept, before, kernel_ns)
    }

    /// A clock that is at `before_ns` when the kernel's is at `kernel_ns`.
    fn since(bell: EventBell, kept: Arc<dyn Kept>, before_ns: u64, kernel_ns: u64) -> Self {
        kept.store(ORIGIN, kernel_ns.wrapping_sub(before_ns));
        Self {
            start: Instant::now(),
            before: Duration::from_nanos(before_ns),
            kept,
            bell: Mutex::new(bell),
        }
    }

    /// What the clock is at.
    pub(crate) fn at_ns(&self) -> u64 {
        // 584 years.
        u64::try_from((self.before + self.start.elapsed()).as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long it is until `at_ns`.
    pub(crate) fn until(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(at_ns.saturating_sub(self.at_ns()))
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
        let now = self.at_ns();
        // The device's lock is held: what is kept goes only forward.
        self.kept.store(TOLD, now);
        now
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

#[cfg(test)]
mod tests {
    use vgpu_ring::{AreaConfig, Bells, SharedArea};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn going_on(kept: &Arc<dyn Kept>, kernel_ns: u64) -> Alarm {
        Alarm::going_on_at(EventBell::new().unwrap(), Arc::clone(kept), kernel_ns)
    }

    fn kept() -> Arc<dyn Kept> {
        let area = SharedArea::create(AreaConfig::default()).unwrap();
        Arc::new(area.daemon_end(Bells::new().unwrap()).kept)
    }

    #[test]
    fn the_clock_never_goes_back_whichever_kernel_goes_on_with_it() {
        let kept = kept();
        kept.store(ORIGIN, 1000 * SECOND);
        let first = going_on(&kept, 5000 * SECOND).now_ns();
        assert!(first >= 4000 * SECOND);
        // One that began later.
        let second = going_on(&kept, SECOND).now_ns();
        assert!(second >= first);
        // The same, later on: the time without a device model counts.
        let third = going_on(&kept, 61 * SECOND).now_ns();
        assert!(third >= first + 60 * SECOND);
        // A third one.
        assert!(going_on(&kept, 7).now_ns() >= third);
    }

    #[test]
    fn a_new_devices_clock_starts_anew() {
        let kept = kept();
        kept.store(TOLD, MOST_NS);
        let alarm = Alarm::new(EventBell::new().unwrap(), Arc::clone(&kept));
        assert!(alarm.now_ns() < MOST_NS);
        assert!(going_on(&kept, monotonic_ns()).now_ns() < MOST_NS);
    }

    #[test]
    fn whatever_is_kept_the_clock_goes() {
        for (origin, told) in [(0, u64::MAX), (u64::MAX, u64::MAX), (1 << 63, 7)] {
            let kept = kept();
            kept.store(ORIGIN, origin);
            kept.store(TOLD, told);
            let alarm = going_on(&kept, SECOND);
            assert!(alarm.now_ns() < u64::MAX - SECOND, "{origin} {told}");
        }
    }
}
