//! How fast threads went through pages.

use std::thread;
use std::time::Instant;

use guest_memory::PAGE_SIZE;
use rustix::time::{ClockId, clock_gettime};

/// The speed of threads that worked at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// GB/s, those of all threads together. Each is timed by the processor
    /// time that it got, so what other programs took does not count.
    pub gb_s: f64,
    /// Which part of the whole time the threads had a processor: below 1,
    /// others were at work too and the threads not always at the same time.
    pub share: f64,
}

impl Speed {
    /// Runs the jobs, each on a thread of its own and with so many pages to
    /// go through. Also what the jobs gave.
    pub fn of<J: FnOnce() -> u64 + Send>(
        jobs: impl Iterator<Item = (usize, J)>,
    ) -> (Self, Vec<u64>) {
        let start = Instant::now();
        let done: Vec<(f64, f64, u64)> = thread::scope(|scope| {
            let run = |(pages, job): (usize, J)| {
                scope.spawn(move || {
                    let start = processor_time();
                    let result = job();
                    let seconds = processor_time() - start;
                    (gigabytes(pages) / seconds, seconds, result)
                })
            };
            let threads: Vec<_> = jobs.map(run).collect();
            // A job that panicked gives nothing.
            threads
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .collect()
        });
        let whole = start.elapsed().as_secs_f64();
        let threads: f64 = done.iter().map(|_| 1.0).sum();
        let speed = Self {
            gb_s: done.iter().map(|(speed, _, _)| speed).sum(),
            share: done.iter().map(|(_, busy, _)| busy).sum::<f64>() / (whole * threads),
        };
        (
            speed,
            done.into_iter().map(|(_, _, result)| result).collect(),
        )
    }
}

/// Seconds of a processor that this thread had.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    std::time::Duration::try_from(time).map_or(0.0, |time| time.as_secs_f64())
}

fn gigabytes(pages: usize) -> f64 {
    let bytes = u32::try_from(pages).map_or(f64::MAX, f64::from) * 4096.0;
    debug_assert_eq!(PAGE_SIZE, 4096);
    bytes / 1e9
}
