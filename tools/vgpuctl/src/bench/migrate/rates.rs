//! What a page costs a processor, measured in the same run.

use std::hint::black_box;
use std::time::Duration;

use guest_memory::PAGE_SIZE;
use serde::Serialize;
use vgpu_migrate::precopy::Work;
use vgpu_migrate::{Method, Page};

use super::super::verify::{Speed, frames};

/// Nanoseconds a page, so many threads together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    /// Copying it from memory that no cache holds.
    pub copy_ns: f64,
    /// A look at a few words of the copy.
    pub probe_ns: f64,
    /// The digest of the copy, held against the one retained.
    pub digest_ns: f64,
    /// Retaining the digest of the copy.
    pub retain_ns: f64,
}

/// Pages copied at once, as a migration does.
const BATCH: usize = 32;

impl Rates {
    /// With `threads` threads, over `pages` pages; the best of a few rounds,
    /// by the processor time that threads had.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn measure(threads: usize, pages: usize) -> anyhow::Result<Self> {
        let memory: Vec<Page> = (0..pages)
            .map(|i| [u8::try_from(i % 255).unwrap_or(0) + 1; PAGE_SIZE])
            .collect();
        let limit = pages * 128 + (4 << 20);
        let detector = Method::SampledDigest.detector(u64::try_from(pages)?, limit)?;
        let speed = |job: &(dyn Fn(u64, &[Page]) + Sync)| best(threads, &memory, job);
        let copy = speed(&|_, pages| {
            black_box(pages);
        });
        let retain = speed(&|first, pages| {
            let pages: Vec<_> = frames(first, pages).collect();
            black_box(detector.retain(&pages));
        });
        let probe = speed(&|first, pages| {
            let pages: Vec<_> = frames(first, pages).collect();
            black_box(detector.probe(&pages));
        });
        let digest = speed(&|first, pages| {
            let pages: Vec<_> = frames(first, pages).collect();
            black_box(detector.verify_whole(&pages));
        });
        Ok(Self {
            copy_ns: copy,
            probe_ns: (probe - copy).max(1.0),
            digest_ns: (digest - copy).max(1.0),
            retain_ns: (retain - copy).max(1.0),
        })
    }

    /// How long work takes.
    pub fn of(&self, work: Work) -> Duration {
        let Work {
            copied,
            probed,
            looked,
            retained,
        } = work;
        let ns = f64::from(copied) * self.copy_ns
            + f64::from(probed) * self.probe_ns
            + f64::from(looked) * self.digest_ns
            + f64::from(retained) * self.retain_ns;
        Duration::from_secs_f64(ns * 1e-9)
    }
}

/// Nanoseconds a page at the best.
fn best(threads: usize, memory: &[Page], job: &(dyn Fn(u64, &[Page]) + Sync)) -> f64 {
    let each = memory.len().div_ceil(threads.max(1)).max(1);
    let round = |_| {
        let jobs = memory.chunks(each).zip((0_u64..).step_by(each));
        let jobs = jobs.map(|(pages, first)| {
            let run = move || {
                let mut scratch = vec![[0; PAGE_SIZE]; BATCH];
                for (batch, first) in pages.chunks(BATCH).zip((first..).step_by(BATCH)) {
                    let scratch = &mut scratch[..batch.len()];
                    scratch.copy_from_slice(batch);
                    job(first, scratch);
                }
                0
            };
            (pages.len(), run)
        });
        Speed::of(jobs).0.gb_s
    };
    4096.0 / (0..5).map(round).fold(0.001, f64::max)
}
