//! The guest's global page table.

use std::sync::atomic::Ordering;

use crate::layout::GGTT_ENTRIES;
use crate::{AreaWords, Words};

/// The guest's page-table entries: the device model stores what the guest
/// wrote, vgpud loads what it needs. The two never need more than one entry to
/// be consistent, and a message pushed after a store is popped before a load
/// that sees it.
#[derive(Clone)]
pub struct GgttTable<W = AreaWords> {
    words: W,
    first: usize,
}

impl<W: Words> GgttTable<W> {
    /// The table whose entry 0 is word `first`; [`GGTT_ENTRIES`] words belong
    /// to it.
    pub fn new(words: W, first: usize) -> Self {
        Self { words, first }
    }

    /// The entry of the page `index`; 0, which is not present, past the end.
    #[must_use]
    pub fn load(&self, index: u32) -> u64 {
        self.at(index)
            .map_or(0, |at| self.words.load(at, Ordering::Acquire))
    }

    /// Sets the entry of the page `index`; nothing past the end.
    pub fn store(&self, index: u32, entry: u64) {
        if let Some(at) = self.at(index) {
            self.words.store(at, entry, Ordering::Release);
        }
    }

    fn at(&self, index: u32) -> Option<usize> {
        let index = usize::try_from(index).ok().filter(|&i| i < GGTT_ENTRIES)?;
        Some(self.first + index)
    }
}
