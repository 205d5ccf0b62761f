//! Event channels: the seam, its errors, and a bound port as RAII.

mod device;

pub use device::EvtchnDevice;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use crate::DomId;

/// A port number, in the name space of one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u32);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.0)
    }
}

/// Why an event channel call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventChannelError {
    /// The node could not be opened.
    #[error("open {path}: {errno}")]
    Open {
        /// The node.
        path: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A bind failed.
    #[error("bind to {domid} ({remote:?}): {errno}")]
    Bind {
        /// The other domain.
        domid: DomId,
        /// Its port, or none for a port that it will bind to.
        remote: Option<Port>,
        /// What came back.
        errno: Errno,
    },
    /// A call on a bound port failed.
    #[error("{op} {port}: {errno}")]
    Port {
        /// The call.
        op: &'static str,
        /// The port.
        port: Port,
        /// What came back.
        errno: Errno,
    },
    /// Waiting failed. EFBIG: more events than the node could keep.
    #[error("waiting for an event: {errno}")]
    Wait {
        /// What came back.
        errno: Errno,
    },
    /// The handle could not be restricted.
    #[error("restrict to {domid}: {errno}")]
    Restrict {
        /// The domain.
        domid: DomId,
        /// What came back.
        errno: Errno,
    },
}

/// A handle on the evtchn node, or something that obeys the same rules.
///
/// An event that arrives is queued once and its port is masked; it can be
/// queued again only after [`EventChannels::unmask`]. So: wait, unmask, and
/// only then look at the memory the event is about.
pub trait EventChannels: Send + Sync {
    /// Binds a new local port to a port another domain made for us.
    ///
    /// # Errors
    /// [`EventChannelError::Bind`].
    fn bind_interdomain(&self, domid: DomId, remote: Port) -> Result<Port, EventChannelError>;

    /// A new port that `domid` may bind to.
    ///
    /// # Errors
    /// [`EventChannelError::Bind`].
    fn bind_unbound(&self, domid: DomId) -> Result<Port, EventChannelError>;

    /// Closes a port. The other end becomes bindable again.
    ///
    /// # Errors
    /// [`EventChannelError::Port`]: ENOTCONN when it is not bound here.
    fn unbind(&self, port: Port) -> Result<(), EventChannelError>;

    /// Signals the other end.
    ///
    /// # Errors
    /// [`EventChannelError::Port`]: ENOTCONN when it is not bound here.
    fn notify(&self, port: Port) -> Result<(), EventChannelError>;

    /// Takes one queued event, waiting for at most `timeout` (for ever when
    /// none is given). `None` when the time was up.
    ///
    /// # Errors
    /// [`EventChannelError::Wait`].
    fn wait(&self, timeout: Option<Duration>) -> Result<Option<Port>, EventChannelError>;

    /// Lets the port's next event be queued.
    ///
    /// # Errors
    /// [`EventChannelError::Port`].
    fn unmask(&self, port: Port) -> Result<(), EventChannelError>;

    /// A descriptor that polls readable while an event is queued.
    fn poll_fd(&self) -> BorrowedFd<'_>;

    /// Limits later interdomain binds on this handle to one domain.
    ///
    /// # Errors
    /// [`EventChannelError::Restrict`].
    fn restrict(&self, domid: DomId) -> Result<(), EventChannelError>;
}

/// A bound port, closed on drop.
pub struct EventChannel {
    events: Arc<dyn EventChannels>,
    port: Port,
    /// Another process closes it.
    lent: bool,
}

impl EventChannel {
    /// Binds to a port another domain made for us.
    ///
    /// # Errors
    /// [`EventChannelError::Bind`].
    pub fn bind_interdomain(
        events: Arc<dyn EventChannels>,
        domid: DomId,
        remote: Port,
    ) -> Result<Self, EventChannelError> {
        let port = events.bind_interdomain(domid, remote)?;
        Ok(Self {
            events,
            port,
            lent: false,
        })
    }

    /// Makes a port that `domid` may bind to.
    ///
    /// # Errors
    /// [`EventChannelError::Bind`].
    pub fn bind_unbound(
        events: Arc<dyn EventChannels>,
        domid: DomId,
    ) -> Result<Self, EventChannelError> {
        let port = events.bind_unbound(domid)?;
        Ok(Self {
            events,
            port,
            lent: false,
        })
    }

    /// A port that another process of this domain bound on the same handle,
    /// and closes.
    #[must_use]
    pub fn lent(events: Arc<dyn EventChannels>, port: Port) -> Self {
        Self {
            events,
            port,
            lent: true,
        }
    }

    /// The local port.
    #[must_use]
    pub fn port(&self) -> Port {
        self.port
    }

    /// The handle the port is bound on.
    #[must_use]
    pub fn events(&self) -> &Arc<dyn EventChannels> {
        &self.events
    }

    /// Signals the other end.
    ///
    /// # Errors
    /// [`EventChannelError::Port`].
    pub fn notify(&self) -> Result<(), EventChannelError> {
        self.events.notify(self.port)
    }

    /// Lets the next event be queued.
    ///
    /// # Errors
    /// [`EventChannelError::Port`].
    pub fn unmask(&self) -> Result<(), EventChannelError> {
        self.events.unmask(self.port)
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if self.lent {
            return;
        }
        if let Err(e) = self.events.unbind(self.port) {
            // The domain may be gone, and its ports with it.
            log::debug!("{e}");
        }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventChannel").field(&self.port.0).finish()
    }
}
