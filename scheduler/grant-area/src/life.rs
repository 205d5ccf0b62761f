//! Whether the other side is there.

use std::sync::atomic::Ordering;

use vgpu_ring::{AreaWords, Words};

use crate::region::link;

/// A word whose lowest byte is 1.
const THERE: u64 = 1;

/// Where above it the word says how often somebody came, whatever its lowest byte
/// says.
const COMINGS: u32 = 8;

/// The lives of both sides of a region, in its link page.
#[derive(Clone)]
pub struct Life {
    words: AreaWords,
    own: usize,
    theirs: usize,
}

impl Life {
    pub(crate) fn of_granter(words: AreaWords) -> Self {
        Self {
            words,
            own: link::GRANTER,
            theirs: link::MAPPER,
        }
    }

    pub(crate) fn of_mapper(words: AreaWords) -> Self {
        Self {
            words,
            own: link::MAPPER,
            theirs: link::GRANTER,
        }
    }

    /// The byte that our kernel clears for us, from the region's start.
    pub(crate) fn byte(&self) -> usize {
        self.own * 8
    }

    /// Comes, once more than whoever was this side before; how often that is.
    pub(crate) fn begin(&self) -> u32 {
        let before = comings(self.words.load(self.own, Ordering::Acquire));
        // The other side may have written anything.
        let now = before.wrapping_add(1).max(1);
        let word = THERE | u64::from(now) << COMINGS;
        self.words.store(self.own, word, Ordering::Release);
        now
    }

    /// Says that this side goes, before its kernel does.
    pub fn end(&self) {
        let before = comings(self.words.load(self.own, Ordering::Acquire));
        let word = u64::from(before) << COMINGS;
        self.words.store(self.own, word, Ordering::Release);
    }

    /// How often the other side came.
    #[must_use]
    pub fn peer_comings(&self) -> u32 {
        comings(self.words.load(self.theirs, Ordering::Acquire))
    }

    /// Whether the other side has come and has not gone.
    #[must_use]
    pub fn peer_there(&self) -> bool {
        self.words.load(self.theirs, Ordering::Acquire) & 0xff == THERE
    }

    /// Whether the other side came and is gone.
    #[must_use]
    pub fn peer_gone(&self) -> bool {
        let theirs = self.words.load(self.theirs, Ordering::Acquire);
        theirs & 0xff != THERE && comings(theirs) != 0
    }
}

/// How often somebody came, of a word.
fn comings(word: u64) -> u32 {
    let [_, a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
