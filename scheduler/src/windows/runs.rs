//! Free runs of pages in the global page table.

use std::collections::{BTreeMap, BTreeSet};

/// A set of free pages, kept as maximal runs.
pub struct FreeRuns {
    /// First page to length.
    by_start: BTreeMap<u32, u32>,
    /// (length, first page), for the smallest run that fits.
    by_length: BTreeSet<(u32, u32)>,
}

impl FreeRuns {
    /// `len` free pages from `start`.
    #[must_use]
    pub fn new(start: u32, len: u32) -> Self {
        let mut runs = Self {
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
        };
        runs.add(start, len);
        runs
    }

    fn add(&mut self, start: u32, len: u32) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_length.insert((len, start));
        }
    }

    fn take(&mut self, start: u32) -> Option<u32> {
        let len = self.by_start.remove(&start)?;
        self.by_length.remove(&(len, start));
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

    /// Pages free in all.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.by_start.values().sum()
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
