//! What an engine was given to run, and how far it is.
//!
//! Two lists, as Linux keeps them (`gt/intel_execlists_submission.c:
//! process_csb`): the one the engine runs and the one that was loaded and
//! has not been taken up. Each load brings one event that the list was taken
//! up; every other event ends the first workload of the running one. No GPU
//! and no thread here, so the accounting can be tested by itself.

use gen8::csb;

/// What the hardware holds in one load.
pub const SLOTS: usize = 2;

/// What one status event changed. `u32` is a workload's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended: it reached its tail.
    Ended(u32),
    /// It was taken off the engine before its end, and no list names it.
    Displaced(u32),
    /// The engine runs it from here on.
    Begins(u32),
    /// It ended, and no list names it any more: the engine is through with
    /// it.
    Done(u32),
    /// No list names it any more, and it never began.
    Dropped(u32),
}

/// One workload that the engine was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u32,
    /// It reached its tail. It can still be named by a list: loaded again
    /// while it ended, it runs once more, through nothing.
    ended: bool,
}

/// A workload that a reset took off the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its tag.
    pub tag: u32,
    /// It had reached its tail.
    pub ended: bool,
}

/// The lists of one engine.
#[derive(Debug, Default)]
pub struct Lists {
    active: Vec<Entry>,
    pending: Option<Vec<Entry>>,
}

impl Lists {
    /// The workload that runs, as far as the events tell.
    #[must_use]
    pub fn running(&self) -> Option<u32> {
        self.active.first().map(|e| e.tag)
    }

    /// What runs, or is about to, and what follows it.
    #[must_use]
    pub fn order(&self) -> [Option<u32>; SLOTS] {
        let mut order = [None; SLOTS];
        let list = if self.active.is_empty() {
            self.pending.as_deref().unwrap_or_default()
        } else {
            &self.active
        };
        for (to, from) in order.iter_mut().zip(list) {
            *to = Some(from.tag);
        }
        order
    }

    /// The workload that follows it in the list the engine runs.
    #[must_use]
    pub fn second(&self) -> Option<u32> {
        self.active.get(1).map(|e| e.tag)
    }

    /// Whether a load has not been taken up. Another one must wait: it could
    /// take the place of the first, or follow it, and nobody could tell.
    #[must_use]
    pub const fn loading(&self) -> bool {
        self.pending.is_some()
    }

    /// Nothing is at the engine.
    #[must_use]
    pub const fn idle(&self) -> bool {
        self.active.is_empty() && self.pending.is_none()
    }

    /// Whether any list names `tag`.
    #[must_use]
    pub fn names(&self, tag: u32) -> bool {
        let mut all = self.active.iter().chain(self.pending.iter().flatten());
        all.any(|e| e.tag == tag)
    }

    /// `tags` were loaded, one or two. Of an engine that runs something, the
    /// first is what runs last in its list, or runs now.
    pub fn load(&mut self, tags: &[u32]) {
        debug_assert!(self.pending.is_none() && (1..=SLOTS).contains(&tags.len()));
        debug_assert!(self.active.is_empty() || self.running() == tags.first().copied());
        let entries = tags.iter().map(|&tag| {
            let known = self.active.iter().find(|e| e.tag == tag);
            Entry {
                tag,
                ended: known.is_some_and(|e| e.ended),
            }
        });
        self.pending = Some(entries.collect());
    }

    /// `tag`, which does nothing, was loaded alone in place of what runs.
    pub fn preempt(&mut self, tag: u32) {
        debug_assert!(self.pending.is_none());
        self.pending = Some(vec![Entry { tag, ended: false }]);
    }

    /// An event of the status buffer, with the context id in it. One that
    /// fits nothing loaded changes nothing.
    pub fn event(&mut self, status: u32, id: u32) -> Vec<Change> {
        if status & (csb::IDLE_TO_ACTIVE | csb::PREEMPTED) != 0 {
            self.promote()
        } else if status & csb::CONTEXT_COMPLETE != 0 {
            self.complete(id)
        } else {
            Vec::new()
        }
    }

    fn promote(&mut self) -> Vec<Change> {
        let Some(list) = self.pending.take() else {
            return Vec::new();
        };
        let before = std::mem::replace(&mut self.active, list);
        let mut changes = Vec::new();
        for (at, entry) in before.iter().enumerate() {
            if self.names(entry.tag) {
                continue;
            }
            changes.push(match (at, entry.ended) {
                (_, true) => Change::Done(entry.tag),
                (0, false) => Change::Displaced(entry.tag),
                (_, false) => Change::Dropped(entry.tag),
            });
        }
        if self.running() != before.first().map(|e| e.tag) {
            changes.extend(self.running().map(Change::Begins));
        }
        changes
    }

    fn complete(&mut self, id: u32) -> Vec<Change> {
        if self.running() != Some(id) {
            return Vec::new();
        }
        self.active.remove(0);
        let mut changes = vec![Change::Ended(id)];
        changes.extend(self.running().map(Change::Begins));
        for entry in self.pending.iter_mut().flatten() {
            entry.ended |= entry.tag == id;
        }
        if !self.names(id) {
            changes.push(Change::Done(id));
        }
        changes
    }

    /// The engine was reset and holds nothing: what it held, in the order it
    /// would have run.
    pub fn reset(&mut self) -> Vec<Lost> {
        let mut lost: Vec<Lost> = Vec::new();
        let active = std::mem::take(&mut self.active);
        // What a pending list says of a workload is the newer word.
        for entry in active.iter().chain(self.pending.take().iter().flatten()) {
            match lost.iter_mut().find(|l| l.tag == entry.tag) {
                Some(l) => l.ended |= entry.ended,
                None => lost.push(Lost {
                    tag: entry.tag,
                    ended: entry.ended,
                }),
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    const TO_ACTIVE: u32 = csb::IDLE_TO_ACTIVE;
    const LITE: u32 = csb::PREEMPTED | csb::LITE_RESTORE;
    const SWITCH: u32 = csb::CONTEXT_COMPLETE | csb::ELEMENT_SWITCH;
    const TO_IDLE: u32 = csb::CONTEXT_COMPLETE | csb::ACTIVE_TO_IDLE;

    #[test]
    fn two_workloads_run_one_after_the_other() {
        let mut l = Lists::default();
        l.load(&[1, 2]);
        assert_eq!(l.running(), None);
        assert_eq!(l.event(TO_ACTIVE, 0), [Change::Begins(1)]);
        assert_eq!((l.running(), l.second()), (Some(1), Some(2)));
        let changes = l.event(SWITCH, 1);
        let want = [Change::Ended(1), Change::Begins(2), Change::Done(1)];
        assert_eq!(changes, want);
        assert_eq!(l.event(TO_IDLE, 2), [Change::Ended(2), Change::Done(2)]);
        assert!(l.idle());
    }

    #[test]
    fn one_that_ends_while_it_is_loaded_again_runs_once_more() {
        let mut l = Lists::default();
        l.load(&[1]);
        l.event(TO_ACTIVE, 0);
        l.load(&[1, 2]);
        assert_eq!(l.event(TO_IDLE, 1), [Change::Ended(1)]);
        assert!(l.names(1) && l.running().is_none());
        assert_eq!(l.event(TO_ACTIVE, 0), [Change::Begins(1)]);
        assert!(l.active[0].ended);
        let changes = l.event(SWITCH, 1);
        let want = [Change::Ended(1), Change::Begins(2), Change::Done(1)];
        assert_eq!(changes, want);
    }

    #[test]
    fn a_second_that_is_left_out_is_dropped_or_displaced() {
        let mut l = Lists::default();
        l.load(&[1, 2]);
        l.event(TO_ACTIVE, 0);
        l.load(&[1]);
        assert_eq!(l.event(LITE, 1), [Change::Dropped(2)]);
        assert_eq!(l.running(), Some(1));

        // It began before the load arrived.
        let mut l = Lists::default();
        l.load(&[1, 2]);
        l.event(TO_ACTIVE, 0);
        l.load(&[1]);
        l.event(SWITCH, 1);
        let changes = l.event(csb::PREEMPTED, 2);
        assert_eq!(changes, [Change::Displaced(2), Change::Begins(1)]);
        assert!(l.active[0].ended);
        assert_eq!(l.event(TO_IDLE, 1), [Change::Ended(1), Change::Done(1)]);
    }

    #[test]
    fn what_is_preempted_is_displaced_and_what_follows_it_dropped() {
        let mut l = Lists::default();
        l.load(&[1, 2]);
        l.event(TO_ACTIVE, 0);
        l.preempt(9);
        let changes = l.event(csb::PREEMPTED, 1);
        let want = [Change::Displaced(1), Change::Dropped(2), Change::Begins(9)];
        assert_eq!(changes, want);
        assert_eq!(l.event(TO_IDLE, 9), [Change::Ended(9), Change::Done(9)]);
        // It does not yield, and ends by itself.
        l.load(&[1]);
        l.event(TO_ACTIVE, 0);
        l.preempt(9);
        assert_eq!(l.event(TO_IDLE, 1), [Change::Ended(1), Change::Done(1)]);
        assert_eq!(l.event(TO_ACTIVE, 0), [Change::Begins(9)]);
        assert_eq!(l.event(TO_IDLE, 9), [Change::Ended(9), Change::Done(9)]);
        assert!(l.idle());
    }

    #[test]
    fn events_that_fit_nothing_change_nothing() {
        let mut l = Lists::default();
        assert!(l.event(TO_ACTIVE, 0).is_empty());
        assert!(l.event(TO_IDLE, 1).is_empty());
        l.load(&[1]);
        assert!(l.event(TO_IDLE, 1).is_empty());
        l.event(TO_ACTIVE, 0);
        assert!(l.event(TO_IDLE, 7).is_empty());
        assert!(l.event(0, 1).is_empty());
        assert_eq!(l.running(), Some(1));
    }

    #[test]
    fn a_reset_names_everything_once_in_order() {
        let mut l = Lists::default();
        l.load(&[1]);
        l.event(TO_ACTIVE, 0);
        l.load(&[1, 2]);
        let lost = |tag, ended| Lost { tag, ended };
        let mut again = Lists::default();
        again.load(&[1]);
        again.event(TO_ACTIVE, 0);
        again.load(&[1, 2]);
        again.event(TO_IDLE, 1);
        assert_eq!(l.reset(), [lost(1, false), lost(2, false)]);
        assert_eq!(again.reset(), [lost(1, true), lost(2, false)]);
        assert!(l.idle() && again.idle());
    }

    /// The hardware, as softgpu's run list has it: its own copy of the rules,
    /// from the driver's point of view.
    #[derive(Default)]
    struct Model {
        list: VecDeque<u32>,
        pending: Option<Vec<u32>>,
        /// Work left by workload; 0 is at its tail.
        left: BTreeMap<u32, u32>,
        events: VecDeque<(u32, u32)>,
    }

    impl Model {
        /// One thing the engine does by itself.
        fn step(&mut self) {
            let waiting = self.pending.clone();
            match (self.list.front().copied(), waiting) {
                (None, Some(list)) => {
                    self.list = list.into();
                    self.pending = None;
                    self.events.push_back((TO_ACTIVE, 0));
                }
                (Some(now), Some(list)) => {
                    let lite = if list[0] == now { csb::LITE_RESTORE } else { 0 };
                    self.list = list.into();
                    self.pending = None;
                    self.events.push_back((csb::PREEMPTED | lite, now));
                }
                (Some(_), None) => self.work(),
                (None, None) => {}
            }
        }

        /// The running element goes on, whatever waits.
        fn work(&mut self) {
            let Some(&now) = self.list.front() else {
                return;
            };
            let left = self.left.entry(now).or_default();
            if *left > 0 {
                *left -= 1;
                return;
            }
            self.list.pop_front();
            let status = if self.list.is_empty() {
                TO_IDLE
            } else {
                SWITCH
            };
            self.events.push_back((status, now));
        }
    }

    proptest! {
        /// Loads, drops, the engine's steps and late looks at the events in
        /// any order: each workload leaves once; a done one has done all of
        /// its work, a dropped one nothing; what runs is what the model runs.
        #[test]
        fn the_books_agree_with_the_hardware(
            steps in prop::collection::vec((0u8..6, 0u32..4), 1..300),
        ) {
            let mut lists = Lists::default();
            let mut gpu = Model::default();
            let mut next = 0;
            let mut out: BTreeMap<u32, Change> = BTreeMap::new();
            let settle = |lists: &mut Lists, gpu: &mut Model, out: &mut BTreeMap<u32, Change>, amount: &BTreeMap<u32, u32>| {
                let mut began = Vec::new();
                while let Some((status, id)) = gpu.events.pop_front() {
                    for change in lists.event(status, id) {
                        match change {
                            Change::Begins(tag) => began.push(tag),
                            Change::Ended(tag) => assert_eq!(gpu.left[&tag], 0),
                            Change::Done(tag) => {
                                assert_eq!(gpu.left[&tag], 0);
                                assert_eq!(out.insert(tag, change), None);
                            }
                            Change::Dropped(tag) => {
                                assert_eq!(gpu.left[&tag], amount[&tag]);
                                assert_eq!(out.insert(tag, change), None);
                            }
                            Change::Displaced(tag) => {
                                assert_eq!(out.insert(tag, change), None);
                            }
                        }
                    }
                }
                assert_eq!(lists.running(), gpu.list.front().copied());
                assert_eq!(lists.second(), gpu.list.get(1).copied());
                assert_eq!(lists.loading(), gpu.pending.is_some());
            };
            let mut give = |gpu: &mut Model, work: u32| {
                next += 1;
                gpu.left.insert(next, work);
                next
            };
            let mut all = Vec::new();
            let mut amounts = BTreeMap::new();
            for (what, n) in steps {
                match what {
                    // The driver's own rule: nothing while a load waits.
                    0 | 1 if !lists.loading() => {
                        let tags = match (lists.running(), lists.second()) {
                            (None, _) if what == 0 => vec![give(&mut gpu, n)],
                            (None, _) => vec![give(&mut gpu, n), give(&mut gpu, 3 - n)],
                            (Some(now), None) => vec![now, give(&mut gpu, n)],
                            // The second is not wanted any more.
                            (Some(now), Some(_)) => vec![now],
                        };
                        for tag in &tags {
                            if !all.contains(tag) {
                                all.push(*tag);
                                amounts.insert(*tag, gpu.left[tag]);
                            }
                        }
                        lists.load(&tags);
                        prop_assert!(gpu.pending.replace(tags).is_none());
                    }
                    2 => settle(&mut lists, &mut gpu, &mut out, &amounts),
                    3 => gpu.work(),
                    _ => gpu.step(),
                }
            }
            for _ in 0..40 {
                gpu.step();
            }
            settle(&mut lists, &mut gpu, &mut out, &amounts);
            prop_assert!(lists.idle());
            prop_assert_eq!(out.len(), all.len());
        }
    }
}
