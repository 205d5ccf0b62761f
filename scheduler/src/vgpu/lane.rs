//! One vGPU's way to one engine: its execlist loads in order.

use std::collections::VecDeque;

use gen8::csb::Descriptor;

use crate::flights::FlightSlot;
use crate::workload::{InBatch, Shadow};

/// Loads that may wait. A driver has one at the GPU and one behind it.
const MAX_LOADS: usize = 64;

/// Elements with nothing to add that may be behind one that runs. A guest has no
/// end of them; more wait, and too many loads that wait are refused.
const MAX_ALSO: usize = 64;

/// Workloads a lane prepares ahead. The GPU takes two at a time.
pub const AHEAD: usize = 2;

/// An element of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// The load's number.
    pub seq: u64,
    /// Which of its elements.
    pub element: u8,
}

/// An element at the engine or in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The element.
    pub element: Element,
    /// Its context, as the guest named it.
    pub descriptor: Descriptor,
    /// Where the guest's ring ends.
    pub tail: u32,
    /// Which of the lane's shadows it runs from.
    pub shadow: usize,
    /// Elements behind it that have nothing to add: done when it is.
    pub also: Vec<(Element, Descriptor)>,
    /// It is over, and the guest's context is being brought up to date.
    pub landing: bool,
}

impl Flight {
    /// Where the guest has its context's image.
    pub const fn lrca(&self) -> u32 {
        self.descriptor.lrca()
    }

    /// Whether as many are behind it as may be.
    pub const fn is_full(&self) -> bool {
        self.also.len() >= MAX_ALSO
    }
}

struct Load {
    seq: u64,
    descriptors: [Descriptor; 2],
    next: usize,
}

impl Load {
    /// Whether it is one context alone, and `descriptors` begin with that.
    fn goes_on(&self, descriptors: &[Descriptor; 2]) -> bool {
        let [first, second] = self.descriptors;
        let then = descriptors[0];
        let valid = first.valid() && then.valid();
        self.next == 0 && valid && !second.valid() && first.same_context(then)
    }
}

/// Why a load is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// Its number is not greater than the last.
    Sequence {
        /// The last.
        last: u64,
    },
    /// Too many wait.
    Full,
    /// The engine is stopped for this vGPU.
    Stopped,
}

/// What a lane's elements run from.
pub type Shadows = [Shadow; AHEAD];

/// A context that was taken off the engine before its end.
pub struct Interrupted {
    /// Where the guest has its image.
    pub lrca: u32,
    /// In which batch it is.
    pub batch: Option<InBatch>,
    /// Keeps that for a vgpud to come, until it is at the engine again.
    pub slot: Option<FlightSlot>,
}

/// Loads, and the elements that are being run.
#[derive(Default)]
pub struct Lane {
    /// Elements that were at the engine and came back before they began.
    again: VecDeque<(Element, Descriptor)>,
    /// Contexts that had begun.
    interrupted: Vec<Interrupted>,
    /// What was at the GPU when another vgpud died, until its contexts come
    /// again.
    remains: Vec<FlightSlot>,
    /// Keeps the place of what failed, until the guest has reset the engine:
    /// it may never hear of the failure from this vgpud.
    pub failed: Option<FlightSlot>,
    loads: VecDeque<Load>,
    last: Option<u64>,
    /// In the order they run.
    flights: VecDeque<Flight>,
    /// The next element could not be prepared while another one runs.
    alone: bool,
    /// Loads are taken and nothing goes to the engine: the vGPU is being saved.
    pub held: bool,
    /// Something failed; nothing runs until the guest resets the engine.
    pub stopped: bool,
}

impl Lane {
    /// Takes a load. One that goes on with the context that the load before it
    /// consists of takes that one's place, as at hardware, which has one list
    /// behind the one that runs: what ran before the tail of the later one is
    /// read is run for it, and the report about it is one about both. So a
    /// driver that moves the tail of what runs with each request, as i915 does,
    /// has two loads waiting at most. The first of them stays, since its
    /// element may be being prepared: with a tail that was read before.
    pub fn load(&mut self, seq: u64, descriptors: [Descriptor; 2]) -> Result<(), LoadError> {
        if let Some(last) = self.last
            && seq <= last
        {
            return Err(LoadError::Sequence { last });
        }
        self.last = Some(seq);
        if self.stopped {
            return Err(LoadError::Stopped);
        }
        if self.loads.len() > 1 && self.loads.back().is_some_and(|l| l.goes_on(&descriptors)) {
            self.loads.pop_back();
        }
        if self.loads.len() >= MAX_LOADS {
            return Err(LoadError::Full);
        }
        self.loads.push_back(Load {
            seq,
            descriptors,
            next: 0,
        });
        Ok(())
    }

    /// The next element that may be looked at. An absent second element is
    /// skipped; an absent first one is the guest's error and comes out as it
    /// is. It stays the next one until it is [taken](Self::take).
    pub fn next(&mut self) -> Option<(Element, Descriptor)> {
        let full = if self.alone { 1 } else { AHEAD };
        if self.flights.len() >= full || self.stopped || self.held {
            return None;
        }
        if let Some(next) = self.again.front() {
            return Some(*next);
        }
        loop {
            let load = self.loads.front()?;
            let seq = load.seq;
            match load.descriptors.get(load.next).copied() {
                Some(d) if load.next == 0 || d.valid() => {
                    let element = u8::from(load.next == 1);
                    return Some((Element { seq, element }, d));
                }
                _ => {
                    self.loads.pop_front();
                }
            }
        }
    }

    /// The next element is dealt with. Its context, if it was interrupted, is
    /// no more; what keeps its place is the caller's.
    pub fn take(&mut self) -> Option<FlightSlot> {
        let mut taken = self.again.pop_front().map(|(_, d)| d);
        if taken.is_none()
            && let Some(load) = self.loads.front_mut()
        {
            taken = load.descriptors.get(load.next).copied();
            load.next += 1;
        }
        self.alone = false;
        let lrca = taken?.lrca();
        let at = self.interrupted.iter().position(|i| i.lrca == lrca)?;
        self.interrupted.remove(at).slot
    }

    /// A context was taken off the engine before its end.
    pub fn interrupt(&mut self, context: Interrupted) {
        self.interrupted.retain(|i| i.lrca != context.lrca);
        self.interrupted.push(context);
    }

    /// Whether the context `lrca` is to go on where it was taken off, and in
    /// which batch that was.
    pub fn resumes(&self, lrca: u32) -> Option<Option<InBatch>> {
        let mut all = self.interrupted.iter();
        all.find(|i| i.lrca == lrca).map(|i| i.batch)
    }

    /// The context that was taken off in a batch, or else one that was between
    /// commands of its ring. An engine runs one at a time, so no other is in a
    /// batch.
    pub fn interrupted(&self) -> Option<(u32, Option<InBatch>)> {
        let mut all = self.interrupted.iter();
        let in_batch = all.find(|i| i.batch.is_some());
        let one = in_batch.or(self.interrupted.first())?;
        Some((one.lrca, one.batch))
    }

    /// Another vgpud had this at the GPU when it died.
    pub fn inherit(&mut self, slot: FlightSlot) {
        self.remains.push(slot);
    }

    /// What another vgpud left of the context `lrca`.
    pub fn inherited(&mut self, lrca: u32) -> Option<FlightSlot> {
        let at = self.remains.iter().position(|s| s.lrca() == lrca)?;
        Some(self.remains.remove(at))
    }

    /// One that left the engine before it was through is the next again, and
    /// with it those that were done when it is.
    pub fn put_back(&mut self, flight: Flight) {
        let first = (flight.element, flight.descriptor);
        for back in std::iter::once(first).chain(flight.also) {
            let order = |e: &Element| (e.seq, e.element);
            let at = self
                .again
                .partition_point(|(e, _)| order(e) < order(&back.0));
            self.again.insert(at, back);
        }
    }

    /// The next element waits until nothing else runs.
    pub const fn wait_alone(&mut self) {
        self.alone = true;
    }

    /// Elements that came back.
    pub fn put_back_count(&self) -> usize {
        self.again.len()
    }

    /// The number of a shadow that nothing runs from.
    pub fn free_shadow(&self) -> Option<usize> {
        let used = |at: &usize| self.flights.iter().any(|f| f.shadow == *at);
        (0..AHEAD).find(|at| !used(at))
    }

    /// What runs or waits at the engine, in order.
    pub const fn flights(&self) -> &VecDeque<Flight> {
        &self.flights
    }

    /// What runs from a shadow is over. Returns where its ring ends; nothing is
    /// added to it from now on.
    pub fn land(&mut self, shadow: usize) -> Option<u32> {
        let flight = self.flights.iter_mut().find(|f| f.shadow == shadow)?;
        flight.landing = true;
        Some(flight.tail)
    }

    /// The last of them.
    pub fn last_flight(&mut self) -> Option<&mut Flight> {
        self.flights.back_mut()
    }

    /// An element goes to the engine.
    pub fn depart(&mut self, flight: Flight) {
        self.flights.push_back(flight);
    }

    /// What ran from a shadow is back.
    pub fn arrive(&mut self, shadow: usize) -> Option<Flight> {
        let at = self.flights.iter().position(|f| f.shadow == shadow)?;
        self.flights.remove(at)
    }

    /// Loads that wait; one whose first element runs is among them.
    pub fn waiting(&self) -> usize {
        self.again.len() + self.loads.len()
    }

    /// Drops what waits.
    pub fn clear(&mut self) {
        self.again.clear();
        self.interrupted.clear();
        self.remains.clear();
        self.failed = None;
        self.loads.clear();
        self.alone = false;
    }

    /// Drops what waits and takes no more.
    pub fn stop(&mut self) {
        self.clear();
        self.stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Descriptor = Descriptor(0x1019);
    const B: Descriptor = Descriptor(0x3019);
    const NONE: Descriptor = Descriptor(0);

    fn flight(element: Element, d: Descriptor, shadow: usize) -> Flight {
        Flight {
            element,
            descriptor: d,
            tail: 0,
            shadow,
            also: Vec::new(),
            landing: false,
        }
    }

    #[test]
    fn elements_come_in_order_two_ahead() {
        let mut lane = Lane::default();
        lane.load(1, [A, B]).unwrap();
        lane.load(2, [A, NONE]).unwrap();
        let mut seen = Vec::new();
        for shadow in [0, 1] {
            let (element, d) = lane.next().unwrap();
            assert_eq!(lane.free_shadow(), Some(shadow));
            lane.take();
            lane.depart(flight(element, d, shadow));
            seen.push((element.seq, element.element, d));
        }
        assert!(lane.free_shadow().is_none());
        assert_eq!(lane.next(), None);
        assert_eq!(lane.arrive(0).unwrap().element.seq, 1);
        let (element, d) = lane.next().unwrap();
        // Looked at, not taken: it comes again, when nothing else runs.
        lane.wait_alone();
        assert_eq!(lane.next(), None);
        assert!(lane.arrive(0).is_none() && lane.arrive(1).is_some());
        assert_eq!(lane.next(), Some((element, d)));
        lane.take();
        seen.push((element.seq, element.element, d));
        assert_eq!(seen, [(1, 0, A), (1, 1, B), (2, 0, A)]);
        assert_eq!(lane.next(), None);
        assert_eq!(lane.waiting(), 0);
    }

    #[test]
    fn what_comes_back_goes_first_and_in_order() {
        let mut lane = Lane::default();
        lane.load(1, [A, B]).unwrap();
        lane.load(2, [B, NONE]).unwrap();
        for shadow in [0, 1] {
            let (element, d) = lane.next().unwrap();
            lane.take();
            lane.depart(flight(element, d, shadow));
        }
        // The second load has nothing to add to what runs.
        let mut second = lane.arrive(1).unwrap();
        let (element, d) = lane.next().unwrap();
        lane.take();
        second.also.push((element, d));
        let first = lane.arrive(0).unwrap();
        lane.held = true;
        lane.put_back(second);
        lane.put_back(first);
        lane.interrupt(Interrupted {
            lrca: B.lrca(),
            batch: None,
            slot: None,
        });
        assert_eq!((lane.next(), lane.waiting()), (None, 4));
        lane.held = false;
        let mut seen = Vec::new();
        while let Some((element, _)) = lane.next() {
            lane.take();
            seen.push((element.seq, element.element, lane.interrupted().is_some()));
        }
        assert_eq!(seen, [(1, 0, true), (1, 1, false), (2, 0, false)]);
    }

    #[test]
    fn numbers_grow_and_the_queue_is_bounded() {
        let mut lane = Lane::default();
        lane.load(5, [A, NONE]).unwrap();
        assert_eq!(
            lane.load(5, [A, NONE]),
            Err(LoadError::Sequence { last: 5 })
        );
        for seq in 6..100 {
            let context = if seq % 2 == 0 { A } else { B };
            let _ = lane.load(seq, [context, NONE]);
        }
        assert_eq!(lane.waiting(), MAX_LOADS);
        assert_eq!(lane.load(100, [B, NONE]), Err(LoadError::Full));
        lane.stop();
        assert_eq!(lane.load(101, [A, NONE]), Err(LoadError::Stopped));
        assert_eq!(lane.next(), None);
    }

    #[test]
    fn a_context_loaded_again_and_again_waits_once_behind_what_may_be_looked_at() {
        let mut lane = Lane::default();
        for seq in 0..1000 {
            lane.load(seq, [A, NONE]).unwrap();
            assert!(lane.waiting() <= 2);
        }
        lane.load(1000, [A, B]).unwrap();
        let mut seen = Vec::new();
        while let Some((element, d)) = lane.next() {
            lane.take();
            seen.push((element.seq, element.element, d));
        }
        assert_eq!(seen, [(0, 0, A), (1000, 0, A), (1000, 1, B)]);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Load(Descriptor, Descriptor),
        Look,
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        let one = prop_oneof![4 => Just(A), 1 => Just(B)];
        let other = prop_oneof![3 => Just(NONE), 1 => Just(B)];
        prop_oneof![
            3 => (one, other).prop_map(|(a, b)| Step::Load(a, b)),
            1 => Just(Step::Look),
            1 => Just(Step::Take),
        ]
    }

    proptest! {
        /// Against a lane that keeps every load: what does not come out is
        /// followed, before any other context, by its context with a later
        /// number.
        #[test]
        fn what_is_left_out_is_in_what_comes_next(steps in prop::collection::vec(step(), 0..60)) {
            let mut lane = Lane::default();
            let (mut all, mut out, mut looked) = (Vec::new(), Vec::new(), None);
            let end = std::iter::repeat_n(Step::Take, 120);
            for (seq, step) in (0..).zip(steps.into_iter().chain(end)) {
                match step {
                    Step::Load(a, b) => {
                        lane.load(seq, [a, b]).unwrap();
                        all.push((seq, 0, a));
                        all.extend(b.valid().then_some((seq, 1, b)));
                    }
                    Step::Look => looked = lane.next(),
                    Step::Take => {
                        let next = lane.next();
                        prop_assert!(looked.is_none() || looked == next);
                        looked = None;
                        if let Some((Element { seq, element }, d)) = next {
                            lane.take();
                            out.push((seq, element, d));
                        }
                    }
                }
            }
            let mut out = out.into_iter().peekable();
            for one in all {
                if out.next_if_eq(&one).is_none() {
                    prop_assert_eq!(out.peek().map(|next| next.2), Some(one.2));
                }
            }
            prop_assert_eq!(out.next(), None);
        }
    }
}
