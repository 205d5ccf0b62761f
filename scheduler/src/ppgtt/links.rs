//! Which tables the guest's roots still lead to.
//!
//! A table that nothing names any more is as a rule no table any more: drivers
//! give its page back, and soon it holds something else. If it is protected,
//! each write of that is trapped, so it is let go of as soon as the last entry
//! that named it is replaced: that is told, since the table the entry is in is
//! protected as well. What leads to it again is followed as what is new: it is
//! compared until it has been protected and compared once more.
//!
//! A guest may take a table out and put it back. One that was let go of and came
//! back as it was is kept for longer the next time, as long as nobody writes to
//! it.
//!
//! Tables are counted by the entries that name them, of tables that are linked
//! themselves. What an entry names is one level below it, so there are no
//! circles, and counting is exact. Counts change at once, and what follows from
//! them for whole trees is worked out once for all that happened
//! ([`Tables::settle_links`]), so that a guest which moves one often has it
//! walked once.

use guest_memory::Gfn;

use super::Costs;
use super::tables::{Id, Tables};

/// How often the time for which a table is kept can double.
const MOST_PATIENCE: u8 = 6;

/// How long a table stays protected that nothing names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenure {
    /// No longer than it takes to tell, or two to the power of one less of
    /// submissions.
    patience: u8,
    /// It was let go of, and has not been compared since.
    ended: bool,
    /// It was let go of since it was written a lot, and no submission has
    /// reached it since.
    pub burst: bool,
    /// The pass in which it was found to be named no more.
    since: u64,
}

impl Tenure {
    /// Whether to go on in pass `now`.
    const fn lasts(self, now: u64) -> bool {
        match self.patience.checked_sub(1) {
            None => false,
            Some(patience) => now.saturating_sub(self.since) < 1 << patience,
        }
    }

    /// A submission reached the table, and found that it differs in so many
    /// entries from what it was: as many traps were spared if it had been let
    /// go of. Says whether it had.
    pub fn returned(&mut self, changed: u32, costs: Costs) -> bool {
        self.burst = false;
        if !std::mem::take(&mut self.ended) {
            return false;
        }
        let spared = u64::from(changed) * u64::from(costs.trap_ns);
        self.patience = if spared < 2 * u64::from(costs.protect_ns) {
            (self.patience + 1).min(MOST_PATIENCE)
        } else {
            self.patience.saturating_sub(1)
        };
        true
    }
}

/// What is to be worked out.
#[derive(Default)]
pub struct Links {
    /// Tables that are named for the first time, or no more.
    touched: Vec<Id>,
    /// Tables that nothing names and that are protected for a while yet.
    kept: Vec<Id>,
}

impl Links {
    /// There are no tables.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Tables {
    /// An entry of a linked table, or a root, names a table from now on.
    fn link(&mut self, id: Id) {
        if let Some(table) = self.table_mut(id) {
            table.links += 1;
            if table.links == 1 && !table.linked {
                self.links.touched.push(id);
            }
        }
    }

    /// And names it no longer. Says whether nothing else does and it is
    /// protected, or was until it was written as no table is.
    fn unlink(&mut self, id: Id) -> bool {
        let Some(table) = self.table_mut(id) else {
            return false;
        };
        // Whoever ends a link has made it.
        table.links = table.links.saturating_sub(1);
        let last = table.links == 0 && table.linked;
        let trapped = table.watch.is_asked() || table.tenure.burst;
        if last {
            self.links.touched.push(id);
        }
        last && trapped
    }

    /// Makes entry `i` of a table name `child`.
    pub fn set_child(&mut self, id: Id, i: usize, child: Option<Id>) {
        let Some(table) = self.table_mut(id) else {
            return;
        };
        let linked = table.linked;
        let Some(place) = table.children.get_mut(i) else {
            return;
        };
        let before = std::mem::replace(place, child);
        if !linked || before == child {
            return;
        }
        child.into_iter().for_each(|id| self.link(id));
        if before.is_some_and(|id| self.unlink(id)) {
            let costs = self.costs;
            if let Some(table) = self.table_mut(id) {
                table.ledger.unlinked(costs);
            }
        }
    }

    /// The guest uses a root, or uses it again.
    pub fn link_root(&mut self, gfn: Gfn) {
        if let Some(root) = self.roots.get_mut(&gfn)
            && !std::mem::replace(&mut root.linked, true)
        {
            let id = root.id;
            self.link(id);
        }
    }

    /// The guest uses a root no more.
    pub fn unlink_root(&mut self, gfn: Gfn) {
        if let Some(root) = self.roots.get_mut(&gfn)
            && std::mem::take(&mut root.linked)
        {
            let id = root.id;
            self.unlink(id);
        }
    }

    /// Works out what is linked now, and lets go of what is not.
    pub fn settle_links(&mut self) {
        let touched = std::mem::take(&mut self.links.touched);
        if touched.is_empty() {
            return;
        }
        self.follow(touched.clone(), true);
        let lost = self.follow(touched, false);
        for id in lost {
            let now = self.pass;
            let Some(table) = self.table_mut(id).filter(|t| t.watch.is_asked()) else {
                continue;
            };
            table.tenure.since = now;
            if table.tenure.lasts(now) {
                self.links.kept.push(id);
            } else {
                self.let_go_unlinked(id);
            }
        }
    }

    /// Those of `open` that are linked now, or are not any more, and what
    /// follows from that for what they name. Returns all that changed.
    fn follow(&mut self, mut open: Vec<Id>, linked: bool) -> Vec<Id> {
        let mut changed = Vec::new();
        while let Some(id) = open.pop() {
            let Some(table) = self.table_mut(id) else {
                continue;
            };
            if table.linked == linked || (table.links > 0) != linked {
                continue;
            }
            table.linked = linked;
            changed.push(id);
            let children = std::mem::take(&mut table.children);
            for child in children.iter().copied().flatten() {
                if linked {
                    self.link(child);
                } else {
                    self.unlink(child);
                }
            }
            if let Some(table) = self.table_mut(id) {
                table.children = children;
            }
            open.append(&mut self.links.touched);
        }
        changed
    }

    /// A submission is through: lets go of what has been kept for long enough.
    pub fn tend_unlinked(&mut self) {
        let now = self.pass;
        for id in std::mem::take(&mut self.links.kept) {
            match self.table(id) {
                Some(t) if t.linked || !t.watch.is_asked() => {}
                Some(t) if t.tenure.lasts(now) => self.links.kept.push(id),
                Some(_) => self.let_go_unlinked(id),
                None => {}
            }
        }
    }

    /// Lets go of a protected table that nothing names.
    pub fn let_go_unlinked(&mut self, id: Id) {
        if let Some(table) = self.table_mut(id) {
            table.tenure.ended = true;
            self.counts.unlinked += 1;
            self.open(id);
        }
    }

    /// Frees what is not linked. Nothing of the vGPU may be at the GPU.
    pub fn sweep(&mut self) {
        self.settle_links();
        self.links.kept.clear();
        for (n, slot) in (1..).zip(self.tables.iter_mut()) {
            if let Some(table) = slot.take_if(|t| !t.linked)
                && let Some(id) = Id::new(n)
            {
                self.by_key.remove(&table.key);
                if table.watch.is_asked() {
                    self.orders.unprotect(table.key.0);
                    self.counts.unprotects += 1;
                }
                self.free.push(id);
                self.counts.freed += 1;
            }
        }
    }
}
