//! The doorbell of one host: an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::unistd::{read, write};

use crate::Doorbell;

/// An eventfd as doorbell.
#[derive(Debug)]
pub struct EventBell(OwnedFd);

impl EventBell {
    /// A doorbell nobody has rung.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(fd.into()))
    }

    /// The doorbell behind a descriptor made by [`EventBell::new`], perhaps in
    /// another process.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Another handle of the same doorbell.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for EventBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<EventBell> for OwnedFd {
    fn from(bell: EventBell) -> Self {
        bell.0
    }
}

impl Doorbell for EventBell {
    fn ring(&self) {
        // It fails only when the counter is full, and then the peer has a
        // ring waiting for it already.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait counts as rung: the caller looks again.
        ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None).map_or(true, |n| n > 0)
    }

    fn clear(&self) {
        // It fails only when nobody rang.
        let _ = read(&self.0, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_remembered_until_cleared() {
        let bell = EventBell::new().unwrap();
        let same = bell.try_clone().unwrap();
        assert!(!bell.wait(Some(Duration::ZERO)));
        bell.clear();
        same.ring();
        same.ring();
        assert!(bell.wait(None));
        assert!(bell.wait(None));
        bell.clear();
        assert!(!bell.wait(Some(Duration::ZERO)));
    }

    #[test]
    fn a_full_counter_does_not_block_the_ringer() {
        let bell = EventBell::new().unwrap();
        write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring();
        assert!(bell.wait(None));
    }
}
