//! Free runs of pages in the global page table.

use std::collections::{BTreeMap, BTreeSet};

/// A set of free pages, kept as maximal runs.
pub struct FreeRuns {
    /// First page to length.
    by_start: BTreeMap<u32, u32>,
    /// (length, first page), for the smallest run that fits.
    by_length: BTreeSet<(u32, u32)>,
    /// Pages in all runs.
    total: u32,
}

impl FreeRuns {
    /// `len` free pages from `start`.
    #[must_use]
    pub fn new(start: u32, len: u32) -> Self {
        let mut runs = Self {
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
            total: 0,
        };
        runs.add(start, len);
        runs
    }

    fn add(&mut self, start: u32, len: u32) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_length.insert((len, start));
            self.total += len;
        }
    }

    fn take(&mut self, start: u32) -> Option<u32> {
        let len = self.by_start.remove(&start)?;
        self.by_length.remove(&(len, start));
        self.total -= len;
        Some(len)
    }

    /// Takes `len` consecutive pages from the shortest run that has them.
    pub fn allocate(&mut self, len: u32) -> Option<u32> {
        if len == 0 {
            return None;
        }
        let &(_, start) = self.by_length.range((len, 0)..).next()?;
        let have = self.take(start)?;
        self.add(start + len, have - len);
        Some(start)
    }

    /// Gives pages back and joins them with their neighbours.
    pub fn free(&mut self, start: u32, len: u32) {
        let mut start = start;
        let mut len = len;
        if let Some((&before, &n)) = self.by_start.range(..start).next_back()
            && before + n == start
        {
            self.take(before);
            start = before;
            len += n;
        }
        if let Some(n) = self.take(start + len) {
            len += n;
        }
        self.add(start, len);
    }

    /// The first page of the free run that ends before page `end`.
    pub fn before(&self, end: u32) -> Option<u32> {
        let (&start, &len) = self.by_start.range(..end).next_back()?;
        (start + len == end).then_some(start)
    }

    /// The page behind the free run that begins at page `start`.
    pub fn behind(&self, start: u32) -> Option<u32> {
        Some(start + self.by_start.get(&start)?)
    }

    /// Pages free in all.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Pages of the longest run.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.by_length.last().map_or(0, |(len, _)| *len)
    }

    /// How many runs there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_start.len()
    }
}

#[cfg(test)]
impl FreeRuns {
    /// Takes them from the lowest run that has them, to compare with.
    pub fn allocate_lowest(&mut self, len: u32) -> Option<u32> {
        let (&start, &have) = self.by_start.iter().find(|(_, have)| **have >= len)?;
        self.take(start);
        self.add(start + len, have - len);
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u32 = 64;

    proptest! {
        /// Against a bitmap: what is handed out was free, a request fails
        /// only when no run is long enough.
        #[test]
        fn allocation_agrees_with_a_bitmap(ops in prop::collection::vec((any::<bool>(), 1u32..12, any::<prop::sample::Index>()), 1..200)) {
            let mut runs = FreeRuns::new(3, PAGES);
            let mut used = vec![false; 3 + usize::try_from(PAGES).unwrap()];
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (give_back, len, which) in ops {
                if give_back && !held.is_empty() {
                    let (start, len) = held.swap_remove(which.index(held.len()));
                    runs.free(start, len);
                    for p in start..start + len {
                        used[usize::try_from(p).unwrap()] = false;
                    }
                    continue;
                }
                let longest = used[3..].split(|u| *u).map(<[bool]>::len).max().unwrap();
                match runs.allocate(len) {
                    Some(start) => {
                        prop_assert!(start >= 3);
                        for p in start..start + len {
                            let p = usize::try_from(p).unwrap();
                            prop_assert!(!used[p]);
                            used[p] = true;
                        }
                        held.push((start, len));
                    }
                    None => prop_assert!(longest < usize::try_from(len).unwrap()),
                }
                let free = used[3..].iter().filter(|u| !**u).count();
                prop_assert_eq!(runs.total(), u32::try_from(free).unwrap());
            }
        }
    }
}
