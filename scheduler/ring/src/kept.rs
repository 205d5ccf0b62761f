//! Words a device model keeps for its successor.

use std::sync::atomic::Ordering;

use crate::layout::KEPT_WORDS;
use crate::{AreaWords, Words};

/// What a device model that dies leaves to the one that takes its place. What
/// the words mean is the device model's affair; vgpud only keeps them. They
/// are 0 in a new area.
///
/// Whoever reads what another process stored sees its stores in the order in
/// which they were made, wherever it was killed.
#[derive(Clone)]
pub struct KeptPart<W = AreaWords> {
    words: W,
    first: usize,
}

impl<W: Words> KeptPart<W> {
    /// The part whose word 0 is word `first`; [`KEPT_WORDS`] words belong to
    /// it.
    pub const fn new(words: W, first: usize) -> Self {
        Self { words, first }
    }

    /// Word `index`; 0 past the end.
    #[must_use]
    pub fn load(&self, index: usize) -> u64 {
        if index >= KEPT_WORDS {
            return 0;
        }
        self.words.load(self.first + index, Ordering::Acquire)
    }

    /// Sets word `index`; nothing past the end.
    pub fn store(&self, index: usize, value: u64) {
        if index < KEPT_WORDS {
            self.words
                .store(self.first + index, value, Ordering::Release);
        }
    }
}
