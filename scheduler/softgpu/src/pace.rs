//! An engine slower than the CPU that plays it. Work is done as fast as it
//! can be, and takes as long as it is said to take: the engine's thread
//! sleeps the rest.

use std::time::{Duration, Instant};

/// An engine may run ahead of its time by this much before it sleeps; short
/// sleeps last longer than they should.
const AHEAD: Duration = Duration::from_micros(250);
/// A thread that slept too long makes up for this much. More is somebody
/// else's doing.
const BEHIND: Duration = Duration::from_millis(1);

/// An engine's own time.
#[derive(Debug)]
pub(crate) struct Pace {
    command: Duration,
    kib: Duration,
    /// When what was done so far is done.
    due: Instant,
}

impl Pace {
    /// Costs in nanoseconds, of a command and of 1 KiB drawn.
    pub(crate) fn new(command_ns: u32, blit_ns_per_kib: u32) -> Self {
        Self {
            command: Duration::from_nanos(command_ns.into()),
            kib: Duration::from_nanos(blit_ns_per_kib.into()),
            due: Instant::now(),
        }
    }

    fn free(&self) -> bool {
        self.command.is_zero() && self.kib.is_zero()
    }

    /// The engine was idle and starts.
    pub(crate) fn start(&mut self) {
        if !self.free() {
            self.due = Instant::now();
        }
    }

    /// A command was executed.
    pub(crate) fn command(&mut self) {
        self.due += self.command;
    }

    /// Bytes were drawn.
    pub(crate) fn drawn(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.due += self.kib * bytes / 1024;
    }

    /// How long to sleep now, if at all; at the end of a context even when
    /// it is not much.
    pub(crate) fn ahead(&mut self, end: bool) -> Option<Duration> {
        if self.free() {
            return None;
        }
        let now = Instant::now();
        if let Some(late) = now.checked_duration_since(self.due) {
            if late > BEHIND {
                self.due = now.checked_sub(BEHIND).unwrap_or(now);
            }
            return None;
        }
        let ahead = self.due - now;
        (end || ahead > AHEAD).then_some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_as_fast_as_it_can_never_sleeps() {
        let mut pace = Pace::new(0, 0);
        for _ in 0..1000 {
            pace.command();
            pace.drawn(1 << 20);
        }
        assert_eq!(pace.ahead(true), None);
    }

    #[test]
    fn it_sleeps_for_what_it_did_too_fast() {
        let hour = 3_600_000_000;
        let mut pace = Pace::new(hour, 0);
        pace.start();
        for _ in 0..1000 {
            pace.command();
        }
        let ahead = pace.ahead(false).unwrap();
        assert!(ahead <= Duration::from_secs(3600) && ahead > Duration::from_secs(3000));

        let mut pace = Pace::new(0, hour);
        pace.start();
        pace.drawn(1000 << 10);
        let ahead = pace.ahead(false).unwrap();
        assert!(ahead <= Duration::from_secs(3600) && ahead > Duration::from_secs(3000));
    }
}
