//! 512 frames mapped together.

use std::sync::atomic::{AtomicU64, Ordering};

use guest_memory::{Gfn, PAGE_SHIFT, PAGE_SIZE};

use crate::{ForeignMap, Mapping};

/// Frames in a piece: 2 MiB, one page of the array privcmd copies in.
pub(super) const PIECE_FRAMES: u64 = 512;

const WORDS: usize = 8;

/// A mapping with a bit for each frame that is there.
pub(super) struct Piece {
    mapping: Mapping,
    present: [u64; WORDS],
    stamp: AtomicU64,
}

/// A page that is there.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    mapping: &'a Mapping,
    base: usize,
}

impl Piece {
    /// Address space a piece takes.
    pub(super) const BYTES: u64 = PIECE_FRAMES << PAGE_SHIFT;

    pub(super) fn new(map: ForeignMap, stamp: u64) -> Self {
        let mut present = [0; WORDS];
        for (i, error) in map.errors.iter().enumerate().take(WORDS * 64) {
            if error.is_none() {
                present[i / 64] |= 1 << (i % 64);
            }
        }
        Self {
            mapping: map.mapping,
            present,
            stamp: AtomicU64::new(stamp),
        }
    }

    /// The page of `gfn`, which is in this piece, if it is there.
    pub(super) fn slot(&self, gfn: Gfn) -> Option<Slot<'_>> {
        let index = usize::try_from(gfn.0 % PIECE_FRAMES).ok()?;
        if self.present[index / 64] & (1 << (index % 64)) == 0 {
            return None;
        }
        Some(Slot {
            mapping: &self.mapping,
            base: index * PAGE_SIZE,
        })
    }

    /// Notes a use, without making the cache line dirty each time.
    pub(super) fn stamp(&self, now: u64) {
        if self.stamp.load(Ordering::Relaxed) != now {
            self.stamp.store(now, Ordering::Relaxed);
        }
    }

    pub(super) fn stamped(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed)
    }
}

impl Slot<'_> {
    /// Copies from the page; `offset + buf.len()` is at most a page.
    pub(super) fn read(self, offset: usize, buf: &mut [u8]) {
        if let Err(e) = self.mapping.read(self.base + offset, buf) {
            // for_each_page keeps accesses inside a page.
            log::error!("{e}");
        }
    }

    /// Copies to the page; `offset + data.len()` is at most a page.
    pub(super) fn write(self, offset: usize, data: &[u8]) {
        if let Err(e) = self.mapping.write(self.base + offset, data) {
            log::error!("{e}");
        }
    }
}
