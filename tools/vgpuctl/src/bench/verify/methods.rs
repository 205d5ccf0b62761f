//! The ways that are measured.

use std::hint::black_box;

use guest_memory::{Gfn, PAGE_SIZE};
use vgpu_migrate::{Detector, Frame, Method, Page, Verdict};

/// Pages handed to a detector at once, as a migration does.
const BATCH: usize = 32;

/// A way to go through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Plain loads, in order.
    Read,
    /// Plain loads from eight pages in turn.
    ReadTogether,
    /// A copy to other memory as large.
    Memcpy,
    /// A detector's verdicts on each page.
    Verify(Method, Pages),
}

/// Which pages a detector gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Those that it retained, where they lie.
    Same,
    /// Copies of those, made a batch at a time: as from a guest, whose memory
    /// others write.
    Copied,
    /// Others, which differ all over.
    Changed,
}

/// Every way, as the JSON calls it.
pub const WAYS: [(&str, Way); 13] = [
    (READ, Way::Read),
    (READ_TOGETHER, Way::ReadTogether),
    (MEMCPY, Way::Memcpy),
    ("compare", Way::Verify(Method::Compare, Pages::Same)),
    ("digest", Way::Verify(Method::Digest, Pages::Same)),
    (
        "sampled_compare",
        Way::Verify(Method::SampledCompare, Pages::Same),
    ),
    (
        "sampled_digest",
        Way::Verify(Method::SampledDigest, Pages::Same),
    ),
    (
        "copied_compare",
        Way::Verify(Method::Compare, Pages::Copied),
    ),
    ("copied_digest", Way::Verify(Method::Digest, Pages::Copied)),
    (
        "changed_compare",
        Way::Verify(Method::Compare, Pages::Changed),
    ),
    (
        "changed_digest",
        Way::Verify(Method::Digest, Pages::Changed),
    ),
    (
        "changed_sampled_compare",
        Way::Verify(Method::SampledCompare, Pages::Changed),
    ),
    (
        "changed_sampled_digest",
        Way::Verify(Method::SampledDigest, Pages::Changed),
    ),
];

/// What the others are held against.
pub const READ: &str = "read";
/// Likewise.
pub const READ_TOGETHER: &str = "read_together";
/// Likewise.
pub const MEMCPY: &str = "memcpy";

/// Reads every word, in order.
#[inline(never)]
pub fn read(pages: &[Page]) -> u64 {
    let mut sums = [0; 16];
    for page in pages {
        for lines in page.as_chunks::<128>().0 {
            for (sum, word) in sums.iter_mut().zip(lines.as_chunks().0) {
                *sum |= u64::from_le_bytes(*word);
            }
        }
    }
    black_box(sums.into_iter().fold(0, |a, b| a | b))
}

/// Reads every word, from eight pages in turn.
#[inline(never)]
pub fn read_together(pages: &[Page]) -> u64 {
    let mut sums = [0; 8];
    let (batches, rest) = pages.as_chunks::<8>();
    for batch in batches {
        for line in 0..PAGE_SIZE / 64 {
            for page in batch {
                let line: &[u8; 64] = &page.as_chunks().0[line];
                for (sum, word) in sums.iter_mut().zip(line.as_chunks().0) {
                    *sum |= u64::from_le_bytes(*word);
                }
            }
        }
    }
    black_box(sums.into_iter().fold(read(rest), |a, b| a | b))
}

/// Verifies `pages`, which begin at frame `first`, in place or copied; counts
/// the verdicts that are right.
pub fn verify(detector: &dyn Detector, first: u64, pages: &[Page], of: Pages) -> u64 {
    let right = match of {
        Pages::Same | Pages::Copied => Verdict::Same,
        Pages::Changed => Verdict::Changed,
    };
    let mut scratch = vec![[0; PAGE_SIZE]; BATCH];
    let batches = pages.chunks(BATCH).zip((first..).step_by(BATCH));
    let judged = batches.map(|(batch, first)| {
        if of != Pages::Copied {
            return judge(detector, first, batch, right);
        }
        let scratch = &mut scratch[..batch.len()];
        scratch.copy_from_slice(batch);
        judge(detector, first, scratch, right)
    });
    judged.sum()
}

fn judge(detector: &dyn Detector, first: u64, batch: &[Page], right: Verdict) -> u64 {
    let frames: Vec<_> = frames(first, batch).collect();
    let verdicts = detector.verify(&frames);
    verdicts
        .into_iter()
        .map(|verdict| u64::from(verdict == right))
        .sum()
}

/// Pages as frames in order.
pub fn frames(first: u64, pages: &[Page]) -> impl Iterator<Item = Frame<'_>> {
    (first..)
        .map(Gfn)
        .zip(pages)
        .map(|(gfn, page)| Frame { gfn, page })
}
