//! What is told of protected table pages, and whether it is all there is.
//!
//! The device model counts a change of a protected page before it does it, and
//! tells of it later. Whoever saw the change, or anything that its vCPU did
//! afterwards, would see it counted. So what a submission depends on has been
//! told when, after the guest's ring was read, as many changes were told as are
//! counted. Otherwise what it depends on may wait in the submit ring still: the
//! ring's messages are in the order of things, but a workload can be prepared
//! from a tail that the guest moved on a moment ago. Then pages are compared.
//!
//! What is told is only where something changed. The entry is read again: it
//! may have been changed once more, and a comparison may have seen that.

use std::sync::PoisonError;

use guest_memory::{Gfn, PAGE_SIZE};

use super::ShadowTables;
use super::entry::Entry;
use super::tables::{Id, Tables};
use super::watch::Watch;

/// Reads how many changes of protected pages there were.
pub type Changes = Box<dyn Fn() -> u64 + Send + Sync>;

impl Tables {
    /// Changes were told of.
    pub const fn hear(&mut self, count: u64) {
        self.heard = self.heard.wrapping_add(count);
    }

    /// So many were told of.
    pub const fn hear_up_to(&mut self, count: u64) {
        self.heard = count;
    }
}

impl ShadowTables {
    /// Where the device model counts changes, from now on. Until it is known,
    /// pages are compared though they are protected.
    pub fn count_changes(&self, changes: Changes) {
        let mut now = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        *now = Some(changes);
    }

    /// Whether there may be changes not yet told.
    pub(super) fn behind(&self, inner: &Tables) -> bool {
        let changes = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        changes.as_ref().is_none_or(|now| now() != inner.heard)
    }

    /// A vCPU wrote `size` bytes at `gpa`, inside one page; what that cost it
    /// in nanoseconds, or 0 when nobody knows. A write to a page that is not
    /// followed so means nothing. One of the changes that are counted.
    pub fn wrote(&self, gpa: u64, size: usize, trap_ns: u32) {
        let inner = &mut *self.tables();
        inner.hear(1);
        inner.costs.measure_trap(trap_ns);
        let Some(id) = self.trapped(inner, Gfn::containing(gpa)) else {
            return;
        };
        if inner.table(id).is_none_or(|t| !t.watch.is_current()) {
            return;
        }
        // Less than a page.
        let at = usize::try_from(gpa & 0xfff).unwrap_or(0);
        let end = at.saturating_add(size);
        // What an instruction writes is in two entries at most.
        let mut bytes = [0; 16];
        let (first, last) = (at / 8, end.saturating_sub(1) / 8);
        let here = gpa & !7;
        if end == at || end > PAGE_SIZE || last - first > 1 {
            inner.outdate(id);
            return;
        }
        let entries = &mut bytes[..(last - first + 1) * 8];
        if self.map.read(here, entries).is_err() {
            inner.outdate(id);
            return;
        }
        for (i, raw) in (first..).zip(entries.as_chunks::<8>().0) {
            if !self.retranslate(inner, id, i, u64::from_le_bytes(*raw)) {
                inner.outdate(id);
                return;
            }
        }
    }

    /// Makes entry `i` stand for what the guest has there now, unless that is a
    /// table which no root leads to yet: those are walked at submissions,
    /// where there is someone to tell that they are too many. Says whether it
    /// does.
    fn retranslate(&self, inner: &mut Tables, id: Id, i: usize, new: u64) -> bool {
        let Some(table) = inner.table(id) else {
            return false;
        };
        if new == table.copy[i] {
            return true;
        }
        let Entry::Table { gfn, below, flags } = Entry::read(new, table.key.1) else {
            inner.counts.translated += 1;
            return self.translate(inner, id, i, new).is_ok();
        };
        // A driver that takes a table out puts its scratch table in.
        let Some(&child) = inner.by_key.get(&(gfn, below)) else {
            return false;
        };
        let Some(table) = inner.table(child).filter(|t| t.linked) else {
            return false;
        };
        let shadow = table.page.bus() | flags;
        inner.counts.translated += 1;
        inner.put(id, i, (new, shadow), Some(child));
        true
    }

    /// A frame is no longer protected, for it was written as tables are not.
    /// One of the changes that are counted.
    pub fn released(&self, gfn: Gfn) {
        let inner = &mut *self.tables();
        inner.hear(1);
        let Some(id) = inner.closed(gfn) else {
            return;
        };
        inner.counts.traps += 1;
        if let Some(table) = inner.table_mut(id) {
            table.watch = Watch::Open;
            table.ledger.end();
        }
    }

    /// `count` of the changes that are counted were not told.
    pub fn missed(&self, count: u64) {
        let mut inner = self.tables();
        inner.hear(count);
        for table in inner.tables.iter_mut().flatten() {
            table.watch.outdate();
        }
    }

    /// Frames left the guest, and others may be in their places: what was
    /// compared since may have been one that is gone.
    pub fn frames_changed(&self) {
        for table in self.tables().tables.iter_mut().flatten() {
            table.watch.outdate();
        }
    }

    /// A write to a frame came as a trap. Returns the table there, if its
    /// writes go on being told.
    fn trapped(&self, inner: &mut Tables, gfn: Gfn) -> Option<Id> {
        let costs = inner.costs;
        let id = inner.closed(gfn)?;
        inner.counts.traps += 1;
        let table = inner.table_mut(id)?;
        if !table.linked {
            // It is something else now.
            inner.let_go_unlinked(id);
            return None;
        }
        table.watch.written();
        table.ledger.written(1, costs);
        if self.wants_change(table, costs) {
            table.tenure.burst = true;
            table.ledger.change(costs);
            inner.open(id);
            return None;
        }
        Some(id)
    }
}
