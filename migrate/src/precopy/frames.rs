//! Sets of the frames of a region.

use guest_memory::Gfn;

use crate::adaptive::REGION_FRAMES;

/// A bit for each frame of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameSet([u64; FrameSet::WORDS]);

impl FrameSet {
    const WORDS: usize = 8;

    /// Where the frame's bit is.
    fn place(gfn: Gfn) -> (usize, u64) {
        let at = gfn.0 % REGION_FRAMES;
        // Below 8.
        (usize::try_from(at / 64).unwrap_or(0), 1 << (at % 64))
    }

    pub(super) fn insert(&mut self, gfn: Gfn) {
        let (word, bit) = Self::place(gfn);
        self.0[word] |= bit;
    }

    pub(super) fn remove(&mut self, gfn: Gfn) {
        let (word, bit) = Self::place(gfn);
        self.0[word] &= !bit;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    pub(super) fn clear(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= !other;
        }
    }

    /// Only what is in `other`, too.
    pub(super) fn keep(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= other;
        }
    }

    /// How many of them are in `other`, too.
    pub(super) fn common(&self, other: &Self) -> u32 {
        let both = self.0.iter().zip(other.0);
        both.map(|(a, b)| (a & b).count_ones()).sum()
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The frames, if it is region `region`, ascending.
    pub(super) fn of(&self, region: u64) -> impl Iterator<Item = Gfn> {
        let first = region.saturating_mul(REGION_FRAMES);
        let words = self.0;
        (first..)
            .take(Self::WORDS * 64)
            .map(Gfn)
            .filter(move |&gfn| {
                let (word, bit) = Self::place(gfn);
                words[word] & bit != 0
            })
    }
}

const _: () = assert!(REGION_FRAMES == 64 * FrameSet::WORDS as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_in_order() {
        let mut set = FrameSet::default();
        for gfn in [1535, 1024, 1100, 1087] {
            set.insert(Gfn(gfn));
        }
        let frames: Vec<_> = set.of(2).map(|gfn| gfn.0).collect();
        assert_eq!(frames, [1024, 1087, 1100, 1535]);
        let mut other = FrameSet::default();
        other.insert(Gfn(1100));
        other.insert(Gfn(1101));
        assert_eq!(set.common(&other), 1);
        set.add(&other);
        set.remove(Gfn(1024));
        assert_eq!(set.count(), 4);
        set.clear(&other);
        assert_eq!(set.count(), 2);
        set.keep(&other);
        assert_eq!(set, FrameSet::default());
    }
}
