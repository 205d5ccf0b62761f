//! Windows in the physical global page table.
//!
//! A guest has a whole table of its own; the physical one is a cache of the
//! runs of pages that contexts need while they run. A window is named by
//! what it shows, stands anywhere, keeps its place while pinned, and is
//! evicted when others need the room. Entries are written only when they
//! differ from what the table is known to hold.

mod image;
mod runs;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gen8::{Engine, pte, ring};
use gpu_bus::GGTT_ENTRIES;

use crate::dma::HostPage;
use crate::registers::Registers;
use crate::sync::lock;
use image::PteImage;
use runs::FreeRuns;

/// Windows kept at most, so that what remembers them stays small.
const MAX_WINDOWS: usize = 1 << 16;

/// What a window shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Pages of the guest's own global table, from this one.
    Guest {
        /// First page in the guest's table.
        page: u32,
        /// Pages.
        pages: u32,
    },
    /// The image of a context: the guest's pages, the register page ours.
    Image {
        /// Whose context.
        engine: Engine,
        /// Where the guest has it, a page of its table.
        page: u32,
    },
    /// A shadow ring.
    Ring {
        /// Bus address of its first page.
        page: u64,
    },
    /// Pages of vgpud's own, for one use.
    Own {
        /// Tells one use from another.
        serial: u64,
    },
}

/// A window's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The vGPU.
    pub vgpu: u64,
    /// What of it.
    pub what: What,
}

/// There is no room for a window: everything in the way is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for {pages} pages in the global page table, {free} pages free")]
pub struct NoRoom {
    /// Pages asked for.
    pub pages: usize,
    /// Pages free, in pieces.
    pub free: u32,
}

struct Window {
    start: u32,
    pages: u32,
    pins: u32,
    /// Place in the queue for eviction while unpinned.
    stamp: u64,
}

struct Inner {
    runs: FreeRuns,
    windows: HashMap<Key, Window>,
    /// Unpinned windows, longest unused first.
    unpinned: BTreeMap<u64, Key>,
    clock: u64,
    image: PteImage,
    evicted: u64,
}

/// The physical global page table.
pub struct Windows {
    gpu: Arc<Registers>,
    scratch: HostPage,
    serial: AtomicU64,
    inner: Mutex<Inner>,
}

/// Counts for inspection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WindowCounts {
    /// Windows that exist.
    pub windows: usize,
    /// Of these, windows in use now.
    pub pinned: usize,
    /// Pages free.
    pub free_pages: u32,
    /// Windows evicted so far.
    pub evicted: u64,
    /// Entries written to the GPU so far.
    pub ptes_written: u64,
}

/// The entry that maps a frame at this bus address.
#[must_use]
pub const fn entry(bus: u64) -> u64 {
    (bus & pte::ADDRESS) | pte::PRESENT
}

impl Windows {
    /// The whole table of `gpu`. `scratch` backs what is mapped to nothing.
    ///
    /// The first page and the last stay out of use: address 0 is what a
    /// forgotten field names, and the last page what a prefetch runs into.
    #[must_use]
    pub fn new(gpu: Arc<Registers>, scratch: HostPage) -> Arc<Self> {
        Self::with_pages(gpu, scratch, 1, GGTT_ENTRIES - 2)
    }

    /// As [`Self::new`], in `pages` pages from page `start` on.
    #[must_use]
    pub fn with_pages(gpu: Arc<Registers>, scratch: HostPage, start: u32, pages: u32) -> Arc<Self> {
        Arc::new(Self {
            gpu,
            scratch,
            serial: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                runs: FreeRuns::new(start, pages),
                windows: HashMap::new(),
                unpinned: BTreeMap::new(),
                clock: 0,
                image: PteImage::new(),
                evicted: 0,
            }),
        })
    }

    /// The entry that maps the scratch page.
    #[must_use]
    pub fn scratch_entry(&self) -> u64 {
        entry(self.scratch.bus())
    }

    /// Makes the window `key` show `entries` and pins it. It keeps its place
    /// until the pin is dropped.
    ///
    /// # Errors
    /// [`NoRoom`] when even evicting everything unpinned makes none.
    pub fn pin(self: &Arc<Self>, key: Key, entries: &[u64]) -> Result<Pin, NoRoom> {
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let no_room = |free| NoRoom {
            pages: entries.len(),
            free,
        };
        let pages = u32::try_from(entries.len()).map_err(|_| no_room(inner.runs.total()))?;
        // Another length under the same name is another window.
        if let Some(w) = inner.windows.get(&key)
            && w.pages != pages
        {
            if w.pins > 0 {
                return Err(no_room(inner.runs.total()));
            }
            inner.evict(key);
        }
        let start = match inner.windows.get_mut(&key) {
            Some(w) => {
                if w.pins == 0 {
                    inner.unpinned.remove(&w.stamp);
                }
                w.pins += 1;
                w.start
            }
            None => {
                let start = loop {
                    if inner.windows.len() < MAX_WINDOWS
                        && let Some(start) = inner.runs.allocate(pages)
                    {
                        break start;
                    }
                    let Some((_, &oldest)) = inner.unpinned.first_key_value() else {
                        return Err(no_room(inner.runs.total()));
                    };
                    inner.evict(oldest);
                    inner.evicted += 1;
                };
                let window = Window {
                    start,
                    pages,
                    pins: 1,
                    stamp: 0,
                };
                inner.windows.insert(key, window);
                start
            }
        };
        let mut wrote = 0;
        for (index, &pte) in (start..).zip(entries) {
            wrote += u64::from(inner.image.store(&self.gpu, index, pte));
        }
        if wrote > 0 {
            // Linux gt/intel_ggtt.c:gen8_ggtt_invalidate: makes the GPU
            // take notice of changed entries.
            self.gpu.write32(ring::GFX_FLSH_CNTL, 1);
        }
        Ok(Pin {
            windows: Arc::clone(self),
            key,
            start,
            wrote,
        })
    }

    /// Pins pages of vgpud's own in a window that goes with the pin.
    ///
    /// # Errors
    /// As [`Self::pin`].
    pub fn pin_own(self: &Arc<Self>, vgpu: u64, pages: &[HostPage]) -> Result<Pin, NoRoom> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let entries: Vec<u64> = pages.iter().map(|p| entry(p.bus())).collect();
        let what = What::Own { serial };
        self.pin(Key { vgpu, what }, &entries)
    }

    fn unpin(&self, key: Key) {
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let Some(w) = inner.windows.get_mut(&key) else {
            return;
        };
        w.pins -= 1;
        if w.pins > 0 {
            return;
        }
        inner.clock += 1;
        w.stamp = inner.clock;
        inner.unpinned.insert(w.stamp, key);
        if matches!(key.what, What::Own { .. }) {
            self.clear(inner, key);
        }
    }

    /// Removes an unpinned window and points its entries at scratch, because
    /// what they name is about to go.
    fn clear(&self, inner: &mut Inner, key: Key) {
        let Some((start, pages)) = inner.evict(key) else {
            return;
        };
        let scratch = self.scratch_entry();
        let mut wrote = false;
        for index in start..start + pages {
            wrote |= inner.image.store(&self.gpu, index, scratch);
        }
        if wrote {
            self.gpu.write32(ring::GFX_FLSH_CNTL, 1);
        }
    }

    /// Removes the window `key` if nothing runs in it, and what it shows
    /// from the table.
    pub fn forget(&self, key: Key) {
        self.clear(&mut lock(&self.inner), key);
    }

    /// Removes every window of a vGPU. Its engines must be idle.
    pub fn forget_vgpu(&self, vgpu: u64) {
        let mut inner = lock(&self.inner);
        let keys: Vec<Key> = inner
            .windows
            .keys()
            .filter(|k| k.vgpu == vgpu)
            .copied()
            .collect();
        for key in keys {
            self.clear(&mut inner, key);
        }
    }

    /// Counts for inspection.
    #[must_use]
    pub fn counts(&self) -> WindowCounts {
        let inner = lock(&self.inner);
        WindowCounts {
            windows: inner.windows.len(),
            pinned: inner.windows.len() - inner.unpinned.len(),
            free_pages: inner.runs.total(),
            evicted: inner.evicted,
            ptes_written: inner.image.written,
        }
    }
}

impl Inner {
    /// Removes an unpinned window; its entries stay as they are.
    fn evict(&mut self, key: Key) -> Option<(u32, u32)> {
        if self.windows.get(&key)?.pins > 0 {
            return None;
        }
        let w = self.windows.remove(&key)?;
        self.unpinned.remove(&w.stamp);
        self.runs.free(w.start, w.pages);
        Some((w.start, w.pages))
    }
}

/// A window in use.
pub struct Pin {
    windows: Arc<Windows>,
    key: Key,
    start: u32,
    /// Entries this pin had to write.
    pub wrote: u64,
}

impl Pin {
    /// The window's graphics address.
    #[must_use]
    pub const fn address(&self) -> u32 {
        self.start << 12
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.windows.unpin(self.key);
    }
}

#[cfg(test)]
mod tests;
