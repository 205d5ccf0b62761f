//! Event channels.
//!
//! A port is a small object that knows its other end. Ports on Xen's side
//! wake a vCPU; ports of a handle are queued on it, masked until written
//! back, and remembered once while masked (as the pending bit does).

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use xen_glue::{DomId, EventChannelError, EventChannels, Port};

use crate::host::{Host, lock};

/// Wakes whoever waits for a port on Xen's side.
#[derive(Default)]
pub(crate) struct Wakeup {
    events: Mutex<u64>,
    changed: Condvar,
}

impl Wakeup {
    /// Events so far; to be taken before looking at what they are about.
    pub(crate) fn seen(&self) -> u64 {
        *lock(&self.events)
    }

    pub(crate) fn wake(&self) {
        *lock(&self.events) += 1;
        self.changed.notify_all();
    }

    /// Waits until there were more than `seen` events.
    pub(crate) fn wait_past(&self, seen: u64) {
        let events = lock(&self.events);
        let _more = self
            .changed
            .wait_while(events, |n| *n == seen)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

enum Sink {
    Xen(Arc<Wakeup>),
    Handle(Arc<Queue>),
}

/// One end of a channel.
pub(crate) struct PortState {
    domid: DomId,
    number: u32,
    /// The domain that may bind to it.
    remote: DomId,
    sink: Sink,
    peer: Mutex<Weak<PortState>>,
}

impl PortState {
    /// A port of `domid` on Xen's side that `remote` may bind to.
    pub(crate) fn for_xen(domid: DomId, number: u32, remote: DomId, wake: Arc<Wakeup>) -> Self {
        Self {
            domid,
            number,
            remote,
            sink: Sink::Xen(wake),
            peer: Mutex::default(),
        }
    }

    pub(crate) fn domid(&self) -> DomId {
        self.domid
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Signals the other end, if there is one.
    pub(crate) fn notify(&self) {
        let peer = lock(&self.peer).upgrade();
        if let Some(peer) = peer {
            peer.deliver();
        }
    }

    /// Leaves its other end without one.
    pub(crate) fn part(&self) {
        let peer = std::mem::take(&mut *lock(&self.peer)).upgrade();
        if let Some(peer) = peer {
            *lock(&peer.peer) = Weak::new();
        }
    }

    fn deliver(&self) {
        match &self.sink {
            Sink::Xen(wake) => wake.wake(),
            Sink::Handle(queue) => queue.deliver(Port(self.number)),
        }
    }
}

#[derive(Default)]
struct PortFlags {
    masked: bool,
    pending: bool,
}

#[derive(Default)]
struct QueueState {
    queued: VecDeque<Port>,
    flags: HashMap<Port, PortFlags>,
    /// Someone polls the descriptor, so it must follow the queue.
    polled: bool,
}

struct Queue {
    state: Mutex<QueueState>,
    ready: Condvar,
    poll: EventFd,
}

impl Queue {
    fn deliver(&self, port: Port) {
        let mut state = lock(&self.state);
        let Some(flags) = state.flags.get_mut(&port) else {
            return;
        };
        if flags.masked {
            flags.pending = true;
            return;
        }
        flags.masked = true;
        state.queued.push_back(port);
        if state.polled && state.queued.len() == 1 {
            self.set_readable();
        }
        drop(state);
        self.ready.notify_one();
    }

    fn unmask(&self, port: Port) -> bool {
        let mut state = lock(&self.state);
        let Some(flags) = state.flags.get_mut(&port) else {
            return false;
        };
        let again = flags.masked && flags.pending;
        flags.masked = false;
        flags.pending = false;
        drop(state);
        if again {
            self.deliver(port);
        }
        true
    }

    fn forget(&self, port: Port) {
        let mut state = lock(&self.state);
        state.flags.remove(&port);
        state.queued.retain(|p| *p != port);
        self.settle(&state);
    }

    /// Makes the descriptor unreadable when nothing is queued.
    fn settle(&self, state: &QueueState) {
        if state.polled && state.queued.is_empty() {
            // EAGAIN: it was not readable.
            let _ = self.poll.read();
        }
    }

    fn set_readable(&self) {
        if let Err(e) = self.poll.write(1) {
            log::error!("eventfd of a simulated event channel: {e}");
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<Port> {
        let state = lock(&self.state);
        let empty = |s: &mut QueueState| s.queued.is_empty();
        let mut state = match timeout {
            None => self
                .ready
                .wait_while(state, empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(t) => {
                self.ready
                    .wait_timeout_while(state, t, empty)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        let port = state.queued.pop_front();
        self.settle(&state);
        port
    }
}

/// A handle on event channels, like an open `/dev/xen/evtchn`.
pub struct FakeEventChannels {
    host: Arc<Host>,
    caller: DomId,
    queue: Arc<Queue>,
    ports: Mutex<HashMap<Port, Arc<PortState>>>,
    restricted: Mutex<Option<DomId>>,
}

impl FakeEventChannels {
    pub(crate) fn open(host: Arc<Host>, caller: DomId) -> Result<Self, EventChannelError> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let poll = EventFd::from_flags(flags).map_err(|errno| EventChannelError::Open {
            path: "eventfd",
            errno,
        })?;
        let queue = Queue {
            state: Mutex::default(),
            ready: Condvar::new(),
            poll,
        };
        Ok(Self {
            host,
            caller,
            queue: Arc::new(queue),
            ports: Mutex::default(),
            restricted: Mutex::default(),
        })
    }

    fn port(&self, op: &'static str, port: Port) -> Result<Arc<PortState>, EventChannelError> {
        let found = lock(&self.ports).get(&port).cloned();
        found.ok_or(EventChannelError::Port {
            op,
            port,
            errno: Errno::ENOTCONN,
        })
    }

    /// Makes a local port.
    fn add(&self, number: u32, remote: DomId) -> Arc<PortState> {
        let port = Arc::new(PortState {
            domid: self.caller,
            number,
            remote,
            sink: Sink::Handle(Arc::clone(&self.queue)),
            peer: Mutex::default(),
        });
        lock(&self.queue.state)
            .flags
            .insert(Port(number), PortFlags::default());
        lock(&self.ports).insert(Port(number), Arc::clone(&port));
        port
    }
}

impl EventChannels for FakeEventChannels {
    fn bind_interdomain(&self, domid: DomId, remote: Port) -> Result<Port, EventChannelError> {
        let failed = |errno| EventChannelError::Bind {
            domid,
            remote: Some(remote),
            errno,
        };
        if lock(&self.restricted).is_some_and(|only| only != domid) {
            return Err(failed(Errno::EACCES));
        }
        let mut table = self.host.ports();
        let far = table
            .find(domid, remote.0)
            .ok_or_else(|| failed(Errno::EINVAL))?;
        if far.remote != self.caller || lock(&far.peer).strong_count() > 0 {
            return Err(failed(Errno::EINVAL));
        }
        let number = table.allocate();
        let near = self.add(number, domid);
        *lock(&near.peer) = Arc::downgrade(&far);
        *lock(&far.peer) = Arc::downgrade(&near);
        table.add(&near);
        drop(table);
        // An event to the unbound port may have been lost, so Xen raises one
        // (common/event_channel.c:evtchn_bind_interdomain).
        near.deliver();
        Ok(Port(number))
    }

    fn bind_unbound(&self, domid: DomId) -> Result<Port, EventChannelError> {
        if lock(&self.restricted).is_some() {
            return Err(EventChannelError::Bind {
                domid,
                remote: None,
                errno: Errno::EACCES,
            });
        }
        let mut table = self.host.ports();
        let number = table.allocate();
        let port = self.add(number, domid);
        table.add(&port);
        Ok(Port(number))
    }

    fn unbind(&self, port: Port) -> Result<(), EventChannelError> {
        let state = self.port("unbind", port)?;
        lock(&self.ports).remove(&port);
        self.queue.forget(port);
        drop(state);
        Ok(())
    }

    fn notify(&self, port: Port) -> Result<(), EventChannelError> {
        self.port("notify", port)?.notify();
        Ok(())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<Port>, EventChannelError> {
        Ok(self.queue.wait(timeout))
    }

    fn unmask(&self, port: Port) -> Result<(), EventChannelError> {
        // The node ignores ports it does not know.
        self.queue.unmask(port);
        Ok(())
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        let mut state = lock(&self.queue.state);
        if !state.polled {
            state.polled = true;
            if !state.queued.is_empty() {
                self.queue.set_readable();
            }
        }
        drop(state);
        self.queue.poll.as_fd()
    }

    fn restrict(&self, domid: DomId) -> Result<(), EventChannelError> {
        let mut restricted = lock(&self.restricted);
        if restricted.is_some() {
            return Err(EventChannelError::Restrict {
                domid,
                errno: Errno::EACCES,
            });
        }
        *restricted = Some(domid);
        Ok(())
    }
}
