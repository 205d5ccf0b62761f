//! What a migration did, in numbers.

use std::ops::AddAssign;
use std::time::Duration;

/// What came of a round, or of the stop phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that waited when it began: those that may have been written
    /// since they were last sent or verified.
    pub candidates: u64,
    /// Pages held against what the target has.
    pub verified: u64,
    /// Those of them that had changed.
    pub changed: u64,
    /// Those of them for which a few words were enough.
    pub sampled: u64,
    /// Pages sent or named: those that had changed, those of which nothing
    /// was retained, and those sent without a look.
    pub sent: u64,
    /// Those of them that were sent without a look, though something was
    /// retained.
    pub blind: u64,
    /// Those of them of which nothing could be retained: they go again.
    pub not_retained: u64,
    /// Frames that the guest no longer has, as when it was ballooned.
    pub gone: u64,
    /// Frames that the host could not read.
    pub unreadable: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// How long threads looked at pages, together.
    pub looking: Duration,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        // In full, so that no count is left out. They count pages of memory
        // and cannot overflow.
        let Self {
            candidates,
            verified,
            changed,
            sampled,
            sent,
            blind,
            not_retained,
            gone,
            unreadable,
            elapsed,
            looking,
        } = other;
        self.candidates += candidates;
        self.verified += verified;
        self.changed += changed;
        self.sampled += sampled;
        self.sent += sent;
        self.blind += blind;
        self.not_retained += not_retained;
        self.gone += gone;
        self.unreadable += unreadable;
        self.elapsed += elapsed;
        self.looking += looking;
    }
}
