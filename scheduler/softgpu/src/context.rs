//! Loading and saving contexts.

use std::sync::atomic::Ordering::Relaxed;

use gen8::csb::Descriptor;
use gen8::{Engine, lrc, ring};

use crate::bits::{hi, join, lo};
use crate::blit::Setup;
use crate::core::Core;
use crate::counters::count;
use crate::memory::Space;
use crate::observer::Why;
use crate::position::{Batch, Flow, Ring};
use crate::stream::{Stop, Streamer};

/// What the streamer remembers of the context it loaded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) descriptor: Descriptor,
    /// CTX_CONTROL as the image has it.
    control: u32,
    /// When it was loaded, in nanoseconds of the GPU's clock.
    busy_since: Option<u64>,
}

/// Batch positions as registers and image hold them; bit 0 of an address
/// says that the batch runs.
pub(crate) struct BatchRegisters {
    pub(crate) first: u64,
    pub(crate) first_state: u32,
    pub(crate) second: u64,
    pub(crate) second_state: u32,
}

/// First dword of the private state: it tells saved state from whatever
/// else a driver left there. Its low byte is the format.
const PRIVATE_MAGIC: u32 = 0x5347_5001;
/// Dwords before the saved registers: magic, their number, predication.
const PRIVATE_HEADER: usize = 3;

/// The register page of a context image, copied once.
struct Image([u8; 4096]);

impl Image {
    fn dword(&self, i: usize) -> u32 {
        self.0
            .get(i * 4..i * 4 + 4)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u32::from_le_bytes)
    }

    fn qword(&self, low: usize, high: usize) -> u64 {
        join(self.dword(low), self.dword(high))
    }
}

fn at(d: Descriptor, dword: usize) -> u64 {
    let offset = u64::try_from(dword * 4).unwrap_or(0);
    u64::from(d.register_page()) + offset
}

/// The context's run time: what it was loaded with and the time since.
pub(crate) fn context_timestamp(core: &Core, engine: Engine) -> u32 {
    let stored = core.ring(engine, ring::CTX_TIMESTAMP);
    let since = core.unit(engine).loaded_at.load(Relaxed);
    if since == 0 {
        return stored;
    }
    let now = core.timestamp().wrapping_add(1);
    stored.wrapping_add(lo(now.wrapping_sub(since)))
}

impl Streamer {
    /// Loads the context: ring, page tables and, unless the image inhibits
    /// it, engine state. Then runs what the image wants run at a restore.
    pub(crate) fn load(&mut self, descriptor: Descriptor) -> Result<(), Stop> {
        count(&self.unit().counters.contexts);
        self.context = Loaded {
            descriptor,
            control: 0,
            busy_since: Some(self.core.clock.ns()),
        };
        self.fetch.invalidate();
        self.end_rounds();
        self.flow = Flow::Ring;
        self.first = Batch::NONE;
        self.second = Batch::NONE;
        self.arbitrate = true;
        self.predication = 0;
        self.setup = Setup::default();
        self.awaited = None;
        self.begin_notes(descriptor);
        if descriptor.addressing_mode() != Descriptor::MODE_PPGTT48 {
            return Err(Stop::Instruction);
        }
        let mut image = Image([0; 4096]);
        self.memory
            .read_for(Why::Context, Space::Ggtt, at(descriptor, 0), &mut image.0)?;
        self.load_ring(&image);
        let root = image.qword(lrc::PDP0_LDW, lrc::PDP0_UDW);
        self.memory.set_root(root);
        let (core, e) = (self.core.clone(), self.engine);
        core.set_ring(e, ring::PDP0_LO, lo(root));
        core.set_ring(e, ring::PDP0_LO + 4, hi(root));
        self.context.control = image.dword(lrc::CONTEXT_CONTROL);
        let restore = self.context.control & lrc::RESTORE_INHIBIT == 0;
        core.set_ring(
            e,
            ring::CONTEXT_CONTROL,
            self.context.control & 0xffff & !lrc::RESTORE_INHIBIT,
        );
        core.set_ring(e, ring::CTX_TIMESTAMP, image.dword(lrc::CTX_TIMESTAMP));
        let now = core.timestamp().wrapping_add(1).max(1);
        self.unit().loaded_at.store(now, Relaxed);

        if restore {
            core.registers.reset_context_registers(e);
            self.load_private(&image);
            self.load_batches(&image);
        }
        self.publish_batch();
        if e == Engine::Rcs {
            core.set_ring(e, ring::R_PWR_CLK_STATE, image.dword(lrc::R_PWR_CLK_STATE));
        }
        if core.platform.image(e).runs_at_restore() {
            let indirect = image.dword(lrc::INDIRECT_CTX);
            let per_context = image.dword(lrc::PER_CTX_BB);
            core.set_ring(e, ring::INDIRECT_CTX, indirect);
            core.set_ring(e, ring::PER_CTX_BB, per_context);
            core.set_ring(
                e,
                ring::INDIRECT_CTX_OFFSET,
                image.dword(lrc::INDIRECT_CTX_OFFSET),
            );
            self.run_at_restore(indirect, per_context)?;
        }
        Ok(())
    }

    fn load_ring(&mut self, image: &Image) {
        let ctl = image.dword(lrc::RING_CTL);
        // A ring that is not valid has nothing to run.
        let size = if ctl & 1 != 0 {
            lrc::ring_bytes(ctl)
        } else {
            0
        };
        let wrap = |v: u32| v.checked_rem(size).unwrap_or(0);
        self.ring = Ring {
            start: image.dword(lrc::RING_START) & !0xfff,
            size,
            head: wrap(image.dword(lrc::RING_HEAD) & lrc::HEAD_OFFSET),
            tail: wrap(image.dword(lrc::RING_TAIL) & lrc::TAIL_OFFSET),
        };
        let (core, e) = (&self.core, self.engine);
        core.set_ring(e, ring::START, self.ring.start);
        core.set_ring(e, ring::CTL, ctl);
        core.set_ring(e, ring::HEAD, self.ring.head);
        core.set_ring(e, ring::TAIL, self.ring.tail);
    }

    /// Takes the tail from the image again, as a lite restore does.
    pub(crate) fn resample_tail(&mut self) -> Result<(), Stop> {
        let from = at(self.context.descriptor, lrc::RING_TAIL);
        let mut tail = [0; 4];
        self.memory
            .read_for(Why::Context, Space::Ggtt, from, &mut tail)?;
        let tail = u32::from_le_bytes(tail);
        self.ring.tail = (tail & lrc::TAIL_OFFSET)
            .checked_rem(self.ring.size)
            .unwrap_or(0);
        self.core.set_ring(self.engine, ring::TAIL, self.ring.tail);
        // What was read ahead stopped at the old tail, but may hold dwords
        // from before the ring last wrapped.
        if self.flow == Flow::Ring {
            self.fetch.invalidate();
        }
        Ok(())
    }

    /// Restores the registers of the context. The image is the guest's to
    /// write, so only their values are taken from it, never their places.
    fn load_private(&mut self, image: &Image) {
        let rules = self.core.platform.rules;
        let count = rules.context(self.engine).count();
        let expect = u32::try_from(count).unwrap_or(u32::MAX);
        if image.dword(lrc::PRIVATE) != PRIVATE_MAGIC || image.dword(lrc::PRIVATE + 1) != expect {
            return;
        }
        self.predication = image.dword(lrc::PRIVATE + 2) & 0xf;
        for (i, offset) in rules.context(self.engine).enumerate() {
            let v = image.dword(lrc::PRIVATE + PRIVATE_HEADER + i);
            if v != 0 {
                self.core.registers.set(offset, v);
            }
        }
        self.take_effect(|i| image.dword(lrc::PRIVATE + PRIVATE_HEADER + count + i));
    }

    /// What the context keeps in the part of its image that is the GPU's own.
    pub(crate) fn own_state(&self) -> Vec<u32> {
        let offsets = self.core.platform.rules.context(self.engine);
        let mut own = vec![PRIVATE_MAGIC, 0, self.predication];
        own.extend(offsets.map(|o| self.core.registers.get(o)));
        own[1] = u32::try_from(own.len() - PRIVATE_HEADER).unwrap_or(u32::MAX);
        own
    }

    fn load_batches(&mut self, image: &Image) {
        let batch = |low, high, state| {
            let address = image.qword(low, high);
            (address & 1 != 0).then(|| Batch {
                at: address & !3,
                privileged: image.dword(state) & ring::BB_STATE_PPGTT == 0,
            })
        };
        if let Some(b) = batch(lrc::BB_HEAD, lrc::BB_HEAD_UDW, lrc::BB_STATE) {
            self.first = b;
            self.flow = Flow::First;
            if let Some(b) = batch(lrc::SBB_HEAD, lrc::SBB_HEAD_UDW, lrc::SBB_STATE) {
                // A batch cannot gain privilege over the one that started it.
                self.second = Batch {
                    privileged: b.privileged && self.first.privileged,
                    ..b
                };
                self.flow = Flow::Second;
            }
        }
    }

    pub(crate) fn batch_registers(&self) -> BatchRegisters {
        let state = |b: Batch| {
            if b.privileged {
                0
            } else {
                ring::BB_STATE_PPGTT
            }
        };
        let none = (0, 0);
        let first = match self.flow {
            Flow::First | Flow::Second => (self.first.at | 1, state(self.first)),
            _ => none,
        };
        let second = match self.flow {
            Flow::Second => (self.second.at | 1, state(self.second)),
            _ => none,
        };
        BatchRegisters {
            first: first.0,
            first_state: first.1,
            second: second.0,
            second_state: second.1,
        }
    }

    /// Saves what the context must find again. The tail is the driver's: it
    /// may have moved in the image while the context ran.
    pub(crate) fn save(&mut self) -> Result<(), Stop> {
        let d = self.context.descriptor;
        let (core, e) = (self.core.clone(), self.engine);
        let mut put = |dword, v: u32| {
            let bytes = v.to_le_bytes();
            self.memory
                .write_for(Why::Context, Space::Ggtt, at(d, dword), &bytes)
        };
        put(lrc::RING_HEAD, self.ring.head)?;
        put(
            lrc::CONTEXT_CONTROL,
            self.context.control & !lrc::RESTORE_INHIBIT,
        )?;
        put(lrc::CTX_TIMESTAMP, context_timestamp(&core, e))?;
        let b = self.batch_registers();
        let mut put = |dword, v: u32| {
            let bytes = v.to_le_bytes();
            self.memory
                .write_for(Why::Context, Space::Ggtt, at(d, dword), &bytes)
        };
        put(lrc::BB_HEAD, lo(b.first))?;
        put(lrc::BB_HEAD_UDW, hi(b.first))?;
        put(lrc::BB_STATE, b.first_state)?;
        put(lrc::SBB_HEAD, lo(b.second))?;
        put(lrc::SBB_HEAD_UDW, hi(b.second))?;
        put(lrc::SBB_STATE, b.second_state)?;
        if self.context.control & lrc::SAVE_INHIBIT == 0 {
            let mut own = self.own_state();
            own.extend(self.notes.effect());
            let bytes: Vec<u8> = own.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.memory
                .write_for(Why::Context, Space::Ggtt, at(d, lrc::PRIVATE), &bytes)?;
        }
        Ok(())
    }

    /// No context runs any more: its clock stops.
    pub(crate) fn unload(&mut self) {
        let now = context_timestamp(&self.core, self.engine);
        self.core.set_ring(self.engine, ring::CTX_TIMESTAMP, now);
        self.unit().loaded_at.store(0, Relaxed);
        self.flush_counters();
        if let Some(since) = self.context.busy_since.take() {
            let busy = self.core.clock.ns().saturating_sub(since);
            self.unit().counters.busy_ns.fetch_add(busy, Relaxed);
        }
    }

    /// The indirect context, then the per-context batch; both are the
    /// driver's and privileged. A batch that was interrupted goes on after.
    fn run_at_restore(&mut self, indirect: u32, per_context: u32) -> Result<(), Stop> {
        let resume = (self.flow, self.first, self.second);
        let lines = indirect & 0x3f;
        if lines != 0 {
            let start = u64::from(indirect & !0x3f);
            self.first.at = start;
            let end = start + u64::from(lines) * 64;
            self.flow = Flow::Indirect(end);
            self.fetch.invalidate();
            while self.flow == Flow::Indirect(end) && self.first.at < end {
                self.between_commands()?;
                self.step()?;
            }
        }
        if per_context & 1 != 0 {
            self.first.at = u64::from(per_context & !0xfff);
            self.flow = Flow::PerContext;
            self.fetch.invalidate();
            while self.flow == Flow::PerContext {
                self.between_commands()?;
                self.step()?;
            }
        }
        (self.flow, self.first, self.second) = resume;
        self.arbitrate = true;
        self.fetch.invalidate();
        self.publish_batch();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_context_fits_its_page() {
        for platform in gen8::platform::PLATFORMS {
            for e in Engine::ALL {
                let registers = platform.rules.context(e).count();
                let effect = crate::journal::EFFECT_DWORDS;
                let end = lrc::PRIVATE + PRIVATE_HEADER + registers + effect;
                assert!(end <= lrc::PAGE_DWORDS, "{platform} {e:?}");
            }
        }
    }
}
