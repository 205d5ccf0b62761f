//! JSON values and descriptors over a SEQPACKET socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use vgpu_ring::PipeError;

/// The longest message in bytes. It fits the default buffer of a socket.
pub const MAX_MESSAGE: usize = 160 << 10;

/// The most descriptors beside a message.
pub const MAX_FDS: usize = 4;

/// Why a message did not get through.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket.
    #[error("cannot {what}")]
    Socket {
        /// What failed.
        what: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The other side is gone.
    #[error("the other side closed the connection")]
    Closed,
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// Too long to send or receive.
    #[error("a message is longer than {MAX_MESSAGE} bytes or has more than {MAX_FDS} descriptors")]
    TooLong,
    /// A pipe in the socket's place.
    #[error("cannot use the pipe")]
    Pipe(#[source] PipeError),
    /// Not JSON, or not the JSON expected; why, in one short line, for it may
    /// quote what the other side sent.
    #[error("a message does not parse: {0}")]
    Format(String),
}

impl From<serde_json::Error> for ControlError {
    fn from(e: serde_json::Error) -> Self {
        Self::Format(printable(&e.to_string(), 200))
    }
}

/// The first `most` characters, in one line, of what somebody says who is not
/// trusted with a log, a record or a terminal.
#[must_use]
pub fn printable(said: &str, most: usize) -> String {
    let one_line = |c: char| if c.is_control() { ' ' } else { c };
    said.chars().take(most).map(one_line).collect()
}

fn failed(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> ControlError {
    let what = what.into();
    |source| ControlError::Socket {
        what,
        source: source.into(),
    }
}

/// Who is at the other end, as of the moment it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process id.
    pub pid: i32,
    /// Its user id.
    pub uid: u32,
}

/// A connected socket.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl From<OwnedFd> for Connection {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.0
    }
}

impl Connection {
    /// Connects to the socket at `path`; connecting, and each message after
    /// it, may take `limit`.
    ///
    /// # Errors
    /// [`ControlError::Socket`] naming the path.
    pub fn connect(path: &Path, limit: Duration) -> Result<Self, ControlError> {
        let what = || format!("connect to {}", path.display());
        let address = SocketAddrUnix::new(path).map_err(failed(what()))?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(failed("make a socket"))?;
        let connection = Self(socket);
        connection.set_limit(Some(limit))?;
        connect(&connection.0, &address).map_err(failed(what()))?;
        Ok(connection)
    }

    /// Two sockets connected to each other.
    ///
    /// # Errors
    /// [`ControlError::Socket`].
    pub fn pair() -> Result<(Self, Self), ControlError> {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(failed("make a socket pair"))?;
        Ok((Self(a), Self(b)))
    }

    /// How long a message may take; `None` is for ever.
    ///
    /// # Errors
    /// [`ControlError::Socket`].
    pub fn set_limit(&self, limit: Option<Duration>) -> Result<(), ControlError> {
        // Zero would mean for ever.
        let limit = limit.map(|l| l.max(Duration::from_millis(1)));
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.0, which, limit).map_err(failed("set a time limit"))?;
        }
        Ok(())
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// [`ControlError::Socket`].
    pub fn peer(&self) -> Result<Peer, ControlError> {
        let peer = socket_peercred(&self.0).map_err(failed("read who connected"))?;
        Ok(Peer {
            pid: peer.pid.as_raw_nonzero().get(),
            uid: peer.uid.as_raw(),
        })
    }

    /// Another handle of the same socket.
    ///
    /// # Errors
    /// [`ControlError::Socket`].
    pub fn try_clone(&self) -> Result<Self, ControlError> {
        let fd = self.0.try_clone().map_err(|source| ControlError::Socket {
            what: "duplicate a socket".into(),
            source,
        })?;
        Ok(Self(fd))
    }

    /// Sends `message` with `fds`.
    ///
    /// # Errors
    /// [`ControlError`]; nothing was sent then.
    pub fn send(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
            return Err(ControlError::TooLong);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent = rustix::io::retry_on_intr(|| {
            sendmsg(
                &self.0,
                &[IoSlice::new(&bytes)],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )
        });
        match sent {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                Err(ControlError::Closed)
            }
            Err(rustix::io::Errno::AGAIN) => Err(ControlError::TimedOut),
            Err(e) => Err(failed("send a message")(e)),
        }
    }

    /// Receives a message and the descriptors beside it.
    ///
    /// # Errors
    /// [`ControlError`]; the descriptors of a message that does not parse are
    /// closed.
    pub fn recv<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ControlError> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        });
        let received = match received {
            Ok(received) => received,
            Err(rustix::io::Errno::CONNRESET) => return Err(ControlError::Closed),
            Err(rustix::io::Errno::AGAIN) => return Err(ControlError::TimedOut),
            Err(e) => return Err(failed("receive a message")(e)),
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(ControlError::TooLong);
        }
        let bytes = bytes.get(..received.bytes).unwrap_or_default();
        if bytes.is_empty() {
            return Err(ControlError::Closed);
        }
        Ok((serde_json::from_slice(bytes)?, fds))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;
    use crate::{ClientRequest, FromDm, Reply, ToDm};

    #[test]
    fn messages_keep_their_borders_and_descriptors() {
        let (a, b) = Connection::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        a.send(&ClientRequest::Ping, &[]).unwrap();
        a.send(&ToDm::Stop, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (first, fds) = b.recv::<ClientRequest>().unwrap();
        assert_eq!((first, fds.len()), (ClientRequest::Ping, 0));
        let (second, mut fds) = b.recv::<ToDm>().unwrap();
        assert_eq!((second, fds.len()), (ToDm::Stop, 1));
        io::Write::write_all(&mut File::from(fds.remove(0)), b"hi").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hi");
    }

    #[test]
    fn the_end_garbage_and_excess_are_told_apart() {
        let (a, b) = Connection::pair().unwrap();
        a.send(&"garbage", &[]).unwrap();
        assert!(matches!(
            b.recv::<ClientRequest>(),
            Err(ControlError::Format(_))
        ));
        let long = "x".repeat(MAX_MESSAGE);
        assert!(matches!(a.send(&long, &[]), Err(ControlError::TooLong)));
        a.send(&"\n".repeat(10_000), &[]).unwrap();
        let why = b.recv::<ClientRequest>().unwrap_err().to_string();
        assert!(why.starts_with("a message does not parse: unknown variant"));
        assert!(why.len() < 300 && !why.contains('\n'), "{why}");
        b.set_limit(Some(Duration::ZERO)).unwrap();
        assert!(matches!(
            b.recv::<ClientRequest>(),
            Err(ControlError::TimedOut)
        ));
        drop(a);
        assert!(matches!(
            b.recv::<ClientRequest>(),
            Err(ControlError::Closed)
        ));
        assert!(matches!(
            b.send(&ToDm::Stop, &[]),
            Err(ControlError::Closed)
        ));
    }

    #[test]
    fn nobody_there_is_an_error_with_the_path() {
        let path = Path::new("/nonexistent/vgpud.sock");
        let error = Connection::connect(path, Duration::from_secs(2)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot connect to /nonexistent/vgpud.sock"
        );
    }

    #[test]
    fn replies_and_events_read_well() {
        let reply = serde_json::to_string(&Reply::<u8>::Error("no".into())).unwrap();
        assert_eq!(reply, r#"{"error":"no"}"#);
        let attached = serde_json::to_string(&FromDm::Attached {
            server: 3,
            confined: None,
            table: None,
        })
        .unwrap();
        assert_eq!(
            attached,
            r#"{"attached":{"server":3,"confined":null,"table":null}}"#
        );
        assert_eq!(
            serde_json::from_str::<Reply<u8>>(r#"{"ok":5}"#)
                .unwrap()
                .into_result(),
            Ok(5)
        );
    }
}
