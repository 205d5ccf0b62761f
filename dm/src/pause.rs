//! Holding the device still while it is saved.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
struct State {
    /// The last token given out.
    token: u64,
    /// The one after which the event thread holds still, if it is to.
    hold_after: Option<u64>,
    held: bool,
    stop: bool,
}

/// Where the event thread stops. vgpud answers a ping behind every event it
/// sent before, so when the answer comes the thread has handled all of them,
/// and from then on nothing changes the device but the guest's vCPUs.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    state: Mutex<State>,
    changed: Condvar,
}

impl Pause {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the event thread hold still when the answer to the ping with this
    /// token comes.
    pub(crate) fn ask(&self) -> u64 {
        let mut state = self.lock();
        state.token = state.token.wrapping_add(1);
        state.hold_after = Some(state.token);
        state.token
    }

    /// Waits until it does; says whether it does. If not, it never will.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let waits = |s: &mut State| !s.held && !s.stop;
        let mut state = self
            .changed
            .wait_timeout_while(self.lock(), limit, waits)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        if !state.held {
            state.hold_after = None;
        }
        state.held
    }

    /// Lets the event thread go on.
    pub(crate) fn go_on(&self) {
        let mut state = self.lock();
        state.hold_after = None;
        state.held = false;
        self.changed.notify_all();
    }

    /// Lets it go on for good.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// The event thread got an answer; returns when it may go on.
    pub(crate) fn reached(&self, token: u64) {
        let mut state = self.lock();
        if state.hold_after != Some(token) || state.stop {
            return;
        }
        state.held = true;
        self.changed.notify_all();
        let holds = |s: &mut State| s.held && !s.stop;
        let state = self.changed.wait_while(state, holds);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Why a device could not be held still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vgpud has not answered a ping through the rings in {} ms", .0.as_millis())]
pub struct NotStill(pub Duration);
