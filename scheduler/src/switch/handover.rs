//! From one vGPU to the next by commands in the second's ring.

use gen8::cmd::mi_op;

use super::bits::Bits;
use super::effects::Effects;
use super::file::RegisterFile;
use super::switcher::Switcher;

/// The most register changes that go into a ring instead of MMIO. One
/// MI_LOAD_REGISTER_IMM holds 127; a guest of another system differs in less.
pub const MAX_PROLOGUE: usize = 32;

/// The commands of a [`Switcher::prologue`]. A batch of the guest's may have
/// left a predicate in its context that turns commands into no-ops, so they
/// begin by lifting it.
#[must_use]
pub fn prologue_commands(pairs: &[(u32, u32)]) -> Vec<u32> {
    let Some(length) = u32::try_from(2 * pairs.len())
        .ok()
        .and_then(|n| n.checked_sub(1))
    else {
        return Vec::new();
    };
    let mut words = vec![
        mi_op::SET_PREDICATE << 23,
        mi_op::LOAD_REGISTER_IMM << 23 | length,
    ];
    words.extend(pairs.iter().flat_map(|(offset, raw)| [*offset, *raw]));
    words
}

impl Switcher {
    /// The changes that must happen between `first`, which is on the engine
    /// with a workload that will have had `effects`, and `second`: pairs of
    /// offset and value for [`prologue_commands`] at the start of `second`'s
    /// ring. `None` when a register would have to be read, when the hardware's
    /// values are not known, when there are more than [`MAX_PROLOGUE`], and in
    /// the modes that do not follow what the hardware holds.
    ///
    /// It comes after what runs while `second`'s context is restored:
    /// [`Effects::allow_prologue`] of its workload must hold, and with the pairs
    /// [`Effects::leave_alone`].
    #[must_use]
    pub fn prologue(
        &self,
        first: &RegisterFile,
        effects: &Effects,
        second: &RegisterFile,
    ) -> Option<Vec<(u32, u32)>> {
        let layout = self.layout;
        if !self.follows() {
            return None;
        }
        let lost = self.lost(first, effects);
        let mut changed = lost;
        let mut certain = Bits::NONE;
        for effect in effects.entries().iter().filter(|e| !e.unknown) {
            changed.set(effect.index);
            if effect.mask == layout.slots[effect.index].width {
                certain.set(effect.index);
            }
        }
        let unsaved = (lost | first.stale & !certain) & layout.saved & !first.pending;
        if !unsaved.is_empty() {
            return None;
        }
        let mut pairs = Vec::new();
        for (group, members) in layout.groups.iter().enumerate() {
            let same = (*members & changed).is_empty();
            if same && self.image.agrees(group, *members, second) {
                continue;
            }
            for index in members.iter() {
                let slot = &layout.slots[index];
                let held = if lost.has(index) {
                    None
                } else {
                    effects.after(index, self.image.get(index))
                };
                let wanted = second.granted(index);
                if held == Some(wanted) {
                    continue;
                }
                if pairs.len() == MAX_PROLOGUE {
                    return None;
                }
                let change = held.map_or(slot.width, |h| h ^ wanted);
                pairs.push((slot.offset, slot.raw(wanted, change)));
            }
        }
        Some(pairs)
    }

    /// The GPU went from `first` to `second` by a prologue of these `pairs`,
    /// after a workload of `first` that had `effects`. Takes the place of
    /// [`Switcher::ran`] for it and of [`Switcher::switch`].
    pub fn handed_over(
        &mut self,
        first: &mut RegisterFile,
        effects: &Effects,
        second: &mut RegisterFile,
        pairs: &[(u32, u32)],
    ) {
        self.ran(first, effects);
        first.stale = Bits::NONE;
        for (offset, raw) in pairs {
            let Some(index) = self.layout.index(*offset) else {
                continue;
            };
            let slot = &self.layout.slots[index];
            let mask = if slot.masked { raw >> 16 } else { slot.width };
            let held = self.image.get(index).unwrap_or(0);
            self.image
                .set(index, held & !mask | raw & mask & slot.width);
        }
        second.stale = Bits::NONE;
        // What it wrote since the prologue was made waits.
        for index in second.pending.iter() {
            if self.image.get(index) == Some(second.granted(index)) {
                second.pending.clear(index);
            }
        }
    }
}
