//! The modes that carry every register over, without a look at what it holds.

use super::bits::Bits;
use super::file::RegisterFile;
use super::layout::Layout;
use super::mode::SwitchMode;
use super::switcher::SwitchCost;
use crate::registers::{Registers, Series};

/// Passes over every register.
struct Passes<'a> {
    layout: &'a Layout,
    gpu: Series<'a>,
    read_back: bool,
}

impl Passes<'_> {
    fn save(&mut self, mut each: impl FnMut(usize, u32)) {
        for index in self.layout.touched.iter() {
            let slot = &self.layout.slots[index];
            each(index, slot.settled(self.gpu.read32(slot.offset)));
        }
    }

    fn load(&mut self, value: impl Fn(usize) -> u32) {
        let mut last = None;
        for index in self.layout.touched.iter() {
            let slot = &self.layout.slots[index];
            let raw = slot.raw(value(index), slot.width);
            self.gpu.write32(slot.offset, raw);
            last = Some(slot.offset);
            if self.read_back {
                let _ = self.gpu.read32(slot.offset);
            }
        }
        if let Some(offset) = last.filter(|_| !self.read_back) {
            // Writes are posted in order, so one read waits for all.
            let _ = self.gpu.read32(offset);
        }
    }
}

/// Saves everything to `outgoing` and loads everything from `incoming`.
pub fn switch(
    layout: &Layout,
    mode: SwitchMode,
    gpu: &Registers,
    outgoing: Option<&mut RegisterFile>,
    incoming: &RegisterFile,
) -> SwitchCost {
    let mut passes = Passes {
        layout,
        gpu: gpu.series(),
        read_back: mode == SwitchMode::FullReadBack,
    };
    let had_owner = outgoing.is_some();
    if let Some(out) = outgoing {
        passes.save(|index, held| out.take(index, held));
        out.stale = Bits::NONE;
    }
    if mode != SwitchMode::Merged {
        if had_owner {
            // The host's own values are those of a fresh engine.
            passes.load(|index| {
                let slot = &layout.slots[index];
                slot.grant.apply(slot.register.row.reset)
            });
        }
        // What it holds then, the host knows.
        passes.save(|_, _| {});
    }
    passes.load(|index| incoming.granted(index));
    passes.gpu.accesses().into()
}

/// What [`switch`] costs.
pub fn cost(layout: &Layout, mode: SwitchMode, had_owner: bool) -> SwitchCost {
    let n = u64::try_from(layout.touched.iter().count()).unwrap_or(u64::MAX);
    let by_host = mode != SwitchMode::Merged;
    let saves = u64::from(had_owner) + u64::from(by_host);
    let loads = 1 + u64::from(had_owner && by_host);
    let checks = match mode {
        SwitchMode::FullReadBack => n,
        _ => u64::from(n > 0),
    };
    SwitchCost {
        reads: saves * n + loads * checks,
        writes: loads * n,
    }
}
