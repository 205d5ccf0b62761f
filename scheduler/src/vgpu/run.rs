//! Elements on their way to an engine and back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gen8::Engine;
use gen8::csb::Descriptor;
use vgpu_ring::{Event, FaultReason};

use super::lane::{AHEAD, Element, Flight, Interrupted, Lane};
use super::{Vgpu, index};
use crate::clock::nanos;
use crate::complaint::Complaint;
use crate::counters::Counters;
use crate::engine::{Client, EngineUnit, Outcome};
use crate::flights::FlightSlot;
use crate::scan::{Scan, ScanMode};
use crate::switch::RegisterFile;
use crate::sync::lock;
use crate::workload::{self, InBatch, PrepareError, Shadow, Source, Workload};

impl Vgpu {
    /// Prepares what the lane has next, as far ahead as it goes. The lane is
    /// not locked meanwhile: who tells it that something ended does not wait for
    /// a guest whose tables take long to look at. After as much as goes to the
    /// engine at once it is the other engines' turn.
    pub(super) fn advance(self: &Arc<Self>, engine: Engine) {
        let slot = self.slot(engine);
        let mut shadows = lock(&slot.shadows);
        let mut prepared = 0..AHEAD;
        loop {
            let mut lane = lock(&slot.lane);
            let Some((element, descriptor)) = lane.next() else {
                return;
            };
            if self.emptying() {
                return;
            }
            let lrca = descriptor.lrca();
            if let Some(slot) = lane.inherited(lrca) {
                if !self.land(&mut lane, descriptor, slot) {
                    drop(lane.take());
                    self.fault(engine, &mut lane, element, FaultReason::TimedOut, 0);
                    return;
                }
                continue;
            }
            if lane.flights().iter().any(|f| f.lrca() == lrca) {
                let last = lane.last_flight().map(|l| (l.lrca(), l.shadow, l.tail));
                drop(lane);
                match last {
                    Some((last, shadow, tail))
                        if last == lrca && self.add_nothing(engine, shadow, tail, descriptor) =>
                    {
                        continue;
                    }
                    _ => return,
                }
            }
            let first = lane.flights().is_empty();
            if !first && self.tables.crowded() {
                lane.wait_alone();
                return;
            }
            let Some(number) = lane.free_shadow() else {
                return;
            };
            if prepared.next().is_none() {
                self.worker.advance(engine);
                return;
            }
            let resumed = lane.resumes(lrca);
            drop(lane);
            let start = Instant::now();
            let made = self.prepare(engine, &mut shadows[number], descriptor, resumed);
            slot.prepared_in(nanos(start.elapsed()));
            self.give_orders();
            // What one shadow learned of the lane's contexts is true of all.
            Shadow::agree(&mut *shadows);
            let mut lane = lock(&slot.lane);
            if lane.next() != Some((element, descriptor)) {
                // The guest reset the engine, or something failed.
                drop(lane);
                drop(made);
                self.let_go();
                continue;
            }
            match made {
                Ok(workload::Element::Work(mut work)) => {
                    slot.counters.ptes_written.add(work.cost.ptes);
                    slot.counters.bytes_copied.add(work.cost.bytes);
                    slot.counters.commands.add(work.cost.commands);
                    slot.counters.user_commands.add(work.cost.user_commands);
                    slot.counters.unchanged_bytes.add(work.cost.unchanged);
                    slot.counters.scans_cut.add(work.cost.cut.into());
                    for finding in work.findings.drain(..) {
                        self.noticed(engine, lrca, &finding.into());
                    }
                    work.shadow = number;
                    work.before = lane.take();
                    lane.depart(Flight {
                        element,
                        descriptor,
                        tail: work.guest_tail(),
                        shadow: number,
                        also: Vec::new(),
                        landing: false,
                    });
                    let client: Arc<dyn Client> = Arc::clone(self) as _;
                    let unit = &self.shared.engines[engine.index()];
                    if unit.submit(client, work).is_err() {
                        lane.arrive(number);
                        self.fault(engine, &mut lane, element, FaultReason::TimedOut, 0);
                        return;
                    }
                }
                // It is looked at again when that is over.
                Ok(workload::Element::Empty) if lane.last_flight().is_some_and(|l| l.is_full()) => {
                    return;
                }
                Ok(workload::Element::Empty) => {
                    drop(lane.take());
                    match lane.last_flight() {
                        Some(last) => last.also.push((element, descriptor)),
                        None => self.empty(engine, element),
                    }
                }
                Err(e) if e.too_many_tables() && self.may_empty() => {
                    self.emptying.store(true, Ordering::Release);
                }
                // What comes before it is told first, and when that is through
                // there may be room.
                Err(_) if !first => {
                    if !lane.flights().is_empty() {
                        lane.wait_alone();
                        return;
                    }
                }
                Err(e) => {
                    drop(lane.take());
                    slot.counters.refused.add(1);
                    self.refused(engine, lrca, &e);
                    self.fault(engine, &mut lane, element, e.reason(), e.header());
                    return;
                }
            }
        }
    }

    /// Whether nothing more goes to the GPU for now. The tables were too many
    /// for an element, and those out of use go when no work of the vGPU is
    /// there, which engines that take turns could put off for ever.
    fn emptying(&self) -> bool {
        if !self.emptying.load(Ordering::Acquire) {
            return false;
        }
        let on = self.may_empty();
        self.emptying.store(on, Ordering::Release);
        on
    }

    /// Whether something is at the GPU, all of which is going to end.
    fn may_empty(&self) -> bool {
        self.tables.pinned() && !self.shared.engines.iter().any(EngineUnit::is_dead)
    }

    /// Work of the vGPU is at the GPU no longer.
    fn let_go(&self) {
        if self.emptying.load(Ordering::Acquire) {
            for engine in Engine::ALL {
                self.worker.advance(engine);
            }
        }
    }

    /// The next element names the context that is at the GPU from `shadow`, as
    /// far as `tail`. Whether there is nothing more to run than that: then it
    /// is done with it. i915 loads what runs again, with a tail moved over
    /// no-ops, each time it puts something behind it.
    fn add_nothing(
        &self,
        engine: Engine,
        shadow: usize,
        tail: u32,
        descriptor: Descriptor,
    ) -> bool {
        let after = |source: &Source<'_>| workload::no_more_than(source, engine, descriptor, tail);
        let Some(new_tail) = self.with_source(None, after).flatten() else {
            return false;
        };
        let mut lane = lock(&self.slot(engine).lane);
        let Some((element, _)) = lane.next().filter(|(_, d)| *d == descriptor) else {
            return true;
        };
        match lane.last_flight() {
            Some(l) if l.shadow == shadow && l.tail == tail && !l.landing && !l.is_full() => {
                l.tail = new_tail;
                l.also.push((element, descriptor));
                lane.take();
                true
            }
            // It is over, and the element has to be looked at anew then.
            _ => false,
        }
    }

    /// Calls `with` with what workloads are made from, while there is such.
    fn with_source<T>(
        &self,
        scan: Option<Scan<'_>>,
        with: impl FnOnce(&Source<'_>) -> T,
    ) -> Option<T> {
        let table = lock(&self.table).clone()?;
        Some(with(&Source {
            gpu: self.shared.gpu,
            vgpu: self.id(),
            map: &self.map,
            table: table.as_ref(),
            tables: &self.tables,
            windows: &self.shared.windows,
            pages: &self.shared.pages,
            limits: self.config.audit,
            scan,
        }))
    }

    fn prepare(
        &self,
        engine: Engine,
        shadow: &mut Shadow,
        descriptor: Descriptor,
        resumed: Option<Option<InBatch>>,
    ) -> Result<workload::Element, PrepareError> {
        let opened = match self.scanner.mode() {
            ScanMode::Off => Vec::new(),
            ScanMode::Note | ScanMode::Refuse => lock(&self.slot(engine).registers).opened(),
        };
        let scan = Scan {
            scanner: &self.scanner,
            opened: &opened,
        };
        self.with_source(Some(scan), |source| {
            workload::prepare(source, shadow, engine, descriptor, resumed)
        })
        .unwrap_or(Ok(workload::Element::Empty))
    }

    /// Brings the image of a context up to date that was at the GPU when
    /// another vgpud died. It goes on from there. Says whether it can.
    fn land(&self, lane: &mut Lane, descriptor: Descriptor, slot: FlightSlot) -> bool {
        let Ok(landing) = slot.landing() else {
            return false;
        };
        let landed = |source: &Source<'_>| workload::land(source, descriptor, &landing);
        if self.with_source(None, landed) != Some(true) {
            // The guest took the image away.
            return true;
        }
        lane.interrupt(Interrupted {
            lrca: descriptor.lrca(),
            batch: landing.batch,
            slot: Some(slot),
        });
        true
    }

    fn refused(&self, engine: Engine, context: u32, error: &PrepareError) {
        let engine = engine.sysfs_name();
        log::debug!("vGPU {} {engine} {context:#010x}: {error}", self.id());
        lock(&self.refusals).add(Complaint::new(engine, context, error));
    }

    /// A batch without privilege holds what has no place there.
    fn noticed(&self, engine: Engine, context: u32, error: &PrepareError) {
        let complaint = Complaint::new(engine.sysfs_name(), context, error);
        lock(&self.noticed).add(complaint);
    }

    fn done(&self, engine: Engine, element: Element, bits: u16) {
        let Element { seq, element } = element;
        self.push(Event::ContextDone {
            engine: index(engine),
            element,
            bits,
            seq,
        });
    }

    /// An element had nothing to run.
    fn empty(&self, engine: Engine, element: Element) {
        self.slot(engine).counters.completed.add(1);
        self.done(engine, element, 0);
    }
}

impl Client for Vgpu {
    fn id(&self) -> u64 {
        self.config.id
    }

    fn registers(&self, engine: Engine) -> &Arc<Mutex<RegisterFile>> {
        &self.slot(engine).registers
    }

    fn counters(&self, engine: Engine) -> &Counters {
        &self.slot(engine).counters
    }

    fn slice(&self) -> Duration {
        lock(&self.share).slice()
    }

    fn interrupts(&self, engine: Engine, bits: u16) {
        self.slot(engine).counters.interrupts.add(1);
        self.push(Event::Interrupt {
            engine: index(engine),
            bits,
        });
    }

    fn finished(&self, engine: Engine, mut workload: Box<Workload>, outcome: Outcome, bits: u16) {
        let slot = self.slot(engine);
        let shadow = workload.shadow;
        if bits != 0 {
            if outcome == Outcome::Done {
                slot.counters.interrupts.add(1);
            } else {
                self.interrupts(engine, bits);
            }
        }
        let tail = lock(&slot.lane).land(shadow);
        let head = match outcome {
            Outcome::Done => tail,
            Outcome::Interrupted(place) => Some(place.head),
            Outcome::Cancelled | Outcome::Failed { .. } => None,
        };
        if let Some(head) = head {
            let bytes = workload.write_back(&self.map, head);
            let bytes = u64::try_from(bytes).unwrap_or(0);
            slot.counters.bytes_copied.add(bytes);
        }
        let resumed = workload.resumed;
        // What is kept of it for a vgpud to come is as good as what the guest
        // is told, or better: a stale place must not follow.
        let mut kept = workload.take_slot();
        // What the GPU used is let go before anyone learns that it is idle.
        drop(workload);
        let mut lane = lock(&slot.lane);
        let flight = lane.arrive(shadow);
        match (flight, outcome) {
            (Some(flight), Outcome::Done) => {
                kept = None;
                self.done(engine, flight.element, bits);
                for (element, _) in flight.also {
                    self.empty(engine, element);
                }
            }
            // One is enough to stop the engine.
            (Some(flight), Outcome::Failed { reason, ipehr }) if !lane.stopped => {
                self.fault(engine, &mut lane, flight.element, reason, ipehr);
                lane.failed = kept.take();
            }
            // It did not begin, and goes on where the vGPU does.
            (Some(flight), Outcome::Cancelled) if lane.held && !lane.stopped => {
                if let Some(batch) = resumed {
                    lane.interrupt(Interrupted {
                        lrca: flight.lrca(),
                        batch,
                        slot: kept.take(),
                    });
                }
                lane.put_back(flight);
            }
            (Some(flight), Outcome::Interrupted(place)) if !lane.stopped => {
                lane.interrupt(Interrupted {
                    lrca: flight.lrca(),
                    batch: place.batch,
                    slot: kept.take(),
                });
                lane.put_back(flight);
            }
            _ => {}
        }
        drop(kept);
        let more = lane.waiting() > 0;
        drop(lane);
        if more {
            self.worker.advance(engine);
        }
        self.let_go();
    }
}
