//! The sending end.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use crate::layout::{RingPlace, index};
use crate::{Doorbell, Message, PushError, RingError, SLOT_QWORDS, Words};

/// Pushes messages. There is one for each ring.
pub struct Producer<M, W, D> {
    words: W,
    bell: D,
    place: RingPlace,
    /// Our index. The shared copy is for the peer and never read back.
    tail: u64,
    /// The consumer's index as last read; it only grows, so what it leaves
    /// free stays free and it need not be read again before that is used up.
    head: u64,
    /// The sleep that was last ended by a ring.
    rung: u64,
    _message: PhantomData<fn(M)>,
}

impl<M: Message, W: Words, D: Doorbell> Producer<M, W, D> {
    /// The producer of the empty ring at `place`, both of whose indices are 0.
    pub fn new(words: W, bell: D, place: RingPlace) -> Self {
        Self {
            words,
            bell,
            place,
            tail: 0,
            head: 0,
            rung: 0,
            _message: PhantomData,
        }
    }

    /// Goes on in a ring whose producer is gone, behind the last message that
    /// it is known to have sent. Rings the doorbell: that one may not have
    /// come to it.
    #[must_use]
    pub fn resumed(mut self) -> Self {
        let index = |at| self.words.load(self.place.indices + at, Ordering::Acquire);
        self.tail = index(index::PRODUCER);
        self.head = index(index::CONSUMER);
        self.bell.ring();
        self
    }

    /// Sends what a former producer wrote into slots up to message `tail` but
    /// did not come to send. A `tail` that lies behind, or further ahead than
    /// the ring is long, is ignored.
    pub fn send_up_to(&mut self, tail: u64) {
        let ahead = tail.wrapping_sub(self.tail);
        if ahead != 0 && ahead <= self.place.capacity {
            self.tail = tail;
            let at = self.place.indices + index::PRODUCER;
            self.words.store(at, tail, Ordering::Release);
            self.bell.ring();
        }
    }

    /// Messages ever sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.tail
    }

    /// Sends `message` and wakes the consumer if it sleeps.
    ///
    /// # Errors
    /// [`PushError::Full`], or [`PushError::Broken`] when the consumer's index
    /// is impossible; the message was not sent.
    pub fn push(&mut self, message: M) -> Result<(), PushError> {
        self.push_noting(message, |_| {})
    }

    /// Like [`Producer::push`]. When the message is in its slot and nobody can
    /// see it yet, `note` is told how many messages will have been sent.
    ///
    /// # Errors
    /// As [`Producer::push`]; nothing is noted then.
    pub fn push_noting(&mut self, message: M, note: impl FnOnce(u64)) -> Result<(), PushError> {
        if self.tail.wrapping_sub(self.head) >= self.place.capacity && self.free()? == 0 {
            return Err(PushError::Full);
        }
        let at = slot_at(self.place, self.tail);
        for (i, qword) in message.encode().into_iter().enumerate() {
            self.words.store(at + i, qword, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(1);
        note(self.tail);
        let tail = self.place.indices + index::PRODUCER;
        self.words.store(tail, self.tail, Ordering::Release);
        // The consumer stores SLEEPS, fences, then loads our index. With a
        // fence here, one of us sees the other's store, so a message is never
        // left in the ring with the consumer asleep.
        self.words.fence();
        let sleeps = self.place.indices + index::SLEEPS;
        let sleeps = self.words.load(sleeps, Ordering::Relaxed);
        if sleeps % 2 == 1 && sleeps != self.rung {
            self.rung = sleeps;
            self.bell.ring();
        }
        Ok(())
    }

    /// How many messages may be pushed now without [`PushError::Full`].
    ///
    /// # Errors
    /// [`RingError::Index`] when the consumer's index is impossible.
    pub fn free(&mut self) -> Result<u64, RingError> {
        // Acquire: our stores to a slot come after the consumer's loads of it.
        let head = self
            .words
            .load(self.place.indices + index::CONSUMER, Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        if used > self.place.capacity {
            return Err(RingError::Index {
                which: "consumer",
                theirs: head,
                ours: self.tail,
                capacity: self.place.capacity,
            });
        }
        self.head = head;
        Ok(self.place.capacity - used)
    }

    /// The doorbell the consumer waits on.
    pub fn doorbell(&self) -> &D {
        &self.bell
    }
}

/// The word where the slot of index `n` starts.
pub(crate) fn slot_at(place: RingPlace, n: u64) -> usize {
    // Masked to less than 65536, so it fits any usize.
    let slot = usize::try_from(n & (place.capacity - 1)).unwrap_or(0);
    place.slots + slot * SLOT_QWORDS
}
