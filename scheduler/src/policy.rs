//! Which vGPU an engine runs next, and how long it may. Decisions only: no
//! thread, no clock of its own.
//!
//! Each vGPU has a virtual time per engine: what it had of the engine,
//! divided by its weight. Of those that are ready, the one that had least is
//! taken (start-time fair queueing), so whoever overran waits until the
//! others have caught up, however long its batch was. Four things change
//! that order:
//!
//! - A class has a virtual clock that follows the least service anyone has
//!   who wants the engine. Who was away starts at most a slice behind it:
//!   ahead of those that had their share, but with nothing saved up.
//! - Going on costs no switch. So who runs goes on for a slice although
//!   others wait that had less, unless one of them has just woken.
//! - A cap takes a vGPU out of the queue until its bucket has time again.
//! - An engine may be kept free for a moment ([`hold`]).
//!
//! The clock follows at a limited speed. When a vGPU that lags behind leaves
//! for a moment (a guest's driver that submits its next batch when it hears
//! of the last), the debts of the others are not forgotten at once but
//! expire with the time that the engine is there for them alone.
//!
//! Idle vGPUs are in a map and in no queue: they cost nothing.

mod bucket;
mod claim;
mod class;
mod hold;
mod limit;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use vgpu_config::Share;

pub(crate) use bucket::Bucket;
use claim::{Claim, State};
use class::{Class, Place, UNIT, Virtual};
use hold::Hold;
pub use limit::RunLimit;

/// A workload that was taken.
#[derive(Debug)]
struct Flight {
    vgpu: u64,
    /// Nanoseconds it was expected to take.
    expected: i128,
    /// Nanoseconds that it has been counted for so far.
    counted: i128,
}

impl Flight {
    fn promised(&self) -> i128 {
        (self.expected - self.counted).max(0)
    }
}

/// Who keeps the engine over consecutive workloads.
#[derive(Debug)]
struct Turn {
    vgpu: u64,
    /// Where it stood when the turn began.
    from: Virtual,
}

/// Who goes next on one engine. Times count from a common start and do not
/// go back.
#[derive(Debug, Default)]
pub struct Policy {
    claims: HashMap<u64, Claim>,
    /// Highest first.
    classes: [Class; 3],
    throttled: BTreeSet<(Duration, u64)>,
    /// Those that a cap took out of the queue since they were last asked for.
    held_back: Vec<u64>,
    /// In the order of taking, which is that of running.
    flights: VecDeque<Flight>,
    turn: Option<Turn>,
    /// Whose workload was over last.
    last: Option<u64>,
    hold: Option<Hold>,
    /// Everything before has been counted.
    now: Duration,
    order: u64,
}

/// Nanoseconds of a duration. There are fewer than 2^94.
fn nanos(d: Duration) -> i128 {
    i128::try_from(d.as_nanos()).unwrap_or(i128::MAX)
}

impl Policy {
    /// Nobody wants the engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a vGPU, or changes its share from now on.
    pub fn set_share(&mut self, vgpu: u64, share: Share, now: Duration) {
        self.advance(now);
        let Some(mut claim) = self.claims.remove(&vgpu) else {
            let mut claim = Claim::new(share, 0, now);
            claim.service = self.classes[claim.class()].clock();
            self.claims.insert(vgpu, claim);
            return;
        };
        let waited = claim.state != State::Idle;
        self.unqueue(vgpu, &mut claim);
        if claim.flights > 0 {
            self.classes[claim.class()].leave(claim.share.weight);
        }
        // What it is ahead or behind, in its own time, stays.
        let ahead = claim.service - self.classes[claim.class()].clock();
        let ahead = ahead * i128::from(claim.share.weight) / i128::from(share.weight.max(1));
        claim.set_cap(share.cap, now);
        claim.share = share;
        let class = &mut self.classes[claim.class()];
        claim.service = class.clock() + ahead;
        if claim.flights > 0 {
            class.join(share.weight);
        }
        self.claims.insert(vgpu, claim);
        self.turn.take_if(|t| t.vgpu == vgpu);
        if waited {
            self.enqueue(vgpu);
        }
    }

    /// Forgets a vGPU, with what is under way.
    pub fn remove(&mut self, vgpu: u64) {
        self.withdraw(vgpu);
        if let Some(claim) = self.claims.remove(&vgpu)
            && claim.active()
        {
            self.classes[claim.class()].leave(claim.share.weight);
        }
        self.flights.retain(|f| f.vgpu != vgpu);
        self.turn.take_if(|t| t.vgpu == vgpu);
        self.last.take_if(|last| *last == vgpu);
        self.hold.take_if(|h| h.vgpu == vgpu);
    }

    /// A vGPU has a workload for this engine. It waits once until it is
    /// taken.
    pub fn ready(&mut self, vgpu: u64, now: Duration) {
        self.advance(now);
        match self.claims.get(&vgpu) {
            Some(claim) if claim.state != State::Idle => return,
            Some(_) => {}
            None => self.set_share(vgpu, Share::default(), now),
        }
        self.enqueue(vgpu);
    }

    /// It has none any more.
    pub fn withdraw(&mut self, vgpu: u64) {
        if let Some(mut claim) = self.claims.remove(&vgpu) {
            self.unqueue(vgpu, &mut claim);
            self.claims.insert(vgpu, claim);
        }
    }

    /// Whom to load next. `None` when nobody is ready, those that are have
    /// used up their caps, or the engine is kept free for a moment.
    pub fn take(&mut self, now: Duration) -> Option<u64> {
        self.advance(now);
        while let Some(&(at, vgpu)) = self.throttled.first()
            && at <= now
        {
            self.withdraw(vgpu);
            self.enqueue(vgpu);
        }
        self.hold = None;
        loop {
            let place = self.choose()?;
            let vgpu = place.vgpu;
            let mut claim = self.claims.remove(&vgpu)?;
            self.unqueue(vgpu, &mut claim);
            if let Some(until) = claim.throttled_until(now) {
                claim.state = State::Throttled(until);
                self.throttled.insert((until, vgpu));
                self.claims.insert(vgpu, claim);
                self.held_back.push(vgpu);
                continue;
            }
            if let Some(hold) = self.hold_for(&claim, now) {
                self.hold = Some(hold);
                let class = &mut self.classes[claim.class()];
                class.insert(place);
                claim.state = State::Ready(place);
                self.claims.insert(vgpu, claim);
                return None;
            }
            self.start(place, claim);
            return Some(vgpu);
        }
    }

    /// A workload that was taken is over and held the engine for `ran`.
    pub fn charge(&mut self, vgpu: u64, ran: Duration, now: Duration) {
        self.advance(now);
        let Some(at) = self.flights.iter().position(|f| f.vgpu == vgpu) else {
            return;
        };
        let (Some(flight), Some(claim)) = (self.flights.remove(at), self.claims.get_mut(&vgpu))
        else {
            return;
        };
        let ran = nanos(ran);
        claim.serve(ran - flight.counted, now);
        claim.promised -= flight.promised();
        claim.flights -= 1;
        // One that was cancelled before it ran says nothing.
        if ran > 0 {
            claim.learn(ran);
        }
        if !claim.active() {
            claim.pauses.begin(now);
            let (class, weight) = (claim.class(), claim.share.weight);
            self.classes[class].leave(weight);
        }
        self.last = Some(vgpu);
        self.place_again(vgpu);
    }

    /// When to ask again, though nothing else happens: when a vGPU that is
    /// over its cap may run, or the engine was kept free for long enough.
    /// Right after a [`Policy::take`] that found nobody.
    #[must_use]
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let uncapped = self.throttled.first().map(|&(at, _)| at);
        let held = self.hold.and_then(|h| h.until);
        let at = [uncapped, held].into_iter().flatten().min();
        at.map(|at| at.max(now))
    }

    /// Who was ready in a [`Policy::take`] and did not get the engine because
    /// of its cap, since the last call.
    pub fn held_back(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.held_back)
    }

    /// How many vGPUs wait, those over their caps included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.classes.iter().map(Class::len).sum::<usize>() + self.throttled.len()
    }

    /// Counts the time up to `now` for who runs, and moves the clocks on.
    fn advance(&mut self, now: Duration) {
        let passed = nanos(now.saturating_sub(self.now));
        if passed == 0 {
            return;
        }
        self.now = now;
        let mut running = None;
        if self.flights.is_empty()
            && let Some(hold) = &self.hold
            && let Some(claim) = self.claims.get_mut(&hold.vgpu)
        {
            // Others wait for its sake.
            claim.service += claim.virtual_time(passed);
        }
        if let Some(flight) = self.flights.front_mut()
            && let Some(claim) = self.claims.get_mut(&flight.vgpu)
        {
            claim.promised -= flight.promised();
            flight.counted += passed;
            claim.promised += flight.promised();
            claim.serve(passed, now);
            running = Some((claim.class(), flight.vgpu));
        }
        if let Some((_, vgpu)) = running {
            self.place_again(vgpu);
        }
        for index in 0..self.classes.len() {
            let least = self.least(index);
            let class = &mut self.classes[index];
            if class.weight() == 0 {
                // As if one of default weight had the engine.
                class.advance(passed * UNIT / i128::from(Share::default().weight), None);
            } else if running.is_none_or(|(c, _)| c == index) {
                // Their service grows by once this; the rest catches up.
                class.advance(2 * passed * UNIT / i128::from(class.weight()), least);
            }
        }
    }

    /// The least service of anyone that wants the engine in a class.
    fn least(&self, class: usize) -> Option<Virtual> {
        // A ready one's place counts what is under way, too. Those few that
        // have something under way are looked at for themselves.
        let ready = self.classes[class].first().map(|p| p.key);
        let claims = self
            .flights
            .iter()
            .filter_map(|f| self.claims.get(&f.vgpu))
            .filter(|c| c.class() == class)
            .map(|c| c.service);
        claims.chain(ready).min()
    }

    /// Puts a vGPU, idle so far, into its class's queue.
    fn enqueue(&mut self, vgpu: u64) {
        let now = self.now;
        let Some(claim) = self.claims.get_mut(&vgpu) else {
            return;
        };
        let class = &mut self.classes[claim.class()];
        let woke = claim.flights == 0;
        if woke {
            claim.pauses.end(now);
            class.join(claim.share.weight);
            let credit = claim.virtual_time(claim.slice());
            claim.service = claim.service.max(class.clock() - credit);
        }
        self.order = self.order.wrapping_add(1);
        let place = Place {
            key: claim.key(),
            order: self.order,
            vgpu,
        };
        claim.state = State::Ready(place);
        class.insert(place);
        // Who woke does not wait for the rest of a turn.
        if woke
            && let Some(turn) = &self.turn
            && turn.vgpu != vgpu
            && let Some(holder) = self.claims.get(&turn.vgpu)
            && place.key < holder.key()
        {
            self.turn = None;
        }
    }

    /// Takes a vGPU out of the queue it is in.
    fn unqueue(&mut self, vgpu: u64, claim: &mut Claim) {
        match std::mem::replace(&mut claim.state, State::Idle) {
            State::Idle => {}
            State::Ready(place) => {
                let class = &mut self.classes[claim.class()];
                class.remove(&place);
                if claim.flights == 0 {
                    class.leave(claim.share.weight);
                }
            }
            State::Throttled(until) => {
                self.throttled.remove(&(until, vgpu));
            }
        }
    }

    /// Its service has changed: its place may have, too.
    fn place_again(&mut self, vgpu: u64) {
        if let Some(claim) = self.claims.get_mut(&vgpu)
            && let State::Ready(old) = claim.state
        {
            let key = claim.key();
            let new = Place { key, ..old };
            claim.state = State::Ready(new);
            let class = &mut self.classes[claim.class()];
            class.remove(&old);
            class.insert(new);
        }
    }

    /// Who goes next, caps aside.
    fn choose(&self) -> Option<Place> {
        let (index, first) = self
            .classes
            .iter()
            .enumerate()
            .find_map(|(i, c)| Some((i, *c.first()?)))?;
        let Some(turn) = &self.turn else {
            return Some(first);
        };
        match self.claims.get(&turn.vgpu) {
            Some(claim) if claim.class() == index => match claim.state {
                State::Ready(place) if self.goes_on(turn, claim, &first) => Some(place),
                _ => Some(first),
            },
            _ => Some(first),
        }
    }

    /// Whether who has the turn may have one more workload before `other`.
    fn goes_on(&self, turn: &Turn, claim: &Claim, other: &Place) -> bool {
        let slice = claim.virtual_time(claim.slice());
        let after = claim.key() + claim.virtual_time(claim.expected());
        // Its lead over a heavier one is a slice of that one's, lest many
        // light workloads in a row put it off for long.
        let lead = match self.claims.get(&other.vgpu) {
            Some(o) => slice.min(o.virtual_time(claim.slice())),
            None => slice,
        };
        after - turn.from <= slice && after - other.key <= lead
    }

    /// `claim`, taken out of its queue, goes on the engine.
    fn start(&mut self, place: Place, mut claim: Claim) {
        let vgpu = place.vgpu;
        let other = self.classes[claim.class()].first().copied();
        let goes_on = match (&self.turn, other) {
            (Some(turn), Some(other)) if turn.vgpu == vgpu => self.goes_on(turn, &claim, &other),
            // Nobody waits: the slice begins anew.
            _ => false,
        };
        if !goes_on {
            self.turn = Some(Turn {
                vgpu,
                from: place.key,
            });
        }
        let expected = claim.expected();
        if claim.flights == 0 {
            self.classes[claim.class()].join(claim.share.weight);
        }
        claim.flights += 1;
        claim.promised += expected;
        self.claims.insert(vgpu, claim);
        self.flights.push_back(Flight {
            vgpu,
            expected,
            counted: 0,
        });
    }
}
