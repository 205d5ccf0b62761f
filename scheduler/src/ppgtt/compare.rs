//! Bringing shadows up to date.

use gen8::pte::{ENTRIES, Level};
use guest_memory::{Gfn, MemoryError, PAGE_SIZE};

use super::entry::Entry;
use super::tables::{Id, Tables};
use super::{MAX_MISSES, ShadowError, ShadowTables};

/// Entries compared in one go. What is the same, which is nearly all, is
/// passed over at the speed of memory: the compiler makes one comparison of
/// wide vectors of it.
const GROUP: usize = 32;

/// The places at which two tables differ, in ascending order.
fn differences(a: &[u64; ENTRIES], b: &[u64; ENTRIES]) -> impl Iterator<Item = usize> {
    let groups = a
        .as_chunks::<GROUP>()
        .0
        .iter()
        .zip(b.as_chunks::<GROUP>().0);
    groups
        .enumerate()
        .filter(|(_, (a, b))| a != b)
        .flat_map(|(n, (a, b))| {
            let entries = a.iter().zip(b).enumerate();
            entries
                .filter(|(_, (a, b))| a != b)
                .map(move |(i, _)| n * GROUP + i)
        })
}

impl ShadowTables {
    /// Finds or makes the shadow of a table and brings it up to date.
    pub(super) fn sync(
        &self,
        inner: &mut Tables,
        gfn: Gfn,
        level: Level,
    ) -> Result<Id, ShadowError> {
        let id = match inner.by_key.get(&(gfn, level)) {
            Some(&id) => id,
            None => inner.create(gfn, level, &self.pages, self.limits.max)?,
        };
        self.bring_up(inner, id)?;
        Ok(id)
    }

    /// Brings one table and everything below it up to date, each once a pass.
    /// The level falls with each step, so a table that names itself ends too.
    fn bring_up(&self, inner: &mut Tables, id: Id) -> Result<(), ShadowError> {
        let pass = inner.pass;
        let Some(table) = inner.table_mut(id) else {
            return Ok(());
        };
        if table.checked == pass {
            return Ok(());
        }
        let first = table.checked == 0;
        table.checked = pass;
        let relied_on = table.watch.is_current();
        if relied_on && !inner.behind {
            inner.counts.spared += 1;
            self.resolve(inner, id)?;
            self.visited(inner, id, None);
        } else {
            let changed = self.compare(inner, id)?;
            inner.counts.doubted += u64::from(relied_on);
            // What it held before it was a table was not written to one.
            self.visited(inner, id, Some(if first { 0 } else { changed }));
        }
        self.descend(inner, id)
    }

    /// Compares a table with its copy and translates what changed. Returns
    /// how many entries did.
    fn compare(&self, inner: &mut Tables, id: Id) -> Result<u32, ShadowError> {
        self.resolve(inner, id)?;
        let Some(table) = inner.table(id) else {
            return Ok(0);
        };
        let level = table.key.1;
        let new = self.read(table.key.0)?;
        let places: Vec<usize> = differences(&table.copy, &new).collect();
        inner.counts.compared += 1;
        // At most 512.
        let changed = u32::try_from(places.len()).unwrap_or(u32::MAX);
        if level == Level::Pt {
            self.translate_pages(inner, id, &places, &new);
        } else {
            for i in places {
                self.translate(inner, id, i, new[i])?;
            }
        }
        inner.counts.translated += u64::from(changed);
        if let Some(table) = inner.table_mut(id) {
            // Not before all of it is translated.
            table.watch.compared();
        }
        Ok(changed)
    }

    /// Looks again for the memory of entries that had none.
    fn resolve(&self, inner: &mut Tables, id: Id) -> Result<(), ShadowError> {
        let Some(table) = inner.table_mut(id) else {
            return Ok(());
        };
        if !std::mem::take(&mut table.unresolved) {
            return Ok(());
        }
        let (copy, level) = (*table.copy, table.key.1);
        for (i, &entry) in copy.iter().enumerate() {
            if matches!(
                Entry::read(entry, level),
                Entry::Page { .. } | Entry::Large { .. }
            ) {
                self.translate(inner, id, i, entry)?;
            }
        }
        Ok(())
    }

    /// Brings up what a table names.
    fn descend(&self, inner: &mut Tables, id: Id) -> Result<(), ShadowError> {
        let mut visited = None;
        let mut from = 0;
        while let Some((at, child)) = inner.table(id).and_then(|t| t.child_from(from)) {
            from = at + 1;
            // Unused ranges name one scratch table over and over.
            if visited != Some(child) {
                self.bring_up(inner, child)?;
                visited = Some(child);
            }
        }
        Ok(())
    }

    /// The entries of a guest table, read once. One the guest has no memory
    /// for maps nothing.
    ///
    /// # Errors
    /// [`ShadowError::Away`]
    fn read(&self, gfn: Gfn) -> Result<[u64; ENTRIES], ShadowError> {
        let mut bytes = [0; PAGE_SIZE];
        let mut entries = [0; ENTRIES];
        let Some(gpa) = gfn.address() else {
            return Ok(entries);
        };
        match self.map.read(gpa, &mut bytes) {
            Ok(()) => {
                for (e, raw) in entries.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *e = u64::from_le_bytes(*raw);
                }
                Ok(entries)
            }
            Err(MemoryError::Host { gfn, .. }) => Err(ShadowError::Away { gfn }),
            Err(MemoryError::Unmapped(_) | MemoryError::Wraps { .. }) => Ok(entries),
        }
    }

    /// As [`Self::translate`] for entries of a page table. A driver that moves
    /// buffers fills whole tables with frames that are often neighbours.
    fn translate_pages(&self, inner: &mut Tables, id: Id, places: &[usize], new: &[u64; ENTRIES]) {
        for &i in places {
            inner.leaves(id, i);
        }
        let mut misses = inner.misses;
        let mut near = None;
        let Some(table) = inner.table_mut(id) else {
            return;
        };
        for &i in places {
            let shadow = match Entry::read(new[i], Level::Pt) {
                Entry::Page { gfn, flags } => {
                    let found = if misses < MAX_MISSES {
                        self.map.bus_near(gfn, &mut near)
                    } else {
                        None
                    };
                    if found.is_none() {
                        misses += 1;
                        table.unresolved = true;
                    }
                    found.map_or(0, |bus| bus | flags)
                }
                // No page table has others.
                Entry::Nothing | Entry::Table { .. } | Entry::Large { .. } => 0,
            };
            table.page.write_u64(i * 8, shadow);
            table.copy[i] = new[i];
        }
        inner.misses = misses;
    }

    /// Makes entry `i` of a shadow stand for the guest's `new`. A table it
    /// names is shadowed first, so the GPU never finds one half made.
    ///
    /// # Errors
    /// Only for an entry that names a table.
    pub(super) fn translate(
        &self,
        inner: &mut Tables,
        id: Id,
        i: usize,
        new: u64,
    ) -> Result<(), ShadowError> {
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
            table.unresolved |= unresolved;
        }
        inner.put(id, i, (new, shadow), child);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_difference_is_found(
            places in prop::collection::btree_set(0..ENTRIES, 0..60),
            base in any::<u64>(),
        ) {
            let a = [base; ENTRIES];
            let mut b = a;
            for &i in &places {
                b[i] ^= 1 << (i % 64);
            }
            let found: Vec<_> = differences(&a, &b).collect();
            prop_assert_eq!(found, places.into_iter().collect::<Vec<_>>());
        }
    }
}
