//! The memory that is measured, and what is retained of it.

use anyhow::{Context, ensure};
use guest_memory::PAGE_SIZE;
use vgpu_migrate::{Detector, Method, Page};

use super::methods::{self, Pages, Way};
use super::speed::Speed;

const PAGES_PER_MIB: usize = 256;

/// Memory larger than caches, with what each detector retains of it.
pub struct Buffers {
    pages: Vec<Page>,
    /// As many pages that all differ from those, all over.
    changed: Vec<Page>,
    /// Where copies go.
    copy: Vec<Page>,
    detectors: Vec<Box<dyn Detector>>,
}

impl Buffers {
    /// Of `mib` MiB each.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn new(mib: u32) -> anyhow::Result<Self> {
        let count = usize::try_from(mib)? * PAGES_PER_MIB;
        let pages = noise(count, 1);
        let looking = Method::ALL.into_iter().filter(|&m| m != Method::Blind);
        let detectors = looking.map(|method| retaining(method, &pages));
        Ok(Self {
            detectors: detectors.collect::<anyhow::Result<_>>()?,
            changed: noise(count, 2),
            copy: vec![[0; PAGE_SIZE]; count],
            pages,
        })
    }

    /// Goes through all of the memory, in equal parts on `threads` threads.
    ///
    /// # Errors
    /// When a verdict is wrong.
    pub fn time(&mut self, threads: usize, way: Way) -> anyhow::Result<Speed> {
        let each = self.pages.len().div_ceil(threads.max(1));
        match way {
            Way::Verify(method, of) => self.verify(each, method, of),
            way => Ok(self.plain(each, way)),
        }
    }

    fn plain(&mut self, each: usize, way: Way) -> Speed {
        let parts = self.pages.chunks(each).zip(self.copy.chunks_mut(each));
        let jobs = parts.map(|(pages, copy)| {
            let job = move || match way {
                Way::Read => methods::read(pages),
                Way::ReadTogether => methods::read_together(pages),
                _ => {
                    copy.copy_from_slice(pages);
                    0
                }
            };
            (pages.len(), job)
        });
        Speed::of(jobs).0
    }

    fn verify(&self, each: usize, method: Method, of: Pages) -> anyhow::Result<Speed> {
        let mut detectors = self.detectors.iter();
        let detector = detectors.find(|d| d.method() == method);
        let detector = &**detector.context("no such detector")?;
        let pages = match of {
            Pages::Same | Pages::Copied => &self.pages,
            Pages::Changed => &self.changed,
        };
        let parts = pages.chunks(each).zip((0..).step_by(each));
        let jobs = parts.map(|(pages, first)| {
            let job = move || methods::verify(detector, first, pages, of);
            (pages.len(), job)
        });
        let (speed, right) = Speed::of(jobs);
        let right: u64 = right.into_iter().sum();
        let all = u64::try_from(pages.len())?;
        ensure!(
            right == all,
            "{right} of {all} verdicts of {method} are right"
        );
        Ok(speed)
    }
}

/// A detector that retains all of `pages`.
fn retaining(method: Method, pages: &[Page]) -> anyhow::Result<Box<dyn Detector>> {
    // A copy of each page and room for what finds it.
    let limit = pages.len() * PAGE_SIZE / 4 * 5 + (1 << 20);
    let detector = method.detector(u64::try_from(pages.len())?, limit)?;
    for (batch, first) in pages.chunks(32).zip((0..).step_by(32)) {
        let frames: Vec<_> = methods::frames(first, batch).collect();
        let kept = detector.retain(&frames);
        ensure!(kept.iter().all(|kept| *kept), "{method} has no room");
    }
    Ok(detector)
}

/// Pages of no pattern, all different.
fn noise(count: usize, seed: u64) -> Vec<Page> {
    let mut pages = vec![[0; PAGE_SIZE]; count];
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in pages.as_flattened_mut().as_chunks_mut().0 {
        // xorshift64.
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *word = x.to_le_bytes();
    }
    pages
}
