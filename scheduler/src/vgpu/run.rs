//! Elements on their way to an engine and back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gen8::Engine;
use gen8::csb::Descriptor;
use vgpu_ring::{Event, FaultReason};

use super::lane::{Element, Flight};
use super::{REFUSALS, Vgpu, index};
use crate::counters::Counters;
use crate::engine::{Client, Outcome};
use crate::switch::RegisterFile;
use crate::sync::lock;
use crate::workload::{self, PrepareError, Shadow, Source, Workload};

impl Vgpu {
    /// Prepares what the lane has next, as far ahead as it goes.
    pub(super) fn advance(self: &Arc<Self>, engine: Engine) {
        let slot = self.slot(engine);
        let mut lane = lock(&slot.lane);
        while let Some((element, descriptor)) = lane.next() {
            let lrca = descriptor.lrca();
            if lane.flights().iter().any(|f| f.lrca == lrca) {
                // Its state is with the GPU. What has no more to run than what
                // is there already is done with that.
                match lane.last_flight() {
                    Some(last)
                        if last.lrca == lrca
                            && self.nothing_behind(engine, descriptor, last.tail) =>
                    {
                        last.also.push(element);
                        lane.take();
                        continue;
                    }
                    _ => return,
                }
            }
            if !lane.flights().is_empty() && self.tables.crowded() {
                lane.wait_alone();
                return;
            }
            let Some((number, shadow)) = lane.free_shadow() else {
                return;
            };
            let prepared = self.prepare(engine, shadow, descriptor);
            lane.share_knowledge();
            match prepared {
                Ok(workload::Element::Work(mut work)) => {
                    slot.counters.ptes_written.add(work.cost.ptes);
                    slot.counters.bytes_copied.add(work.cost.bytes);
                    slot.counters.commands.add(work.cost.commands);
                    work.shadow = number;
                    lane.take();
                    lane.depart(Flight {
                        element,
                        lrca,
                        tail: work.guest_tail(),
                        shadow: number,
                        also: Vec::new(),
                    });
                    let client: Arc<dyn Client> = Arc::clone(self) as _;
                    let unit = &self.shared.engines[engine.index()];
                    if unit.submit(client, work).is_err() {
                        lane.arrive(number);
                        self.fault(engine, &mut lane, element, FaultReason::TimedOut, 0);
                        return;
                    }
                }
                Ok(workload::Element::Empty) => {
                    lane.take();
                    match lane.last_flight() {
                        Some(last) => last.also.push(element),
                        None => self.empty(engine, element),
                    }
                }
                // What comes before it is told first, and when that is through
                // there may be room.
                Err(_) if !lane.flights().is_empty() => {
                    lane.wait_alone();
                    return;
                }
                Err(e) => {
                    lane.take();
                    slot.counters.refused.add(1);
                    self.refused(engine, &e);
                    self.fault(engine, &mut lane, element, e.reason(), e.header());
                    return;
                }
            }
        }
    }

    /// Calls `with` with what workloads are made from, while there is such.
    fn with_source<T>(&self, with: impl FnOnce(&Source<'_>) -> T) -> Option<T> {
        let table = lock(&self.table).clone()?;
        Some(with(&Source {
            vgpu: self.id(),
            map: &self.map,
            table: table.as_ref(),
            tables: &self.tables,
            windows: &self.shared.windows,
            pages: &self.shared.pages,
            limits: self.config.audit,
        }))
    }

    fn prepare(
        &self,
        engine: Engine,
        shadow: &mut Shadow,
        descriptor: Descriptor,
    ) -> Result<workload::Element, PrepareError> {
        self.with_source(|source| workload::prepare(source, shadow, engine, descriptor))
            .unwrap_or(Ok(workload::Element::Empty))
    }

    /// Whether the guest's context has nothing more to run than up to `tail`.
    fn nothing_behind(&self, engine: Engine, descriptor: Descriptor, tail: u32) -> bool {
        self.with_source(|source| workload::nothing_behind(source, engine, descriptor, tail))
            .unwrap_or(false)
    }

    fn refused(&self, engine: Engine, error: &PrepareError) {
        log::debug!("vGPU {} {}: {error}", self.id(), engine.sysfs_name());
        let mut refusals = lock(&self.refusals);
        if refusals.len() >= REFUSALS {
            refusals.pop_front();
        }
        refusals.push_back(format!("{}: {error}", engine.sysfs_name()));
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

    fn finished(&self, engine: Engine, workload: Box<Workload>, outcome: Outcome, bits: u16) {
        let slot = self.slot(engine);
        let shadow = workload.shadow;
        if bits != 0 {
            if outcome == Outcome::Done {
                slot.counters.interrupts.add(1);
            } else {
                self.interrupts(engine, bits);
            }
        }
        if outcome == Outcome::Done {
            let bytes = workload.write_back(&self.map);
            let bytes = u64::try_from(bytes).unwrap_or(0);
            slot.counters.bytes_copied.add(bytes);
        }
        // What the GPU used is let go before anyone learns that it is idle.
        drop(workload);
        let mut lane = lock(&slot.lane);
        let flight = lane.arrive(shadow);
        match (flight, outcome) {
            (Some(flight), Outcome::Done) => {
                self.done(engine, flight.element, bits);
                for element in flight.also {
                    self.empty(engine, element);
                }
            }
            // One is enough to stop the engine.
            (Some(flight), Outcome::Failed { reason, ipehr }) if !lane.stopped => {
                self.fault(engine, &mut lane, flight.element, reason, ipehr);
            }
            (None, _) | (_, Outcome::Cancelled | Outcome::Failed { .. }) => {}
        }
        let more = lane.waiting() > 0;
        drop(lane);
        if more {
            self.worker.advance(engine);
        }
    }
}
