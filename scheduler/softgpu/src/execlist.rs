//! The run list of one engine: what was submitted, what runs, and which
//! status events say so.
//!
//! No threads and no memory here, so the accounting can be tested by itself.
//! The law a driver relies on (Linux
//! `gt/intel_execlists_submission.c:gen8_csb_parse`): each accepted load
//! produces one event with [`csb::IDLE_TO_ACTIVE`] or [`csb::PREEMPTED`];
//! every other event ends one element of the list that runs.

use gen8::csb::{self, Descriptor};

/// Two elements; the second may be unused.
pub(crate) type List = [Descriptor; 2];

/// One entry of the context status buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Low dword.
    pub(crate) status: u32,
    /// High dword: the context the event is about.
    pub(crate) context: u32,
}

/// What a waiting list means for the element that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arbitration {
    /// Nothing waits.
    None,
    /// The same context with a new tail.
    Lite,
    /// The same context, to be saved and loaded anew.
    Reload,
    /// Another context.
    Switch,
}

/// What four writes to the port did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// The port wants more dwords.
    Partial,
    /// A list waits now.
    Accepted,
    /// A list waits now, in place of one that had not started.
    Replaced,
    /// The first element was not valid; nothing changed.
    Rejected,
}

#[derive(Debug)]
struct Running {
    list: List,
    second: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Execlist {
    port: [u32; 3],
    written: usize,
    running: Option<Running>,
    pending: Option<List>,
    /// Which of the two hardware list slots the running list is in.
    slot: bool,
}

impl Execlist {
    /// One write to the submit port: element 1 high, low, element 0 high,
    /// low; the last one loads.
    pub(crate) fn write_port(&mut self, value: u32) -> Load {
        if let Some(slot) = self.port.get_mut(self.written) {
            *slot = value;
            self.written += 1;
            return Load::Partial;
        }
        self.written = 0;
        let first = Descriptor(crate::bits::join(value, self.port[2]));
        let second = Descriptor(crate::bits::join(self.port[1], self.port[0]));
        if !first.valid() {
            return Load::Rejected;
        }
        match self.pending.replace([first, second]) {
            Some(_) => Load::Replaced,
            None => Load::Accepted,
        }
    }

    /// The element that runs.
    pub(crate) fn current(&self) -> Option<Descriptor> {
        self.running.as_ref().map(|r| r.list[usize::from(r.second)])
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Starts the waiting list on an idle engine.
    pub(crate) fn begin(&mut self) -> Option<(Event, Descriptor)> {
        if self.running.is_some() {
            return None;
        }
        let first = self.promote()?;
        let event = Event {
            status: csb::IDLE_TO_ACTIVE,
            context: 0,
        };
        Some((event, first))
    }

    /// How the waiting list relates to the running element.
    pub(crate) fn arbitrate(&self) -> Arbitration {
        match (self.current(), self.pending) {
            (Some(current), Some([first, _])) => {
                if !current.same_context(first) {
                    Arbitration::Switch
                } else if first.force_restore() {
                    Arbitration::Reload
                } else {
                    Arbitration::Lite
                }
            }
            _ => Arbitration::None,
        }
    }

    /// Replaces the running list by the waiting one.
    pub(crate) fn replace(&mut self) -> Option<(Event, Descriptor)> {
        let old = self.current()?;
        let first = self.promote()?;
        let lite = if old.same_context(first) {
            csb::LITE_RESTORE
        } else {
            0
        };
        let event = Event {
            status: csb::PREEMPTED | lite,
            context: old.context_id(),
        };
        Some((event, first))
    }

    /// The running element reached its tail. Returns the next one.
    pub(crate) fn finish(&mut self) -> Option<(Event, Option<Descriptor>)> {
        let r = self.running.as_mut()?;
        let done = r.list[usize::from(r.second)];
        let next = (!r.second && r.list[1].valid()).then_some(r.list[1]);
        let status = if next.is_some() {
            r.second = true;
            csb::CONTEXT_COMPLETE | csb::ELEMENT_SWITCH
        } else {
            self.running = None;
            csb::CONTEXT_COMPLETE | csb::ACTIVE_TO_IDLE
        };
        let event = Event {
            status,
            context: done.context_id(),
        };
        Some((event, next))
    }

    /// Forgets everything, as a reset does.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// EXECLIST_STATUS, both halves (fields as in Linux
    /// `gvt/execlist.h:execlist_status_format`).
    pub(crate) fn status(&self) -> (u32, u32) {
        let mut low = 0;
        let mut high = 0;
        if let Some(r) = &self.running {
            let slot = u32::from(self.slot);
            low |= slot; // the current list
            low |= (slot ^ 1) << 1; // where the next load goes
            // The slot's valid and active bits: list 1 comes first.
            low |= if self.slot { 1 << 3 } else { 1 << 4 };
            low |= if self.slot { 1 << 17 } else { 1 << 18 };
            low |= if r.second { 2 << 14 } else { 1 << 14 };
            high = r.list[usize::from(r.second)].context_id();
        }
        if self.pending.is_some() {
            low |= 1 << 2; // full
        }
        (low, high)
    }

    fn promote(&mut self) -> Option<Descriptor> {
        let list = self.pending.take()?;
        self.running = Some(Running {
            list,
            second: false,
        });
        self.slot = !self.slot;
        Some(list[0])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn desc(n: u32) -> Descriptor {
        if n == 0 {
            return Descriptor(0);
        }
        Descriptor(crate::bits::join((n << 13) | 0x19, n << 5))
    }

    fn load(e: &mut Execlist, a: u32, b: u32) -> Load {
        load_raw(e, desc(a), desc(b))
    }

    fn load_raw(e: &mut Execlist, a: Descriptor, b: Descriptor) -> Load {
        use crate::bits::{hi, lo};
        for v in [hi(b.0), lo(b.0), hi(a.0)] {
            assert_eq!(e.write_port(v), Load::Partial);
        }
        e.write_port(lo(a.0))
    }

    #[test]
    fn two_contexts_complete_in_order() {
        let mut e = Execlist::default();
        assert_eq!(load(&mut e, 1, 2), Load::Accepted);
        let (ev, d) = e.begin().unwrap();
        assert_eq!((ev.status, d), (0x1, desc(1)));
        let (ev, next) = e.finish().unwrap();
        assert_eq!((ev.status, ev.context), (0x14, 1 << 5));
        assert_eq!(next, Some(desc(2)));
        assert_eq!(e.status().1, 2 << 5);
        let (ev, next) = e.finish().unwrap();
        assert_eq!((ev.status, ev.context, next), (0x18, 2 << 5, None));
        assert!(e.finish().is_none() && e.begin().is_none());
    }

    #[test]
    fn the_same_context_is_a_lite_restore() {
        let mut e = Execlist::default();
        load(&mut e, 1, 0);
        e.begin();
        load(&mut e, 1, 3);
        assert_eq!(e.arbitrate(), Arbitration::Lite);
        let (ev, _) = e.replace().unwrap();
        assert_eq!((ev.status, ev.context), (0x8002, 1 << 5));
        assert_eq!(e.finish().unwrap().1, Some(desc(3)));
    }

    #[test]
    fn force_restore_reloads() {
        let mut e = Execlist::default();
        load(&mut e, 1, 0);
        e.begin();
        load_raw(&mut e, Descriptor(desc(1).0 | 4), desc(0));
        assert_eq!(e.arbitrate(), Arbitration::Reload);
        assert_eq!(e.replace().unwrap().0.status, 0x8002);
    }

    #[test]
    fn another_context_preempts() {
        let mut e = Execlist::default();
        load(&mut e, 1, 2);
        e.begin();
        load(&mut e, 3, 0);
        assert_eq!(e.status().0 & 4, 4);
        assert_eq!(e.arbitrate(), Arbitration::Switch);
        let (ev, d) = e.replace().unwrap();
        assert_eq!((ev.status, ev.context, d), (0x2, 1 << 5, desc(3)));
        assert_eq!(e.finish().unwrap().0.status, 0x18);
    }

    #[test]
    fn an_empty_or_early_load_is_told() {
        let mut e = Execlist::default();
        assert_eq!(load(&mut e, 0, 2), Load::Rejected);
        assert!(!e.has_pending());
        assert_eq!(load(&mut e, 1, 0), Load::Accepted);
        assert_eq!(load(&mut e, 2, 0), Load::Replaced);
        assert_eq!(e.begin().unwrap().1, desc(2));
    }

    /// The driver's side: what `gen8_csb_parse` and its caller keep.
    #[derive(Default)]
    struct Driver {
        active: Vec<u32>,
        pending: Option<Vec<u32>>,
    }

    impl Driver {
        fn event(&mut self, ev: Event) {
            if ev.status & (csb::IDLE_TO_ACTIVE | csb::PREEMPTED) != 0 {
                self.active = self.pending.take().expect("a promote without a load");
            } else {
                assert!(!self.active.is_empty(), "a completion without a context");
                let done = self.active.remove(0);
                assert_eq!(ev.context, done << 5);
                assert_eq!(ev.status & csb::ACTIVE_TO_IDLE != 0, self.active.is_empty());
            }
        }
    }

    proptest! {
        /// Loads (one waiting at most, as drivers keep it) and the engine's
        /// own steps in any order: the driver's books always balance.
        #[test]
        fn the_books_balance(steps in prop::collection::vec((0u8..4, 1u32..4, 0u32..4), 1..200)) {
            let mut e = Execlist::default();
            let mut d = Driver::default();
            for (what, a, b) in steps {
                match what {
                    0 if d.pending.is_none() => {
                        prop_assert_eq!(load(&mut e, a, b), Load::Accepted);
                        d.pending = Some([a, b].into_iter().filter(|n| *n != 0).collect());
                    }
                    1 => if let Some((ev, _)) = e.begin() { d.event(ev) },
                    2 => if let Some((ev, _)) = e.replace() { d.event(ev) },
                    _ => if let Some((ev, _)) = e.finish() { d.event(ev) },
                }
                prop_assert_eq!(e.current().is_some(), !d.active.is_empty());
                prop_assert_eq!(e.has_pending(), d.pending.is_some());
                prop_assert_eq!(e.status().1, d.active.first().map_or(0, |n| n << 5));
            }
            // Run dry: everything loaded is accounted for.
            while let Some((ev, _)) = e.finish() { d.event(ev) }
            if let Some((ev, _)) = e.begin() { d.event(ev) }
            while let Some((ev, _)) = e.finish() { d.event(ev) }
            prop_assert!(d.active.is_empty() && d.pending.is_none());
        }
    }
}
