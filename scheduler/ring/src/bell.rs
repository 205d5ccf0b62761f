//! The doorbell of one host: an eventfd. Between domains, a channel of
//! theirs beside it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};

use crate::Doorbell;

/// A channel to another domain, which rings by it and is rung by it.
///
/// As with Xen's event channels, what the other domain rings is kept until
/// [`BellChannel::take`], and counts once however often it rang.
pub trait BellChannel: fmt::Debug + Send + Sync {
    /// Rings at the other end. Never blocks, and does nothing when there is no
    /// other end any more.
    fn ring(&self);
    /// Forgets that the other end rang, and lets it ring again. Called before
    /// a look at what the ring may be about.
    fn take(&self);
    /// A descriptor that becomes readable when the other end rings.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Who rings beside this process.
#[derive(Debug)]
enum Peer {
    /// Another process, by a descriptor that is waited on, never read or
    /// written here.
    Process(OwnedFd),
    /// Another domain.
    Domain(Arc<dyn BellChannel>),
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Process(fd) => fd.as_fd(),
            Self::Domain(channel) => channel.fd(),
        }
    }
}

impl Peer {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Process(fd) => Self::Process(fd.try_clone()?),
            Self::Domain(channel) => Self::Domain(Arc::clone(channel)),
        })
    }
}

/// An eventfd as doorbell.
///
/// Waiting is edge-triggered: each ring ends one wait although nobody reads
/// the counter, so a sleep costs one system call and not two. Whoever polls
/// the descriptor itself clears the bell afterwards.
///
/// Who holds an eventfd can make its writers block: it clears `O_NONBLOCK`,
/// which belongs to the open file, and fills the counter. So a bell is never
/// rung by a process through a descriptor that one it does not trust has as
/// well: such a peer gets the [`EventBell::ear`] of a bell, and what it rings
/// itself is the [`EventBell::with_peer`] of another.
///
/// To another domain there is an [`EventBell::to_domain`] where it is rung and
/// an [`EventBell::from_domain`] where it is waited on. Which of a domain's
/// bells were rung cannot be told apart, so there is one waiter to a channel.
#[derive(Debug)]
pub struct EventBell {
    fd: OwnedFd,
    peer: Option<Peer>,
    /// Rung in `fd`'s place.
    away: Option<Arc<dyn BellChannel>>,
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
            peer: None,
            away: None,
            edges: OnceLock::new(),
        }
    }

    /// A doorbell that `peer` rings as well: an eventfd another process
    /// writes, or the ear of its bell. Nothing the peer does makes ringing,
    /// waiting or clearing block.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn with_peer(peer: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            peer: Some(Peer::Process(peer)),
            ..Self::new()?
        })
    }

    /// The doorbell at the other end of `channel`: ringing it rings there.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn to_domain(channel: Arc<dyn BellChannel>) -> io::Result<Self> {
        Ok(Self {
            away: Some(channel),
            ..Self::new()?
        })
    }

    /// The doorbell at this end of `channel`, which the other domain rings,
    /// and this process as well.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn from_domain(channel: Arc<dyn BellChannel>) -> io::Result<Self> {
        Ok(Self {
            peer: Some(Peer::Domain(channel)),
            ..Self::new()?
        })
    }

    /// A descriptor that wakes on each ring, for a peer to wait on: through
    /// it the bell can be neither rung nor cleared nor changed.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn ear(&self) -> io::Result<OwnedFd> {
        Ok(epoll(&[self.fd.as_fd()])?.0)
    }

    /// Another handle of the same doorbell.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        let peer = self.peer.as_ref().map(Peer::try_clone).transpose()?;
        Ok(Self {
            peer,
            away: self.away.clone(),
            ..Self::from_fd(self.fd.try_clone()?)
        })
    }

    /// Lets another domain ring again.
    fn take(&self) {
        if let Some(Peer::Domain(channel)) = &self.peer {
            channel.take();
        }
    }

    fn edges(&self) -> Option<&Epoll> {
        let make = || {
            let own = std::iter::once(self.fd.as_fd());
            let fds: Vec<_> = own.chain(self.peer.as_ref().map(Peer::as_fd)).collect();
            epoll(&fds).ok()
        };
        self.edges.get_or_init(make).as_ref()
    }
}

/// An epoll instance that reports each ring of `fds` once.
fn epoll(fds: &[BorrowedFd<'_>]) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for fd in fds {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        epoll.add(fd, event)?;
    }
    Ok(epoll)
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
        if let Some(channel) = &self.away {
            return channel.ring();
        }
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
            self.take();
            return true;
        };
        // Rounded up, so that a wait is never shorter than asked for.
        let timeout = timeout.map_or(EpollTimeout::NONE, |t| {
            let ms = t.as_nanos().div_ceil(1_000_000);
            EpollTimeout::try_from(ms).unwrap_or(EpollTimeout::MAX)
        });
        // An interrupted wait counts as rung: the caller looks again.
        let rung = epoll
            .wait(&mut [EpollEvent::empty()], timeout)
            .map_or(true, |n| n > 0);
        if rung {
            self.take();
        }
        rung
    }

    fn clear(&self) {
        // It fails only when nobody rang.
        let _ = read(&self.fd, &mut [0; 8]);
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};

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

    #[test]
    fn an_ear_hears_each_ring_and_can_do_no_more() {
        let bell = EventBell::new().unwrap();
        let ear = bell.ear().unwrap();
        assert!(write(&ear, &1_u64.to_ne_bytes()).is_err());
        assert!(read(&ear, &mut [0; 8]).is_err());
        let heard = EventBell::with_peer(ear).unwrap();
        let own = heard.try_clone().unwrap();
        assert!(!rung(&heard));
        for _ in 0..3 {
            bell.ring();
            assert!(heard.wait(None));
            assert!(!rung(&heard));
            own.ring();
            assert!(heard.wait(None));
            assert!(!rung(&heard));
            heard.clear();
        }
    }

    #[test]
    fn no_peer_makes_a_ring_block() {
        let shared = EventBell::new().unwrap();
        let theirs = shared.try_clone().unwrap();
        let ours = EventBell::with_peer(shared.into()).unwrap();
        fcntl(&theirs.fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        write(&theirs.fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(ours.wait(None));
        ours.clear();
        // Before, through the shared descriptor, this did not return.
        ours.ring();
        assert!(ours.wait(None));
    }
}
