//! Which windows stand where, and which go when others need the room.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::runs::FreeRuns;
use super::share::{Share, ShareCounts, WindowLimits};
use super::{Key, NoRoom, WindowCounts};

struct Window {
    start: u32,
    pages: u32,
    pins: u32,
    /// Place in the queue for eviction while unpinned.
    stamp: u64,
}

/// Pages on which a window stood.
#[derive(Default)]
pub struct Vacated(pub Vec<Range<u32>>);

/// Where a window stands.
#[derive(Clone, Copy)]
pub struct Place {
    pub start: u32,
    pub pages: u32,
    /// It was made just now.
    new: bool,
}

/// The windows there are.
pub struct Cache {
    runs: FreeRuns,
    windows: HashMap<Key, Window>,
    by_start: BTreeMap<u32, Key>,
    /// Unpinned windows, longest unused first.
    unpinned: BTreeMap<u64, Key>,
    shares: HashMap<u64, Share>,
    clock: u64,
    counts: WindowCounts,
}

impl Cache {
    pub fn new(start: u32, pages: u32) -> Self {
        Self {
            runs: FreeRuns::new(start, pages),
            windows: HashMap::new(),
            by_start: BTreeMap::new(),
            unpinned: BTreeMap::new(),
            shares: HashMap::new(),
            clock: 0,
            counts: WindowCounts::default(),
        }
    }

    pub fn set_limits(&mut self, vgpu: u64, limits: WindowLimits) {
        self.shares.entry(vgpu).or_default().limits = limits;
    }

    /// Pins the window `key` of so many pages, which is made if it does not
    /// stand. What had to go for it is in `vacated`, also on failure.
    pub fn acquire(
        &mut self,
        key: Key,
        pages: usize,
        vacated: &mut Vacated,
    ) -> Result<Place, NoRoom> {
        let full = |free| NoRoom::Table { pages, free };
        let pages = u32::try_from(pages).map_err(|_| full(self.runs.total()))?;
        let share = self.shares.entry(key.vgpu).or_default();
        match self.windows.get_mut(&key) {
            Some(w) if w.pages == pages => {
                if w.pins == 0 {
                    check(share, pages, &mut self.counts)?;
                    self.unpinned.remove(&w.stamp);
                    share.unpinned.remove(&w.stamp);
                    share.pin(pages);
                }
                w.pins += 1;
                return Ok(Place {
                    start: w.start,
                    pages,
                    new: false,
                });
            }
            // Another length under the same name is another window.
            Some(w) if w.pins > 0 => return Err(full(self.runs.total())),
            Some(_) => _ = self.evict(key, vacated),
            None => {}
        }
        let start = self.make(key.vgpu, pages, vacated)?;
        let window = Window {
            start,
            pages,
            pins: 1,
            stamp: 0,
        };
        self.windows.insert(key, window);
        self.by_start.insert(start, key);
        let share = self.shares.entry(key.vgpu).or_default();
        share.keys.insert(key);
        share.pages += pages;
        share.pin(pages);
        Ok(Place {
            start,
            pages,
            new: true,
        })
    }

    /// Finds room for another window of a vGPU.
    fn make(&mut self, vgpu: u64, pages: u32, vacated: &mut Vacated) -> Result<u32, NoRoom> {
        // Whoever goes through many windows goes through his own.
        loop {
            let share = self.shares.entry(vgpu).or_default();
            check(share, pages, &mut self.counts)?;
            if share.may_make(pages) {
                break;
            }
            let Some((_, &oldest)) = share.unpinned.first_key_value() else {
                return Err(refuse(share, pages, &mut self.counts));
            };
            self.push_out(oldest, vacated);
        }
        if let Some(start) = self.runs.allocate(pages) {
            return Ok(start);
        }
        for key in self.in_the_way(pages) {
            self.push_out(key, vacated);
        }
        self.runs.allocate(pages).ok_or(NoRoom::Table {
            pages: usize::try_from(pages).unwrap_or(usize::MAX),
            free: self.runs.total(),
        })
    }

    /// What must go so that so many pages in a row are free: the window
    /// longest unused whose surroundings nothing pinned cuts short, and as
    /// many of its neighbours as it takes. Windows that are spread over the
    /// table would make room without making a place.
    fn in_the_way(&self, pages: u32) -> Vec<Key> {
        let mut hopeless = HashSet::new();
        for key in self.unpinned.values() {
            if hopeless.contains(key) {
                continue;
            }
            let (enough, keys) = self.surroundings(*key, pages);
            if enough {
                return keys;
            }
            hopeless.extend(keys);
        }
        Vec::new()
    }

    /// Unpinned windows around `key`, among them it, that leave `pages` in a
    /// row when they go; or all there are up to what is pinned.
    fn surroundings(&self, key: Key, pages: u32) -> (bool, Vec<Key>) {
        let mut keys = vec![key];
        let Some(w) = self.windows.get(&key) else {
            return (false, keys);
        };
        let (mut start, mut end) = (w.start, w.start + w.pages);
        loop {
            start = self.runs.before(start).unwrap_or(start);
            end = self.runs.behind(end).unwrap_or(end);
            if end - start >= pages {
                return (true, keys);
            }
            let unpinned = |key: &Key| {
                let w = self.windows.get(key).filter(|w| w.pins == 0)?;
                Some((w.stamp, *key, w.start, w.start + w.pages))
            };
            let left = self.by_start.range(..start).next_back();
            let left = left.and_then(|(_, k)| unpinned(k)).filter(|l| l.3 == start);
            let right = self.by_start.get(&end).and_then(unpinned);
            let next = match (left, right) {
                (Some(l), Some(r)) if r.0 < l.0 => r,
                (Some(l), _) => l,
                (None, Some(r)) => r,
                (None, None) => return (false, keys),
            };
            keys.push(next.1);
            start = start.min(next.2);
            end = end.max(next.3);
        }
    }

    /// Evicts for want of room.
    fn push_out(&mut self, key: Key, vacated: &mut Vacated) {
        if self.evict(key, vacated) {
            self.counts.evicted += 1;
            if let Some(share) = self.shares.get_mut(&key.vgpu) {
                share.evicted += 1;
            }
        }
    }

    /// Removes a window if nothing runs in it; whether it did.
    pub fn evict(&mut self, key: Key, vacated: &mut Vacated) -> bool {
        if self.windows.get(&key).is_none_or(|w| w.pins > 0) {
            return false;
        }
        let Some(w) = self.windows.remove(&key) else {
            return false;
        };
        self.by_start.remove(&w.start);
        self.unpinned.remove(&w.stamp);
        if let Some(share) = self.shares.get_mut(&key.vgpu) {
            share.unpinned.remove(&w.stamp);
            share.keys.remove(&key);
            share.pages -= w.pages;
        }
        self.runs.free(w.start, w.pages);
        vacated.0.push(w.start..w.start + w.pages);
        true
    }

    /// Drops a pin; whether it was the last.
    pub fn unpin(&mut self, key: Key) -> bool {
        let Some(w) = self.windows.get_mut(&key) else {
            return false;
        };
        w.pins -= 1;
        if w.pins > 0 {
            return false;
        }
        self.clock += 1;
        w.stamp = self.clock;
        self.unpinned.insert(w.stamp, key);
        if let Some(share) = self.shares.get_mut(&key.vgpu) {
            share.unpinned.insert(w.stamp, key);
            share.unpin(w.pages);
        }
        true
    }

    /// Notes a use of a window for which so many entries were written.
    pub const fn count(&mut self, place: Place, wrote: u64) {
        let counts = &mut self.counts;
        match (place.new, wrote) {
            (true, _) => counts.misses += 1,
            (false, 0) => counts.hits += 1,
            (false, _) => counts.changed += 1,
        }
    }

    /// The windows of a vGPU.
    pub fn keys(&self, vgpu: u64) -> Vec<Key> {
        let share = self.shares.get(&vgpu);
        share.map_or(Vec::new(), |s| s.keys.iter().copied().collect())
    }

    /// Forgets a vGPU that has no windows any more.
    pub fn forget(&mut self, vgpu: u64) {
        if self.shares.get(&vgpu).is_some_and(|s| s.keys.is_empty()) {
            self.shares.remove(&vgpu);
        }
    }

    pub fn share(&self, vgpu: u64) -> ShareCounts {
        let share = self.shares.get(&vgpu);
        share.map_or(ShareCounts::default(), Share::counts)
    }

    pub fn counts(&self) -> WindowCounts {
        WindowCounts {
            windows: self.windows.len(),
            pinned: self.windows.len() - self.unpinned.len(),
            free_pages: self.runs.total(),
            free_runs: self.runs.count(),
            longest_free: self.runs.longest(),
            ..self.counts
        }
    }
}

/// Whether a vGPU may use another window.
fn check(share: &mut Share, pages: u32, counts: &mut WindowCounts) -> Result<(), NoRoom> {
    if share.may_pin(pages) {
        Ok(())
    } else {
        Err(refuse(share, pages, counts))
    }
}

fn refuse(share: &mut Share, pages: u32, counts: &mut WindowCounts) -> NoRoom {
    share.refused += 1;
    counts.refused += 1;
    NoRoom::Share {
        asked: pages,
        windows: share.pinned,
        pages: share.pinned_pages,
        limits: share.limits,
    }
}

#[cfg(test)]
impl Cache {
    /// The pages on which windows stand.
    pub fn covered(&self) -> impl Iterator<Item = Range<u32>> {
        self.windows.values().map(|w| w.start..w.start + w.pages)
    }
}
