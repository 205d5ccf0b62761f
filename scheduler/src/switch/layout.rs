//! One engine's registers, made ready for the switch: by dense index, in the
//! order they are written.

use std::sync::OnceLock;

use gen8::platform::PLATFORMS;
use gen8::switched::{Group, Kept, Switched, Table};
use gen8::{Engine, Platform, regs};

use super::bits::Bits;
use super::digest;
use super::grant::Grant;

/// One register.
pub struct Slot {
    pub register: Switched,
    pub offset: u32,
    pub masked: bool,
    /// The bits that hold a value.
    pub width: u32,
    /// Bits that tell of the moment.
    pub momentary: u32,
    pub grant: Grant,
    /// Bits of the hardware's value that the guest keeps.
    pub saved: u32,
    pub group: usize,
    pub key: u64,
}

impl Slot {
    /// What to write so that the bits under `change` become `value`'s.
    pub const fn raw(&self, value: u32, change: u32) -> u32 {
        if self.masked {
            (change & 0xffff) << 16 | (value & change & 0xffff)
        } else {
            value
        }
    }

    /// What the register says, less what tells of the moment.
    pub const fn settled(&self, read: u32) -> u32 {
        read & self.width & !self.momentary
    }
}

/// BAR0 pages that have registers of a table: offsets below 1 MiB.
const PAGES: usize = 256;
const NO: u8 = u8::MAX;

/// An engine's registers.
pub struct Layout {
    pub table: &'static Table,
    pub slots: Vec<Slot>,
    /// Outside the context, by group.
    pub groups: [Bits; Group::COUNT],
    pub outside: Bits,
    /// What the plain modes touch.
    pub touched: Bits,
    pub in_context: Bits,
    /// What a save takes from the hardware.
    pub saved: Bits,
    pub volatile: Bits,
    /// What the hardware changes for the guest.
    pub read: Bits,
    /// FORCE_TO_NONPRIV.
    pub nonpriv: Bits,
    /// What a FORCE_TO_NONPRIV slot can open, outside the context.
    pub openable: Bits,
    /// Writes that clear the context's registers that are not listed.
    pub cleared: Vec<(u32, u32)>,
    pages: [u8; PAGES],
    entries: Vec<[u8; 1024]>,
}

impl Layout {
    /// The layout of a table's registers on an engine of `gpu`.
    ///
    /// # Panics
    /// When the table has more than [`Bits::CAPACITY`] for it or registers
    /// past 1 MiB, which a test rules out.
    pub(super) fn new(gpu: &'static Platform, table: &'static Table, engine: Engine) -> Self {
        let mut registers: Vec<Switched> = table
            .registers()
            .filter(|s| s.row.engine == engine)
            .collect();
        // A stable sort: the table's order is kept beyond that.
        registers.sort_by_key(|s| (s.row.group, s.row.order));
        assert!(
            registers.len() <= Bits::CAPACITY,
            "{} {engine:?}",
            table.name
        );
        let mut layout = Self {
            table,
            slots: Vec::with_capacity(registers.len()),
            groups: [Bits::NONE; Group::COUNT],
            outside: Bits::NONE,
            touched: Bits::NONE,
            in_context: Bits::NONE,
            saved: Bits::NONE,
            volatile: Bits::NONE,
            read: Bits::NONE,
            nonpriv: Bits::NONE,
            openable: Bits::NONE,
            cleared: Vec::new(),
            pages: [NO; PAGES],
            entries: Vec::new(),
        };
        for (index, register) in registers.into_iter().enumerate() {
            layout.add(gpu, index, register);
        }
        let [.., state] = gpu.image(engine).loads;
        let state = state.registers;
        let mut offsets: Vec<u32> = gpu.rules.context(engine).collect();
        offsets.extend(state.iter().map(|o| engine.mmio_base() + o));
        offsets.sort_unstable();
        offsets.dedup();
        offsets.retain(|o| layout.index(*o).is_none());
        let raw = |o| if regs::masked(o) { 0xffff_0000 } else { 0 };
        layout.cleared = offsets.into_iter().map(|o| (o, raw(o))).collect();
        layout
    }

    fn add(&mut self, gpu: &'static Platform, index: usize, register: Switched) {
        let offset = register.offset();
        let grant = Grant::of(gpu.rules, &register);
        let slot = Slot {
            offset,
            masked: register.row.masked,
            width: register.width(),
            momentary: register.momentary(),
            grant,
            saved: grant.saved(&register),
            group: register.row.group.index(),
            key: digest::key(offset),
            register,
        };
        match register.row.kept {
            Kept::Outside => {
                self.outside.set(index);
                self.groups[slot.group].set(index);
                self.touched.set(index);
                if super::allowed_nonpriv(gpu.rules, offset) {
                    self.openable.set(index);
                }
            }
            Kept::InContext => {
                self.in_context.set(index);
                if self.table.touches_context {
                    self.touched.set(index);
                }
            }
        }
        if slot.saved != 0 {
            self.saved.set(index);
        }
        if register.is_volatile() {
            self.volatile.set(index);
        }
        if register.must_be_read() {
            self.read.set(index);
        }
        if matches!(grant, Grant::Slot { .. }) {
            self.nonpriv.set(index);
        }
        self.slots.push(slot);
        let (page, entry) = place(offset);
        let page = &mut self.pages[page];
        if *page == NO {
            *page = byte(self.entries.len());
            self.entries.push([NO; 1024]);
        }
        self.entries[usize::from(*page)][entry] = byte(index);
    }

    /// The index of the register at `offset`.
    pub fn index(&self, offset: u32) -> Option<usize> {
        if !offset.is_multiple_of(4) {
            return None;
        }
        let (page, entry) = place(offset);
        let entries = self.entries.get(usize::from(*self.pages.get(page)?))?;
        let index = usize::from(*entries.get(entry)?);
        (index < self.slots.len()).then_some(index)
    }
}

fn place(offset: u32) -> (usize, usize) {
    let at = |v| usize::try_from(v).unwrap_or(usize::MAX);
    (at(offset >> 12), at((offset & 0xfff) / 4))
}

/// Indices stay below [`NO`]: no engine has that many registers or pages.
fn byte(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(NO)
}

/// The layout for an engine. `table` is a platform's.
pub fn layout(table: &'static Table, engine: Engine) -> &'static Layout {
    static MADE: [[OnceLock<Layout>; Engine::COUNT]; PLATFORMS.len()] =
        [const { [const { OnceLock::new() }; Engine::COUNT] }; PLATFORMS.len()];
    let slot = PLATFORMS.iter().position(|p| p.switched.name == table.name);
    let slot = slot.unwrap_or(0);
    let gpu = PLATFORMS[slot];
    MADE[slot][engine.index()].get_or_init(|| Layout::new(gpu, gpu.switched, engine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gen8::switched::{GEN8, GEN9};

    #[test]
    fn every_register_is_found_and_nothing_else() {
        for table in [&GEN8, &GEN9] {
            for engine in Engine::ALL {
                let layout = layout(table, engine);
                assert_eq!(layout.table.name, table.name);
                let registers = table.registers().filter(|s| s.row.engine == engine);
                let mut listed: Vec<u32> = registers.map(|s| s.offset()).collect();
                listed.sort_unstable();
                let all = 0..(1 << 20);
                let found = all.filter_map(|o| Some((o, layout.index(o)?)));
                let found: Vec<u32> = found
                    .map(|(o, i)| {
                        assert_eq!(layout.slots[i].offset, o);
                        o
                    })
                    .collect();
                assert_eq!(found, listed);
                assert_eq!(layout.index(u32::MAX - 3), None);
            }
        }
    }

    #[test]
    fn groups_are_contiguous_and_ordered_registers_follow_one_another() {
        for engine in Engine::ALL {
            let slots = &layout(&GEN9, engine).slots;
            for pair in slots.windows(2) {
                let key = |s: &Slot| (s.group, s.register.row.order);
                assert!(key(&pair[0]) <= key(&pair[1]));
            }
        }
    }
}
