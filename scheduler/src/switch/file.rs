//! One vGPU's values of one engine's registers.

use gen8::Engine;
use gen8::switched::{GEN8, Group, Table};

use super::bits::Bits;
use super::digest::Digest;
use super::grant::SLOT_OFFSET;
use super::layout::{Layout, layout};

/// One vGPU's values of one engine's registers that a switch carries over.
pub struct RegisterFile {
    pub(super) layout: &'static Layout,
    /// As the guest has them.
    values: Box<[u32]>,
    /// As the hardware gets them.
    granted: Box<[u32]>,
    digests: [Digest; Group::COUNT],
    /// The guest wrote them and the GPU does not hold that yet.
    pub(super) pending: Bits,
    /// The GPU holds something newer, or who knows what.
    pub(super) stale: Bits,
}

impl RegisterFile {
    /// Values as after an engine reset.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self::with_table(&GEN8, engine)
    }

    /// The same for another generation's registers.
    #[must_use]
    pub fn with_table(table: &'static Table, engine: Engine) -> Self {
        Self::of(layout(table, engine))
    }

    pub(super) fn of(layout: &'static Layout) -> Self {
        let mut file = Self {
            layout,
            values: layout.slots.iter().map(|_| 0).collect(),
            granted: layout.slots.iter().map(|_| 0).collect(),
            digests: [Digest::default(); Group::COUNT],
            pending: Bits::NONE,
            stale: Bits::NONE,
        };
        file.reset_values();
        file
    }

    /// The guest wrote `value`, masks applied. Returns whether it is one of
    /// these registers. The GPU gets it at the next switch or resumption.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        let Some(index) = self.layout.index(offset) else {
            return false;
        };
        self.set(index, value);
        self.pending.set(index);
        true
    }

    /// The guest reset the engine, or it was reset under it.
    pub fn reset(&mut self) {
        self.reset_values();
        self.pending = self.layout.outside;
        self.stale = Bits::NONE;
    }

    fn reset_values(&mut self) {
        for (index, slot) in self.layout.slots.iter().enumerate() {
            self.set(index, slot.register.row.reset);
        }
    }

    /// Whether the guest wrote something that the GPU does not hold yet.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !(self.pending & self.layout.outside).is_empty()
    }

    /// The values by name, for inspection.
    #[must_use]
    pub fn view(&self) -> Vec<(String, u32)> {
        let names = self.layout.slots.iter().map(|s| s.register.to_string());
        names.zip(self.values.iter().copied()).collect()
    }

    /// The guest's value of the register at `offset`.
    #[must_use]
    pub fn value(&self, offset: u32) -> Option<u32> {
        let index = self.layout.index(offset)?;
        self.values.get(index).copied()
    }

    /// The registers that its FORCE_TO_NONPRIV slots open to batches without
    /// privilege.
    #[must_use]
    pub fn opened(&self) -> Vec<u32> {
        let slots = self.layout.nonpriv.iter();
        slots.map(|i| self.granted[i] & SLOT_OFFSET).collect()
    }

    /// The values that differ from those after a reset, by offset. What tells
    /// of the moment is not among them.
    #[must_use]
    pub fn save(&self) -> Vec<(u32, u32)> {
        let slots = self.layout.slots.iter().zip(&self.values);
        let kept = slots
            .filter(|(s, v)| !s.register.is_volatile() && **v != s.register.row.reset & s.width);
        kept.map(|(slot, value)| (slot.offset, *value)).collect()
    }

    pub(super) fn granted(&self, index: usize) -> u32 {
        self.granted[index]
    }

    pub(super) fn digest(&self, group: usize) -> Digest {
        self.digests[group]
    }

    fn set(&mut self, index: usize, value: u32) {
        let slot = &self.layout.slots[index];
        self.values[index] = value & slot.width;
        let new = slot.grant.apply(value);
        let old = std::mem::replace(&mut self.granted[index], new);
        if new != old && self.layout.outside.has(index) {
            self.digests[slot.group].change(slot.key, old, new);
        }
    }

    /// Saves what the hardware holds, as far as it is the guest's.
    pub(super) fn take(&mut self, index: usize, held: u32) {
        let saved = self.layout.slots[index].saved;
        if saved == 0 || self.pending.has(index) {
            return;
        }
        let value = self.values[index] & !saved | held & saved;
        self.set(index, value);
    }
}
