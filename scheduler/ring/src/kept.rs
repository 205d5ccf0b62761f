//! Words a device model keeps for its successor.

use std::sync::atomic::Ordering;

use crate::layout::{KEPT_WORDS, kept};
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

    /// What each thread of the device model has in hand: a number that is
    /// another for the next thing, for the `vcpus` first vCPUs and last for
    /// the thread that hears vgpud. A claim, like all that is kept.
    #[must_use]
    pub fn in_hand(&self, vcpus: usize) -> Vec<Option<u64>> {
        let vcpus = (0..vcpus.min(kept::VCPUS)).map(|n| kept::ANSWERS + 2 * n);
        let words = vcpus.chain([kept::EVENTS]).map(|at| self.load(at));
        words
            .map(|word| (word & kept::HAND == kept::IN_HAND).then_some(word))
            .collect()
    }
}
