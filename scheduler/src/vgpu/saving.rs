//! A vGPU is saved and, here or elsewhere, goes on.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gen8::{Engine, EngineSet, Platform, irq};
use guest_memory::WrittenPages;
use serde::{Deserialize, Serialize};
use vgpu_ring::Event;

use super::Vgpu;
use super::lane::Interrupted;
use crate::flights::FlightSlot;
use crate::sync::lock;
use crate::workload::InBatch;

/// What became of the work that was at the GPU when the vGPU was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Drained {
    /// How long what ran took to end.
    pub waited: Duration,
    /// Elements of lists that are to run when the vGPU goes on.
    pub put_back: usize,
    /// Contexts among them that ran, and go on where they were taken off.
    pub interrupted: usize,
}

/// Something of the vGPU runs and does not end. The vGPU goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "context {context:#x} has run on {engine} for {} ms and does not yield",
    ran.as_millis()
)]
pub struct StillRuns {
    /// sysfs name.
    pub engine: &'static str,
    /// Where the guest has the context's image, in its global address space.
    pub context: u32,
    /// For how long.
    pub ran: Duration,
}

/// What vgpud holds of a vGPU. All else it has is made anew from the guest's
/// memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerV1 {
    /// The engines: RCS, BCS, VCS, VECS.
    pub engines: Vec<EngineV1>,
}

/// One engine's part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineV1 {
    /// BAR0 offset and value of each register that a switch carries over and
    /// that differs from its reset value, by rising offset.
    pub registers: Vec<(u32, u32)>,
    /// The context that was taken off before its end, and goes on first.
    pub interrupted: Option<InterruptedV1>,
}

/// A context that goes on where it was taken off. Its image says where in the
/// ring that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptedV1 {
    /// Where the guest has its image, in its global address space.
    pub context: u32,
    /// In which batch; `None` between commands of the ring.
    pub batch: Option<InBatch>,
}

/// A saved state that no vGPU can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadScheduler {
    /// The number of engines.
    #[error("saved scheduler state has {0} engines, allowed: 4")]
    Engines(usize),
    /// A register.
    #[error(
        "saved scheduler state has register {offset:#x} on {engine}, allowed: \
         rising offsets of registers that a switch carries over"
    )]
    Register {
        /// sysfs name.
        engine: &'static str,
        /// BAR0 offset.
        offset: u32,
    },
}

impl SchedulerV1 {
    /// Whether a vGPU of `gpu` can have it.
    ///
    /// # Errors
    /// [`BadScheduler`] names what it cannot.
    pub fn check(&self, gpu: &Platform) -> Result<(), BadScheduler> {
        let Self { engines } = self;
        if engines.len() != Engine::COUNT {
            return Err(BadScheduler::Engines(engines.len()));
        }
        for (engine, EngineV1 { registers, .. }) in Engine::ALL.into_iter().zip(engines) {
            let mut last = None;
            for &(offset, _) in registers {
                let known = crate::switch::engine_of(gpu.switched, offset) == Some(engine);
                if !known || last.is_some_and(|l| offset <= l) {
                    let engine = engine.sysfs_name();
                    return Err(BadScheduler::Register { engine, offset });
                }
                last = Some(offset);
            }
        }
        Ok(())
    }
}

impl Vgpu {
    /// Stops giving the GPU work, takes back what has not begun, and waits,
    /// `limit` or little longer, for what runs to end or to yield. On return
    /// nothing of the guest is at the GPU, and events of all that ended are on
    /// their way. Requests are still taken; what they submit waits.
    ///
    /// # Errors
    /// [`StillRuns`]; the vGPU goes on as if nothing had been.
    pub(crate) fn suspend(self: &Arc<Self>, limit: Duration) -> Result<Drained, StillRuns> {
        let start = Instant::now();
        for slot in &self.lanes {
            lock(&slot.lane).held = true;
        }
        for unit in self.shared.engines.iter() {
            unit.withdraw(self.id());
        }
        let deadline = start + limit;
        for engine in Engine::ALL {
            let unit = &self.shared.engines[engine.index()];
            if let Err(runs) = unit.drain(self.id(), deadline) {
                let lane = lock(&self.slot(engine).lane);
                let context = lane.flights().front().map_or(0, |f| f.lrca());
                drop(lane);
                self.resume();
                return Err(StillRuns {
                    engine: engine.sysfs_name(),
                    context,
                    ran: runs.ran,
                });
            }
        }
        let mut drained = Drained {
            waited: start.elapsed(),
            ..Drained::default()
        };
        for slot in &self.lanes {
            let lane = lock(&slot.lane);
            drained.put_back += lane.put_back_count();
            drained.interrupted += usize::from(lane.interrupted().is_some());
        }
        Ok(drained)
    }

    /// Goes on after [`Self::suspend`].
    pub(crate) fn resume(&self) {
        for engine in EngineSet::ALL.iter() {
            lock(&self.slot(engine).lane).held = false;
            self.worker.advance(engine);
        }
    }

    /// The guest's pages that vgpud writes.
    pub(crate) fn written(&self) -> &WrittenPages {
        self.map.written()
    }

    /// What to save, after [`Self::suspend`].
    pub(crate) fn save(&self) -> SchedulerV1 {
        let engines = Engine::ALL.map(|engine| {
            self.shared.engines[engine.index()].collect_registers(self.id());
            let mut registers = lock(&self.slot(engine).registers).save();
            registers.sort_unstable();
            let interrupted = lock(&self.slot(engine).lane).interrupted();
            EngineV1 {
                registers,
                interrupted: interrupted.map(|(context, batch)| InterruptedV1 { context, batch }),
            }
        });
        SchedulerV1 {
            engines: engines.into(),
        }
    }

    /// Takes over what another vgpud had at the GPU when it died, before
    /// anything is submitted, and wakes the guest: interrupts are lost.
    pub(crate) fn inherit(&self, remains: Vec<FlightSlot>) {
        // Another one's orders may be answered yet: there are few, and it did
        // not begin within the same microsecond.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = now.unwrap_or_default().as_micros().to_le_bytes();
        let [a, b, c, d, ..] = micros;
        self.tables.number_from(u32::from_le_bytes([a, b, c, d]));
        for slot in remains {
            lock(&self.slot(slot.engine()).lane).inherit(slot);
        }
        for engine in Engine::ALL {
            self.push(Event::Interrupt {
                engine: super::index(engine),
                bits: irq::USER,
            });
        }
    }

    /// Takes over what was saved and [checked](SchedulerV1::check), before
    /// anything is submitted.
    pub(crate) fn restore(&self, saved: &SchedulerV1) {
        for (slot, engine) in self.lanes.iter().zip(&saved.engines) {
            let EngineV1 {
                registers,
                interrupted,
            } = engine;
            if let Some(InterruptedV1 { context, batch }) = interrupted {
                lock(&slot.lane).interrupt(Interrupted {
                    lrca: *context,
                    batch: *batch,
                    slot: None,
                });
            }
            let mut file = lock(&slot.registers);
            for (offset, value) in registers {
                file.write(*offset, *value);
            }
        }
    }
}
