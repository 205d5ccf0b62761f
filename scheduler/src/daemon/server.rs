//! The control socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with,
};
use vgpu_control::Connection;

use super::client;
use super::dm::DmCommand;
use super::platform::Platform;
use super::registry::Registry;

/// The most clients at once. A registration holds one for as long as its
/// device model takes to attach.
const MAX_CLIENTS: usize = 64;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A device model to attach to its guest.
    pub attach: Duration,
    /// A client to say what it wants.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            attach: Duration::from_secs(20),
            idle: Duration::from_secs(10),
        }
    }
}

/// What all clients' threads share.
pub struct Shared {
    /// The guests.
    pub registry: Arc<Registry>,
    /// Xen and the scheduler.
    pub platform: Arc<dyn Platform>,
    /// How to run a device model.
    pub dm: DmCommand,
    /// How long things may take.
    pub limits: Limits,
    clients: AtomicUsize,
    stop: AtomicBool,
}

/// A running daemon. Dropping it ends every guest's vGPU.
pub struct Daemon {
    shared: Arc<Shared>,
    listener: Arc<OwnedFd>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Listens at `path`, for its owner only.
    ///
    /// # Errors
    /// When another daemon does, or the socket cannot be made.
    pub fn start(
        path: &Path,
        dm: DmCommand,
        limits: Limits,
        platform: Arc<dyn Platform>,
    ) -> anyhow::Result<Self> {
        let listener = Arc::new(listen_at(path)?);
        let shared = Arc::new(Shared {
            registry: Arc::new(Registry::default()),
            platform,
            dm,
            limits,
            clients: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let thread = thread::Builder::new().name("control".into()).spawn({
            let shared = Arc::clone(&shared);
            let listener = Arc::clone(&listener);
            move || accept_clients(&listener, &shared)
        })?;
        Ok(Self {
            shared,
            listener,
            path: path.to_owned(),
            thread: Some(thread),
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Ends a pending accept (Linux net/unix/af_unix.c:unix_accept).
        let _ = shutdown(self.listener.as_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the control thread panicked");
        }
        if let Err(e) = std::fs::remove_file(&self.path) {
            log::warn!("cannot remove {}: {e}", self.path.display());
        }
        self.shared.registry.clear();
    }
}

fn listen_at(path: &Path) -> anyhow::Result<OwnedFd> {
    let what = || format!("cannot listen at {}", path.display());
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            if Connection::connect(path, Duration::from_secs(1)).is_ok() {
                anyhow::bail!("{}: another vgpud listens there", what());
            }
            std::fs::remove_file(path).with_context(what)?;
        }
        Ok(_) => anyhow::bail!("{}: something else is there", what()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e).with_context(what),
    }
    let address = SocketAddrUnix::new(path).with_context(what)?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .with_context(what)?;
    bind(&socket, &address).with_context(what)?;
    // Nobody can connect before listen, so there is no moment with a wider
    // mode. Clients' credentials are checked as well.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).with_context(what)?;
    listen(&socket, 64).with_context(what)?;
    Ok(socket)
}

fn accept_clients(listener: &OwnedFd, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::SeqCst) {
        let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(_) if shared.stop.load(Ordering::SeqCst) => return,
            Err(e) => {
                log::warn!("cannot accept a client: {e}");
                // Out of descriptors, most likely: let some be closed.
                thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        if shared.clients.fetch_add(1, Ordering::SeqCst) >= MAX_CLIENTS {
            log::warn!("more than {MAX_CLIENTS} clients: one is turned away");
            shared.clients.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let spawned = thread::Builder::new().name("client".into()).spawn({
            let shared = Arc::clone(shared);
            move || {
                client::serve(&Connection::from(socket), &shared);
                shared.clients.fetch_sub(1, Ordering::SeqCst);
            }
        });
        if let Err(e) = spawned {
            log::warn!("cannot start a thread for a client: {e}");
            shared.clients.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
