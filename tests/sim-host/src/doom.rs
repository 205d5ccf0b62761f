//! The end of a vgpud, at a given step of what it does.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use guest_memory::{GuestMemory, MemoryError};
use vgpu_sched::flights::{KeptWords, LOG_WORDS};

/// What a vgpud and its GPU do to what outlives them, a step at a time: each
/// write to a guest's memory or to the flight log, each event, each request
/// taken. At the chosen one they end: that step and all that follow have no
/// effect, as if the process had been killed.
#[derive(Debug, Default)]
pub struct Doom {
    state: Mutex<State>,
    fell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Steps that are left; `None` for no end.
    left: Option<u64>,
    fallen: bool,
}

impl Doom {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends them at the `steps`th step from now.
    pub fn arm(&self, steps: u64) {
        self.lock().left = Some(steps);
    }

    /// Waits for the end.
    pub fn wait(&self) {
        let waits = |s: &mut State| !s.fallen;
        drop(self.fell.wait_while(self.lock(), waits));
    }

    /// One step. `None` when they are no more.
    pub(crate) fn step<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.lock();
        if let Some(left) = &mut state.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                state.left = None;
                state.fallen = true;
                self.fell.notify_all();
            }
        }
        // With the lock: all steps are before the end, or after it.
        (!state.fallen).then(step)
    }
}

/// A guest's memory as a vgpud reaches it.
pub(crate) struct Mortal {
    pub(crate) memory: Arc<dyn GuestMemory>,
    pub(crate) doom: Arc<Doom>,
}

impl GuestMemory for Mortal {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        let written = self.doom.step(|| self.memory.write(gpa, data));
        written.unwrap_or(Ok(()))
    }

    fn mapped_bytes(&self) -> u64 {
        self.memory.mapped_bytes()
    }

    fn invalidate(&self) {
        self.memory.invalidate();
    }
}

/// Words of a flight log. A handle: clones reach the same words.
#[derive(Clone, Debug)]
pub struct LogWords(Arc<Vec<AtomicU64>>);

impl Default for LogWords {
    fn default() -> Self {
        Self(Arc::new(
            (0..LOG_WORDS).map(|_| AtomicU64::new(0)).collect(),
        ))
    }
}

impl LogWords {
    /// As a vgpud that ends with `doom` writes them.
    pub(crate) fn mortal(&self, doom: &Arc<Doom>) -> Box<dyn KeptWords> {
        Box::new(MortalWords(self.clone(), Arc::clone(doom)))
    }
}

struct MortalWords(LogWords, Arc<Doom>);

impl KeptWords for MortalWords {
    fn load(&self, index: usize) -> u64 {
        KeptWords::load(&*self.0.0, index)
    }

    fn store(&self, index: usize, value: u64) {
        let _ = self.1.step(|| KeptWords::store(&*self.0.0, index, value));
    }
}
