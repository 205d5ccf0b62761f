//! The guests there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vgpu_control::Entry;
use vgpu_sched::sync::lock;

use super::guest::Guest;
use super::supervisor;

/// Every guest, by domain.
#[derive(Default)]
pub struct Registry {
    slots: Mutex<BTreeMap<u16, Slot>>,
    changed: Condvar,
}

enum Slot {
    /// Being made.
    Reserved,
    Live(Arc<Guest>),
}

/// A domain's place, given back on drop unless [`Reservation::fill`]ed.
pub struct Reservation<'a> {
    registry: &'a Registry,
    domid: u16,
    filled: bool,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u16, Slot>> {
        lock(&self.slots)
    }

    /// Takes the place of `domid`; `None` when it has a vGPU already.
    pub fn reserve(&self, domid: u16) -> Option<Reservation<'_>> {
        let mut slots = self.lock();
        if slots.contains_key(&domid) {
            return None;
        }
        slots.insert(domid, Slot::Reserved);
        Some(Reservation {
            registry: self,
            domid,
            filled: false,
        })
    }

    /// The guest `domid`, when it is complete.
    pub fn get(&self, domid: u16) -> Option<Arc<Guest>> {
        match self.lock().get(&domid)? {
            Slot::Live(guest) => Some(Arc::clone(guest)),
            Slot::Reserved => None,
        }
    }

    /// A line for each guest that is complete.
    pub fn list(&self) -> Vec<Entry> {
        self.guests().iter().map(|g| g.entry()).collect()
    }

    /// Forgets a guest.
    pub fn remove(&self, domid: u16) {
        let slot = self.lock().remove(&domid);
        // Its end may take a while; others need not wait for it.
        drop(slot);
        self.changed.notify_all();
    }

    /// The guests that are complete, by domain.
    pub fn guests(&self) -> Vec<Arc<Guest>> {
        let live = |slot: &Slot| match slot {
            Slot::Live(guest) => Some(Arc::clone(guest)),
            Slot::Reserved => None,
        };
        self.lock().values().filter_map(live).collect()
    }

    /// Ends every guest and waits until they are gone.
    pub fn clear(&self) {
        for guest in self.guests() {
            supervisor::stop(&guest.signals.stop);
        }
        let mut slots = self.lock();
        while slots.values().any(|s| matches!(s, Slot::Live(_))) {
            slots = self
                .changed
                .wait(slots)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Reservation<'_> {
    /// Puts the guest in its place.
    pub fn fill(mut self, guest: Arc<Guest>) {
        self.filled = true;
        self.registry.lock().insert(self.domid, Slot::Live(guest));
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.registry.remove(self.domid);
        }
    }
}
