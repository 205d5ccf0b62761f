//! Where vCPUs are held while their domain is suspended, or paused.

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

#[derive(Default)]
struct CpusState {
    /// Pauses that last.
    paused: u32,
    /// vCPUs that run, in the guest or for it.
    running: u32,
}

/// Who runs. A domain is paused for operations that need no vCPU to run (Xen
/// common/domain.c:domain_pause); one that waits for an answer does not.
#[derive(Default)]
pub(crate) struct Cpus {
    state: Mutex<CpusState>,
    changed: Condvar,
}

/// A vCPU runs.
pub(crate) struct OnCpu<'a>(&'a Cpus);

/// The domain is paused.
pub(crate) struct Paused<'a>(&'a Cpus);

impl Cpus {
    fn start(&self, stopped: impl Fn() -> bool) {
        let state = lock(&self.state);
        let mut state = self
            .changed
            .wait_while(state, |s| s.paused > 0 && !stopped())
            .unwrap_or_else(PoisonError::into_inner);
        state.running += 1;
    }

    fn leave(&self) {
        lock(&self.state).running -= 1;
        self.changed.notify_all();
    }

    /// Runs from now on, or once the domain is not paused.
    pub(crate) fn enter(&self, stopped: impl Fn() -> bool) -> OnCpu<'_> {
        self.start(stopped);
        OnCpu(self)
    }

    /// Lets the CPU go while something is waited for.
    pub(crate) fn aside(&self, stopped: impl Fn() -> bool, wait: impl FnOnce()) {
        self.leave();
        wait();
        self.start(stopped);
    }

    /// Lets others run in between.
    pub(crate) fn breathe(&self, stopped: impl Fn() -> bool) {
        self.aside(stopped, std::thread::yield_now);
    }

    /// Waits until no vCPU runs; none does while the value lives.
    pub(crate) fn pause(&self) -> Paused<'_> {
        self.hold();
        Paused(self)
    }

    /// Waits until no vCPU runs; none does until [`Self::release`].
    pub(crate) fn hold(&self) {
        let mut state = lock(&self.state);
        state.paused += 1;
        let _none = self
            .changed
            .wait_while(state, |s| s.running > 0)
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Takes one pause back.
    pub(crate) fn release(&self) {
        let mut state = lock(&self.state);
        state.paused = state.paused.saturating_sub(1);
        drop(state);
        self.changed.notify_all();
    }

    /// Makes waiters look again at what stops them.
    pub(crate) fn nudge(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }
}

impl Drop for OnCpu<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
