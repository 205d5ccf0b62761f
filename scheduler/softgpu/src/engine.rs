//! An engine's thread: takes run lists, runs their contexts, tells the
//! driver.

use std::sync::Arc;

use gen8::csb::Descriptor;
use gen8::{Engine, irq, ring};

use crate::bits::lo;
use crate::core::Core;
use crate::counters::count;
use crate::execlist::Arbitration;
use crate::memory::{AddressFault, Space};
use crate::position::Flow;
use crate::stream::{Stop, Streamer};
use crate::unit::attention;

/// What follows a context.
enum Next {
    /// Another one of the list, or of a new one.
    Context(Descriptor),
    /// Nothing: the engine is idle.
    Idle,
}

/// Runs `engine` until the GPU shuts down.
pub(crate) fn run(core: &Arc<Core>, engine: Engine) {
    let mut streamer = Streamer::new(core.clone(), engine);
    while let Some(first) = next_list(core, engine) {
        streamer.run_list(first);
    }
}

/// Waits for a list on an idle engine and starts it. `None` at the end.
fn next_list(core: &Core, engine: Engine) -> Option<Descriptor> {
    let unit = core.unit(engine);
    let mut s = unit.lock();
    loop {
        if s.shutdown {
            return None;
        }
        if s.reset {
            unit.reset(core, &mut s);
        }
        if !unit.hold_requested(core) {
            unit.clear_attention(attention::PENDING | attention::FLUSH);
            if let Some((event, first)) = s.list.begin() {
                unit.set_quiet(&mut s, false);
                core.emit(engine, event);
                return Some(first);
            }
        }
        unit.set_quiet(&mut s, true);
        s = unit.sleep(s);
    }
}

impl Streamer {
    /// Runs contexts until the engine is idle or reset.
    fn run_list(&mut self, first: Descriptor) {
        let mut current = first;
        self.pace.start();
        loop {
            match self.run_context(current) {
                Ok(Next::Context(next)) => current = next,
                Ok(Next::Idle) => return,
                Err(Stop::Reset) => break,
                Err(error) => {
                    self.hang(error);
                    break;
                }
            }
        }
        self.unload();
    }

    fn run_context(&mut self, descriptor: Descriptor) -> Result<Next, Stop> {
        self.load(descriptor)?;
        self.note_loaded();
        loop {
            if self.unit().attention() != 0
                && let Some(next) = self.attend()?
            {
                return Ok(next);
            }
            if self.flow == Flow::Ring && self.ring.ahead() == 0 {
                if let Some(next) = self.at_tail()? {
                    return Ok(next);
                }
                continue;
            }
            self.step()?;
            self.note();
            self.pace.command();
            self.keep_pace(false)?;
        }
    }

    /// Between two commands: stops, holds, flushes. Never switches.
    pub(crate) fn between_commands(&mut self) -> Result<(), Stop> {
        let a = self.unit().attention();
        if a & !attention::PENDING == 0 {
            return Ok(());
        }
        if a & attention::STOP != 0 {
            return Err(Stop::Reset);
        }
        if a & attention::FLUSH != 0 {
            self.unit().clear_attention(attention::FLUSH);
            self.memory.flush_tlb();
        }
        if a & attention::HOLD != 0 {
            self.flush_counters();
            let core = self.core.clone();
            let unit = core.unit(self.engine);
            let mut s = unit.lock();
            while unit.hold_requested(&core) && !s.reset && !s.shutdown {
                unit.set_quiet(&mut s, true);
                s = unit.sleep(s);
            }
            unit.set_quiet(&mut s, false);
            if s.reset || s.shutdown {
                return Err(Stop::Reset);
            }
        }
        Ok(())
    }

    /// Something asked for the engine's attention at a command boundary.
    /// Returns what runs instead, if this context does not go on.
    fn attend(&mut self) -> Result<Option<Next>, Stop> {
        self.between_commands()?;
        if self.unit().attention() & attention::PENDING == 0 {
            return Ok(None);
        }
        let core = self.core.clone();
        let unit = core.unit(self.engine);
        let arbitration = unit.lock().list.arbitrate();
        match arbitration {
            Arbitration::None => {
                unit.clear_attention(attention::PENDING);
                Ok(None)
            }
            // The context goes on: this needs no arbitration point.
            Arbitration::Lite => {
                self.lite_restore()?;
                Ok(None)
            }
            Arbitration::Reload | Arbitration::Switch if self.arbitrate => {
                self.save()?;
                self.unload();
                let mut s = unit.lock();
                let Some((event, next)) = s.list.replace() else {
                    return Err(Stop::Reset);
                };
                unit.clear_attention(attention::PENDING);
                count(&unit.counters.preemptions);
                core.emit(self.engine, event);
                Ok(Some(Next::Context(next)))
            }
            Arbitration::Reload | Arbitration::Switch => Ok(None),
        }
    }

    /// The same context was submitted again: takes its new tail.
    fn lite_restore(&mut self) -> Result<(), Stop> {
        let core = self.core.clone();
        let unit = core.unit(self.engine);
        let mut s = unit.lock();
        // Another load may have taken its place since.
        if s.list.arbitrate() != Arbitration::Lite {
            return Ok(());
        }
        // The event says that the new tail counts, so take it first.
        self.resample_tail()?;
        if let Some((event, next)) = s.list.replace() {
            self.context.descriptor = next;
            unit.clear_attention(attention::PENDING);
            count(&unit.counters.lite_restores);
            core.emit(self.engine, event);
        }
        Ok(())
    }

    /// The ring is empty: the context is complete, unless it was submitted
    /// again meanwhile.
    fn at_tail(&mut self) -> Result<Option<Next>, Stop> {
        let core = self.core.clone();
        let unit = core.unit(self.engine);
        self.keep_pace(true)?;
        self.save()?;
        self.flush_counters();
        let mut s = unit.lock();
        if s.reset || s.shutdown {
            return Err(Stop::Reset);
        }
        if matches!(s.list.arbitrate(), Arbitration::Lite) {
            drop(s);
            self.lite_restore()?;
            return Ok(None);
        }
        let Some((event, next)) = s.list.finish() else {
            return Err(Stop::Reset);
        };
        self.unload();
        if next.is_none() {
            count(&unit.counters.idles);
        }
        core.emit(self.engine, event);
        Ok(Some(next.map_or(Next::Idle, Next::Context)))
    }

    /// Reports an error and stays put until a reset.
    fn hang(&mut self, error: Stop) {
        let core = self.core.clone();
        let e = self.engine;
        let unit = core.unit(e);
        count(&unit.counters.errors);
        let bit = match error {
            Stop::Address(fault) => {
                record_fault(&core, e, fault);
                ring::ERROR_PAGE_TABLE
            }
            _ => ring::ERROR_INSTRUCTION,
        };
        log::debug!(
            "{e:?}: {error:?} at {:#x}, header {:#010x}, context {:#x}",
            core.ring(e, ring::ACTHD),
            core.ring(e, ring::IPEHR),
            self.context.descriptor.context_id(),
        );
        let mut s = unit.lock();
        s.hung = true;
        let base = e.mmio_base();
        core.registers.update(base + ring::ESR, |v| v | bit);
        unit.set_quiet(&mut s, true);
        if core.ring(e, ring::EMR) & bit == 0 {
            core.registers.update(base + ring::EIR, |v| v | bit);
            core.signal(e, irq::ERROR);
        }
        while !s.reset && !s.shutdown {
            s = unit.sleep(s);
        }
    }
}

/// Latches the first fault until a driver clears it.
fn record_fault(core: &Core, engine: Engine, fault: AddressFault) {
    if core.registers.get(ring::FAULT) & ring::FAULT_VALID != 0 {
        return;
    }
    let global = fault.space == Space::Ggtt;
    // Engine numbers of the register are those of i915's hardware ids:
    // render, video, blitter, second video, video enhancement.
    let id = match engine {
        Engine::Rcs => 0,
        Engine::Vcs => 1,
        Engine::Bcs => 2,
        Engine::Vecs => 4,
    };
    let select = if global { ring::FAULT_GGTT } else { 0 };
    let high = lo(fault.address >> 44) & 0xf;
    core.registers
        .set(ring::FAULT_TLB_DATA0, lo(fault.address >> 12));
    core.registers.set(
        ring::FAULT_TLB_DATA1,
        high | if global { 1 << 4 } else { 0 },
    );
    core.registers
        .set(ring::FAULT, ring::FAULT_VALID | select | (id << 12));
}
