//! One engine as the bus side and the engine's thread share it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gen8::{Engine, ring};

use crate::core::Core;
use crate::counters::{EngineCells, count};
use crate::execlist::{Execlist, Load};

/// What the engine must look at before its next command.
pub(crate) mod attention {
    /// A reset, or the end of the GPU.
    pub(crate) const STOP: u32 = 1 << 0;
    /// The driver wants the engine to hold still.
    pub(crate) const HOLD: u32 = 1 << 1;
    /// A run list waits.
    pub(crate) const PENDING: u32 = 1 << 2;
    /// Cached translations are to be forgotten.
    pub(crate) const FLUSH: u32 = 1 << 3;
}

/// How long a register write waits for the engine to hold still or to be
/// reset. An engine looks up after every command and every row of a blit,
/// so only memory that does not answer can exceed it; then the register
/// keeps reading "not yet", as on hardware.
const SETTLE: Duration = Duration::from_millis(200);

/// What the engine's lock guards.
#[derive(Debug, Default)]
pub(crate) struct Sched {
    pub(crate) list: Execlist,
    /// A reset was asked for and has not happened yet.
    pub(crate) reset: bool,
    pub(crate) shutdown: bool,
    /// The engine executes nothing and will not by itself.
    pub(crate) quiet: bool,
    /// The engine stopped on an error and waits for a reset.
    pub(crate) hung: bool,
}

pub(crate) struct Unit {
    pub(crate) engine: Engine,
    attention: AtomicU32,
    sched: Mutex<Sched>,
    /// The engine's thread waits here.
    wake: Condvar,
    /// Register writes wait here.
    settled: Condvar,
    pub(crate) counters: EngineCells,
    /// Semaphore signals that named a context that ran.
    signals: AtomicU64,
    /// Timestamp at which the running context was loaded, plus one; 0: none.
    pub(crate) loaded_at: AtomicU64,
}

impl Unit {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            attention: AtomicU32::new(0),
            sched: Mutex::new(Sched {
                quiet: true,
                ..Sched::default()
            }),
            wake: Condvar::new(),
            settled: Condvar::new(),
            counters: EngineCells::default(),
            signals: AtomicU64::new(0),
            loaded_at: AtomicU64::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Sched> {
        self.sched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attention(&self) -> u32 {
        self.attention.load(Ordering::Acquire)
    }

    /// Whether to stop in the middle of a command.
    pub(crate) fn must_stop(&self) -> bool {
        self.attention() & attention::STOP != 0
    }

    pub(crate) fn clear_attention(&self, bits: u32) {
        self.attention.fetch_and(!bits, Ordering::AcqRel);
    }

    fn raise(&self, bits: u32) {
        self.attention.fetch_or(bits, Ordering::AcqRel);
        self.wake.notify_all();
    }

    pub(crate) fn request_flush(&self) {
        self.attention.fetch_or(attention::FLUSH, Ordering::AcqRel);
    }

    /// The engine's thread sleeps until something changes.
    pub(crate) fn sleep<'a>(&self, s: MutexGuard<'a, Sched>) -> MutexGuard<'a, Sched> {
        self.wake.wait(s).unwrap_or_else(PoisonError::into_inner)
    }

    /// MI_SEMAPHORE_SIGNAL names `context` of this engine. It means something
    /// to the one that runs alone: others look at memory when they are loaded
    /// (Broadwell PRM volume 2a, MI_SEMAPHORE_SIGNAL).
    pub(crate) fn signal(&self, context: u32) {
        let s = self.lock();
        if s.list.current().is_some_and(|c| c.context_id() == context) {
            self.signals.fetch_add(1, Ordering::AcqRel);
            self.wake.notify_all();
        }
    }

    /// How many signals the engine has got.
    pub(crate) fn signals(&self) -> u64 {
        self.signals.load(Ordering::Acquire)
    }

    /// The engine's thread gives up the CPU for a while, unless something
    /// other than `ignore` needs its attention.
    pub(crate) fn pause(&self, time: Duration, ignore: u32) {
        let s = self.lock();
        if self.attention() & !ignore == 0 {
            drop(
                self.wake
                    .wait_timeout(s, time)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }

    /// Marks the engine quiet, and tells whoever waits for that.
    pub(crate) fn set_quiet(&self, s: &mut Sched, quiet: bool) {
        s.quiet = quiet;
        if quiet {
            self.settled.notify_all();
        }
    }

    /// Whether the registers ask the engine to hold still.
    pub(crate) fn hold_requested(&self, core: &Core) -> bool {
        core.ring(self.engine, ring::MI_MODE) & ring::MI_MODE_STOP_RING != 0
            || core.ring(self.engine, ring::RESET_CTL) & ring::RESET_CTL_REQUEST != 0
    }

    /// After a write to a register that asks the engine to hold still.
    pub(crate) fn hold_changed(&self, core: &Core, wait: bool) {
        let mut s = self.lock();
        if self.hold_requested(core) {
            self.raise(attention::HOLD);
            if wait {
                drop(
                    self.settled
                        .wait_timeout_while(s, SETTLE, |s| !s.quiet)
                        .unwrap_or_else(PoisonError::into_inner),
                );
            }
        } else {
            self.clear_attention(attention::HOLD);
            if s.list.has_pending() && !s.hung {
                s.quiet = false;
            }
            self.wake.notify_all();
        }
    }

    /// A write to the submit port.
    pub(crate) fn submit(&self, core: &Core, value: u32) {
        let mut s = self.lock();
        if core.ring(self.engine, ring::MODE) & ring::MODE_RUN_LIST == 0 {
            return;
        }
        match s.list.write_port(value) {
            Load::Partial => return,
            Load::Rejected => {
                count(&self.counters.lost_loads);
                return;
            }
            Load::Replaced => count(&self.counters.lost_loads),
            Load::Accepted => {}
        }
        if !s.hung && !self.hold_requested(core) {
            s.quiet = false;
        }
        self.raise(attention::PENDING);
    }

    pub(crate) fn execlist_status(&self) -> (u32, u32) {
        self.lock().list.status()
    }

    pub(crate) fn quiet(&self) -> bool {
        self.lock().quiet
    }

    pub(crate) fn reset_pending(&self) -> bool {
        self.lock().reset
    }

    /// Asks for a reset; [`Unit::await_reset`] waits for it.
    pub(crate) fn request_reset(&self) {
        let mut s = self.lock();
        s.reset = true;
        self.raise(attention::STOP);
    }

    pub(crate) fn await_reset(&self) {
        let s = self.lock();
        let (s, _) = self
            .settled
            .wait_timeout_while(s, SETTLE, |s| s.reset && !s.shutdown)
            .unwrap_or_else(PoisonError::into_inner);
        if s.reset && !s.shutdown {
            log::warn!("{:?}: still busy after a reset request", self.engine);
        }
    }

    pub(crate) fn request_shutdown(&self) {
        let mut s = self.lock();
        s.shutdown = true;
        self.raise(attention::STOP);
        self.settled.notify_all();
    }

    /// The engine's thread resets it.
    pub(crate) fn reset(&self, core: &Core, s: &mut Sched) {
        s.list.reset();
        s.reset = false;
        s.hung = false;
        core.registers.reset_engine(self.engine);
        self.loaded_at.store(0, Ordering::Relaxed);
        self.attention.store(0, Ordering::Release);
        count(&self.counters.resets);
        self.set_quiet(s, true);
    }
}
