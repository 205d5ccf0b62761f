//! Messages of any length, both ways, in shared memory: what goes over a
//! socket where there is one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::layout::PAGE_WORDS;
use crate::{Doorbell, RingError, Words};

/// Words on their way in one direction.
pub const PIPE_WORDS: usize = 16 * PAGE_WORDS;

/// The words of a pipe in all: a page of indices, and both directions'.
pub const PIPE_AREA_WORDS: usize = PAGE_WORDS + 2 * PIPE_WORDS;

/// One direction of a pipe. Offsets and sizes are in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipePlace {
    /// Words ever written; written by the sender.
    pub produced: usize,
    /// Words ever read; written by the receiver.
    pub consumed: usize,
    /// The first word of the buffer.
    pub first: usize,
    /// Words in the buffer, a power of two.
    pub capacity: u64,
}

impl PipePlace {
    /// From vgpud to a device model.
    pub const TO_DEVICE: Self = Self {
        produced: 0,
        consumed: 16,
        first: PAGE_WORDS,
        capacity: PIPE_WORDS as u64,
    };

    /// From a device model to vgpud.
    pub const TO_DAEMON: Self = Self {
        produced: 32,
        consumed: 48,
        first: PAGE_WORDS + PIPE_WORDS,
        capacity: PIPE_WORDS as u64,
    };

    /// The word of index `n`.
    fn word(self, n: u64) -> usize {
        // Less than the buffer's words, which are in memory.
        self.first + usize::try_from(n & (self.capacity - 1)).unwrap_or(0)
    }
}

/// Why a message did not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipeError {
    /// The other side is gone.
    #[error("the other side of the pipe is gone")]
    Closed,
    /// Time ran out. What of a message has been received is kept; one that was
    /// sent in part makes the pipe [`PipeError::Torn`].
    #[error("the pipe did not move in time")]
    TimedOut,
    /// A part is longer than this side accepts.
    #[error("pipe: a part of {len} bytes, allowed: at most {most}")]
    TooLong {
        /// Its length in bytes.
        len: u64,
        /// What is accepted.
        most: u64,
    },
    /// A message was sent in part; nothing more can be sent.
    #[error("pipe: an earlier message was not sent in full")]
    Torn,
    /// An index is impossible. The pipe is of no more use.
    #[error(transparent)]
    Broken(#[from] RingError),
}

/// The most bytes that each part of a message may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeLimits {
    /// The text.
    pub text: usize,
    /// What is attached to it.
    pub attached: usize,
}

/// A message: a text and what is attached, either of which may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipeMessage {
    /// The text.
    pub text: Vec<u8>,
    /// What is attached.
    pub attached: Vec<u8>,
}

/// One end of a pipe. A message is a word with the lengths of its two parts,
/// then each part, filled up to whole words with zeroes.
///
/// The other end is not trusted: its indices are read once and checked,
/// lengths are refused before anything is allocated for them, and memory grows
/// as words arrive. Every wait ends by its deadline, or when the other side is
/// gone.
pub struct Pipe<W, D> {
    words: W,
    outgoing: PipePlace,
    incoming: PipePlace,
    /// Rung when words were written or read.
    bell: D,
    /// Waited on for the same.
    own: D,
    /// Our indices. The shared copies are for the peer and never read back.
    sent: u64,
    received: u64,
    /// The message under way.
    partial: Option<Partial>,
    torn: bool,
    gone: Box<dyn Fn() -> bool + Send>,
}

/// What has come of a message.
struct Partial {
    text: usize,
    attached: usize,
    message: PipeMessage,
}

impl<W: Words, D: Doorbell> Pipe<W, D> {
    /// An end of a new pipe, whose indices are all 0. `bell` wakes the other
    /// side, `own` is waited on, `gone` tells whether the other side is gone;
    /// when that happens `own` is rung.
    pub fn new(
        words: W,
        (outgoing, incoming): (PipePlace, PipePlace),
        (bell, own): (D, D),
        gone: impl Fn() -> bool + Send + 'static,
    ) -> Self {
        Self {
            words,
            outgoing,
            incoming,
            bell,
            own,
            sent: 0,
            received: 0,
            partial: None,
            torn: false,
            gone: Box::new(gone),
        }
    }

    /// Sends a message; `limit` is how long that may take, for ever without.
    ///
    /// # Errors
    /// [`PipeError`]; [`PipeError::TooLong`] for a part of 4 GiB.
    pub fn send(
        &mut self,
        text: &[u8],
        attached: &[u8],
        limit: Option<Duration>,
    ) -> Result<(), PipeError> {
        if self.torn {
            return Err(PipeError::Torn);
        }
        let head = u64::from(length(attached)?) << 32 | u64::from(length(text)?);
        let deadline = deadline(limit);
        let parts = [&head.to_le_bytes(), text, attached];
        let before = self.sent;
        let sent = parts.into_iter().try_for_each(|p| self.write(p, deadline));
        self.torn = sent.is_err() && self.sent != before;
        sent
    }

    /// Receives a message of at most `most`; `limit` is how long that may
    /// take, for ever without.
    ///
    /// # Errors
    /// [`PipeError`]. After [`PipeError::TooLong`] the message is still there.
    pub fn recv(
        &mut self,
        most: PipeLimits,
        limit: Option<Duration>,
    ) -> Result<PipeMessage, PipeError> {
        let deadline = deadline(limit);
        let mut partial = match self.partial.take() {
            Some(partial) => partial,
            None => self.next_head(deadline)?,
        };
        let received = self.fill(&mut partial, most, deadline);
        match received {
            Ok(()) => Ok(partial.message),
            Err(e) => {
                self.partial = Some(partial);
                Err(e)
            }
        }
    }

    /// The doorbell this end waits on: rung, it makes a wait look again.
    pub fn doorbell(&self) -> &D {
        &self.own
    }

    fn next_head(&mut self, deadline: Option<Instant>) -> Result<Partial, PipeError> {
        let (_, [text, attached]) = self.read(deadline, 1).map(|w| {
            let [a, b, c, d, e, f, g, h] = w.first().copied().unwrap_or(0).to_le_bytes();
            (w, [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes))
        })?;
        // A usize holds any u32 where Xen runs.
        let size = |n| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Partial {
            text: size(text),
            attached: size(attached),
            message: PipeMessage::default(),
        })
    }

    fn fill(
        &mut self,
        partial: &mut Partial,
        most: PipeLimits,
        deadline: Option<Instant>,
    ) -> Result<(), PipeError> {
        for (len, most) in [(partial.text, most.text), (partial.attached, most.attached)] {
            if len > most {
                let number = |n| u64::try_from(n).unwrap_or(u64::MAX);
                return Err(PipeError::TooLong {
                    len: number(len),
                    most: number(most),
                });
            }
        }
        let message = &mut partial.message;
        for (part, len) in [
            (&mut message.text, partial.text),
            (&mut message.attached, partial.attached),
        ] {
            while part.len() < len {
                let left = len - part.len();
                for word in self.read(deadline, left.div_ceil(8))? {
                    let bytes = word.to_le_bytes();
                    let left = len - part.len();
                    part.extend_from_slice(bytes.get(..left.min(8)).unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    /// Waits for words, and takes at most `most` of them.
    fn read(&mut self, deadline: Option<Instant>, most: usize) -> Result<Vec<u64>, PipeError> {
        let place = self.incoming;
        loop {
            // First: who says something and goes is heard.
            let gone = (self.gone)();
            let produced = self.words.load(place.produced, Ordering::Acquire);
            let there = produced.wrapping_sub(self.received);
            self.possible("producer", produced, self.received, there, place)?;
            if there > 0 {
                let count = there.min(u64::try_from(most).unwrap_or(u64::MAX));
                let words = (0..count)
                    .map(|n| place.word(self.received.wrapping_add(n)))
                    .map(|at| self.words.load(at, Ordering::Relaxed))
                    .collect();
                self.received = self.received.wrapping_add(count);
                // Release: the sender may overwrite the words it sees free.
                self.words
                    .store(place.consumed, self.received, Ordering::Release);
                self.bell.ring();
                return Ok(words);
            }
            self.wait(gone, deadline)?;
        }
    }

    fn write(&mut self, bytes: &[u8], deadline: Option<Instant>) -> Result<(), PipeError> {
        let place = self.outgoing;
        let mut words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word.iter_mut()
                .zip(chunk)
                .for_each(|(to, from)| *to = *from);
            u64::from_le_bytes(word)
        });
        let mut left = u64::try_from(words.len()).unwrap_or(u64::MAX);
        while left > 0 {
            let consumed = self.words.load(place.consumed, Ordering::Acquire);
            let used = self.sent.wrapping_sub(consumed);
            self.possible("consumer", consumed, self.sent, used, place)?;
            let count = left.min(place.capacity - used);
            if count == 0 {
                self.wait((self.gone)(), deadline)?;
                continue;
            }
            for (n, word) in (0..count).zip(&mut words) {
                let at = place.word(self.sent.wrapping_add(n));
                self.words.store(at, word, Ordering::Relaxed);
            }
            self.sent = self.sent.wrapping_add(count);
            self.words
                .store(place.produced, self.sent, Ordering::Release);
            self.bell.ring();
            left -= count;
        }
        Ok(())
    }

    fn possible(
        &self,
        which: &'static str,
        theirs: u64,
        ours: u64,
        apart: u64,
        place: PipePlace,
    ) -> Result<(), RingError> {
        if apart <= place.capacity {
            return Ok(());
        }
        Err(RingError::Index {
            which,
            theirs,
            ours,
            capacity: place.capacity,
        })
    }

    /// Waits until something may have changed.
    fn wait(&self, gone: bool, deadline: Option<Instant>) -> Result<(), PipeError> {
        if gone {
            return Err(PipeError::Closed);
        }
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        // Not by what the wait says: a peer can ring as often as it likes.
        if left.is_some_and(|left| left.is_zero()) {
            return Err(PipeError::TimedOut);
        }
        self.own.wait(left);
        Ok(())
    }
}

fn deadline(limit: Option<Duration>) -> Option<Instant> {
    // Past what a clock can tell is for ever.
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

fn length(part: &[u8]) -> Result<u32, PipeError> {
    u32::try_from(part.len()).map_err(|_| PipeError::TooLong {
        len: u64::try_from(part.len()).unwrap_or(u64::MAX),
        most: u32::MAX.into(),
    })
}
