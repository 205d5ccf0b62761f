//! What a ring needs of its transport.

use std::sync::atomic::Ordering;
use std::time::Duration;

/// Words of 64 bits shared with the peer, each of which the peer may change
/// at any moment. A handle: clones reach the same words.
///
/// An index past the end is a bug of the caller; implementations panic.
pub trait Words: Clone + Send {
    /// Loads word `index`.
    fn load(&self, index: usize, order: Ordering) -> u64;
    /// Stores to word `index`.
    fn store(&self, index: usize, value: u64, order: Ordering);
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// Wakes the peer. Rings are remembered until a wait returns for them or
/// [`Doorbell::clear`], so a ring before the wait ends the wait at once.
pub trait Doorbell: Send {
    /// Wakes the peer, now or when it next waits.
    fn ring(&self);
    /// Waits for a ring; `None` waits for ever. False when time ran out. One
    /// thread waits at a time.
    fn wait(&self, timeout: Option<Duration>) -> bool;
    /// Forgets the rings so far.
    fn clear(&self);
}
