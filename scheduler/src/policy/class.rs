//! One priority class: who is ready, in the order of service had, and the
//! class's virtual clock.

use std::collections::BTreeSet;

/// Service by weight: nanoseconds on the engine times [`UNIT`], divided by the
/// weight.
pub type Virtual = i128;

/// Keeps fractions of a nanosecond: a heavy vGPU's virtual time grows slowly.
pub const UNIT: Virtual = 1 << 20;

/// Where a ready vGPU stands: least service first, then who came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its service with what is under way.
    pub key: Virtual,
    /// Grows with every vGPU that gets ready.
    pub order: u64,
    /// Who.
    pub vgpu: u64,
}

/// One priority class.
#[derive(Debug, Default)]
pub struct Class {
    ready: BTreeSet<Place>,
    /// The weights of those that are ready or under way.
    weight: u64,
    clock: Virtual,
}

impl Class {
    /// The virtual clock. Who was away is taken to have had that much.
    pub const fn clock(&self) -> Virtual {
        self.clock
    }

    /// The sum of the weights of those that want the engine.
    pub const fn weight(&self) -> u64 {
        self.weight
    }

    /// One more wants the engine.
    pub const fn join(&mut self, weight: u16) {
        self.weight = self.weight.saturating_add(weight as u64);
    }

    /// One less.
    pub const fn leave(&mut self, weight: u16) {
        self.weight = self.weight.saturating_sub(weight as u64);
    }

    pub fn insert(&mut self, place: Place) {
        self.ready.insert(place);
    }

    pub fn remove(&mut self, place: &Place) {
        self.ready.remove(place);
    }

    /// Who had the least.
    pub fn first(&self) -> Option<&Place> {
        self.ready.first()
    }

    /// How many are ready.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Moves the clock on by `step`, but not past `least`, the least service
    /// anyone has that wants the engine.
    pub fn advance(&mut self, step: Virtual, least: Option<Virtual>) {
        let to = self.clock + step;
        let to = least.map_or(to, |least| to.min(least));
        self.clock = self.clock.max(to);
    }
}
