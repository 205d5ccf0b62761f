//! Many pages, on several threads.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;

use guest_memory::{Gfn, GuestMemory, MemoryError, PAGE_SIZE};

use crate::detect::{Detector, Frame, Verdict};
use crate::page::Page;

/// Pages copied at once. 128 KiB stay in a core's own cache until they have
/// been looked at.
const CHUNK: usize = 32;

/// What came of a pass over some frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<T> {
    /// One for each frame, in order.
    pub results: Vec<T>,
    /// Frames that the guest no longer has, as when it was ballooned.
    pub gone: usize,
    /// Frames that the host could not read.
    pub unreadable: usize,
    /// Why the first of those could not be.
    pub error: Option<MemoryError>,
}

/// Verifies the frames `gfns`, as they are in `memory` now, on `threads`
/// threads. What could not be read is [`Verdict::Unknown`].
pub fn verify(
    detector: &dyn Detector,
    memory: &dyn GuestMemory,
    gfns: &[Gfn],
    threads: NonZeroUsize,
) -> Outcome<Verdict> {
    let work = |frames: &[Frame<'_>]| detector.verify(frames);
    pass(memory, gfns, threads, &work, Verdict::Unknown)
}

/// Hands copies of the frames `gfns` to `send`, on `threads` threads, and
/// retains those same copies: what `send` passes on is what the detector
/// knows. The results say what was retained.
pub fn retain(
    detector: &dyn Detector,
    memory: &dyn GuestMemory,
    gfns: &[Gfn],
    threads: NonZeroUsize,
    send: &(dyn Fn(&[Frame<'_>]) + Sync),
) -> Outcome<bool> {
    let work = |frames: &[Frame<'_>]| {
        send(frames);
        detector.retain(frames)
    };
    pass(memory, gfns, threads, &work, false)
}

impl<T: Clone> Outcome<T> {
    fn new(len: usize, unread: T) -> Self {
        Self {
            results: vec![unread; len],
            gone: 0,
            unreadable: 0,
            error: None,
        }
    }

    fn note(&mut self, error: MemoryError) {
        if matches!(error, MemoryError::Host { .. }) {
            self.unreadable += 1;
            self.error.get_or_insert(error);
        } else {
            self.gone += 1;
        }
    }
}

/// Copies the pages and has `work` done on them, `CHUNK` at a time. What it
/// gives for a page is the page's result.
fn pass<T: Copy + Send>(
    memory: &dyn GuestMemory,
    gfns: &[Gfn],
    threads: NonZeroUsize,
    work: &(dyn Fn(&[Frame<'_>]) -> Vec<T> + Sync),
    unread: T,
) -> Outcome<T> {
    let mut outcome = Outcome::new(gfns.len(), unread);
    let results = outcome.results.chunks_mut(CHUNK);
    let chunks = Mutex::new(gfns.chunks(CHUNK).zip(results));
    let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let failed = Mutex::new(Vec::new());
    let run = || {
        let mut scratch: Vec<Page> = vec![[0; PAGE_SIZE]; CHUNK.min(gfns.len())];
        while let Some((gfns, results)) = next() {
            let read = |(&gfn, page): (&Gfn, &mut Page)| read(memory, gfn, page);
            let errors: Vec<_> = gfns.iter().zip(&mut scratch).map(read).collect();
            let frames: Vec<_> = (gfns.iter().zip(&scratch).zip(&errors))
                .filter(|(_, error)| error.is_ok())
                .map(|((&gfn, page), _)| Frame { gfn, page })
                .collect();
            let done = work(&frames);
            let places = results.iter_mut().zip(&errors).filter(|(_, e)| e.is_ok());
            for ((place, _), result) in places.zip(done) {
                *place = result;
            }
            let errors = errors.into_iter().filter_map(Result::err);
            failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(errors);
        }
    };
    let useful = gfns.len().div_ceil(CHUNK).clamp(1, threads.get());
    thread::scope(|scope| {
        for _ in 1..useful {
            scope.spawn(run);
        }
        run();
    });
    for error in failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        outcome.note(error);
    }
    outcome
}

fn read(memory: &dyn GuestMemory, gfn: Gfn, page: &mut Page) -> Result<(), MemoryError> {
    let address = gfn.address().ok_or(MemoryError::Unmapped(gfn))?;
    memory.read(address, page)
}

#[cfg(test)]
mod tests;
