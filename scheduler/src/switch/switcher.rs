//! The switch itself.

use gen8::Engine;
use gen8::switched::{GEN8, Table};

use super::bits::Bits;
use super::effects::Effects;
use super::file::RegisterFile;
use super::image::HardwareImage;
use super::layout::{Layout, layout};
use super::mode::SwitchMode;
use super::{delta, plain};
use crate::registers::{Accesses, Registers};

/// Register accesses of one switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCost {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl From<Accesses> for SwitchCost {
    fn from(Accesses { reads, writes }: Accesses) -> Self {
        Self { reads, writes }
    }
}

impl std::ops::AddAssign for SwitchCost {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

/// Brings one engine's registers from vGPU to vGPU.
pub struct Switcher {
    pub(super) layout: &'static Layout,
    mode: SwitchMode,
    /// Followed in the mode that uses it.
    pub(super) image: HardwareImage,
}

impl Switcher {
    /// For an engine whose registers hold nobody knows what.
    #[must_use]
    pub fn new(engine: Engine, mode: SwitchMode) -> Self {
        Self::with_table(&GEN8, engine, mode)
    }

    /// The same for another generation's registers.
    #[must_use]
    pub fn with_table(table: &'static Table, engine: Engine, mode: SwitchMode) -> Self {
        Self::of(layout(table, engine), mode)
    }

    pub(super) fn of(layout: &'static Layout, mode: SwitchMode) -> Self {
        Self {
            layout,
            mode,
            image: HardwareImage::new(layout),
        }
    }

    /// What a workload does that leaves every register alone.
    #[must_use]
    pub fn no_effects(&self) -> Effects {
        Effects::of(self.layout)
    }

    /// How it switches.
    #[must_use]
    pub const fn mode(&self) -> SwitchMode {
        self.mode
    }

    /// Gives the engine to `incoming`. `outgoing` is whose values it holds,
    /// if they are still somebody's. Nothing runs on the engine, and
    /// [`Switcher::ran`] was told what did.
    pub fn switch(
        &mut self,
        gpu: &Registers,
        outgoing: Option<&mut RegisterFile>,
        incoming: &mut RegisterFile,
    ) -> SwitchCost {
        let cost = match self.mode {
            SwitchMode::FullReadBack | SwitchMode::NoReadBack | SwitchMode::Merged => {
                plain::switch(self.layout, self.mode, gpu, outgoing, incoming)
            }
            SwitchMode::DeltaPrevious => delta::by_previous(self.layout, gpu, outgoing, incoming),
            SwitchMode::DeltaImage => {
                delta::by_image(self.layout, &mut self.image, gpu, outgoing, incoming)
            }
        };
        incoming.pending = Bits::NONE;
        incoming.stale = Bits::NONE;
        cost
    }

    /// The engine's owner runs again: gives the GPU what it wrote meanwhile.
    /// Nothing may run on the engine that changes these registers.
    pub fn resume(&mut self, gpu: &Registers, file: &mut RegisterFile) -> SwitchCost {
        let mut cost = SwitchCost::default();
        let pending = file.pending & self.layout.outside;
        file.pending = Bits::NONE;
        file.stale = file.stale & !pending;
        for index in pending.iter() {
            let wanted = file.granted(index);
            if self.follows() && self.image.get(index) == Some(wanted) {
                continue;
            }
            let slot = &self.layout.slots[index];
            gpu.write32(slot.offset, slot.raw(wanted, slot.width));
            cost.writes += 1;
            if self.follows() {
                self.image.set(index, wanted);
            }
        }
        cost
    }

    /// Reads what only the GPU knows of its owner's values. Nothing runs on
    /// the engine.
    pub fn collect(&mut self, gpu: &Registers, file: &mut RegisterFile) {
        let wanted = match self.mode {
            SwitchMode::DeltaPrevious | SwitchMode::DeltaImage => file.stale,
            // They do not follow what commands write.
            SwitchMode::FullReadBack | SwitchMode::NoReadBack | SwitchMode::Merged => {
                self.layout.touched
            }
        };
        for index in (wanted & self.layout.saved & !file.pending).iter() {
            let slot = &self.layout.slots[index];
            let value = slot.settled(gpu.read32(slot.offset));
            file.take(index, value);
            file.stale.clear(index);
            if self.follows() {
                self.image.set(index, value);
            }
        }
    }

    /// A workload of the owner was taken off: some of its effects happened.
    pub fn interrupted(&mut self, file: &mut RegisterFile) {
        file.stale |= self.layout.touched;
        self.image.forget();
    }

    /// A workload of the owner ended.
    pub fn ran(&mut self, file: &mut RegisterFile, effects: &Effects) {
        for effect in effects.entries() {
            let index = effect.index;
            if effect.unknown || self.layout.read.has(index) {
                continue;
            }
            if self.follows()
                && let Some(new) = effects.after(index, self.image.get(index))
            {
                self.image.set(index, new);
            }
            if self.layout.volatile.has(index) {
                // Not kept; the switch must know that it is not what it was.
                file.stale.set(index);
                continue;
            }
            let held = Some(file.granted(index)).filter(|_| !file.stale.has(index));
            if let Some(new) = effects.after(index, held) {
                file.stale.clear(index);
                file.take(index, new);
            }
        }
        let lost = self.lost(file, effects);
        file.stale |= lost;
        if self.follows() {
            self.image.lose(lost);
        }
    }

    /// What nobody knows after `effects`.
    pub(super) fn lost(&self, file: &RegisterFile, effects: &Effects) -> Bits {
        let mut lost = self.layout.read;
        for effect in effects.entries().iter().filter(|e| e.unknown) {
            lost.set(effect.index);
        }
        if effects.ran_user_batches() {
            lost |= self.opened(file);
        }
        lost
    }

    /// Registers that `file`'s FORCE_TO_NONPRIV slots let its batches write.
    fn opened(&self, file: &RegisterFile) -> Bits {
        if !(file.pending & self.layout.nonpriv).is_empty() {
            // The GPU still has other slots than the file.
            return self.layout.openable;
        }
        let mut opened = Bits::NONE;
        for slot in self.layout.nonpriv.iter() {
            if let Some(index) = self.layout.index(file.granted(slot)) {
                opened.set(index);
            }
        }
        opened & self.layout.openable
    }

    /// A context is about to be loaded that does not bring its state: gives
    /// the context's registers the vGPU's own values, and clears those that
    /// it has none for. It would otherwise start with another guest's.
    pub fn clear_context(&mut self, gpu: &Registers, file: &mut RegisterFile) -> SwitchCost {
        let mut cost = SwitchCost::default();
        for (offset, raw) in &self.layout.cleared {
            gpu.write32(*offset, *raw);
            cost.writes += 1;
        }
        for index in self.layout.in_context.iter() {
            let slot = &self.layout.slots[index];
            gpu.write32(slot.offset, slot.raw(file.granted(index), slot.width));
            file.pending.clear(index);
            cost.writes += 1;
        }
        cost
    }

    /// The engine or the whole GPU was reset, or lost power: nothing is known
    /// of what it holds.
    pub fn reset(&mut self) {
        self.image.forget();
    }

    /// What a switch costs in the plainest mode.
    #[must_use]
    pub fn baseline(&self, has_outgoing: bool) -> SwitchCost {
        plain::cost(self.layout, SwitchMode::FullReadBack, has_outgoing)
    }

    pub(super) fn follows(&self) -> bool {
        self.mode == SwitchMode::DeltaImage
    }
}
