//! What is at the GPU, in memory that outlives this process.
//!
//! A GPU that dies with this process says as it goes how far it is
//! ([`gpu_bus::Journal`]); here that is kept, for each workload that an engine
//! was given, beside what leads from there back to the guest's own context. The
//! vgpud that comes next goes on from it ([`FlightLog::remains`]).
//!
//! Each workload has a slot. What changes in it is written in a place that
//! nobody reads, and one store makes it the one that counts: the memory is
//! sound at whatever instant the process ends.

mod layout;
mod slot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};

use gen8::Engine;
use gpu_bus::{Journal, Place};

use crate::sync::lock;
use layout::{Bank, SLOTS, active, field};
pub use layout::{LOG_WORDS, NotALog};
pub use slot::{Flight, FlightSlot, Landing, Lost};

/// Memory that outlives this process, in words. No other process writes it
/// meanwhile.
pub trait KeptWords: Send + Sync {
    /// Word `index`, which is below [`LOG_WORDS`].
    fn load(&self, index: usize) -> u64;
    /// Sets word `index`. Whoever reads what a dead process stored sees its
    /// stores in the order in which they were made.
    fn store(&self, index: usize, value: u64);
}

/// An engine's part of the log.
#[derive(Default)]
struct EngineLog {
    used: [bool; SLOTS],
    /// The slot of what the engine runs.
    current: Option<usize>,
}

/// The log.
pub struct FlightLog {
    words: Box<dyn KeptWords>,
    engines: [Mutex<EngineLog>; Engine::COUNT],
}

impl fmt::Debug for FlightLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightLog").finish_non_exhaustive()
    }
}

impl FlightLog {
    /// The log in `words`, which are all 0 or were another process's log.
    /// What that left is kept until somebody has taken and dropped it.
    ///
    /// # Errors
    /// [`NotALog`]: they are something else.
    pub fn open(words: Box<dyn KeptWords>) -> Result<Arc<Self>, NotALog> {
        layout::check(&*words)?;
        let engines = Engine::ALL.map(|engine| {
            let used = std::array::from_fn(|at| {
                let slot = layout::slot(engine, at);
                // Tags count anew: what another process called so is not what
                // this one will.
                words.store(slot + field::TAG, field::NO_TAG);
                words.load(slot + field::STATUS) == field::IN_USE
            });
            Mutex::new(EngineLog {
                used,
                current: None,
            })
        });
        Ok(Arc::new(Self { words, engines }))
    }

    /// What another process left, in the order of engines. To be called once,
    /// before anything is given to the GPU.
    #[must_use]
    pub fn remains(self: &Arc<Self>) -> Vec<FlightSlot> {
        let engines = Engine::ALL.into_iter();
        let slots = engines.flat_map(|engine| {
            let used = lock(&self.engines[engine.index()]).used;
            (0..SLOTS)
                .filter(move |at| used[*at])
                .map(move |at| (engine, at))
        });
        let slots: Vec<_> = slots.collect();
        slots
            .into_iter()
            .map(|(engine, at)| FlightSlot::new(Arc::clone(self), engine, at))
            .collect()
    }

    /// Takes a slot for a workload of `vgpu` that is about to be loaded. `None`
    /// when all are in use.
    #[must_use]
    pub fn take(
        self: &Arc<Self>,
        engine: Engine,
        vgpu: u64,
        flight: &Flight,
    ) -> Option<FlightSlot> {
        let at = {
            let log = &mut *lock(&self.engines[engine.index()]);
            let at = log.used.iter().position(|used| !used)?;
            log.used[at] = true;
            at
        };
        let slot = FlightSlot::new(Arc::clone(self), engine, at);
        slot.describe(vgpu, flight);
        Some(slot)
    }

    fn load(&self, index: usize) -> u64 {
        self.words.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        self.words.store(index, value);
    }

    fn free(&self, engine: Engine, at: usize) {
        let log = &mut *lock(&self.engines[engine.index()]);
        self.store(layout::slot(engine, at) + field::STATUS, 0);
        log.used[at] = false;
        log.current.take_if(|current| *current == at);
    }

    /// Calls `with` with the place of the slot of what the engine runs.
    fn current(&self, engine: usize, with: impl FnOnce(usize)) {
        let Some((engine, log)) = Engine::from_index(engine).zip(self.engines.get(engine)) else {
            return;
        };
        // Held until it is written: the slot may become free meanwhile.
        let log = lock(log);
        if let Some(at) = log.current {
            with(layout::slot(engine, at));
        }
    }

    /// Writes dwords into the one of a pair of banks that does not count.
    fn write_bank(&self, slot: usize, bank: Bank, second: bool, dwords: &[u32]) {
        let start = slot + bank.start(second);
        let most = bank.most().min(dwords.len());
        self.store(start, u64::try_from(most).unwrap_or(0));
        for (at, pair) in (start + 1..).zip(dwords[..most].chunks(2)) {
            let high = pair.get(1).copied().unwrap_or(0);
            self.store(at, u64::from(high) << 32 | u64::from(pair[0]));
        }
    }
}

impl Journal for FlightLog {
    fn began(&self, engine: usize, descriptor: u64) {
        let Some((unit, log)) = Engine::from_index(engine).zip(self.engines.get(engine)) else {
            return;
        };
        let mut log = lock(log);
        let named = |at: &usize| {
            let word = layout::slot(unit, *at) + field::TAG;
            log.used[*at] && self.load(word) == descriptor >> 32
        };
        log.current = (0..SLOTS).find(named);
    }

    fn did(&self, engine: usize, place: &Place, own: Option<&[u32]>, effect: &[u32]) {
        self.current(engine, |slot| {
            let before = self.load(slot + field::ACTIVE);
            let mut now = (before ^ active::PLACE | active::BEGAN) & !active::HAS_EFFECT;
            let at = slot + layout::place(now & active::PLACE != 0);
            let [(first, first_state), (second, second_state)] = place.batches;
            let states = u64::from(second_state) << 32 | u64::from(first_state);
            for (at, word) in (at..).zip([place.head.into(), first, second, states]) {
                self.store(at, word);
            }
            if let Some(own) = own {
                now ^= active::OWN;
                self.write_bank(slot, Bank::Own, now & active::OWN != 0, own);
            }
            if !effect.is_empty() {
                now = (now ^ active::EFFECT) | active::HAS_EFFECT;
                self.write_bank(slot, Bank::Effect, now & active::EFFECT != 0, effect);
            }
            self.store(slot + field::ACTIVE, now);
        });
    }

    fn about(&self, engine: usize, effect: &[u32]) {
        self.current(engine, |slot| {
            let before = self.load(slot + field::ACTIVE);
            let now = (before ^ active::EFFECT) | active::HAS_EFFECT;
            self.write_bank(slot, Bank::Effect, now & active::EFFECT != 0, effect);
            self.store(slot + field::ACTIVE, now);
        });
    }
}
