//! The modes that write what differs.

use super::bits::Bits;
use super::file::RegisterFile;
use super::image::HardwareImage;
use super::layout::Layout;
use super::switcher::SwitchCost;
use crate::registers::{Registers, Series};

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
        Self::agrees(self, group, members, file)
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

/// Compares with the vGPU before.
pub fn by_previous(
    layout: &Layout,
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
        let lost = save(layout, &mut series, out, &mut held);
        // What it wrote since it last ran the GPU does not hold.
        held.known = layout.outside & !(lost | out.pending);
        held.file = Some(out);
    }
    restore(layout, &mut series, &mut held, incoming);
    series.accesses().into()
}

/// Compares with what the hardware holds.
pub fn by_image(
    layout: &Layout,
    image: &mut HardwareImage,
    gpu: &Registers,
    outgoing: Option<&mut RegisterFile>,
    incoming: &RegisterFile,
) -> SwitchCost {
    let mut series = gpu.series();
    if let Some(out) = outgoing {
        save(layout, &mut series, out, image);
    }
    restore(layout, &mut series, image, incoming);
    series.accesses().into()
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
