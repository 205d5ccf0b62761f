//! Elements on their way to an engine and back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gen8::Engine;
use gen8::csb::Descriptor;
use vgpu_ring::{Event, FaultReason};

use super::lane::Active;
use super::{REFUSALS, Vgpu, index};
use crate::counters::Counters;
use crate::engine::{Client, Outcome};
use crate::switch::RegisterFile;
use crate::sync::lock;
use crate::workload::{self, Element, PrepareError, Shadow, Source, Workload};

impl Vgpu {
    /// Starts the lane's next element, if it has one and none is active.
    pub(super) fn advance(self: &Arc<Self>, engine: Engine) {
        let slot = self.slot(engine);
        let mut lane = lock(&slot.lane);
        while let Some((active, descriptor)) = lane.next() {
            let prepared = self.prepare(engine, &mut lane.shadow, descriptor);
            self.give_orders();
            match prepared {
                Ok(Element::Work(work)) => {
                    slot.counters.ptes_written.add(work.cost.ptes);
                    slot.counters.bytes_copied.add(work.cost.bytes);
                    slot.counters.commands.add(work.cost.commands);
                    lane.active = Some(active);
                    let client: Arc<dyn Client> = Arc::clone(self) as _;
                    let unit = &self.shared.engines[engine.index()];
                    if unit.submit(client, work).is_err() {
                        lane.active = None;
                        self.fault(engine, &mut lane, active, FaultReason::TimedOut, 0);
                    }
                    return;
                }
                Ok(Element::Empty) => {
                    slot.counters.completed.add(1);
                    self.done(engine, active, 0);
                }
                Err(e) => {
                    slot.counters.refused.add(1);
                    self.refused(engine, &e);
                    self.fault(engine, &mut lane, active, e.reason(), e.header());
                    return;
                }
            }
        }
    }

    fn prepare(
        &self,
        engine: Engine,
        shadow: &mut Shadow,
        descriptor: Descriptor,
    ) -> Result<Element, PrepareError> {
        let table = lock(&self.table).clone();
        let Some(table) = table else {
            return Ok(Element::Empty);
        };
        let source = Source {
            vgpu: self.id(),
            map: &self.map,
            table: table.as_ref(),
            tables: &self.tables,
            windows: &self.shared.windows,
            pages: &self.shared.pages,
            limits: self.config.audit,
        };
        workload::prepare(&source, shadow, engine, descriptor)
    }

    fn refused(&self, engine: Engine, error: &PrepareError) {
        log::debug!("vGPU {} {}: {error}", self.id(), engine.sysfs_name());
        let mut refusals = lock(&self.refusals);
        if refusals.len() >= REFUSALS {
            refusals.pop_front();
        }
        refusals.push_back(format!("{}: {error}", engine.sysfs_name()));
    }

    fn done(&self, engine: Engine, active: Active, bits: u16) {
        self.push(Event::ContextDone {
            engine: index(engine),
            element: active.element,
            bits,
            seq: active.seq,
        });
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
        let active = lock(&slot.lane).active;
        if bits != 0 {
            if active.is_some() && matches!(outcome, Outcome::Done) {
                slot.counters.interrupts.add(1);
            } else {
                self.interrupts(engine, bits);
            }
        }
        if active.is_some() && matches!(outcome, Outcome::Done) {
            let bytes = workload.write_back(&self.map);
            let bytes = u64::try_from(bytes).unwrap_or(0);
            slot.counters.bytes_copied.add(bytes);
        }
        // What the GPU used is let go before anyone learns that it is idle.
        drop(workload);
        match (active, outcome) {
            (Some(active), Outcome::Done) => self.done(engine, active, bits),
            (Some(active), Outcome::Failed { reason, ipehr }) => {
                self.fault(engine, &mut lock(&slot.lane), active, reason, ipehr);
            }
            (None, _) | (_, Outcome::Cancelled) => {}
        }
        let mut lane = lock(&slot.lane);
        lane.active = None;
        let more = lane.waiting() > 0;
        drop(lane);
        if more {
            self.worker.advance(engine);
        }
    }
}
