//! What can be wrong with a ring.

use crate::DecodeError;

/// The peer broke the ring. It stays broken: drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The peer's index is further from ours than the ring is long.
    #[error(
        "ring: the peer's {which} index is {theirs:#x} while ours is {ours:#x}, \
         allowed: at most {capacity} apart"
    )]
    Index {
        /// "producer" or "consumer".
        which: &'static str,
        /// The peer's index.
        theirs: u64,
        /// Our index.
        ours: u64,
        /// Slots of the ring.
        capacity: u64,
    },
    /// A slot does not decode.
    #[error(transparent)]
    Message(#[from] DecodeError),
}

/// Why a message was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The consumer has not kept up. The ring is sound; try again later.
    #[error("ring: full")]
    Full,
    /// The consumer broke the ring.
    #[error(transparent)]
    Broken(#[from] RingError),
}
