//! The GPU's interrupt: a line that wakes, and the thread that answers.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use gen8::{Engine, irq};
use gpu_bus::InterruptLine;

use crate::engine::EngineUnit;
use crate::registers::Registers;
use crate::sync::lock;

#[derive(Default)]
struct Bell {
    rung: bool,
    nudged: bool,
    stop: bool,
}

/// The line between the GPU and the interrupt thread.
#[derive(Default)]
pub struct Line {
    bell: Mutex<Bell>,
    wake: Condvar,
}

impl InterruptLine for Line {
    fn raise(&self) {
        lock(&self.bell).rung = true;
        self.wake.notify_one();
    }
}

/// Why the thread woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Interrupt,
    Tick,
    Stop,
}

impl Line {
    /// Ends the interrupt thread.
    pub(crate) fn stop(&self) {
        lock(&self.bell).stop = true;
        self.wake.notify_all();
    }

    /// Makes the interrupt thread look at the engines soon, without an
    /// interrupt.
    pub(crate) fn nudge(&self) {
        lock(&self.bell).nudged = true;
        self.wake.notify_one();
    }

    fn wait(&self, tick: Duration) -> Woken {
        let (mut bell, _) = self
            .wake
            .wait_timeout_while(lock(&self.bell), tick, |b| !b.rung && !b.nudged && !b.stop)
            .unwrap_or_else(PoisonError::into_inner);
        bell.nudged = false;
        if bell.stop {
            Woken::Stop
        } else if std::mem::take(&mut bell.rung) {
            Woken::Interrupt
        } else {
            Woken::Tick
        }
    }
}

/// Opens every bank for what the engines signal and switches delivery on.
pub(crate) fn enable(gpu: &Registers) {
    for bank in 0..4 {
        let at = bank * irq::GT_BANK_STRIDE;
        gpu.write32(irq::GT_IMR0 + at, 0);
        gpu.write32(irq::GT_IER0 + at, u32::MAX);
    }
    gpu.write32(irq::MASTER, irq::MASTER_ENABLE);
}

/// Switches delivery off.
pub(crate) fn disable(gpu: &Registers) {
    gpu.write32(irq::MASTER, 0);
}

/// One message (Linux `i915_irq.c:gen8_irq_handler`): delivery off, which
/// engines, their identity bits acknowledged, delivery on. The engines are
/// moved on before delivery is switched on again, and what comes meanwhile
/// raises the line anew.
fn answer(gpu: &Registers, engines: &[EngineUnit; Engine::COUNT]) {
    gpu.write32(irq::MASTER, 0);
    let master = gpu.read32(irq::MASTER);
    for (engine, unit) in Engine::ALL.into_iter().zip(engines) {
        if master & engine.master_bit() != 0 {
            unit.interrupt();
        }
    }
    gpu.write32(irq::MASTER, irq::MASTER_ENABLE);
}

/// The interrupt thread; also the watchdog, by `tick`, and the alarm clock
/// of vGPUs that are over their caps.
pub(crate) fn run(
    line: &Line,
    gpu: &Registers,
    engines: &Arc<[EngineUnit; Engine::COUNT]>,
    tick: Duration,
) {
    let mut due = tick;
    loop {
        match line.wait(due) {
            Woken::Stop => return,
            Woken::Interrupt => answer(gpu, engines),
            Woken::Tick => {}
        }
        // Also after an interrupt: a steady stream of them must not keep the
        // watchdog from its work.
        due = tick;
        for unit in engines.iter() {
            due = due.min(unit.check().unwrap_or(tick));
        }
    }
}
