//! Which pages next.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::chunk::{Chunk, How};

/// Work to be done by several threads.
#[derive(Default)]
pub(super) struct Queue {
    chunks: Mutex<VecDeque<Entry>>,
}

/// A chunk of a region.
struct Entry {
    /// Which part of it most likely changed.
    expected: f64,
    /// How it is verified.
    look: How,
    chunk: Chunk,
}

impl Entry {
    /// Whether the way to the target is better used by this than idle. What
    /// most likely did not change is not sent for nothing.
    fn may_go_blind(&self) -> bool {
        self.chunk.how == How::Blind || self.chunk.how == How::Unknown || self.expected > 0.5
    }
}

impl Queue {
    /// One after another.
    pub(super) fn in_order(chunks: Vec<Chunk>) -> Self {
        let mut queue = Self::default();
        queue.add(0.0, How::Blind, chunks);
        queue
    }

    /// Appends chunks of a region of which the part `expected` most likely
    /// changed, and which is verified by `look`.
    pub(super) fn add(&mut self, expected: f64, look: How, chunks: Vec<Chunk>) {
        let entry = |chunk| Entry {
            expected,
            look,
            chunk,
        };
        let entries = chunks.into_iter().map(entry);
        let queue = self.chunks.get_mut();
        queue
            .unwrap_or_else(PoisonError::into_inner)
            .extend(entries);
    }

    /// With what must go first, then what most likely changed, and what most
    /// likely did not at the end.
    pub(super) fn by_expectation(self) -> Self {
        let mut chunks = self.chunks.into_inner();
        let entries = chunks.as_mut().unwrap_or_else(|p| p.get_mut());
        let key = |entry: &Entry| match entry.chunk.how {
            How::Unknown => 2.0,
            How::Blind => 1.0 + entry.expected,
            How::Verify { .. } => entry.expected,
        };
        entries
            .make_contiguous()
            .sort_by(|a, b| key(b).total_cmp(&key(a)));
        Self {
            chunks: Mutex::new(std::mem::take(entries)),
        }
    }

    /// The first.
    pub(super) fn first(&self) -> Option<Chunk> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.pop_front().map(|entry| entry.chunk)
    }

    /// The first, to be sent without a look, if the way to the target is
    /// `idle`; the last, to be verified, if it is not.
    pub(super) fn either_end(&self, idle: bool) -> Option<Chunk> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let blind = chunks.front().is_some_and(Entry::may_go_blind);
        if !blind || idle || chunks.back().is_some_and(|e| e.chunk.how == How::Unknown) {
            let mut chunk = chunks.pop_front()?.chunk;
            if blind && chunk.how != How::Unknown {
                chunk.how = How::Blind;
            }
            return Some(chunk);
        }
        let mut entry = chunks.pop_back()?;
        entry.chunk.how = entry.look;
        Some(entry.chunk)
    }
}
