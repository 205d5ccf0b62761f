//! The doorbell of one host: an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};

use crate::Doorbell;

/// An eventfd as doorbell.
///
/// Waiting is edge-triggered: each ring ends one wait although nobody reads
/// the counter, so a sleep costs one system call and not two. Whoever polls
/// the descriptor itself clears the bell afterwards.
#[derive(Debug)]
pub struct EventBell {
    fd: OwnedFd,
    /// Made by the first wait: who only rings needs none. `None` in it when
    /// the system had no descriptor left.
    edges: OnceLock<Option<Epoll>>,
}

impl EventBell {
    /// A doorbell nobody has rung.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self::from_fd(fd.into()))
    }

    /// The doorbell behind a descriptor made by [`EventBell::new`], perhaps in
    /// another process.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self {
            fd,
            edges: OnceLock::new(),
        }
    }

    /// Another handle of the same doorbell.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::from_fd(self.fd.try_clone()?))
    }

    fn edges(&self) -> Option<&Epoll> {
        let make = || {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok()?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
            epoll.add(&self.fd, event).ok()?;
            Some(epoll)
        };
        self.edges.get_or_init(make).as_ref()
    }
}

impl AsFd for EventBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<EventBell> for OwnedFd {
    fn from(bell: EventBell) -> Self {
        bell.fd
    }
}

impl Doorbell for EventBell {
    fn ring(&self) {
        let one = 1_u64.to_ne_bytes();
        if write(&self.fd, &one).is_err() {
            // The counter is full, which only a hostile peer does: without a
            // write there is no edge, and a waiter would not wake.
            self.clear();
            let _ = write(&self.fd, &one);
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let Some(epoll) = self.edges() else {
            // Without descriptors: slow, but the rings work.
            let pause = Duration::from_millis(1);
            std::thread::sleep(timeout.map_or(pause, |t| t.min(pause)));
            return true;
        };
        // Rounded up, so that a wait is never shorter than asked for.
        let timeout = timeout.map_or(EpollTimeout::NONE, |t| {
            let ms = t.as_nanos().div_ceil(1_000_000);
            EpollTimeout::try_from(ms).unwrap_or(EpollTimeout::MAX)
        });
        // An interrupted wait counts as rung: the caller looks again.
        epoll
            .wait(&mut [EpollEvent::empty()], timeout)
            .map_or(true, |n| n > 0)
    }

    fn clear(&self) {
        // It fails only when nobody rang.
        let _ = read(&self.fd, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(bell: &EventBell) -> bool {
        bell.wait(Some(Duration::ZERO))
    }

    #[test]
    fn a_ring_is_remembered_for_one_wait() {
        let bell = EventBell::new().unwrap();
        let same = bell.try_clone().unwrap();
        assert!(!rung(&bell));
        same.ring();
        same.ring();
        assert!(bell.wait(None));
        assert!(!rung(&bell));
        same.ring();
        assert!(rung(&bell));
        // A handle that has not waited yet sees what was not cleared.
        assert!(rung(&same));
        assert!(!rung(&same));
        bell.clear();
        assert!(!rung(&bell));
    }

    #[test]
    fn a_full_counter_does_not_keep_a_ring_from_waking() {
        let bell = EventBell::new().unwrap();
        assert!(!rung(&bell));
        write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(rung(&bell));
        bell.ring();
        assert!(rung(&bell));
    }
}
