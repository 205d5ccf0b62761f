//! The set of shadow tables, and what is still reachable of it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use gen8::pte::{ENTRIES, Level};
use guest_memory::Gfn;

use super::links::{Links, Tenure};
use super::watch::{Orders, Watch};
use super::written::Reach;
use super::{Costs, Ledger, ShadowError, TableCounts};
use crate::dma::{HostPage, HostPages};

/// Place in the list of tables, counted from one: half the size in a list of
/// children that may be absent.
pub type Id = NonZeroU32;

const LEVELS: [Level; 4] = [Level::Pml4, Level::Pdp, Level::Pd, Level::Pt];

fn place(id: Id) -> Option<usize> {
    usize::try_from(id.get() - 1).ok()
}

pub struct Table {
    pub key: (Gfn, Level),
    /// The entries this shadow was made from.
    pub copy: Box<[u64; ENTRIES]>,
    pub page: HostPage,
    /// The children, at most one an entry; none in a page table.
    pub children: Vec<Option<Id>>,
    /// The pass that last compared it.
    pub checked: u64,
    /// Entries that name it of tables that are linked, and roots that it is.
    pub links: u32,
    /// Whether a root leads to it.
    pub linked: bool,
    /// How long it is followed while none does.
    pub tenure: Tenure,
    /// Entries that named no memory and may later.
    pub unresolved: bool,
    /// Whether its writes are told.
    pub watch: Watch,
    /// Another level has a table at the same frame, so it is not protected:
    /// a frame has one table to tell of.
    pub shared: bool,
    pub ledger: Ledger,
}

impl Table {
    /// The first child at or behind place `from`, with its place.
    pub fn child_from(&self, from: usize) -> Option<(usize, Id)> {
        let children = self.children.get(from..)?.iter().enumerate();
        let mut children = children.filter_map(|(i, child)| Some((from + i, (*child)?)));
        children.next()
    }
}

pub struct Root {
    pub id: Id,
    pub used: u64,
    pub pins: u32,
    /// The guest gave it up.
    pub doomed: bool,
    /// It counts as a link of its table.
    pub linked: bool,
}

pub struct Tables {
    pub tables: Vec<Option<Table>>,
    pub free: Vec<Id>,
    pub by_key: HashMap<(Gfn, Level), Id>,
    pub roots: HashMap<Gfn, Root>,
    pub pass: u64,
    pub pins: u32,
    /// Entries of this pass that named no memory.
    pub misses: usize,
    /// Changes of protected pages that were told of.
    pub heard: u64,
    /// In this pass there may be some that were not: every page is compared.
    pub behind: bool,
    pub orders: Orders,
    pub links: Links,
    pub costs: Costs,
    pub reach: Reach,
    pub counts: TableCounts,
}

impl Tables {
    pub fn table(&self, id: Id) -> Option<&Table> {
        self.tables.get(place(id)?)?.as_ref()
    }

    pub fn table_mut(&mut self, id: Id) -> Option<&mut Table> {
        self.tables.get_mut(place(id)?)?.as_mut()
    }

    pub fn live(&self) -> usize {
        self.by_key.len()
    }

    pub fn create(
        &mut self,
        gfn: Gfn,
        level: Level,
        pages: &Arc<HostPages>,
        max: usize,
    ) -> Result<Id, ShadowError> {
        if self.live() >= max {
            return Err(ShadowError::TooMany { max });
        }
        let children = if level == Level::Pt { 0 } else { ENTRIES };
        let shared = self.share(gfn);
        let table = Table {
            key: (gfn, level),
            copy: Box::new([0; ENTRIES]),
            page: pages.allocate()?,
            children: vec![None; children],
            checked: 0,
            links: 0,
            linked: false,
            tenure: Tenure::default(),
            unresolved: false,
            watch: Watch::Open,
            shared,
            ledger: Ledger::default(),
        };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.tables.push(None);
                // Bounded by `max`.
                u32::try_from(self.tables.len())
                    .ok()
                    .and_then(Id::new)
                    .ok_or(ShadowError::TooMany { max })?
            }
        };
        if let Some(slot) = place(id).and_then(|i| self.tables.get_mut(i)) {
            *slot = Some(table);
        }
        self.by_key.insert((gfn, level), id);
        Ok(id)
    }

    /// Makes entry `i` of a table's shadow stand for the guest's, given as
    /// that and what the GPU is to find, which leads to `child`.
    pub fn put(&mut self, id: Id, i: usize, (entry, shadow): (u64, u64), child: Option<Id>) {
        self.leaves(id, i);
        if let Some(table) = self.table_mut(id) {
            table.page.write_u64(i * 8, shadow);
            table.copy[i] = entry;
        }
        self.set_child(id, i, child);
    }

    /// The tables at a frame, at most one a level.
    pub fn at(&self, gfn: Gfn) -> impl Iterator<Item = Id> {
        LEVELS
            .into_iter()
            .filter_map(move |level| self.by_key.get(&(gfn, level)).copied())
    }

    /// Another table is about to be made at a frame: says whether there are
    /// others, which are not protected any more.
    fn share(&mut self, gfn: Gfn) -> bool {
        let others: Vec<Id> = self.at(gfn).collect();
        for &id in &others {
            self.open(id);
            if let Some(table) = self.table_mut(id) {
                table.shared = true;
            }
        }
        !others.is_empty()
    }

    /// A workload that used `root` is through.
    pub fn unpin(&mut self, root: Gfn) {
        if let Some(r) = self.roots.get_mut(&root) {
            r.pins -= 1;
        }
        self.pins -= 1;
        if self.pins == 0 {
            self.bury();
        }
    }

    /// Frees the roots the guest gave up, if there are any.
    pub fn bury(&mut self) {
        let doomed: Vec<Gfn> = (self.roots.iter())
            .filter_map(|(gfn, r)| r.doomed.then_some(*gfn))
            .collect();
        for root in &doomed {
            self.drop_root(*root);
        }
        if !doomed.is_empty() {
            self.sweep();
        }
    }

    /// Forgets a root.
    pub fn drop_root(&mut self, root: Gfn) {
        self.root_leaves(root);
        self.unlink_root(root);
        self.roots.remove(&root);
    }

    /// Frees what is unreachable, then the roots longest unused, down to
    /// `keep` tables; `spare` stays.
    pub fn make_room(&mut self, keep: usize, spare: Gfn) {
        self.sweep();
        while self.live() > keep {
            let oldest = self
                .roots
                .iter()
                .filter(|(gfn, _)| **gfn != spare)
                .min_by_key(|(_, r)| r.used)
                .map(|(gfn, _)| *gfn);
            let Some(oldest) = oldest else {
                return;
            };
            self.drop_root(oldest);
            self.sweep();
        }
    }
}
