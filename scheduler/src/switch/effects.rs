//! What commands do to registers that a switch carries over.

use gen8::Engine;
use gen8::switched::{GEN8, Table};

use super::bits::Bits;
use super::layout::{Layout, layout};

/// What commands leave in one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    pub index: usize,
    /// The bits that become `value`'s.
    pub mask: u32,
    pub value: u32,
    /// What it holds only the GPU knows.
    pub unknown: bool,
}

/// What one workload's commands do to the registers outside the context, as
/// its audit found. At most one entry a register, so a guest cannot make it
/// grow.
#[derive(Clone)]
pub struct Effects {
    layout: &'static Layout,
    entries: Vec<Effect>,
    at: Bits,
    /// It runs batches that nobody looked at.
    user_batches: bool,
    /// Commands that run while the context is restored are among them.
    at_restore: bool,
    /// What commands so far looked at.
    looked_at: Bits,
    /// What commands that run while the context is restored look at or touch.
    restored: Bits,
}

/// What had happened to a register when it was saved to memory.
#[derive(Clone, Copy)]
pub struct Saved {
    index: usize,
    effect: Option<Effect>,
}

impl Effects {
    /// None.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self::with_table(&GEN8, engine)
    }

    /// None, of another generation's registers.
    #[must_use]
    pub fn with_table(table: &'static Table, engine: Engine) -> Self {
        Self::of(layout(table, engine))
    }

    pub(super) const fn of(layout: &'static Layout) -> Self {
        Self {
            layout,
            entries: Vec::new(),
            at: Bits::NONE,
            user_batches: false,
            at_restore: false,
            looked_at: Bits::NONE,
            restored: Bits::NONE,
        }
    }

    /// A command writes `raw` to the register at `offset`.
    pub fn load(&mut self, offset: u32, raw: u32) {
        let Some(index) = self.followed(offset) else {
            return;
        };
        let slot = &self.layout.slots[index];
        let (mask, value) = if slot.masked {
            (raw >> 16, raw & (raw >> 16))
        } else {
            (slot.width, raw)
        };
        let entry = self.entry(index);
        if entry.unknown && mask != slot.width {
            return;
        }
        entry.unknown = false;
        entry.mask |= mask;
        entry.value = entry.value & !mask | value;
    }

    /// A command leaves in the register at `offset` what is known only to the
    /// GPU, or perhaps leaves it as it is.
    pub fn unknown(&mut self, offset: u32) {
        if let Some(index) = self.followed(offset) {
            self.lose(index);
        }
    }

    /// A batch runs that nobody looked at. It can write what batches without
    /// privilege can.
    pub fn user_batch(&mut self) {
        self.user_batches = true;
        for index in self.layout.volatile.iter() {
            self.lose(index);
        }
    }

    /// `self` happens while the context is restored, `later` after that.
    #[must_use]
    pub fn then(mut self, later: &Self) -> Self {
        self.at_restore = !self.is_empty();
        self.restored = self.at | self.looked_at;
        self.user_batches |= later.user_batches;
        for effect in &later.entries {
            let width = self.layout.slots[effect.index].width;
            let entry = self.entry(effect.index);
            if effect.unknown {
                *entry = *effect;
            } else if !entry.unknown || effect.mask == width {
                entry.unknown = false;
                entry.mask |= effect.mask;
                entry.value = entry.value & !effect.mask | effect.value;
            }
        }
        self
    }

    /// Whether it does nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.user_batches
    }

    /// Whether a prologue in the ring comes before all of it: nothing lasting
    /// happens while the context is restored.
    #[must_use]
    pub const fn allow_prologue(&self) -> bool {
        !self.at_restore
    }

    /// Whether what runs while the context is restored, before a prologue of
    /// these `pairs`, has nothing to do with the registers it changes.
    #[must_use]
    pub fn leave_alone(&self, pairs: &[(u32, u32)]) -> bool {
        let mut changed = pairs.iter().filter_map(|(o, _)| self.layout.index(*o));
        changed.all(|index| !self.restored.has(index))
    }

    /// A command reads the register at `offset`.
    pub fn read(&mut self, offset: u32) {
        if let Some(index) = self.followed(offset) {
            self.looked_at.set(index);
        }
    }

    /// What happened to the register at `offset` so far; `None` for one that
    /// is not followed.
    pub(crate) fn saved(&self, offset: u32) -> Option<Saved> {
        let index = self.followed(offset)?;
        let effect = self.entries.iter().find(|e| e.index == index).copied();
        Some(Saved { index, effect })
    }

    /// The register holds again what it held when that was `saved`.
    pub(crate) fn put_back(&mut self, saved: Saved) {
        let Saved { index, effect } = saved;
        self.looked_at.set(index);
        self.entries.retain(|e| e.index != index);
        self.at.clear(index);
        if let Some(effect) = effect {
            *self.entry(index) = effect;
        }
    }

    /// What the register at `offset` holds afterwards, when it held `before`.
    #[cfg(test)]
    pub(crate) fn leave(&self, offset: u32, before: u32) -> Option<u32> {
        let index = self.layout.index(offset)?;
        self.after(index, Some(before))
    }

    pub(super) fn entries(&self) -> &[Effect] {
        &self.entries
    }

    /// What the register holds afterwards, when it held `before`: `None` when
    /// that is not known.
    pub(super) fn after(&self, index: usize, before: Option<u32>) -> Option<u32> {
        let effect = if self.at.has(index) {
            self.entries.iter().find(|e| e.index == index)
        } else {
            None
        };
        let Some(effect) = effect else {
            return before;
        };
        let slot = &self.layout.slots[index];
        if effect.unknown {
            return None;
        }
        if effect.mask == slot.width {
            return Some(slot.settled(effect.value));
        }
        before.map(|held| slot.settled(held & !effect.mask | effect.value))
    }

    /// Whether batches ran that nobody looked at.
    #[must_use]
    pub const fn ran_user_batches(&self) -> bool {
        self.user_batches
    }

    fn followed(&self, offset: u32) -> Option<usize> {
        let index = self.layout.index(offset)?;
        self.layout.outside.has(index).then_some(index)
    }

    fn lose(&mut self, index: usize) {
        let entry = self.entry(index);
        entry.unknown = true;
        entry.mask = 0;
        entry.value = 0;
    }

    fn entry(&mut self, index: usize) -> &mut Effect {
        let place = if self.at.has(index) {
            self.entries.iter().position(|e| e.index == index)
        } else {
            None
        };
        let place = place.unwrap_or_else(|| {
            self.at.set(index);
            self.entries.push(Effect {
                index,
                mask: 0,
                value: 0,
                unknown: false,
            });
            self.entries.len() - 1
        });
        &mut self.entries[place]
    }
}
