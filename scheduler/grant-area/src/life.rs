//! Whether the other side is there.

use std::sync::atomic::Ordering;

use vgpu_ring::{AreaWords, Words};

use crate::region::link;

/// A word whose lowest byte is 1.
const THERE: u64 = 1;

/// A word that says that somebody was there, whatever its lowest byte says.
const CAME: u64 = 1 << 8;

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

    pub(crate) fn begin(&self) {
        self.words.store(self.own, THERE | CAME, Ordering::Release);
    }

    /// Says that this side goes, before its kernel does.
    pub fn end(&self) {
        self.words.store(self.own, CAME, Ordering::Release);
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
        theirs & 0xff != THERE && theirs & CAME != 0
    }
}
