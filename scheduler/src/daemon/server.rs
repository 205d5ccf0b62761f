//! The control socket.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vgpu_control::{Listener, Step};
use vgpu_sched::kept::KeptShares;

use super::client;
use super::dm::DmCommand;
use super::platform::Platform;
use super::registry::Registry;
use super::replace::Bounds;
use super::stub::Stubs;

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
    /// A guest to stand still when it is migrated.
    pub downtime: Duration,
    /// A device model to be at one thing.
    pub heartbeat: Duration,
    /// How many device models of a guest may die.
    pub crashes: Bounds,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            attach: Duration::from_secs(20),
            idle: Duration::from_secs(10),
            downtime: Duration::from_millis(500),
            heartbeat: Duration::from_secs(1),
            crashes: Bounds::default(),
        }
    }
}

/// How device models are run on this host.
pub struct Host {
    /// Those in dom0.
    pub dm: DmCommand,
    /// Those in domains of their own.
    pub stubs: Option<Stubs>,
    /// Whether a guest's has a domain of its own when nothing is said.
    pub stub_default: bool,
    /// How long things may take.
    pub limits: Limits,
}

/// What all clients' threads share.
pub struct Shared {
    /// The guests.
    pub registry: Arc<Registry>,
    /// Xen and the scheduler.
    pub platform: Arc<dyn Platform>,
    /// Shares that outlive their guest and this process.
    pub kept: KeptShares,
    /// How device models are run.
    pub host: Host,
    /// Where the next guest to come here is to fail.
    pub fail_arrival: Mutex<Option<Step>>,
    clients: AtomicUsize,
    stop: AtomicBool,
}

/// A running daemon. Dropping it ends every guest's vGPU.
pub struct Daemon {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Listens at `path`, for its owner only, and keeps what outlives it in
    /// the directory `state`.
    ///
    /// # Errors
    /// When another daemon does, or the socket cannot be made.
    pub fn start(
        path: &Path,
        state: &Path,
        host: Host,
        platform: Arc<dyn Platform>,
    ) -> anyhow::Result<Self> {
        let listener = Arc::new(Listener::bind(path)?);
        let shared = Arc::new(Shared {
            registry: Arc::new(Registry::default()),
            platform,
            kept: KeptShares::open(state),
            host,
            fail_arrival: Mutex::new(None),
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
            thread: Some(thread),
        })
    }
}

#[cfg(test)]
impl Daemon {
    /// A guest.
    pub fn guest(&self, domid: u16) -> Option<Arc<super::guest::Guest>> {
        self.shared.registry.get(domid)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.listener.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the control thread panicked");
        }
        self.shared.registry.clear();
    }
}

fn accept_clients(listener: &Listener, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::SeqCst) {
        let connection = match listener.accept() {
            Ok(connection) => connection,
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
                client::serve(&connection, &shared);
                shared.clients.fetch_sub(1, Ordering::SeqCst);
            }
        });
        if let Err(e) = spawned {
            log::warn!("cannot start a thread for a client: {e}");
            shared.clients.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
