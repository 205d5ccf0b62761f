//! A look at a few words before the whole page.

use std::sync::atomic::{AtomicU64, Ordering};

use guest_memory::{Gfn, PAGE_SIZE};

use super::table::{Records, Table};
use super::{Detector, Footprint, Frame, Method, Verdict};
use crate::page::Page;

/// Retains four words of each page beside what `D` retains. A word that
/// differs proves that the page changed, and spares `D` the rest of it. Words
/// that are as they were prove nothing: then `D` looks at the page as if
/// nobody had. So this only ever spares work on pages that changed, and costs
/// some on those that did not: see
/// [`sampling_pays`](crate::adaptive::sampling_pays).
pub struct Sampled<D> {
    inner: D,
    words: Table<Records<Sample>>,
    probes: AtomicU64,
    hits: AtomicU64,
}

type Sample = [u64; 4];

/// How often looking at a few words was enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Pages looked at.
    pub pages: u64,
    /// Those for which it was.
    pub hits: u64,
}

/// Where the words are: a word in each quarter, none in a column of others,
/// as surfaces change in rows and columns.
const AT: [usize; 4] = [0x150, 0x5b8, 0xa68, 0xec0];

fn sample(page: &Page) -> Sample {
    let words = page.as_chunks().0;
    AT.map(|at| u64::from_le_bytes(words[at / 8]))
}

impl<D: Detector> Sampled<D> {
    /// In front of `inner`, for frames below `frames`, in about `limit` bytes
    /// of its own.
    #[must_use]
    pub fn new(frames: u64, limit: usize, inner: D) -> Self {
        Self {
            inner,
            words: Table::new(frames, limit),
            probes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// How often looking at a few words was enough, so far.
    #[must_use]
    pub fn probes(&self) -> Probes {
        Probes {
            pages: self.probes.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
        }
    }
}

impl<D: Detector> Detector for Sampled<D> {
    fn method(&self) -> Method {
        match self.inner.method() {
            Method::Compare => Method::SampledCompare,
            Method::Digest => Method::SampledDigest,
            method => method,
        }
    }

    fn retain(&self, frames: &[Frame<'_>]) -> Vec<bool> {
        let kept = self.inner.retain(frames);
        for (frame, kept) in frames.iter().zip(&kept) {
            // Without room for the words, `inner` does all the work.
            if !kept || !self.words.set(frame.gfn, sample(frame.page)) {
                self.words.clear(frame.gfn);
            }
        }
        kept
    }

    fn forget(&self, gfn: Gfn) {
        self.inner.forget(gfn);
        self.words.clear(gfn);
    }

    fn verify(&self, frames: &[Frame<'_>]) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Changed; frames.len()];
        let shown = self.probe(frames);
        let (places, left): (Vec<_>, Vec<_>) = (frames.iter().zip(&shown).enumerate())
            .filter(|(_, (_, shown))| !**shown)
            .map(|(i, (frame, _))| (i, *frame))
            .unzip();
        for (i, verdict) in places.into_iter().zip(self.inner.verify(&left)) {
            verdicts[i] = verdict;
        }
        verdicts
    }

    fn probe(&self, frames: &[Frame<'_>]) -> Vec<bool> {
        let mut shown = vec![false; frames.len()];
        let (mut probes, mut hits) = (0, 0);
        self.words.each(frames, |i, words| {
            probes += u64::from(words.is_some());
            shown[i] = words.is_some_and(|words| words != sample(frames[i].page));
            hits += u64::from(shown[i]);
        });
        self.probes.fetch_add(probes, Ordering::Relaxed);
        self.hits.fetch_add(hits, Ordering::Relaxed);
        shown
    }

    fn verify_whole(&self, frames: &[Frame<'_>]) -> Vec<Verdict> {
        self.inner.verify_whole(frames)
    }

    fn footprint(&self) -> Footprint {
        let inner = self.inner.footprint();
        let words = self.words.footprint();
        Footprint {
            pages: inner.pages,
            bytes: inner.bytes.saturating_add(words.bytes),
            limit: inner.limit.saturating_add(words.limit),
        }
    }
}

const _: () = assert!(AT[3] + 8 <= PAGE_SIZE);
