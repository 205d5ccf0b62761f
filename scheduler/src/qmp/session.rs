//! One client's conversation with QEMU.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread;

use serde_json::{Value, json};

use super::frame::{Frame, FrameError, Framer};
use super::hooks::{Hooked, Hooks, Verdict};
use super::stream;
use crate::sync::lock;

/// The most hooked commands without an answer.
const MAX_PENDING: usize = 64;

/// Why a conversation ended other than by one side closing it.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// One side sends what cannot be passed.
    #[error("from {from}: {source}")]
    Frame {
        /// "libxl" or "QEMU".
        from: &'static str,
        /// What it sends.
        source: FrameError,
    },
    /// A socket.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The client does not wait for answers.
    #[error("from libxl: more than {MAX_PENDING} commands without an answer")]
    Pending,
}

/// A hooked command QEMU has not answered.
struct Pending {
    command: Hooked,
    id: Option<Value>,
}

/// Both directions of a conversation.
pub struct Session<'a> {
    client: &'a UnixStream,
    server: &'a UnixStream,
    hooks: &'a Mutex<Box<dyn Hooks>>,
    pending: Mutex<VecDeque<Pending>>,
    /// Held while a message is sent to the client: two threads do.
    to_client: Mutex<()>,
}

impl<'a> Session<'a> {
    /// A conversation between two connected sockets.
    pub fn new(
        client: &'a UnixStream,
        server: &'a UnixStream,
        hooks: &'a Mutex<Box<dyn Hooks>>,
    ) -> Self {
        Self {
            client,
            server,
            hooks,
            pending: Mutex::default(),
            to_client: Mutex::new(()),
        }
    }

    /// Passes messages until one side closes its socket.
    ///
    /// # Errors
    /// [`SessionError`]; both sockets are shut down then, as at the end.
    pub fn run(&self) -> Result<(), SessionError> {
        let close = || {
            // They fail when the peer was faster.
            let _ = self.client.shutdown(Shutdown::Both);
            let _ = self.server.shutdown(Shutdown::Both);
        };
        thread::scope(|scope| {
            let up = scope.spawn(|| {
                let result = relay("libxl", self.client, |f| self.ask(f));
                close();
                result
            });
            let down = relay("QEMU", self.server, |f| self.answer(f));
            close();
            let up = up.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            up.and(down)
        })
    }

    fn ask(&self, frame: &Frame) -> Result<(), SessionError> {
        // What does not parse is for QEMU to refuse.
        let message: Value = serde_json::from_slice(&frame.bytes).unwrap_or_default();
        if let Some(command) = Hooked::of(&message) {
            let id = message.get("id").cloned();
            let fd = frame.fds.first().map(AsFd::as_fd);
            // Nothing is sent under the hooks' lock: a peer that does not read
            // would have it for as long as it likes.
            let verdict = command.before(&mut **lock(self.hooks), fd);
            if let Verdict::Fail(reason) = verdict {
                return self.refuse(id, &reason);
            }
            let mut pending = lock(&self.pending);
            if pending.len() == MAX_PENDING {
                return Err(SessionError::Pending);
            }
            pending.push_back(Pending { command, id });
        }
        Ok(stream::send(self.server, &frame.bytes, &frame.fds)?)
    }

    fn answer(&self, frame: &Frame) -> Result<(), SessionError> {
        if let Some(done) = self.answered(&frame.bytes) {
            let verdict = done.command.after(&mut **lock(self.hooks));
            if let Verdict::Fail(reason) = verdict {
                return self.refuse(done.id, &reason);
            }
        }
        let _sending = lock(&self.to_client);
        Ok(stream::send(self.client, &frame.bytes, &frame.fds)?)
    }

    /// The hooked command that a message from QEMU says was done.
    fn answered(&self, bytes: &[u8]) -> Option<Pending> {
        let mut pending = lock(&self.pending);
        if pending.is_empty() {
            return None;
        }
        let message: Value = serde_json::from_slice(bytes).ok()?;
        let failed = message.get("error").is_some();
        if !failed && message.get("return").is_none() {
            return None;
        }
        let id = message.get("id");
        let at = pending.iter().position(|p| p.id.as_ref() == id)?;
        let command = pending.remove(at)?;
        (!failed).then_some(command)
    }

    fn refuse(&self, id: Option<Value>, reason: &str) -> Result<(), SessionError> {
        log::warn!("QMP: refused a command: {reason}");
        let mut reply = json!({"error": {"class": "GenericError", "desc": reason}});
        if let (Some(id), Some(reply)) = (id, reply.as_object_mut()) {
            reply.insert("id".into(), id);
        }
        let _sending = lock(&self.to_client);
        let reply = format!("{reply}\r\n");
        Ok(stream::send(self.client, reply.as_bytes(), &[])?)
    }
}

/// Passes the messages of one direction to `pass` until the end of `from`.
fn relay(
    name: &'static str,
    from: &UnixStream,
    mut pass: impl FnMut(&Frame) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let mut framer = Framer::default();
    let mut buf = vec![0; 64 << 10];
    loop {
        let (count, fds) = match stream::receive(from, &mut buf) {
            // The other direction, or the peer, closed it.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            other => other?,
        };
        if count == 0 {
            return Ok(());
        }
        let bytes = buf.get(..count).unwrap_or_default();
        let frames = framer
            .push(bytes, fds)
            .map_err(|source| SessionError::Frame { from: name, source })?;
        for frame in &frames {
            match pass(frame) {
                Err(SessionError::Socket(e)) if e.kind() == io::ErrorKind::BrokenPipe => {
                    return Ok(());
                }
                other => other?,
            }
        }
    }
}
