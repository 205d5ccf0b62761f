//! Per-process page tables: the four-level walk and its cache.

use gen8::pte::{self, Level};
use gpu_bus::DmaFault;

/// A page the walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Bus address of the 4 KiB frame.
    pub(crate) frame: u64,
    /// Whether every level allows writes.
    pub(crate) writable: bool,
}

/// Walks the tables at `root` for a 48-bit address; `load` reads memory.
/// `None`: not mapped.
pub(crate) fn walk(
    load: impl Fn(u64, &mut [u8]) -> Result<(), DmaFault>,
    root: u64,
    address: u64,
) -> Result<Option<Mapping>, DmaFault> {
    let mut table = root & pte::ADDRESS;
    let mut level = Level::Pml4;
    let mut writable = true;
    loop {
        let index = u64::try_from(level.index(address)).unwrap_or(0);
        let mut raw = [0; 8];
        load(table + index * 8, &mut raw)?;
        let entry = u64::from_le_bytes(raw);
        if entry & pte::PRESENT == 0 {
            return Ok(None);
        }
        writable &= entry & pte::WRITABLE != 0;
        let next = entry & pte::ADDRESS;
        if level == Level::Pd && entry & pte::PDE_2M != 0 {
            let frame = (next & !0x1f_ffff) | (address & 0x1f_f000);
            return Ok(Some(Mapping { frame, writable }));
        }
        match level.below() {
            Some(below) => {
                level = below;
                table = next;
            }
            None => {
                return Ok(Some(Mapping {
                    frame: next,
                    writable,
                }));
            }
        }
    }
}

const WAYS: usize = 256;

#[derive(Clone, Copy)]
struct Slot {
    page: u64,
    generation: u64,
    mapping: Mapping,
}

/// A direct-mapped cache of translations. Like the hardware's it may be
/// stale until it is flushed.
pub(crate) struct Tlb {
    slots: Box<[Slot; WAYS]>,
    generation: u64,
}

impl Tlb {
    pub(crate) fn new() -> Self {
        let empty = Slot {
            page: 0,
            generation: 0,
            mapping: Mapping {
                frame: 0,
                writable: false,
            },
        };
        Self {
            slots: Box::new([empty; WAYS]),
            generation: 1,
        }
    }

    pub(crate) fn flush(&mut self) {
        self.generation += 1;
    }

    fn slot(page: u64) -> usize {
        // The low eight bits of the page number.
        usize::from(page.to_le_bytes()[0])
    }

    pub(crate) fn get(&self, address: u64) -> Option<Mapping> {
        let page = address >> 12;
        let s = self.slots.get(Self::slot(page))?;
        (s.generation == self.generation && s.page == page).then_some(s.mapping)
    }

    pub(crate) fn put(&mut self, address: u64, mapping: Mapping) {
        let page = address >> 12;
        let generation = self.generation;
        if let Some(s) = self.slots.get_mut(Self::slot(page)) {
            *s = Slot {
                page,
                generation,
                mapping,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpu_bus::Dma;
    use proptest::prelude::*;

    use super::*;
    use crate::test_memory::Ram;

    const RW: u64 = pte::PRESENT | pte::WRITABLE;

    fn in_ram(ram: &Ram, root: u64, address: u64) -> Result<Option<Mapping>, DmaFault> {
        walk(|at, raw| ram.read(at, raw), root, address)
    }

    #[test]
    fn a_huge_page_ends_the_walk() {
        let ram = Ram::new(64 << 10);
        ram.put64(0x1000, 0x2000 | RW);
        ram.put64(0x2000, 0x3000 | RW);
        ram.put64(0x3000 + 8, 0x40_0000 | RW | pte::PDE_2M);
        let m = in_ram(&ram, 0x1000, 0x20_0000 + 0x12_3456)
            .unwrap()
            .unwrap();
        assert_eq!(m.frame, 0x40_0000 + 0x12_3000);
        assert!(m.writable);
    }

    #[test]
    fn one_read_only_level_is_enough() {
        let ram = Ram::new(64 << 10);
        ram.put64(0x1000, 0x2000 | pte::PRESENT);
        ram.put64(0x2000, 0x3000 | RW);
        ram.put64(0x3000, 0x4000 | RW);
        ram.put64(0x4000, 0x5000 | RW);
        let m = in_ram(&ram, 0x1000, 0).unwrap().unwrap();
        assert!(!m.writable);
        assert_eq!(in_ram(&ram, 0x1000, 0x1000), Ok(None));
    }

    #[test]
    fn tables_outside_memory_fault() {
        let ram = Ram::new(8 << 10);
        ram.put64(0x1000, 0x7f_0000_0000 | RW);
        assert!(in_ram(&ram, 0x1000, 0).is_err());
        // A table that names itself ends after four levels.
        ram.put64(0x1000, 0x1000 | RW);
        let m = in_ram(&ram, 0x1000, 0).unwrap().unwrap();
        assert_eq!(m.frame, 0x1000);
    }

    #[test]
    fn a_flush_forgets() {
        let mut t = Tlb::new();
        let m = Mapping {
            frame: 0x9000,
            writable: true,
        };
        assert_eq!(t.get(0), None);
        t.put(0x12_3456, m);
        assert_eq!(t.get(0x12_3fff), Some(m));
        assert_eq!(t.get(0x22_3fff), None);
        t.flush();
        assert_eq!(t.get(0x12_3456), None);
    }

    proptest! {
        /// Tables built from a map of pages answer as the map does.
        #[test]
        fn a_walk_agrees_with_the_map(
            pages in prop::collection::btree_map(0u64..1 << 36, 1u64..1 << 20, 1..20),
            probes in prop::collection::vec(0u64..1 << 36, 0..20),
        ) {
            let ram = Ram::new(1 << 20);
            let mut next = 0x2000;
            let mut tables: BTreeMap<(Level, u64), u64> = BTreeMap::new();
            for (&page, &frame) in &pages {
                let address = page << 12;
                let mut table = 0x1000;
                let mut level = Level::Pml4;
                while let Some(below) = level.below() {
                    let key = (below, address >> level.shift());
                    let child = *tables.entry(key).or_insert_with(|| { next += 0x1000; next - 0x1000 });
                    ram.put64(table + 8 * u64::try_from(level.index(address)).unwrap(), child | RW);
                    table = child;
                    level = below;
                }
                ram.put64(table + 8 * u64::try_from(level.index(address)).unwrap(), (frame << 12) | RW);
            }
            for page in pages.keys().copied().chain(probes) {
                let got = in_ram(&ram, 0x1000, page << 12).unwrap().map(|m| m.frame);
                prop_assert_eq!(got, pages.get(&page).map(|f| f << 12));
            }
        }
    }
}
