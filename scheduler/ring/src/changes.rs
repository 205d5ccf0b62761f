//! A count of what happened to protected frames, told or not yet told.

use std::sync::atomic::Ordering;

use crate::{AreaWords, Words};

/// How many changes of protected frames there were, or of their protection.
/// The device model counts one before it does it; later it tells of it on the
/// submit ring. So vgpud, which counts those it was told of, knows at any time
/// whether there are more.
///
/// Told of with [`Request::TableWrite`](crate::Request::TableWrite),
/// [`Request::TableReleased`](crate::Request::TableReleased),
/// [`Request::Protection`](crate::Request::Protection), or many at once with
/// [`Request::WritesMissed`](crate::Request::WritesMissed).
#[derive(Clone)]
pub struct TableChanges<W = AreaWords> {
    words: W,
    at: usize,
}

impl<W: Words> TableChanges<W> {
    /// The count in word `at`, which belongs to it.
    pub const fn new(words: W, at: usize) -> Self {
        Self { words, at }
    }

    /// The count, by whoever reads. What was read before this depends on no
    /// change that is not in it.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.words.fence();
        self.words.load(self.at, Ordering::Acquire)
    }

    /// Publishes the count, by its one writer. What is written after this is
    /// seen by nobody who does not see the count.
    pub fn store(&self, count: u64) {
        self.words.store(self.at, count, Ordering::Release);
        self.words.fence();
    }
}
