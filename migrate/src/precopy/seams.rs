//! What a migration needs from others.

use std::io;
use std::time::Duration;

use guest_memory::{Gfn, GuestMemory};

use crate::detect::Frame;

/// Who knows which pages the GPU may have written: vgpud's scheduler.
pub trait Candidates: Sync {
    /// Names every frame that may have been written since the last call: what
    /// contexts could write that were at the GPU at any time since then, and
    /// what vgpud and the device model wrote. A context that is still at the
    /// GPU counts again the next time. The first call names all that the
    /// target cannot have yet. A frame may be named more than once.
    fn take(&self, each: &mut dyn FnMut(Gfn));
}

/// Who brings pages to the target.
#[derive(Clone, Copy)]
pub enum Carrier<'a> {
    /// A connection of ours: the target gets the bytes that were looked at.
    Sends(&'a dyn Sender),
    /// Somebody who is only told which pages to read, and reads them some time
    /// later: libxc. See [`Settling`](crate::Settling).
    Names(&'a dyn Namer),
}

/// Sends pages.
pub trait Sender: Sync {
    /// Sends these pages, behind all that were sent before. Called from
    /// several threads; waits while too much is under way.
    ///
    /// # Errors
    /// When the target cannot be reached any more. The migration has failed
    /// then, and the guest goes on.
    fn send(&self, frames: &[Frame<'_>]) -> io::Result<()>;

    /// How long what was sent so far will keep the way to the target busy.
    /// `None` when sending does not go on while pages are looked at.
    fn backlog(&self) -> Option<Duration>;

    /// Bytes a second that get to the target, as seen lately.
    fn bytes_per_second(&self) -> f64;
}

/// Names pages.
pub trait Namer: Sync {
    /// Has these pages read again. Called from several threads.
    ///
    /// # Errors
    /// When that is not possible. The migration has failed then, and the guest
    /// goes on.
    fn name(&self, gfns: &[Gfn]) -> io::Result<()>;

    /// Bytes a second that get to the target, as seen lately.
    fn bytes_per_second(&self) -> f64;
}

impl Carrier<'_> {
    pub(super) const fn reads_again(self) -> bool {
        matches!(self, Self::Names(_))
    }

    pub(super) fn backlog(self) -> Option<Duration> {
        match self {
            Self::Sends(sender) => sender.backlog(),
            Self::Names(_) => None,
        }
    }

    pub(super) fn bytes_per_second(self) -> f64 {
        match self {
            Self::Sends(sender) => sender.bytes_per_second(),
            Self::Names(namer) => namer.bytes_per_second(),
        }
    }
}

/// Pages that a thread worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pages copied from the guest.
    pub copied: u32,
    /// Pages of which a few words were looked at.
    pub probed: u32,
    /// Pages of which all was looked at.
    pub looked: u32,
    /// Pages retained.
    pub retained: u32,
}

/// Time as the migration sees it.
pub trait Clock: Sync {
    /// Since some moment.
    fn now(&self) -> Duration;

    /// This was done. A simulated clock moves on by what it takes.
    fn spent(&self, _work: Work) {}
}

/// The real clock.
#[derive(Clone, Copy, Debug)]
pub struct RealClock(std::time::Instant);

impl RealClock {
    /// At zero now.
    #[must_use]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// All of them.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    /// The guest's memory.
    pub memory: &'a dyn GuestMemory,
    /// Who knows what may have been written.
    pub candidates: &'a dyn Candidates,
    /// Who brings it over.
    pub carrier: Carrier<'a>,
    /// What time it is.
    pub clock: &'a dyn Clock,
}
