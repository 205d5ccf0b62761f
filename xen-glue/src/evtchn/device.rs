//! `/dev/xen/evtchn`.
//!
//! Facts: Linux drivers/xen/evtchn.c. A read gives queued ports, each masked
//! until it is written back. A bind returns the port as the ioctl's result.

#![expect(unsafe_code, reason = "ioctls on the evtchn node")]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xen_sys::ioctl;

use super::{EventChannelError, EventChannels, Port};
use crate::DomId;

nix::ioctl_write_ptr_bad!(
    bind_interdomain,
    ioctl::EVTCHN_BIND_INTERDOMAIN,
    xen_sys::ioctl_evtchn_bind_interdomain
);
nix::ioctl_write_ptr_bad!(
    bind_unbound,
    ioctl::EVTCHN_BIND_UNBOUND_PORT,
    xen_sys::ioctl_evtchn_bind_unbound_port
);
nix::ioctl_write_ptr_bad!(unbind, ioctl::EVTCHN_UNBIND, xen_sys::ioctl_evtchn_unbind);
nix::ioctl_write_ptr_bad!(notify, ioctl::EVTCHN_NOTIFY, xen_sys::ioctl_evtchn_notify);
nix::ioctl_write_ptr_bad!(
    restrict,
    ioctl::EVTCHN_RESTRICT_DOMID,
    xen_sys::ioctl_evtchn_restrict_domid
);

const PATH: &str = "/dev/xen/evtchn";

/// The real evtchn node.
#[derive(Debug)]
pub struct EvtchnDevice {
    node: File,
}

impl EvtchnDevice {
    /// Opens the node.
    ///
    /// # Errors
    /// [`EventChannelError::Open`].
    pub fn open() -> Result<Self, EventChannelError> {
        let node = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(PATH)
            .map_err(|e| EventChannelError::Open {
                path: PATH,
                errno: errno_of(&e),
            })?;
        Ok(Self { node })
    }
}

impl From<OwnedFd> for EvtchnDevice {
    /// A handle that another process of this domain opened, with the ports
    /// bound on it.
    fn from(node: OwnedFd) -> Self {
        Self {
            node: File::from(node),
        }
    }
}

fn errno_of(e: &std::io::Error) -> Errno {
    Errno::from_raw(e.raw_os_error().unwrap_or(0))
}

/// A bind's result: the port, which is never negative.
fn bound(
    result: nix::Result<i32>,
    domid: DomId,
    remote: Option<Port>,
) -> Result<Port, EventChannelError> {
    result
        .and_then(|port| u32::try_from(port).map_err(|_| Errno::EINVAL))
        .map(Port)
        .map_err(|errno| EventChannelError::Bind {
            domid,
            remote,
            errno,
        })
}

fn on_port(
    result: nix::Result<i32>,
    op: &'static str,
    port: Port,
) -> Result<(), EventChannelError> {
    result
        .map(drop)
        .map_err(|errno| EventChannelError::Port { op, port, errno })
}

/// What is left of a timeout, rounded up to the milliseconds poll takes.
fn poll_timeout(deadline: Option<Instant>) -> PollTimeout {
    let Some(deadline) = deadline else {
        return PollTimeout::NONE;
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let ms = left.as_nanos().div_ceil(1_000_000);
    i32::try_from(ms)
        .ok()
        .and_then(|ms| PollTimeout::try_from(ms).ok())
        .unwrap_or(PollTimeout::MAX)
}

impl EventChannels for EvtchnDevice {
    fn bind_interdomain(&self, domid: DomId, remote: Port) -> Result<Port, EventChannelError> {
        let arg = xen_sys::ioctl_evtchn_bind_interdomain {
            remote_domain: u32::from(domid.0),
            remote_port: remote.0,
        };
        // SAFETY: the kernel reads the struct the number's size describes.
        let result = unsafe { bind_interdomain(self.node.as_raw_fd(), &raw const arg) };
        bound(result, domid, Some(remote))
    }

    fn bind_unbound(&self, domid: DomId) -> Result<Port, EventChannelError> {
        let arg = xen_sys::ioctl_evtchn_bind_unbound_port {
            remote_domain: u32::from(domid.0),
        };
        // SAFETY: the kernel reads the struct the number's size describes.
        let result = unsafe { bind_unbound(self.node.as_raw_fd(), &raw const arg) };
        bound(result, domid, None)
    }

    fn unbind(&self, port: Port) -> Result<(), EventChannelError> {
        let arg = xen_sys::ioctl_evtchn_unbind { port: port.0 };
        // SAFETY: the kernel reads the struct the number's size describes.
        let result = unsafe { unbind(self.node.as_raw_fd(), &raw const arg) };
        on_port(result, "unbind", port)
    }

    fn notify(&self, port: Port) -> Result<(), EventChannelError> {
        let arg = xen_sys::ioctl_evtchn_notify { port: port.0 };
        // SAFETY: the kernel reads the struct the number's size describes.
        let result = unsafe { notify(self.node.as_raw_fd(), &raw const arg) };
        on_port(result, "notify", port)
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<Port>, EventChannelError> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let mut port = [0; 4];
            match (&self.node).read(&mut port) {
                Ok(4) => return Ok(Some(Port(u32::from_ne_bytes(port)))),
                Ok(_) => {
                    let errno = Errno::EIO;
                    return Err(EventChannelError::Wait { errno });
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    let errno = errno_of(&e);
                    return Err(EventChannelError::Wait { errno });
                }
            }
            let mut fds = [PollFd::new(self.node.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, poll_timeout(deadline)) {
                Ok(0) => return Ok(None),
                // Readable, or in error, which the read will tell; a signal
                // starts the wait again with what time is left.
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(EventChannelError::Wait { errno }),
            }
        }
    }

    fn unmask(&self, port: Port) -> Result<(), EventChannelError> {
        let done = (&self.node).write_all(&port.0.to_ne_bytes());
        done.map_err(|e| EventChannelError::Port {
            op: "unmask",
            port,
            errno: errno_of(&e),
        })
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }

    fn restrict(&self, domid: DomId) -> Result<(), EventChannelError> {
        let arg = xen_sys::ioctl_evtchn_restrict_domid { domid: domid.0 };
        // SAFETY: the kernel reads the struct the number's size describes.
        let result = unsafe { restrict(self.node.as_raw_fd(), &raw const arg) };
        result
            .map(drop)
            .map_err(|errno| EventChannelError::Restrict { domid, errno })
    }
}
