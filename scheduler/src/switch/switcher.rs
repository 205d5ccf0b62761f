//! The switch itself.

use gen8::Engine;
use gen8::cmd::mi_op;
use gen8::switched::{GEN8, Table};

use super::bits::Bits;
use super::effects::Effects;
use super::file::RegisterFile;
use super::image::HardwareImage;
use super::layout::{Layout, layout};
use super::mode::SwitchMode;
use super::plain;
use crate::registers::{Accesses, Registers, Series};

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

/// What is known of the registers when a delta begins, and what follows it.
trait Held {
    /// What the register holds, if that is known.
    fn get(&self, index: usize) -> Option<u32>;
    /// Whether the whole group holds what `file` wants.
    fn agrees(&self, group: usize, members: Bits, file: &RegisterFile) -> bool;
    /// A register was read.
    fn found(&mut self, index: usize, value: u32);
    /// A register was written. Its group is brought to `file`.
    fn wrote(&mut self, index: usize, value: u32);
    /// The whole group holds what `file` wants now.
    fn agreed(&mut self, group: usize, members: Bits, file: &RegisterFile);
}

impl Held for HardwareImage {
    fn get(&self, index: usize) -> Option<u32> {
        Self::get(self, index)
    }

    fn agrees(&self, group: usize, members: Bits, file: &RegisterFile) -> bool {
        self.known().covers(members) && self.digest(group) == file.digest(group)
    }

    fn found(&mut self, index: usize, value: u32) {
        self.set(index, value);
    }

    fn wrote(&mut self, index: usize, value: u32) {
        self.put(index, value);
    }

    fn agreed(&mut self, group: usize, members: Bits, file: &RegisterFile) {
        self.agree(group, members, file.digest(group));
    }
}

/// The vGPU before, less what it does not tell.
struct Previous<'a> {
    file: Option<&'a RegisterFile>,
    known: Bits,
}

impl Held for Previous<'_> {
    fn get(&self, index: usize) -> Option<u32> {
        let file = self.file.filter(|_| self.known.has(index))?;
        Some(file.granted(index))
    }

    fn agrees(&self, group: usize, members: Bits, file: &RegisterFile) -> bool {
        let same = |p: &RegisterFile| p.digest(group) == file.digest(group);
        self.known.covers(members) && self.file.is_some_and(same)
    }

    // What a file holds is followed where it is.
    fn found(&mut self, _index: usize, _value: u32) {}
    fn wrote(&mut self, _index: usize, _value: u32) {}
    fn agreed(&mut self, _group: usize, _members: Bits, _file: &RegisterFile) {}
}

/// Brings one engine's registers from vGPU to vGPU.
pub struct Switcher {
    pub(super) layout: &'static Layout,
    mode: SwitchMode,
    /// Followed in the mode that uses it.
    image: HardwareImage,
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
            SwitchMode::DeltaPrevious => self.delta_previous(gpu, outgoing, incoming),
            SwitchMode::DeltaImage => self.delta_image(gpu, outgoing, incoming),
        };
        incoming.pending = Bits::NONE;
        incoming.stale = Bits::NONE;
        cost
    }

    fn delta_previous(
        &self,
        gpu: &Registers,
        outgoing: Option<&mut RegisterFile>,
        incoming: &RegisterFile,
    ) -> SwitchCost {
        let mut series = gpu.series();
        let mut held = Previous {
            file: None,
            known: Bits::NONE,
        };
        if let Some(out) = outgoing {
            let lost = save(self.layout, &mut series, out, &mut held);
            // What it wrote since it last ran the GPU does not hold.
            held.known = self.layout.outside & !(lost | out.pending);
            held.file = Some(out);
        }
        restore(self.layout, &mut series, &mut held, incoming);
        series.accesses().into()
    }

    fn delta_image(
        &mut self,
        gpu: &Registers,
        outgoing: Option<&mut RegisterFile>,
        incoming: &RegisterFile,
    ) -> SwitchCost {
        let mut series = gpu.series();
        if let Some(out) = outgoing {
            save(self.layout, &mut series, out, &mut self.image);
        }
        restore(self.layout, &mut series, &mut self.image, incoming);
        series.accesses().into()
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
    fn lost(&self, file: &RegisterFile, effects: &Effects) -> Bits {
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

    /// The changes that must happen between `first`, which is on the engine
    /// with a workload that will have had `effects`, and `second`: pairs of
    /// offset and value for [`prologue_commands`] at the start of `second`'s
    /// ring. `None` when a register would have to be read, when the hardware's
    /// values are not known, when there are more than [`MAX_PROLOGUE`], and in
    /// the modes that do not follow what the hardware holds.
    ///
    /// It comes after what runs while `second`'s context is restored:
    /// [`Effects::allow_prologue`] of its workload must hold.
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

    fn follows(&self) -> bool {
        self.mode == SwitchMode::DeltaImage
    }
}

/// Reads what only the GPU knows of the outgoing vGPU's values. Returns what
/// is still not known.
fn save(
    layout: &Layout,
    gpu: &mut Series<'_>,
    out: &mut RegisterFile,
    held: &mut impl Held,
) -> Bits {
    let stale = std::mem::take(&mut out.stale);
    // What it wrote since it last ran is newer.
    let wanted = stale & layout.saved & !out.pending;
    for index in wanted.iter() {
        let slot = &layout.slots[index];
        let value = slot.settled(gpu.read32(slot.offset));
        out.take(index, value);
        held.found(index, value);
    }
    stale & !wanted
}

/// Writes what `incoming` wants and the GPU does not hold.
fn restore(layout: &Layout, gpu: &mut Series<'_>, held: &mut impl Held, incoming: &RegisterFile) {
    for (group, members) in layout.groups.iter().enumerate() {
        if held.agrees(group, *members, incoming) {
            continue;
        }
        for index in members.iter() {
            let wanted = incoming.granted(index);
            let have = held.get(index);
            if have == Some(wanted) {
                continue;
            }
            let slot = &layout.slots[index];
            let change = have.map_or(slot.width, |h| h ^ wanted);
            gpu.write32(slot.offset, slot.raw(wanted, change));
            held.wrote(index, wanted);
        }
        held.agreed(group, *members, incoming);
    }
}
