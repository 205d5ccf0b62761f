//! Keeping an engine free for someone who is about to come back.
//!
//! A driver that submits its next batch when it hears of the last is away for
//! a moment after each. If all that is ready then is long work of somebody
//! who owes it time, an engine that is never idle would take that, and the
//! debt would grow instead of being paid. So the engine is held: only for
//! one who is not known to stay away, only against work that is longer than
//! that by far, and the time counts as its own.
//!
//! To keep the second slot free behind who runs costs less: at worst the
//! engine stands still for an interrupt when that is over. So there it does not
//! matter how long the pauses are.

use std::time::Duration;

use super::claim::{Claim, State};
use super::{Policy, nanos};

/// The longest pause that is waited for, in nanoseconds: longer ones are no
/// mere answer to a completion.
const LONGEST: i128 = 1_000_000;
/// Work that is put off is longer than the pause by this factor at least.
const LONGER: i128 = 4;
/// So many times the usual pause is waited.
const PATIENCE: i128 = 2;
/// Or this part of what the work would take, which is then the more to lose,
/// but no longer than [`MOST`].
const PART: i128 = 16;
/// In nanoseconds.
const MOST: i128 = 4_000_000;
/// Slices that must be owed.
const OWED: i128 = 2;
/// Work that is worth an interrupt's time many times over, in nanoseconds.
const LONG: i128 = 4_000_000;

/// The engine is kept free.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// For whom.
    pub vgpu: u64,
    /// Until then, if nothing happens; `None` while it runs itself.
    pub until: Option<Duration>,
}

/// A vGPU's pauses between workloads.
#[derive(Debug, Default)]
pub struct Pauses {
    left: Option<Duration>,
    mean: Option<i128>,
}

impl Pauses {
    /// Its last workload is over and it has no other.
    pub const fn begin(&mut self, now: Duration) {
        self.left = Some(now);
    }

    /// It has one again.
    pub fn end(&mut self, now: Duration) {
        let Some(left) = self.left.take() else {
            return;
        };
        // One long sleep among short pauses does not make it one who is away
        // for long.
        let pause = nanos(now.saturating_sub(left)).min(LONGEST * 2);
        self.mean = Some(self.mean.map_or(pause, |mean| mean + (pause - mean) / 4));
    }

    /// How long to wait for it rather than begin what takes so long, if at
    /// all.
    fn patience(&self, takes: i128) -> Option<i128> {
        // One that never paused is thought to be quick until it shows.
        let mean = self.mean.unwrap_or(0);
        let quick = mean <= LONGEST && mean * LONGER <= takes;
        quick.then(|| (mean * PATIENCE).max(MOST.min(takes / PART)))
    }
}

impl Policy {
    /// Whether `next`, who would be taken, is to wait for someone else.
    pub(super) fn hold_for(&self, next: &Claim, now: Duration) -> Option<Hold> {
        if let Some(runs) = self.flights.front() {
            let claim = self.claims.get(&runs.vgpu)?;
            let takes = next.expected();
            let cheap = takes >= LONG || claim.pauses.patience(takes).is_some();
            return (cheap && owes(claim, next)).then_some(Hold {
                vgpu: runs.vgpu,
                until: None,
            });
        }
        let vgpu = self.last?;
        let claim = self.claims.get(&vgpu)?;
        let patience = claim.pauses.patience(next.expected())?;
        let patience = Duration::from_nanos(u64::try_from(patience).unwrap_or(0));
        let until = claim.pauses.left?.saturating_add(patience);
        (until > now && owes(claim, next)).then_some(Hold {
            vgpu,
            until: Some(until),
        })
    }
}

/// Whether `next` owes much to one that is away, or about to be.
fn owes(away: &Claim, next: &Claim) -> bool {
    let owed = next.key() - away.key();
    away.state == State::Idle
        && away.class() == next.class()
        && owed > away.virtual_time(away.slice() * OWED)
}
