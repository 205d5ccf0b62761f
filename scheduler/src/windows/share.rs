//! What one vGPU has of the global page table.

use std::collections::{BTreeMap, HashSet};

use super::Key;

/// What one vGPU may have of the global page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct WindowLimits {
    /// Windows, in use or kept for later.
    pub windows: u32,
    /// Their pages. For more, it gives up its own.
    pub pages: u32,
    /// Pages in use at a time. What needs more is refused.
    pub pinned: u32,
}

impl Default for WindowLimits {
    fn default() -> Self {
        // A table has 2^20 pages: 256 vGPUs can use all they may at once. An
        // i915 guest uses some hundred pages, 16 MiB is far from it.
        Self {
            windows: 4096,
            pages: 16384,
            pinned: 4096,
        }
    }
}

/// What one vGPU has, for inspection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShareCounts {
    /// Windows that exist.
    pub windows: usize,
    /// Their pages.
    pub pages: u32,
    /// Of these windows, those in use now.
    pub pinned: u32,
    /// Their pages.
    pub pinned_pages: u32,
    /// Windows it lost so far.
    pub evicted: u64,
    /// Uses refused so far, because it used all it may.
    pub refused: u64,
}

/// One vGPU's windows.
#[derive(Default)]
pub struct Share {
    pub limits: WindowLimits,
    pub keys: HashSet<Key>,
    /// Those not in use, longest unused first.
    pub unpinned: BTreeMap<u64, Key>,
    pub pages: u32,
    pub pinned: u32,
    pub pinned_pages: u32,
    pub evicted: u64,
    pub refused: u64,
}

impl Share {
    /// Whether a window of so many pages may be used besides those that are.
    pub fn may_pin(&self, pages: u32) -> bool {
        let all = self.pinned_pages.checked_add(pages);
        self.pinned < self.limits.windows && all.is_some_and(|all| all <= self.limits.pinned)
    }

    /// Whether a window of so many pages may be made besides those there are.
    pub fn may_make(&self, pages: u32) -> bool {
        let windows = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let all = self.pages.checked_add(pages);
        windows < self.limits.windows && all.is_some_and(|all| all <= self.limits.pages)
    }

    /// A window begins to be used.
    pub const fn pin(&mut self, pages: u32) {
        self.pinned += 1;
        self.pinned_pages += pages;
    }

    /// A window is in nobody's use any more.
    pub const fn unpin(&mut self, pages: u32) {
        self.pinned -= 1;
        self.pinned_pages -= pages;
    }

    pub fn counts(&self) -> ShareCounts {
        ShareCounts {
            windows: self.keys.len(),
            pages: self.pages,
            pinned: self.pinned,
            pinned_pages: self.pinned_pages,
            evicted: self.evicted,
            refused: self.refused,
        }
    }
}
