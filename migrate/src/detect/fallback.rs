//! Two detectors, the second for what the first has no room for.

use guest_memory::Gfn;

use super::{Detector, Footprint, Frame, Method, Verdict};

/// Retains a page with `first`, or else with `second`.
pub struct Fallback<A, B> {
    first: A,
    second: B,
}

impl<A: Detector, B: Detector> Fallback<A, B> {
    /// Of these two.
    #[must_use]
    pub fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

/// Those of `frames` whose place in `of` says so, and their places.
fn picked<'a, T>(
    frames: &[Frame<'a>],
    of: &[T],
    pick: impl Fn(&T) -> bool,
) -> (Vec<usize>, Vec<Frame<'a>>) {
    let both = frames.iter().zip(of).enumerate();
    both.filter(|(_, (_, t))| pick(t))
        .map(|(i, (frame, _))| (i, *frame))
        .unzip()
}

impl<A: Detector, B: Detector> Detector for Fallback<A, B> {
    fn method(&self) -> Method {
        self.first.method()
    }

    fn retain(&self, frames: &[Frame<'_>]) -> Vec<bool> {
        let mut kept = self.first.retain(frames);
        for (frame, _) in frames.iter().zip(&kept).filter(|(_, kept)| **kept) {
            self.second.forget(frame.gfn);
        }
        let (places, left) = picked(frames, &kept, |kept| !kept);
        for (i, second) in places.into_iter().zip(self.second.retain(&left)) {
            kept[i] = second;
        }
        kept
    }

    fn forget(&self, gfn: Gfn) {
        self.first.forget(gfn);
        self.second.forget(gfn);
    }

    fn verify(&self, frames: &[Frame<'_>]) -> Vec<Verdict> {
        let mut verdicts = self.first.verify(frames);
        let (places, left) = picked(frames, &verdicts, |v| *v == Verdict::Unknown);
        for (i, second) in places.into_iter().zip(self.second.verify(&left)) {
            verdicts[i] = second;
        }
        verdicts
    }

    fn footprint(&self) -> Footprint {
        let (first, second) = (self.first.footprint(), self.second.footprint());
        Footprint {
            pages: first.pages.saturating_add(second.pages),
            bytes: first.bytes.saturating_add(second.bytes),
            limit: first.limit.saturating_add(second.limit),
        }
    }
}
