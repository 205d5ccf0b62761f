//! Windows in the physical global page table.
//!
//! A guest has a whole table of its own; the physical one is a cache of the
//! runs of pages that contexts need while they run. A window is named by
//! what it shows, stands anywhere, keeps its place while pinned, and is
//! evicted when others need the room. Entries are written only when they
//! differ from what the table is known to hold.
//!
//! Where no window stands, entries name the scratch page or were never
//! written: what left the table is not named by it.

mod cache;
mod image;
mod runs;
mod share;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gen8::{Engine, pte, ring};
use gpu_bus::GGTT_ENTRIES;

use crate::dma::HostPage;
use crate::registers::Registers;
use crate::sync::lock;
use cache::{Cache, Vacated};
use image::PteImage;
pub use share::{ShareCounts, WindowLimits};

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
    /// The copy of a batch.
    Batch {
        /// Tells one from another.
        serial: u64,
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

/// There is no room for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// Everything in the way is in use.
    #[error("no room for {pages} pages in the global page table, {free} pages free")]
    Table {
        /// Pages asked for.
        pages: usize,
        /// Pages free, in pieces.
        free: u32,
    },
    /// The vGPU uses all it may have.
    #[error(
        "a window of {asked} pages beside {windows} windows in use, which are {pages} pages; \
         a vGPU may use {} windows at a time, {} pages", limits.windows, limits.pinned
    )]
    Share {
        /// Pages asked for.
        asked: u32,
        /// Its windows in use.
        windows: u32,
        /// Their pages.
        pages: u32,
        /// What is allowed.
        limits: WindowLimits,
    },
}

struct Inner {
    cache: Cache,
    image: PteImage,
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
    /// Pieces they are in.
    pub free_runs: usize,
    /// Pages of the longest piece.
    pub longest_free: u32,
    /// Uses of a window that stood as it should: nothing was written.
    pub hits: u64,
    /// Uses of a window that stood, with some entries changed.
    pub changed: u64,
    /// Uses of a window that had to be made.
    pub misses: u64,
    /// Windows evicted so far.
    pub evicted: u64,
    /// Uses refused because of a vGPU's limits.
    pub refused: u64,
    /// Entries written to the GPU so far.
    pub ptes_written: u64,
    /// Of these, entries that name scratch because what stood there went.
    pub ptes_cleared: u64,
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
                cache: Cache::new(start, pages),
                image: PteImage::new(),
            }),
        })
    }

    /// The entry that maps the scratch page.
    #[must_use]
    pub fn scratch_entry(&self) -> u64 {
        entry(self.scratch.bus())
    }

    /// Sets what a vGPU may have of the table. Without it, it has what
    /// [`WindowLimits::default`] says.
    pub fn set_limits(&self, vgpu: u64, limits: WindowLimits) {
        lock(&self.inner).cache.set_limits(vgpu, limits);
    }

    /// Makes the window `key` show `entries` and pins it. It keeps its place
    /// until the pin is dropped.
    ///
    /// # Errors
    /// [`NoRoom`] when even evicting what is in nobody's use makes none, or
    /// the vGPU uses all it may.
    pub fn pin(self: &Arc<Self>, key: Key, entries: &[u64]) -> Result<Pin, NoRoom> {
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let mut vacated = Vacated::default();
        let acquired = inner.cache.acquire(key, entries.len(), &mut vacated);
        let mut wrote = 0;
        if let Ok(place) = acquired {
            for (index, &pte) in (place.start..).zip(entries) {
                wrote += u64::from(inner.image.store(&self.gpu, index, pte));
            }
            inner.cache.count(place, wrote);
        }
        // What the new window does not cover must not name what was there.
        let taken = acquired.map_or(0..0, |p| p.start..p.start + p.pages);
        let cleared = self.clear(&mut inner.image, &vacated, &taken);
        if wrote + cleared > 0 {
            self.flush();
        }
        Ok(Pin {
            windows: Arc::clone(self),
            key,
            start: acquired?.start,
            pages: acquired?.pages,
            wrote: wrote + cleared,
        })
    }

    /// Linux `gt/intel_ggtt.c:gen8_ggtt_invalidate`: makes the GPU take
    /// notice of changed entries.
    fn flush(&self) {
        self.gpu.write32(ring::GFX_FLSH_CNTL, 1);
    }

    /// Points what was vacated at scratch, but for what is `taken` again.
    fn clear(&self, image: &mut PteImage, vacated: &Vacated, taken: &Range<u32>) -> u64 {
        let scratch = self.scratch_entry();
        let pages = vacated.0.iter().cloned().flatten();
        let wrote = pages
            .filter(|index| !taken.contains(index))
            .map(|index| u64::from(image.store(&self.gpu, index, scratch)))
            .sum();
        image.cleared += wrote;
        wrote
    }

    /// A name of its own for a window of vgpud's pages. Whoever frees the
    /// pages forgets the window first.
    #[must_use]
    pub fn own_key(&self, vgpu: u64) -> Key {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let what = What::Batch { serial };
        Key { vgpu, what }
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
        let idle = inner.cache.unpin(key);
        if idle && matches!(key.what, What::Own { .. }) {
            self.remove(&mut inner, &[key]);
        }
    }

    /// Removes windows that are not in use, and what they show from the
    /// table: it is about to go.
    fn remove(&self, inner: &mut Inner, keys: &[Key]) {
        let mut vacated = Vacated::default();
        for &key in keys {
            inner.cache.evict(key, &mut vacated);
        }
        if self.clear(&mut inner.image, &vacated, &(0..0)) > 0 {
            self.flush();
        }
    }

    /// Removes the window `key` if nothing runs in it, and what it shows
    /// from the table.
    pub fn forget(&self, key: Key) {
        self.remove(&mut lock(&self.inner), &[key]);
    }

    /// Removes every window of a vGPU. Its engines must be idle.
    pub fn forget_vgpu(&self, vgpu: u64) {
        let mut inner = lock(&self.inner);
        let keys = inner.cache.keys(vgpu);
        self.remove(&mut inner, &keys);
        inner.cache.forget(vgpu);
    }

    /// Counts for inspection.
    #[must_use]
    pub fn counts(&self) -> WindowCounts {
        let inner = lock(&self.inner);
        WindowCounts {
            ptes_written: inner.image.written,
            ptes_cleared: inner.image.cleared,
            ..inner.cache.counts()
        }
    }

    /// What a vGPU has of the table.
    #[must_use]
    pub fn share(&self, vgpu: u64) -> ShareCounts {
        lock(&self.inner).cache.share(vgpu)
    }
}

/// A window in use.
pub struct Pin {
    windows: Arc<Windows>,
    key: Key,
    start: u32,
    pages: u32,
    /// Entries this pin had to write.
    pub wrote: u64,
}

impl Pin {
    /// The window's name.
    #[must_use]
    pub const fn key(&self) -> Key {
        self.key
    }

    /// The window's pages.
    #[must_use]
    pub const fn pages(&self) -> u32 {
        self.pages
    }

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
