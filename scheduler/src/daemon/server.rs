//! The control socket.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use vgpu_control::{Listener, Step};
use vgpu_sched::kept::KeptShares;

use super::adopt;
use super::client;
use super::dm::DmCommand;
use super::platform::Platform;
use super::records::Records;
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
    /// What is known of guests while they run, for the next daemon.
    pub records: Records,
}

impl Host {
    /// How domains for device models are made.
    ///
    /// # Errors
    /// When they are not made here.
    pub fn stubs(&self) -> anyhow::Result<&Stubs> {
        let stubs = self.stubs.as_ref();
        stubs.context("this vgpud makes no domains for device models")
    }
}

/// What all clients' threads share.
pub struct Shared {
    /// The guests.
    pub registry: Arc<Registry>,
    /// Xen and the scheduler.
    pub platform: Arc<dyn Platform>,
    /// Shares that outlive their guest and this process.
    pub kept: KeptShares,
    /// How device models are run, and what of them outlives this process.
    pub host: Host,
    /// Where the next guest to come here is to fail.
    pub fail_arrival: Mutex<Option<Step>>,
    clients: AtomicUsize,
    stop: AtomicBool,
}

/// Where a daemon is found, and where it keeps what outlives it.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Its socket.
    pub socket: &'a Path,
    /// The directory of shares that were changed.
    pub state: &'a Path,
}

/// A running daemon. Dropping it ends every guest's vGPU.
pub struct Daemon {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Listens at a socket, for its owner only, and takes over the guests that
    /// another daemon left.
    ///
    /// # Errors
    /// When another daemon listens there, or the socket cannot be made.
    pub fn start(
        places: Places<'_>,
        host: Host,
        platform: Arc<dyn Platform>,
    ) -> anyhow::Result<Self> {
        let Places { socket, state } = places;
        // Only one daemon gets past this; the records are its.
        let listener = Arc::new(Listener::bind(socket)?);
        let shared = Arc::new(Shared {
            registry: Arc::new(Registry::default()),
            platform,
            kept: KeptShares::open(state),
            host,
            fail_arrival: Mutex::new(None),
            clients: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        adopt::adopt_all(&shared);
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

    /// Leaves the guests to the next daemon: they go on without one until it
    /// is there. The process is to end.
    pub fn leave(self) {
        self.listener.close();
        let guests = self.shared.registry.guests();
        log::info!("{} guests are left to the next vgpud", guests.len());
        // What would end them is not run.
        std::mem::forget(self);
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
