//! The engines as the guest sees them: submission, status buffer, faults,
//! stop and reset.

use gen8::csb;
use gen8::vreg::Handler;
use gen8::{Engine, EngineSet, Platform, irq, lrc, ring};
use serde::{Deserialize, Serialize};
use vgpu_ring::{Event, Request};

use crate::core::{Core, Seams};
use crate::execlist::{BadExeclist, Entry, Execlist, ExeclistV1, LoadV1, Wrote};
use crate::kept::{low, place};
use crate::table_memory;

/// One engine.
#[derive(Debug, Default)]
pub(crate) struct EngineState {
    pub(crate) port: Execlist,
    /// Something was submitted since vgpud was last told to reset the engine.
    dirty: bool,
    /// The reset vgpud has not answered while work was in flight: until it
    /// does, the GPU may still write the guest's memory.
    awaited: Option<u64>,
    /// What the port holds was given up by such a reset and will not run.
    killed: bool,
}

/// All engines.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    engines: [EngineState; Engine::COUNT],
    /// The number of the last reset told to vgpud.
    epoch: u64,
    /// GDRST as last written.
    gdrst: u32,
    /// Something may have changed since it was last kept.
    touched: bool,
}

/// One engine's saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineV1 {
    /// Its execlist port.
    pub port: ExeclistV1,
    /// What the port holds was given up by a stop and will not run.
    pub killed: bool,
}

/// The part's saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginesV1 {
    /// The engines: RCS, BCS, VCS, VECS.
    pub engines: Vec<EngineV1>,
    /// The number of the last reset.
    pub epoch: u64,
}

/// A saved engine part that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEngines {
    /// The number of engines.
    #[error("saved state has {0} engines, allowed: 4")]
    Count(usize),
    /// An engine's port.
    #[error("engine {index}: {source}")]
    Port {
        /// The engine's index.
        index: usize,
        /// What is wrong.
        source: BadExeclist,
    },
}

impl Engines {
    pub(crate) fn get(&self, engine: Engine) -> &EngineState {
        &self.engines[engine.index()]
    }

    fn get_mut(&mut self, engine: Engine) -> &mut EngineState {
        self.touched = true;
        &mut self.engines[engine.index()]
    }

    fn set_gdrst(&mut self, value: u32) {
        self.touched = true;
        self.gdrst = value;
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.touched = true;
        self.epoch = epoch;
    }

    /// Puts what a successor needs, if it may have changed.
    pub(crate) fn keep(&mut self, put: &mut impl FnMut(usize, u64)) {
        let Self {
            engines,
            epoch,
            gdrst,
            touched,
        } = self;
        if !std::mem::take(touched) {
            return;
        }
        put(place::ENGINES_EPOCH, *epoch);
        put(place::ENGINES_GDRST, u64::from(*gdrst));
        for (number, engine) in engines.iter().enumerate() {
            let at = place::ENGINES + number * place::ENGINE;
            let EngineState {
                port,
                dirty,
                awaited,
                killed,
            } = engine;
            let flag = |n: u32, set: bool| u64::from(set) << n;
            let flags = flag(0, *dirty) | flag(1, awaited.is_some()) | flag(2, *killed);
            put(at, flags);
            put(at + 1, awaited.unwrap_or(0));
            port.keep(at + 2, put);
        }
    }

    /// The part as kept.
    ///
    /// # Errors
    /// As for a saved part.
    pub(crate) fn kept(get: impl Fn(usize) -> u64) -> Result<Self, BadEngines> {
        let at = |number: usize| place::ENGINES + number * place::ENGINE;
        let engines = (0..Engine::COUNT).map(|number| EngineV1 {
            port: ExeclistV1::kept(at(number) + 2, &get),
            killed: get(at(number)) & 4 != 0,
        });
        let mut part = Self::restore(&EnginesV1 {
            engines: engines.collect(),
            epoch: get(place::ENGINES_EPOCH),
        })?;
        part.gdrst = low(get(place::ENGINES_GDRST));
        for (number, engine) in part.engines.iter_mut().enumerate() {
            let flags = get(at(number));
            engine.dirty = flags & 1 != 0;
            engine.awaited = (flags & 2 != 0).then(|| get(at(number) + 1));
        }
        Ok(part)
    }

    /// GDRST as read: what was written, until vgpud has let go of every
    /// engine concerned.
    fn gdrst(&self) -> u32 {
        let busy = |e| self.get(e).awaited.is_some();
        if EngineSet::from_gdrst(self.gdrst).iter().any(busy) {
            self.gdrst
        } else {
            0
        }
    }

    pub(crate) fn save(&self) -> EnginesV1 {
        let Self {
            engines,
            epoch,
            // A saved device has no vgpud to wait for.
            gdrst: _,
            touched: _,
        } = self;
        let engines = engines.iter().map(|e| {
            let EngineState {
                port,
                // Only about the vgpud that is left behind.
                dirty: _,
                awaited: _,
                killed,
            } = e;
            EngineV1 {
                port: port.save(),
                killed: *killed,
            }
        });
        EnginesV1 {
            engines: engines.collect(),
            epoch: *epoch,
        }
    }

    pub(crate) fn restore(state: &EnginesV1) -> Result<Self, BadEngines> {
        let EnginesV1 { engines, epoch } = state;
        if engines.len() != Engine::COUNT {
            return Err(BadEngines::Count(engines.len()));
        }
        let mut restored = Self {
            epoch: *epoch,
            touched: true,
            ..Self::default()
        };
        for (index, (to, from)) in restored.engines.iter_mut().zip(engines).enumerate() {
            let EngineV1 { port, killed } = from;
            to.port =
                Execlist::restore(port).map_err(|source| BadEngines::Port { index, source })?;
            to.killed = *killed;
            // Asks too much of a vgpud that knows nothing of it, not too little.
            to.dirty = true;
        }
        Ok(restored)
    }
}

impl EngineState {
    /// The MODE_IDLE bit: nothing of the guest runs, or will run, before the
    /// next reset or restart.
    fn is_idle(&self) -> bool {
        self.awaited.is_none() && (self.killed || self.port.is_idle())
    }
}

/// An engine's index as messages have it.
fn number(engine: Engine) -> u8 {
    // Below 4.
    engine.index().to_le_bytes()[0]
}

impl Core {
    /// Reads a register of an engine that has code behind it.
    pub(crate) fn read_engine(&mut self, seams: &Seams, handler: Handler, offset: u32) -> u32 {
        let stored = self.regs.get(offset);
        let Some((engine, rel)) = Engine::from_mmio(offset) else {
            return if handler == Handler::Gdrst {
                self.engines.gdrst()
            } else {
                stored
            };
        };
        let state = self.engines.get(engine);
        match handler {
            Handler::RingState => self.running_register(seams, engine, rel).unwrap_or(stored),
            Handler::MiMode if state.is_idle() => stored | ring::MI_MODE_IDLE,
            Handler::MiMode => stored & !ring::MI_MODE_IDLE,
            Handler::ResetCtl => {
                let requested = stored & ring::RESET_CTL_REQUEST != 0;
                let ready = if requested { ring::RESET_CTL_READY } else { 0 };
                stored & !ring::RESET_CTL_READY | ready
            }
            Handler::ExeclistStatus => {
                let [low, high] = state.port.status();
                if rel == ring::EXECLIST_STATUS_HI {
                    high
                } else {
                    low
                }
            }
            Handler::Timestamp => {
                let [low, high] = timestamp(self.config.gpu, seams.clock.now_ns());
                if rel == ring::TIMESTAMP_UDW {
                    high
                } else {
                    low
                }
            }
            _ => stored,
        }
    }

    /// A ring register of the running context, from its image. Also what
    /// i915 reads when it looks for the cause of a hang.
    fn running_register(&self, seams: &Seams, engine: Engine, rel: u32) -> Option<u32> {
        let page = self.engines.get(engine).port.running()?.register_page();
        let dword = |index: usize| {
            let offset = u32::try_from(index * 4).ok()?;
            table_memory::read_u32(seams, page.wrapping_add(offset))
        };
        Some(match rel {
            ring::HEAD => dword(lrc::RING_HEAD)?,
            ring::TAIL => dword(lrc::RING_TAIL)?,
            ring::START => dword(lrc::RING_START)?,
            ring::CTL => dword(lrc::RING_CTL)?,
            ring::ACTHD => {
                let head = dword(lrc::RING_HEAD)? & lrc::HEAD_OFFSET;
                dword(lrc::RING_START)?.wrapping_add(head)
            }
            _ => 0,
        })
    }

    /// Writes a register of an engine that has code behind it. `value` has
    /// the bytes written, `merged` those and the old ones.
    pub(crate) fn write_engine(
        &mut self,
        seams: &Seams,
        handler: Handler,
        offset: u32,
        value: u32,
        merged: u32,
    ) {
        let Some((engine, _)) = Engine::from_mmio(offset) else {
            if handler == Handler::Gdrst {
                self.reset_domains(value);
            }
            return;
        };
        match handler {
            Handler::RingState => self.store(offset, merged),
            Handler::MiMode => {
                let old = self.regs.get(offset);
                let new = apply_mask(old, value);
                self.store(offset, new & !ring::MI_MODE_IDLE);
                match (old & ring::MI_MODE_STOP_RING, new & ring::MI_MODE_STOP_RING) {
                    (0, 1..) => self.stop(engine),
                    (1.., 0) => self.restart(engine),
                    _ => {}
                }
            }
            Handler::ResetCtl => {
                let new = apply_mask(self.regs.get(offset), value);
                self.store(offset, new & !ring::RESET_CTL_READY);
            }
            Handler::Elsp => self.write_elsp(seams, engine, value),
            // Status and time are read-only.
            _ => {}
        }
    }

    fn write_elsp(&mut self, seams: &Seams, engine: Engine, value: u32) {
        let mut entries = Vec::new();
        match self.engines.get_mut(engine).port.write(value, &mut entries) {
            Wrote::Part => {}
            Wrote::Refused => self.incidents.refused_lists += 1,
            Wrote::Load { load, replaced } => {
                if let Some(seq) = replaced {
                    self.backlog.replace(number(engine), seq);
                }
                self.submit(engine, load);
            }
        }
        self.report(seams, engine, &entries);
    }

    fn submit(&mut self, engine: Engine, load: LoadV1) {
        self.incidents.submissions += 1;
        self.engines.get_mut(engine).dirty = true;
        let LoadV1 { seq, desc } = load;
        let engine = number(engine);
        self.send(Request::Submit { engine, seq, desc });
    }

    /// Adds entries to the engine's status buffer: entries first, then the
    /// write pointer, then the interrupt.
    fn report(&mut self, seams: &Seams, engine: Engine, entries: &[Entry]) {
        if entries.is_empty() {
            return;
        }
        // Somebody may see what is written here before it is committed: a
        // successor must do the same again before it does anything else.
        self.keeper.note_doing(&*seams.kept);
        let base = engine.mmio_base();
        let status_page = self.regs.get(base + ring::HWS_PGA) & 0xffff_f000;
        let pointers = self.regs.get(base + ring::CSB_PTR);
        let mut write = pointers & 7;
        let mut lost = false;
        for Entry { status, context } in entries {
            // From the last entry, or from 7 as hardware wakes up, to 0.
            write = if write + 1 >= csb::ENTRIES {
                0
            } else {
                write + 1
            };
            let mirror = base + ring::CSB_MIRROR + write * 8;
            self.regs.set(mirror, *status);
            self.regs.set(mirror + 4, *context);
            let value = u64::from(*context) << 32 | u64::from(*status);
            let at = status_page + csb::HWSP_BUFFER + write * 8;
            lost |= !table_memory::write(seams, at, &value.to_le_bytes());
        }
        let at = status_page + csb::HWSP_WRITE_POINTER;
        lost |= !table_memory::write(seams, at, &write.to_le_bytes());
        self.incidents.lost_status_writes += u64::from(lost);
        self.regs.set(base + ring::CSB_PTR, pointers & !7 | write);
        self.raise_engine(engine, irq::CONTEXT_SWITCH);
    }

    /// Something vgpud says.
    pub(crate) fn handle_event(&mut self, seams: &Seams, event: Event) {
        let mut entries = Vec::new();
        match event {
            Event::ContextDone {
                engine,
                element,
                bits,
                seq,
            } => {
                let Some(engine) = Engine::from_index(engine.into()) else {
                    return;
                };
                self.raise_engine(engine, bits);
                let port = &mut self.engines.get_mut(engine).port;
                port.done(seq, element.into(), &mut entries);
                self.report(seams, engine, &entries);
            }
            Event::Interrupt { engine, bits } => {
                if let Some(engine) = Engine::from_index(engine.into()) {
                    self.raise_engine(engine, bits);
                }
            }
            Event::Fault {
                engine,
                element,
                ipehr,
                seq,
                ..
            } => {
                let Some(engine) = Engine::from_index(engine.into()) else {
                    return;
                };
                let port = &mut self.engines.get_mut(engine).port;
                let happened = port.fault(seq, element.into(), &mut entries);
                self.report(seams, engine, &entries);
                if happened {
                    self.fault(engine, ipehr);
                }
            }
            Event::ResetDone { engines, epoch } => {
                for engine in EngineSet::from_bits(engines).iter() {
                    let state = self.engines.get_mut(engine);
                    if state.awaited.is_some_and(|awaited| awaited <= epoch) {
                        state.awaited = None;
                    }
                }
            }
            // Frames of the guest are not the device's affair.
            Event::Pong { .. } | Event::Protect { .. } | Event::Unprotect { .. } => {}
        }
    }

    /// Shows the guest an instruction error, so that it resets the engine
    /// at once instead of after its hang check.
    fn fault(&mut self, engine: Engine, ipehr: u32) {
        self.incidents.faults += 1;
        let base = engine.mmio_base();
        for register in [ring::EIR, ring::ESR] {
            let value = self.regs.get(base + register) | ring::ERROR_INSTRUCTION;
            self.regs.set(base + register, value);
        }
        self.regs.set(base + ring::IPEHR, ipehr);
        if self.regs.get(base + ring::EMR) & ring::ERROR_INSTRUCTION == 0 {
            self.raise_engine(engine, irq::ERROR);
        }
    }

    /// The guest stops an engine. i915 does that only before a reset, and
    /// then waits 1 ms, before a reset of the whole GPU 100 ms, for the
    /// engine to be idle; the reset itself must be done in 2 ms (Linux
    /// `gt/intel_engine_cs.c:__intel_engine_stop_cs`,
    /// `gt/intel_reset.c:gen6_hw_domain_reset`). So the work is given up now.
    /// An engine reset that takes longer fails; i915 starts the ring again
    /// and resets the whole GPU, for which the time is enough.
    fn stop(&mut self, engine: Engine) {
        self.give_up(EngineSet::of(&[engine]));
    }

    /// The guest starts a stopped engine that it did not reset after all:
    /// what was given up runs again.
    fn restart(&mut self, engine: Engine) {
        let state = self.engines.get_mut(engine);
        if !std::mem::take(&mut state.killed) {
            return;
        }
        for load in state.port.renumber() {
            self.submit(engine, load);
        }
    }

    /// Tells vgpud to drop what `engines` were given.
    fn give_up(&mut self, engines: EngineSet) {
        let mut bits = 0;
        let epoch = self.engines.epoch.wrapping_add(1);
        for engine in engines.iter() {
            let state = self.engines.get_mut(engine);
            if !std::mem::take(&mut state.dirty) {
                continue;
            }
            bits |= 1 << engine.index();
            if !state.port.is_idle() {
                state.killed = true;
                // After a fault vgpud has stopped the engine already. That
                // must not wait: i915 resets it with bottom halves off, where
                // it gives the ring 1 ms (Linux
                // `gt/intel_engine_cs.c:stop_timeout`).
                if !state.port.is_faulted() {
                    state.awaited = Some(epoch);
                }
            }
        }
        if bits == 0 {
            return;
        }
        self.engines.set_epoch(epoch);
        let engines = bits;
        self.send(Request::Reset { engines, epoch });
    }

    /// A write to GDRST.
    fn reset_domains(&mut self, value: u32) {
        let engines = EngineSet::from_gdrst(value);
        self.give_up(engines);
        self.engines.set_gdrst(value);
        for engine in engines.iter() {
            self.incidents.resets += 1;
            let state = self.engines.get_mut(engine);
            state.port.reset();
            state.killed = false;
            let base = engine.mmio_base();
            for register in [
                ring::IPEIR,
                ring::IPEHR,
                ring::EIR,
                ring::ESR,
                ring::MODE,
                ring::CSB_PTR,
            ] {
                let offset = base + register;
                let found = self.config.gpu.registers.find(offset);
                let reset = found.map_or(0, |(row, i)| row.reset_value(i));
                self.store(offset, reset);
            }
        }
    }

    /// Tells a new vgpud what the last one knew: resets that nobody has answered,
    /// the registers the GPU needs and the lists in flight.
    pub(crate) fn replay(&mut self) {
        let waits = |e: &&Engine| self.engines.engines[e.index()].awaited.is_some();
        let engines = Engine::ALL.iter().filter(waits);
        let engines = engines.fold(0, |bits, e| bits | 1 << e.index());
        if engines != 0 {
            let epoch = self.engines.epoch;
            self.send(Request::Reset { engines, epoch });
        }
        let registers = self.config.gpu.switched.registers();
        for switched in registers.filter(|s| !s.is_volatile()) {
            let offset = switched.offset();
            let value = self.regs.get(offset);
            if value != switched.row.reset {
                self.send(Request::WriteRegister { offset, value });
            }
        }
        self.resubmit();
    }

    /// Submits the lists in flight again.
    pub(crate) fn resubmit(&mut self) {
        for engine in Engine::ALL {
            let state = self.engines.get_mut(engine);
            // A faulted list waits for the guest's reset, a killed one too.
            if state.killed || state.port.is_faulted() {
                continue;
            }
            for load in state.port.renumber() {
                self.submit(engine, load);
            }
        }
    }
}

/// A masked write: bits 31:16 select which of bits 15:0 change.
pub(crate) fn apply_mask(old: u32, value: u32) -> u32 {
    let select = value >> 16;
    old & !select & 0xffff | value & select
}

/// RING_TIMESTAMP's two dwords.
fn timestamp(gpu: &Platform, now_ns: u64) -> [u32; 2] {
    let b = gpu.timestamp.ticks(now_ns).to_le_bytes();
    [
        u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
    ]
}
