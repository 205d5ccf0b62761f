//! The receiving end.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::layout::{RingPlace, index};
use crate::producer::slot_at;
use crate::{Doorbell, Message, RingError, Words};

/// The longest a consumer polls before it sleeps, unless told otherwise.
/// About what a sleep and a wake-up cost together, so polling at worst
/// doubles the cost of a wait.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(20);

/// Less than this is not worth polling.
const LEAST_SPIN: Duration = Duration::from_micros(1);

/// A consumer that polling did not help polls again after so many sleeps, to
/// notice when it would.
const PROBE: u32 = 1024;

/// Why [`Consumer::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is a message.
    Message,
    /// The doorbell was rung but there is no message: a late ring for one
    /// already popped, or somebody who wants this thread's attention.
    Rung,
    /// Time ran out.
    TimedOut,
}

/// Pops messages. There is one for each ring.
pub struct Consumer<M, W, D> {
    words: W,
    bell: D,
    place: RingPlace,
    /// Our index. The shared copy is for the peer and never read back.
    head: u64,
    /// The producer's index as last read and found possible.
    tail: u64,
    /// Our count of sleeps and wake-ups.
    sleeps: u64,
    /// How long to poll before the next sleep, and at most.
    spin: Duration,
    most_spin: Duration,
    /// Sleeps since polling was given up.
    quiet: u32,
    _message: PhantomData<fn() -> M>,
}

impl<M: Message, W: Words, D: Doorbell> Consumer<M, W, D> {
    /// The consumer of the empty ring at `place`, both of whose indices are 0.
    pub fn new(words: W, bell: D, place: RingPlace) -> Self {
        // On a single processor nobody can push while we poll.
        let alone = thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        let most_spin = if alone { Duration::ZERO } else { DEFAULT_SPIN };
        Self {
            words,
            bell,
            place,
            head: 0,
            tail: 0,
            sleeps: 0,
            spin: most_spin,
            most_spin,
            quiet: 0,
            _message: PhantomData,
        }
    }

    /// Polls at most `longest` before it sleeps; zero never polls.
    #[must_use]
    pub fn with_spin(mut self, longest: Duration) -> Self {
        self.most_spin = longest;
        self.spin = longest;
        self
    }

    /// Goes on in a ring whose consumer is gone, behind the last message
    /// that it is known to have taken. What the index says is no more than a
    /// claim; if it is impossible, the first look at the ring says so.
    #[must_use]
    pub fn resumed(mut self) -> Self {
        let index = |at| self.words.load(self.place.indices + at, Ordering::Acquire);
        self.head = index(index::CONSUMER);
        self.tail = self.head;
        // A former consumer may have died asleep: a producer that rang for
        // that sleep would not ring for ours, did we announce the same.
        self.sleeps = index(index::SLEEPS).wrapping_add(1) & !1;
        let sleeps = self.place.indices + index::SLEEPS;
        self.words.store(sleeps, self.sleeps, Ordering::Relaxed);
        self
    }

    /// The next message, if there is one. Never blocks.
    ///
    /// # Errors
    /// [`RingError`] when the producer's index is impossible or the message
    /// does not decode.
    pub fn pop(&mut self) -> Result<Option<M>, RingError> {
        let message = self.peek();
        // One that does not decode is taken, too; the ring is broken anyway.
        if !matches!(message, Ok(None) | Err(RingError::Index { .. })) {
            self.take();
        }
        message
    }

    /// The next message, which stays in the ring until [`Consumer::take`].
    /// Never blocks.
    ///
    /// # Errors
    /// As [`Consumer::pop`].
    pub fn peek(&mut self) -> Result<Option<M>, RingError> {
        if !self.ready()? {
            return Ok(None);
        }
        let at = slot_at(self.place, self.head);
        let slot = std::array::from_fn(|i| self.words.load(at + i, Ordering::Relaxed));
        Ok(Some(M::decode(slot)?))
    }

    /// Messages ever taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.head
    }

    /// Takes messages up to number `head` that a former consumer took but did
    /// not come to give the slots of back. A `head` that lies behind, or
    /// further ahead than the ring is long, is ignored.
    pub fn take_up_to(&mut self, head: u64) {
        let ahead = head.wrapping_sub(self.head);
        if ahead != 0 && ahead <= self.place.capacity {
            self.head = head.wrapping_sub(1);
            self.tail = head;
            self.take();
        }
    }

    /// Takes the message that [`Consumer::peek`] gave.
    pub fn take(&mut self) {
        if self.head == self.tail {
            return;
        }
        self.head = self.head.wrapping_add(1);
        // Release: the producer may overwrite the slot once it sees this.
        self.words.store(
            self.place.indices + index::CONSUMER,
            self.head,
            Ordering::Release,
        );
    }

    /// Whether there is a message.
    ///
    /// # Errors
    /// [`RingError::Index`] when the producer's index is impossible.
    pub fn ready(&mut self) -> Result<bool, RingError> {
        if self.head != self.tail {
            return Ok(true);
        }
        // Read once, checked, and only the copy is used.
        let tail = self
            .words
            .load(self.place.indices + index::PRODUCER, Ordering::Acquire);
        if tail.wrapping_sub(self.head) > self.place.capacity {
            return Err(RingError::Index {
                which: "producer",
                theirs: tail,
                ours: self.head,
                capacity: self.place.capacity,
            });
        }
        self.tail = tail;
        Ok(tail != self.head)
    }

    /// Waits for a message, at most `timeout` (`None`: for ever). Polls a
    /// little before it sleeps, and less the less often that has helped.
    ///
    /// # Errors
    /// [`RingError::Index`] when the producer's index is impossible.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Wake, RingError> {
        if self.poll_a_little(timeout)? || self.arm()? {
            return Ok(Wake::Message);
        }
        let rung = self.bell.wait(timeout);
        self.count_sleep(false);
        Ok(if self.ready()? {
            Wake::Message
        } else if rung {
            Wake::Rung
        } else {
            Wake::TimedOut
        })
    }

    /// Announces sleep: from now on the producer rings. True when there is a
    /// message after all, and then nothing is announced.
    fn arm(&mut self) -> Result<bool, RingError> {
        self.count_sleep(true);
        // See Producer::push: ours or theirs sees the other.
        self.words.fence();
        let ready = self.ready();
        if !matches!(ready, Ok(false)) {
            self.count_sleep(false);
        }
        ready
    }

    /// Makes the count odd, which announces sleep, or even.
    fn count_sleep(&mut self, asleep: bool) {
        if (self.sleeps % 2 == 1) == asleep {
            return;
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        self.words.store(
            self.place.indices + index::SLEEPS,
            self.sleeps,
            Ordering::Relaxed,
        );
    }

    /// The doorbell this end waits on.
    pub fn doorbell(&self) -> &D {
        &self.bell
    }

    fn poll_a_little(&mut self, timeout: Option<Duration>) -> Result<bool, RingError> {
        if self.ready()? {
            return Ok(true);
        }
        let probe = self.spin.is_zero();
        if probe {
            self.quiet += 1;
            if self.quiet < PROBE || self.most_spin.is_zero() {
                self.quiet = self.quiet.min(PROBE);
                return Ok(false);
            }
            self.quiet = 0;
            self.spin = self.most_spin;
        }
        let spin = timeout.map_or(self.spin, |t| t.min(self.spin));
        let start = Instant::now();
        while start.elapsed() < spin {
            for _ in 0..16 {
                std::hint::spin_loop();
                if self.ready()? {
                    self.spin = (self.spin * 2).min(self.most_spin);
                    return Ok(true);
                }
            }
        }
        self.spin /= 2;
        if probe || self.spin < LEAST_SPIN {
            self.spin = Duration::ZERO;
        }
        Ok(false)
    }
}
