//! Records by frame number, in bounded memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guest_memory::Gfn;

use super::{Footprint, Frame};

/// Frames a leaf covers: 2 MiB of guest memory.
pub(super) const LEAF_FRAMES: usize = 512;
const LEAF_FRAMES_U64: u64 = 512;

/// The memory a detector may use, and uses.
pub(super) struct Budget {
    limit: usize,
    bytes: AtomicUsize,
    pages: AtomicUsize,
}

impl Budget {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
        }
    }

    /// Takes `bytes`, if they are left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let within = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Counts a page that is now retained, or no longer.
    pub(super) fn count(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => {
                self.pages.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                self.pages.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// A leaf for each 2 MiB, made when first needed. A plain array finds them:
/// the guest chooses which frames it uses, and a hash map of its choices
/// would have to be hardened against it.
pub(super) struct Table<L> {
    leaves: Box<[Mutex<Option<Box<L>>>]>,
    budget: Budget,
}

impl<L: Default> Table<L> {
    /// For frames below `frames`, in `limit` bytes and the array's own.
    pub(super) fn new(frames: u64, limit: usize) -> Self {
        // A guest of more frames than an address space has cannot exist.
        let leaves = usize::try_from(frames).map_or(0, |n| n.div_ceil(LEAF_FRAMES));
        Self {
            leaves: (0..leaves).map(|_| Mutex::new(None)).collect(),
            budget: Budget::new(limit),
        }
    }

    /// The leaf of `gfn`, if there is one, and the place in it.
    pub(super) fn look<R>(
        &self,
        gfn: Gfn,
        f: impl FnOnce(&mut L, usize, &Budget) -> R,
    ) -> Option<R> {
        let (leaf, at) = self.lock(gfn)?;
        let mut leaf = leaf;
        leaf.as_deref_mut().map(|leaf| f(leaf, at, &self.budget))
    }

    /// The leaf of `gfn`, made if the budget allows, and the place in it.
    pub(super) fn make<R>(
        &self,
        gfn: Gfn,
        f: impl FnOnce(&mut L, usize, &Budget) -> R,
    ) -> Option<R> {
        let (mut leaf, at) = self.lock(gfn)?;
        if leaf.is_none() && !self.budget.take(size_of::<L>()) {
            return None;
        }
        Some(f(leaf.get_or_insert_default(), at, &self.budget))
    }

    fn lock(&self, gfn: Gfn) -> Option<(MutexGuard<'_, Option<Box<L>>>, usize)> {
        let gfn = usize::try_from(gfn.0).ok()?;
        let leaf = self.leaves.get(gfn / LEAF_FRAMES)?;
        // Every change of a leaf is complete before anything can panic.
        let leaf = leaf.lock().unwrap_or_else(PoisonError::into_inner);
        Some((leaf, gfn % LEAF_FRAMES))
    }

    pub(super) fn footprint(&self) -> Footprint {
        let array = size_of_val(&*self.leaves);
        Footprint {
            pages: self.budget.pages.load(Ordering::Relaxed),
            bytes: self.budget.bytes.load(Ordering::Relaxed) + array,
            limit: self.budget.limit.saturating_add(array),
        }
    }
}

/// A leaf with one small record a page.
pub(super) struct Records<R>([Option<R>; LEAF_FRAMES]);

impl<R> Default for Records<R> {
    fn default() -> Self {
        Self([const { None }; LEAF_FRAMES])
    }
}

impl<R: Copy> Table<Records<R>> {
    /// The record of each frame, in order. A leaf is locked once for all
    /// frames in a row that are its.
    pub(super) fn each(&self, frames: &[Frame<'_>], mut with: impl FnMut(usize, Option<R>)) {
        let mut i = 0;
        while let Some(frame) = frames.get(i) {
            let leaf = frame.gfn.0 / LEAF_FRAMES_U64;
            let ours = |frame: &Frame<'_>| frame.gfn.0 / LEAF_FRAMES_U64 == leaf;
            let row = frames[i..].iter().take_while(|frame| ours(frame));
            let locked = self.lock(frame.gfn);
            let records = locked.as_ref().and_then(|(leaf, _)| leaf.as_deref());
            for frame in row {
                let at = usize::try_from(frame.gfn.0 % LEAF_FRAMES_U64).unwrap_or(0);
                with(i, records.and_then(|records| records.0[at]));
                i += 1;
            }
        }
    }

    /// Whether there was room.
    pub(super) fn set(&self, gfn: Gfn, record: R) -> bool {
        self.make(gfn, |leaf, at, budget| {
            budget.count(leaf.0[at].is_some(), true);
            leaf.0[at] = Some(record);
        })
        .is_some()
    }

    pub(super) fn clear(&self, gfn: Gfn) {
        self.look(gfn, |leaf, at, budget| {
            budget.count(leaf.0[at].is_some(), false);
            leaf.0[at] = None;
        });
    }
}
