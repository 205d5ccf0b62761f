//! A few pages at a time: copied once, looked at, sent, retained.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;

use guest_memory::{Gfn, GuestMemory, MemoryError, PAGE_SIZE};

use super::PrecopyError;
use super::counts::Counts;
use super::frames::FrameSet;
use super::seams::{Carrier, Host, Work};
use crate::detect::{Detector, Frame, Verdict};
use crate::page::Page;

/// Pages copied at once. 128 KiB stay in a core's own cache until they have
/// been looked at.
pub(super) const CHUNK: usize = 32;

/// What is to be done with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Nothing is retained of them: they go.
    Unknown,
    /// They go without a look.
    Blind,
    /// They are verified.
    Verify {
        /// With a look at a few words first.
        sampled: bool,
    },
}

/// Up to [`CHUNK`] frames of one region.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) region: u64,
    pub(super) gfns: Vec<Gfn>,
    pub(super) how: How,
}

impl Chunk {
    /// All of `frames`, in chunks.
    pub(super) fn split(region: u64, frames: &FrameSet, how: How) -> Vec<Self> {
        let gfns: Vec<_> = frames.of(region).collect();
        let chunk = |gfns: &[Gfn]| Self {
            region,
            gfns: gfns.to_vec(),
            how,
        };
        gfns.chunks(CHUNK).map(chunk).collect()
    }
}

/// What came of a chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    pub(super) region: u64,
    /// Frames that need nothing more until they are written again.
    pub(super) through: FrameSet,
    /// Frames that were verified.
    pub(super) verified: FrameSet,
    /// Those of them that had changed.
    pub(super) changed: FrameSet,
    /// Frames that were sent.
    pub(super) sent: FrameSet,
    /// Frames of which something is retained now, of those that were sent.
    pub(super) retained: FrameSet,
    /// Frames that are no longer there.
    pub(super) gone: FrameSet,
    pub(super) counts: Counts,
}

/// A round's or the stop phase's work.
pub(super) struct Job<'a> {
    pub(super) host: Host<'a>,
    pub(super) detector: &'a dyn Detector,
    /// Whether the guest stands still: what goes now is not retained, and
    /// what cannot be read is an error.
    pub(super) last: bool,
}

impl Job<'_> {
    /// Does what `next` gives, on `threads` threads, until it gives nothing.
    pub(super) fn run(
        &self,
        threads: NonZeroUsize,
        next: &(dyn Fn() -> Option<Chunk> + Sync),
    ) -> Result<Vec<Done>, PrecopyError> {
        let all = Mutex::new((Vec::new(), None));
        let lock = || all.lock().unwrap_or_else(PoisonError::into_inner);
        let work = || {
            let mut scratch: Vec<Page> = vec![[0; PAGE_SIZE]; CHUNK];
            let mut done = Vec::new();
            while let Some(chunk) = next() {
                match self.chunk(&chunk, &mut scratch) {
                    Ok(came) => done.push(came),
                    Err(error) => {
                        lock().1.get_or_insert(error);
                    }
                }
                if lock().1.is_some() {
                    break;
                }
            }
            lock().0.append(&mut done);
        };
        thread::scope(|scope| {
            for _ in 1..threads.get() {
                scope.spawn(work);
            }
            work();
        });
        match all.into_inner().unwrap_or_else(PoisonError::into_inner) {
            (_, Some(error)) => Err(error),
            (done, None) => Ok(done),
        }
    }

    fn chunk(&self, chunk: &Chunk, scratch: &mut [Page]) -> Result<Done, PrecopyError> {
        let began = self.host.clock.now();
        let mut done = Done {
            region: chunk.region,
            ..Done::default()
        };
        let verify = matches!(chunk.how, How::Verify { .. });
        if let Carrier::Names(namer) = self.host.carrier
            && self.last
            && !verify
        {
            // Nobody here needs to know what is in them.
            namer.name(&chunk.gfns)?;
            for &gfn in &chunk.gfns {
                done.sent.insert(gfn);
            }
            done.through = done.sent;
            done.count(chunk.how);
            return Ok(done);
        }
        let mut frames = Vec::with_capacity(CHUNK);
        for (&gfn, page) in chunk.gfns.iter().zip(scratch) {
            match read(self.host.memory, gfn, page) {
                Ok(()) => frames.push(Frame { gfn, page }),
                Err(error @ MemoryError::Host { .. }) => self.unreadable(gfn, error, &mut done)?,
                Err(_) => {
                    done.counts.gone += 1;
                    done.through.insert(gfn);
                    done.gone.insert(gfn);
                    self.detector.forget(gfn);
                }
            }
        }
        let verdicts = self.look(chunk.how, &frames, &mut done);
        if verify {
            done.counts.looking = self.host.clock.now().saturating_sub(began);
        }
        let mut going = Vec::with_capacity(frames.len());
        for (frame, verdict) in frames.iter().zip(verdicts) {
            done.through.insert(frame.gfn);
            if verdict != Verdict::Unknown {
                done.verified.insert(frame.gfn);
            }
            if verdict == Verdict::Changed {
                done.changed.insert(frame.gfn);
            }
            if verdict.must_send() {
                done.sent.insert(frame.gfn);
                going.push(*frame);
            }
        }
        self.send(&going, &mut done)?;
        done.count(chunk.how);
        Ok(done)
    }

    fn look(&self, how: How, frames: &[Frame<'_>], done: &mut Done) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Unknown; frames.len()];
        let mut work = Work {
            copied: count(frames.len()),
            ..Work::default()
        };
        if let How::Verify { sampled } = how {
            let mut shown = vec![false; frames.len()];
            if sampled {
                shown = self.detector.probe(frames);
                work.probed = work.copied;
            }
            let (places, left): (Vec<_>, Vec<_>) = (frames.iter().zip(&shown).enumerate())
                .filter(|(_, (_, shown))| !**shown)
                .map(|(i, (frame, _))| (i, *frame))
                .unzip();
            verdicts.fill(Verdict::Changed);
            for (i, verdict) in places.iter().zip(self.detector.verify_whole(&left)) {
                verdicts[*i] = verdict;
            }
            work.looked = count(left.len());
            done.counts.sampled = u64::from(work.copied - work.looked);
        }
        self.host.clock.spent(work);
        verdicts
    }

    /// Sends pages and retains the same copies of them: what the detector
    /// knows is what the target gets.
    fn send(&self, going: &[Frame<'_>], done: &mut Done) -> Result<(), PrecopyError> {
        if going.is_empty() {
            return Ok(());
        }
        if !self.last {
            let kept = self.detector.retain(going);
            for (frame, kept) in going.iter().zip(kept) {
                if kept {
                    done.retained.insert(frame.gfn);
                } else {
                    done.counts.not_retained += 1;
                }
            }
            self.host.clock.spent(Work {
                retained: count(going.len()),
                ..Work::default()
            });
        }
        match self.host.carrier {
            Carrier::Sends(sender) => sender.send(going)?,
            Carrier::Names(namer) => {
                let gfns: Vec<_> = going.iter().map(|frame| frame.gfn).collect();
                namer.name(&gfns)?;
            }
        }
        Ok(())
    }

    /// Before the guest stops, the page just waits on. Then whoever reads
    /// again may have more luck, and without the page the target is not the
    /// same guest.
    fn unreadable(
        &self,
        gfn: Gfn,
        error: MemoryError,
        done: &mut Done,
    ) -> Result<(), PrecopyError> {
        done.counts.unreadable += 1;
        if !self.last {
            return Ok(());
        }
        let Carrier::Names(namer) = self.host.carrier else {
            return Err(PrecopyError::Unreadable(error));
        };
        namer.name(&[gfn])?;
        done.sent.insert(gfn);
        done.through.insert(gfn);
        Ok(())
    }
}

impl Done {
    fn count(&mut self, how: How) {
        self.counts.verified = self.verified.count().into();
        self.counts.changed = self.changed.count().into();
        self.counts.sent = self.sent.count().into();
        if how == How::Blind {
            self.counts.blind = self.counts.sent;
        }
    }
}

/// Of pages in a chunk.
pub(super) fn count(pages: usize) -> u32 {
    pages.try_into().unwrap_or(u32::MAX)
}

fn read(memory: &dyn GuestMemory, gfn: Gfn, page: &mut Page) -> Result<(), MemoryError> {
    let address = gfn.address().ok_or(MemoryError::Unmapped(gfn))?;
    memory.read(address, page)
}
