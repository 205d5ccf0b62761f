//! Where a command streamer is.

use crate::memory::Space;

/// Where commands come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Ring,
    /// A batch started from the ring.
    First,
    /// A second-level batch.
    Second,
    /// The indirect context: commands up to this address.
    Indirect(u64),
    /// The per-context batch.
    PerContext,
    /// The per-context batch has ended.
    PerContextDone,
}

/// A position in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) at: u64,
    pub(crate) privileged: bool,
}

impl Batch {
    pub(crate) const NONE: Self = Self {
        at: 0,
        privileged: false,
    };

    pub(crate) fn space(self) -> Space {
        if self.privileged {
            Space::Ggtt
        } else {
            Space::Ppgtt
        }
    }
}

/// The context's ring; offsets in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) start: u32,
    /// A multiple of 4096; 0 when the ring is not valid.
    pub(crate) size: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

impl Ring {
    /// Bytes between head and tail.
    pub(crate) fn ahead(&self) -> u32 {
        if self.tail >= self.head {
            self.tail - self.head
        } else {
            // Both are below size.
            self.size - self.head + self.tail
        }
    }

    pub(crate) fn offset(&self, from: u32, bytes: u32) -> u32 {
        if self.size == 0 {
            return 0;
        }
        // The sum stays far below 2^32: both are at most 2 MiB.
        (from + bytes) % self.size
    }
}
