//! The listener of one guest.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::hooks::Hooks;
use super::session::{Session, SessionError};
use crate::sync::lock;

/// How long a client waits for QEMU to listen: as long as libxl gives its
/// own connection.
const QEMU_LIMIT: Duration = Duration::from_secs(10);

/// Between two tries to reach a QEMU that does not listen yet.
const RETRY: Duration = Duration::from_millis(20);

/// Why there is no proxy.
#[derive(Debug, thiserror::Error)]
#[error("QMP proxy: cannot {what} {}", path.display())]
pub struct ProxyError {
    /// What failed.
    pub what: &'static str,
    /// The public socket.
    pub path: PathBuf,
    /// The system's reason.
    #[source]
    pub source: io::Error,
}

/// What the proxy's thread and its owner share.
struct Shared {
    stop: AtomicBool,
    listener: UnixListener,
    /// The sockets of the conversation under way.
    open: Mutex<Vec<UnixStream>>,
    hooks: Mutex<Box<dyn Hooks>>,
    private: PathBuf,
}

/// Listens where libxl connects. Dropping it ends the conversation under way
/// and removes both sockets' files.
pub struct Proxy {
    public: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens at `public`, from the moment this returns, for the QEMU that
    /// is going to listen at `private`. A socket left at either by an earlier
    /// guest is removed.
    ///
    /// # Errors
    /// [`ProxyError`] naming the path.
    pub fn start(public: &Path, private: &Path, hooks: Box<dyn Hooks>) -> Result<Self, ProxyError> {
        remove_socket(private).map_err(failed("remove the old socket", private))?;
        Self::adopt(public, private, hooks)
    }

    /// Listens at `public`, in the place of a proxy whose process is no more,
    /// for the QEMU that listens at `private`.
    ///
    /// # Errors
    /// [`ProxyError`] naming the path.
    pub fn adopt(public: &Path, private: &Path, hooks: Box<dyn Hooks>) -> Result<Self, ProxyError> {
        remove_socket(public).map_err(failed("remove the old socket", public))?;
        let listener = UnixListener::bind(public).map_err(failed("listen at", public))?;
        std::fs::set_permissions(public, PermissionsExt::from_mode(0o600))
            .map_err(failed("set the mode of", public))?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            listener,
            open: Mutex::default(),
            hooks: Mutex::new(hooks),
            private: private.to_owned(),
        });
        let thread = thread::Builder::new()
            .name("qmp".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.serve()
            })
            .map_err(failed("start a thread for", public))?;
        Ok(Self {
            public: public.to_owned(),
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Ends a pending accept (Linux net/unix/af_unix.c:unix_accept).
        let _ = rustix::net::shutdown(self.shared.listener.as_fd(), rustix::net::Shutdown::Both);
        for socket in self.shared.open().iter() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the QMP proxy of {} panicked", self.public.display());
        }
        for path in [&self.public, &self.shared.private] {
            if let Err(e) = remove_socket(path) {
                log::warn!("cannot remove {}: {e}", path.display());
            }
        }
    }
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, Vec<UnixStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn serve(&self) {
        while !self.stopping() {
            match self.listener.accept() {
                Ok((client, _)) => {
                    if let Err(e) = self.converse(&client) {
                        log::warn!("QMP: a conversation ended: {e}");
                    }
                    self.open().clear();
                }
                Err(_) if self.stopping() => return,
                Err(e) => {
                    log::warn!("QMP: cannot accept a client: {e}");
                    thread::sleep(RETRY);
                }
            }
        }
    }

    fn converse(&self, client: &UnixStream) -> Result<(), SessionError> {
        if let Ok(peer) = rustix::net::sockopt::socket_peercred(client) {
            lock(&self.hooks).client(peer.pid.as_raw_nonzero().get());
        }
        let server = self.connect()?;
        *self.open() = vec![client.try_clone()?, server.try_clone()?];
        // A stop before that found nothing to shut down.
        if self.stopping() {
            return Ok(());
        }
        Session::new(client, &server, &self.hooks).run()
    }

    /// Connects to QEMU, waiting for it to listen.
    fn connect(&self) -> io::Result<UnixStream> {
        let start = Instant::now();
        loop {
            let e = match connect(&self.private) {
                Ok(stream) => return Ok(stream),
                Err(e) => e,
            };
            let not_yet = matches!(
                e.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::WouldBlock
            );
            if !not_yet || self.stopping() || start.elapsed() > QEMU_LIMIT {
                return Err(e);
            }
            thread::sleep(RETRY);
        }
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProxyError {
    let path = path.to_owned();
    move |source| ProxyError { what, path, source }
}

/// Connects to the socket at `path`, at once or not at all: where one listens
/// with a full queue and does not accept, connecting may wait for ever (Linux
/// `net/unix/af_unix.c:unix_stream_connect`).
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Removes a socket's file; anything else stays.
fn remove_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::other("something else is there")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}
