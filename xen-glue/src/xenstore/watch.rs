//! A watch.
//!
//! `xenstore-rs` has watches for tokio only, so this speaks the wire format
//! itself (Xen public io/xs_wire.h): a header of four dwords, then
//! nul-separated strings.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::XenstoreError;

const SOCKET: &str = "/run/xenstored/socket";
const NODE: &str = "/dev/xen/xenbus";
const TOKEN: &str = "w";

pub(super) enum Connection {
    Socket(UnixStream),
    Node(File),
}

/// A watch on a path and all below it, ended by drop.
pub struct XenstoreWatch {
    connection: Connection,
    path: String,
}

/// One message: what it is, and its payload.
pub(super) struct Message {
    pub(super) kind: u32,
    pub(super) payload: Vec<u8>,
}

impl Connection {
    pub(super) fn open() -> io::Result<Self> {
        let socket = std::env::var_os("XENSTORED_PATH").unwrap_or_else(|| SOCKET.into());
        if let Ok(stream) = UnixStream::connect(socket) {
            return Ok(Self::Socket(stream));
        }
        let node = OpenOptions::new().read(true).write(true).open(NODE)?;
        Ok(Self::Node(node))
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Socket(s) => s.write_all(bytes),
            Self::Node(f) => f.write_all(bytes),
        }
    }

    fn receive(&mut self, buf: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Socket(s) => s.read_exact(buf),
            Self::Node(f) => f.read_exact(buf),
        }
    }

    pub(super) fn message(&mut self) -> io::Result<Message> {
        let mut header = [0; 16];
        self.receive(&mut header)?;
        let dword = |at: usize| {
            let mut b = [0; 4];
            b.copy_from_slice(&header[at..at + 4]);
            u32::from_ne_bytes(b)
        };
        // type, req_id, tx_id, len
        let (kind, len) = (dword(0), dword(12));
        let len = usize::try_from(len)
            .ok()
            .filter(|_| len <= xen_sys::XENSTORE_PAYLOAD_MAX)
            .ok_or_else(|| invalid(format!("payload of {len} bytes, at most 4096 allowed")))?;
        let mut payload = vec![0; len];
        self.receive(&mut payload)?;
        Ok(Message { kind, payload })
    }
}

pub(super) fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A WATCH request.
fn request(path: &str) -> io::Result<Vec<u8>> {
    let payload = [path.as_bytes(), b"\0", TOKEN.as_bytes(), b"\0"].concat();
    let len = u32::try_from(payload.len())
        .ok()
        .filter(|n| *n <= xen_sys::XENSTORE_PAYLOAD_MAX)
        .ok_or_else(|| invalid(format!("path of {} bytes", path.len())))?;
    let mut bytes = Vec::new();
    for dword in [xen_sys::XS_WATCH, 1, 0, len] {
        bytes.extend(dword.to_ne_bytes());
    }
    bytes.extend(payload);
    Ok(bytes)
}

/// The path in an event's payload.
fn event_path(payload: &[u8]) -> io::Result<String> {
    let path = payload.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8(path.to_vec()).map_err(|e| invalid(e.to_string()))
}

impl XenstoreWatch {
    pub(super) fn open(path: &str) -> Result<Self, XenstoreError> {
        let start = || -> io::Result<Connection> {
            let mut connection = Connection::open()?;
            connection.send(&request(path)?)?;
            Ok(connection)
        };
        let connection = start().map_err(|source| XenstoreError {
            op: "watch",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            connection,
            path: path.to_owned(),
        })
    }

    /// Waits for the next event and gives the path that changed. The first
    /// comes at once, for the watched path itself, whether it exists or not.
    ///
    /// # Errors
    /// What xenstored answers to the watch, or the end of the connection.
    pub fn next_path(&mut self) -> Result<String, XenstoreError> {
        self.next_event().map_err(|source| XenstoreError {
            op: "watch",
            path: self.path.clone(),
            source,
        })
    }

    fn next_event(&mut self) -> io::Result<String> {
        loop {
            let message = self.connection.message()?;
            match message.kind {
                xen_sys::XS_WATCH_EVENT => return event_path(&message.payload),
                // The answer to our request.
                xen_sys::XS_WATCH => {}
                xen_sys::XS_ERROR => {
                    let name = event_path(&message.payload)?;
                    return Err(io::Error::other(name));
                }
                kind => return Err(invalid(format!("message of type {kind}"))),
            }
        }
    }

    /// A descriptor that polls readable when [`XenstoreWatch::next_path`] will
    /// not wait long. An answer that is no event also makes it readable.
    #[must_use]
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        match &self.connection {
            Connection::Socket(s) => s.as_fd(),
            Connection::Node(f) => f.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap();
        let mut bytes: Vec<u8> = [kind, 0, 0, len]
            .iter()
            .flat_map(|d| d.to_ne_bytes())
            .collect();
        bytes.extend(payload);
        bytes
    }

    fn watch_on(stream: UnixStream) -> XenstoreWatch {
        XenstoreWatch {
            connection: Connection::Socket(stream),
            path: "/p".into(),
        }
    }

    #[test]
    fn the_request_is_what_the_wire_format_wants() {
        let bytes = request("/a").unwrap();
        assert_eq!(bytes, message_with_id(4, 1, b"/a\0w\0"));
        assert!(request(&"x".repeat(5000)).is_err());
    }

    fn message_with_id(kind: u32, id: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = message(kind, payload);
        bytes[4..8].copy_from_slice(&id.to_ne_bytes());
        bytes
    }

    #[test]
    fn events_come_through_and_answers_do_not() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut watch = watch_on(near);
        far.write_all(&message(xen_sys::XS_WATCH, b"OK\0")).unwrap();
        far.write_all(&message(xen_sys::XS_WATCH_EVENT, b"/p/x\0w\0"))
            .unwrap();
        assert_eq!(watch.next_path().unwrap(), "/p/x");
        far.write_all(&message(xen_sys::XS_ERROR, b"EACCES\0"))
            .unwrap();
        assert!(
            watch
                .next_path()
                .unwrap_err()
                .to_string()
                .contains("EACCES")
        );
    }

    #[test]
    fn an_endless_payload_is_refused() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut watch = watch_on(near);
        let mut bytes = message(xen_sys::XS_WATCH_EVENT, b"");
        bytes[12..].copy_from_slice(&u32::MAX.to_ne_bytes());
        far.write_all(&bytes).unwrap();
        let error = watch.next_path().unwrap_err().to_string();
        assert!(error.contains("4294967295"), "{error}");
    }
}
