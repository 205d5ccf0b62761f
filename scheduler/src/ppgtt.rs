//! Shadows of the guests' per-process page tables, kept lazily.
//!
//! The GPU walks tables of ours. Each stands for one guest table page at
//! one level and keeps a private copy of the entries it was made from. At a
//! submission every table reachable from the context's root is read once
//! and compared with its copy; what changed is translated. Children are
//! found from the copy, so a guest that changes a table meanwhile changes
//! nothing we decided.
//!
//! A table is freed only while no workload of its vGPU is at the GPU: until
//! then the GPU may still hold a cached way to it.

mod entry;
mod lookup;
mod tables;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use gen8::pte::{ENTRIES, Level};
use guest_memory::{Gfn, PAGE_SIZE};

use crate::dma::{GuestMap, HostPages, OutOfPages};
use crate::sync::lock;
use entry::Entry;
use tables::{Id, Root, Tables};

/// How many tables one guest may have shadowed.
#[derive(Clone, Copy, Debug)]
pub struct TableLimits {
    /// Above this, tables out of use are freed when the GPU is idle of the
    /// guest.
    pub keep: usize,
    /// Above this, a context that needs more fails.
    pub max: usize,
}

impl Default for TableLimits {
    fn default() -> Self {
        // A table costs 8 to 10 KiB here. 4096 map 8 GiB of 4 KiB pages.
        Self {
            keep: 2048,
            max: 4096,
        }
    }
}

/// Entries without memory that a submission looks for. Each costs an attempt
/// to map it, and a guest can have two million; the removal of its vGPU waits
/// for all of them. Those above stay unmapped and are tried the next time.
const MAX_MISSES: usize = 1024;

/// A context's tables cannot be shadowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShadowError {
    /// Too many tables.
    #[error("the guest's page tables are too many to shadow: {max} allowed")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// No memory for a shadow.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
}

/// What the tables of a vGPU cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableCounts {
    /// Tables now.
    pub tables: usize,
    /// Roots now.
    pub roots: usize,
    /// Guest table pages read and compared.
    pub compared: u64,
    /// Entries that had changed.
    pub translated: u64,
    /// Tables freed.
    pub freed: u64,
}

/// The shadow tables of one vGPU.
pub struct ShadowTables {
    map: Arc<GuestMap>,
    pages: Arc<HostPages>,
    limits: TableLimits,
    inner: Mutex<Tables>,
    /// Roots whose pins were dropped and are not yet counted. Pins are
    /// dropped on the interrupt thread, which must not wait for a guest's
    /// tables to be compared.
    dropped: Mutex<Vec<Gfn>>,
}

impl ShadowTables {
    /// No table yet.
    #[must_use]
    pub fn new(map: Arc<GuestMap>, pages: Arc<HostPages>, limits: TableLimits) -> Arc<Self> {
        Arc::new(Self {
            map,
            pages,
            limits,
            inner: Mutex::new(Tables {
                tables: Vec::new(),
                free: Vec::new(),
                by_key: HashMap::new(),
                roots: HashMap::new(),
                pass: 0,
                pins: 0,
                misses: 0,
                counts: TableCounts::default(),
            }),
            dropped: Mutex::default(),
        })
    }

    /// Locks the tables, with all dropped pins counted.
    fn tables(&self) -> MutexGuard<'_, Tables> {
        let mut inner = lock(&self.inner);
        // At most one for each of the vGPU's workloads, and those are few.
        for root in std::mem::take(&mut *lock(&self.dropped)) {
            inner.unpin(root);
        }
        inner
    }

    /// Brings the shadow of the tables under `root` up to date and keeps it
    /// until the pin is dropped.
    ///
    /// # Errors
    /// [`ShadowError`]; the guest's other roots stay as they are.
    pub fn pin(self: &Arc<Self>, root: Gfn) -> Result<RootPin, ShadowError> {
        let mut inner = self.tables();
        if inner.pins == 0 && inner.live() > self.limits.keep {
            inner.make_room(self.limits.keep, root);
        }
        inner.pass += 1;
        inner.misses = 0;
        let before = inner.counts.compared;
        let synced = self.sync(&mut inner, root, Level::Pml4);
        let id = match synced {
            Ok(id) => id,
            Err(e) => {
                if inner.pins == 0 {
                    inner.sweep();
                }
                return Err(e);
            }
        };
        let used = inner.pass;
        let entry = inner.roots.entry(root).or_insert(Root {
            id,
            used,
            pins: 0,
            doomed: false,
        });
        entry.id = id;
        entry.used = used;
        entry.pins += 1;
        entry.doomed = false;
        inner.pins += 1;
        let bus = inner.table(id).map_or(0, |t| t.page.bus());
        let compared = inner.counts.compared - before;
        Ok(RootPin {
            tables: Arc::clone(self),
            root,
            bus,
            compared,
        })
    }

    /// Whether there are more tables than are kept: some should go, which
    /// takes a moment in which no root is pinned.
    #[must_use]
    pub fn crowded(&self) -> bool {
        self.tables().live() > self.limits.keep
    }

    /// The guest no longer uses `root`.
    pub fn destroy(&self, root: Gfn) {
        let mut inner = self.tables();
        if let Some(r) = inner.roots.get_mut(&root) {
            r.doomed = true;
        }
        if inner.pins == 0 {
            inner.bury();
        }
    }

    /// Frees every table, the guest being gone. Returns whether a workload
    /// was abandoned: then its engine may still walk them, and they stay.
    pub fn clear(&self) -> bool {
        let mut inner = self.tables();
        let abandoned = inner.pins > 0;
        if abandoned {
            std::mem::forget(std::mem::take(&mut inner.tables));
        }
        inner.roots.clear();
        inner.sweep();
        inner.by_key.clear();
        abandoned
    }

    /// Counts for inspection.
    #[must_use]
    pub fn counts(&self) -> TableCounts {
        let inner = self.tables();
        TableCounts {
            tables: inner.live(),
            roots: inner.roots.len(),
            ..inner.counts
        }
    }

    /// Finds or makes the shadow of a table and compares it.
    fn sync(&self, inner: &mut Tables, gfn: Gfn, level: Level) -> Result<Id, ShadowError> {
        let id = match inner.by_key.get(&(gfn, level)) {
            Some(&id) => id,
            None => inner.create(gfn, level, &self.pages, self.limits.max)?,
        };
        self.compare(inner, id)?;
        Ok(id)
    }

    /// Compares one table and everything below it, each once a pass. The
    /// level falls with each step, so a table that names itself ends too.
    fn compare(&self, inner: &mut Tables, id: Id) -> Result<(), ShadowError> {
        let pass = inner.pass;
        let Some(table) = inner.table_mut(id) else {
            return Ok(());
        };
        if table.checked == pass {
            return Ok(());
        }
        table.checked = pass;
        let retry = std::mem::take(&mut table.unresolved);
        let new = self.read(table.key.0);
        let same = *table.copy == new;
        let leaf = table.children.is_empty();
        inner.counts.compared += 1;
        if same && leaf && !retry {
            return Ok(());
        }
        let mut visited = None;
        for (i, &new) in new.iter().enumerate() {
            let Some(table) = inner.table(id) else {
                break;
            };
            if table.copy[i] != new {
                inner.counts.translated += 1;
            } else if let Some(child) = table.children.get(i).copied().flatten() {
                // Unused ranges name one scratch table over and over.
                if visited != Some(child) {
                    self.compare(inner, child)?;
                    visited = Some(child);
                }
                continue;
            } else if !retry || new & gen8::pte::PRESENT == 0 {
                continue;
            }
            self.translate(inner, id, i, new)?;
        }
        Ok(())
    }

    /// The entries of a guest table, read once. One the guest has no memory
    /// for maps nothing.
    fn read(&self, gfn: Gfn) -> [u64; ENTRIES] {
        let mut bytes = [0; PAGE_SIZE];
        let mut entries = [0; ENTRIES];
        let read = gfn
            .address()
            .is_some_and(|gpa| self.map.read(gpa, &mut bytes).is_ok());
        if read {
            for (e, raw) in entries.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *e = u64::from_le_bytes(*raw);
            }
        }
        entries
    }

    /// Makes entry `i` of a shadow stand for the guest's `new`.
    fn translate(&self, inner: &mut Tables, id: Id, i: usize, new: u64) -> Result<(), ShadowError> {
        let Some(level) = inner.table(id).map(|t| t.key.1) else {
            return Ok(());
        };
        let mut child = None;
        let mut unresolved = false;
        let shadow = match Entry::read(new, level) {
            Entry::Nothing => 0,
            Entry::Table { gfn, below, flags } => {
                let at = self.sync(inner, gfn, below)?;
                child = Some(at);
                inner.table(at).map_or(0, |t| t.page.bus() | flags)
            }
            Entry::Page { gfn, flags } | Entry::Large { gfn, flags } => {
                let found = if inner.misses < MAX_MISSES {
                    self.map.bus(gfn)
                } else {
                    None
                };
                if found.is_none() {
                    inner.misses += 1;
                    unresolved = true;
                }
                found.map_or(0, |bus| bus | flags)
            }
        };
        if let Some(table) = inner.table_mut(id) {
            table.page.write_u64(i * 8, shadow);
            table.copy[i] = new;
            table.unresolved |= unresolved;
            if let Some(c) = table.children.get_mut(i) {
                *c = child;
            }
        }
        Ok(())
    }
}

/// A root in use by a workload.
pub struct RootPin {
    tables: Arc<ShadowTables>,
    root: Gfn,
    bus: u64,
    /// Guest table pages read for it.
    pub compared: u64,
}

impl RootPin {
    /// The bus address of the shadow root.
    #[must_use]
    pub const fn bus(&self) -> u64 {
        self.bus
    }
}

impl Drop for RootPin {
    fn drop(&mut self) {
        lock(&self.tables.dropped).push(self.root);
    }
}

#[cfg(test)]
mod tests;
