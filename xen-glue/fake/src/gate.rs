//! Where vCPUs are held while their domain is suspended.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::host::lock;

#[derive(Default)]
struct GateState {
    closed: bool,
    inside: u32,
}

/// Lets vCPU operations in while open; closing waits until none is inside,
/// as a shutdown waits for requests in flight.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Waits until the gate is open or `stopped` says not to.
    pub(crate) fn enter(&self, stopped: impl Fn() -> bool) -> Option<Inside<'_>> {
        let state = lock(&self.state);
        let mut state = self
            .changed
            .wait_while(state, |s| s.closed && !stopped())
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        state.inside += 1;
        Some(Inside(self))
    }

    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let _empty = self
            .changed
            .wait_while(state, |s| s.inside > 0)
            .unwrap_or_else(PoisonError::into_inner);
    }

    pub(crate) fn open(&self) {
        lock(&self.state).closed = false;
        self.changed.notify_all();
    }

    /// Makes waiters look again at what stops them.
    pub(crate) fn nudge(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.inside -= 1;
        let awaited = state.closed;
        drop(state);
        if awaited {
            self.0.changed.notify_all();
        }
    }
}
