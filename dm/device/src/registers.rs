//! The register file: values by offset, allocated a page at a time, and how
//! each offset behaves.

use std::sync::OnceLock;

use gen8::Platform;
use gen8::platform::PLATFORMS;
use gen8::vreg::{Access, REGISTER_BYTES, Register, Saved, pvinfo};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::kept::{join, place, split as take_apart};

const PAGE_DWORDS: usize = 1024;
const PAGES: usize = REGISTER_BYTES as usize / 4096;
/// Pairs of values of a page: each is a word where they are kept.
const PAIRS: usize = PAGE_DWORDS / 2;

/// The part's saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistersV1 {
    /// BAR0 offset and value of each register that differs from its reset
    /// value, by rising offset.
    pub values: Vec<(u32, u32)>,
}

/// A saved register that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "saved register at {0:#x}, allowed: rising multiples of 4 below 0x200000 that are saved by value"
)]
pub struct BadRegister(u32);

/// What the table says about one offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) access: Access,
    /// vgpud must learn each change.
    pub(crate) switched: bool,
}

/// Per offset, an index into `rows`; made once from each platform's table.
struct Index {
    pages: Vec<Option<Box<[u16; PAGE_DWORDS]>>>,
    behaviours: Vec<Behaviour>,
    rows: Vec<&'static Register>,
}

/// The page and the place in it of an offset.
fn split(offset: u32) -> (usize, usize) {
    // 32 bits fit a usize on every host of this program.
    let dword = usize::try_from(offset / 4).unwrap_or(usize::MAX);
    (dword / PAGE_DWORDS, dword % PAGE_DWORDS)
}

fn index(gpu: &'static Platform) -> &'static Index {
    static MADE: [OnceLock<Index>; PLATFORMS.len()] = [const { OnceLock::new() }; PLATFORMS.len()];
    MADE[gpu.index()].get_or_init(|| {
        let mut pages: Vec<Option<Box<[u16; PAGE_DWORDS]>>> = vec![None; PAGES];
        let unlisted = Behaviour {
            access: Access::Storage,
            switched: false,
        };
        let mut behaviours = vec![unlisted];
        let mut rows: Vec<&'static Register> = Vec::new();
        for row in gpu.registers.rows() {
            for switched in [false, true] {
                let code = u16::try_from(behaviours.len()).unwrap_or(0);
                behaviours.push(Behaviour {
                    access: row.access,
                    switched,
                });
                rows.push(row);
                for offset in row.offsets() {
                    if gpu.switched.is_carried(offset) != switched {
                        continue;
                    }
                    let (page, at) = split(offset);
                    let page = pages[page].get_or_insert_with(|| Box::new([0; PAGE_DWORDS]));
                    page[at] = code;
                }
            }
        }
        Index {
            pages,
            behaviours,
            rows,
        }
    })
}

impl Index {
    fn code(&self, offset: u32) -> usize {
        let (page, at) = split(offset);
        let page = self.pages.get(page).and_then(Option::as_ref);
        page.map_or(0, |p| p[at].into())
    }

    fn row(&self, offset: u32) -> Option<&'static Register> {
        let code = self.code(offset).checked_sub(1)?;
        self.rows.get(code).copied()
    }
}

/// Values by offset.
pub(crate) struct RegisterFile {
    pages: Vec<Option<Box<[u32; PAGE_DWORDS]>>>,
    index: &'static Index,
    /// Offsets of values that changed since they were last kept, if anybody
    /// keeps them.
    changed: Option<Vec<u32>>,
    /// Pages were added since.
    paged: bool,
}

impl RegisterFile {
    /// Every register at its reset value.
    pub(crate) fn new(config: &Config) -> Self {
        let mut file = Self {
            pages: vec![None; PAGES],
            index: index(config.gpu),
            changed: None,
            paged: false,
        };
        for row in config.gpu.registers.rows() {
            for (i, offset) in (0..).zip(row.offsets()) {
                file.set(offset, row.reset_value(i));
            }
        }
        let (mappable, (base, size)) = config.usable();
        file.set(pvinfo::MAPPABLE_SIZE, mappable);
        file.set(pvinfo::NON_MAPPABLE_BASE, base);
        file.set(pvinfo::NON_MAPPABLE_SIZE, size);
        file
    }

    /// The value at a multiple of 4; 0 past the end.
    pub(crate) fn get(&self, offset: u32) -> u32 {
        let (page, at) = split(offset);
        let page = self.pages.get(page).and_then(Option::as_ref);
        page.map_or(0, |p| p[at])
    }

    /// Replaces the value at a multiple of 4; does nothing past the end.
    pub(crate) fn set(&mut self, offset: u32, value: u32) {
        let (page, at) = split(offset);
        match self.pages.get_mut(page) {
            Some(Some(page)) if page[at] != value => page[at] = value,
            Some(empty) if empty.is_none() && value != 0 => {
                empty.insert(Box::new([0; PAGE_DWORDS]))[at] = value;
                self.paged = true;
            }
            _ => return,
        }
        if let Some(changed) = &mut self.changed {
            changed.push(offset);
        }
    }

    /// Gives all that is kept of the values, and notes changes from now on.
    pub(crate) fn keep_all(&mut self, put: &mut impl FnMut(usize, u64)) {
        for (number, page) in self.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let (pairs, _) = page.as_chunks::<2>();
            for (n, [low, high]) in pairs.iter().enumerate() {
                put(place::REGISTERS + number * PAIRS + n, join(*low, *high));
            }
        }
        self.keep_pages(put);
        self.changed = Some(Vec::new());
    }

    /// Which pages there are.
    fn keep_pages(&self, put: &mut impl FnMut(usize, u64)) {
        for (n, pages) in self.pages.chunks(64).enumerate() {
            let bits = pages.iter().zip(0..).filter(|(page, _)| page.is_some());
            let bits = bits.fold(0, |bits, (_, n)| bits | 1_u64 << n);
            put(place::PAGES + n, bits);
        }
    }

    /// Gives what changed of the values since they were last kept: their place
    /// and what is there now.
    pub(crate) fn keep_changed(&mut self, put: &mut impl FnMut(usize, u64)) {
        let Some(mut changed) = self.changed.take() else {
            return;
        };
        // A string instruction may have changed some often.
        if changed.len() > 16 {
            changed.sort_unstable();
            changed.dedup();
        }
        for offset in changed.drain(..) {
            let (page, at) = split(offset);
            let pair = offset & !7;
            let value = join(self.get(pair), self.get(pair + 4));
            put(place::REGISTERS + page * PAIRS + at / 2, value);
        }
        self.changed = Some(changed);
        if std::mem::take(&mut self.paged) {
            self.keep_pages(put);
        }
    }

    /// The values as kept; any are possible. Changes are noted.
    pub(crate) fn kept(config: &Config, get: impl Fn(usize) -> u64) -> Self {
        let page = |number: usize| {
            let there = get(place::PAGES + number / 64) >> (number % 64) & 1 != 0;
            there.then(|| {
                let mut page = Box::new([0; PAGE_DWORDS]);
                let (pairs, _) = page.as_chunks_mut::<2>();
                for (n, pair) in pairs.iter_mut().enumerate() {
                    *pair = take_apart(get(place::REGISTERS + number * PAIRS + n)).into();
                }
                page
            })
        };
        Self {
            pages: (0..PAGES).map(page).collect(),
            index: index(config.gpu),
            changed: Some(Vec::new()),
            paged: false,
        }
    }

    /// How the register at a multiple of 4 behaves.
    pub(crate) fn behaviour(&self, offset: u32) -> Behaviour {
        self.index.behaviours[self.index.code(offset)]
    }

    /// Bytes of values held.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.iter().flatten().count() * 4 * PAGE_DWORDS
    }

    pub(crate) fn save(&self, config: &Config) -> RegistersV1 {
        let Self {
            pages,
            index,
            changed: _,
            paged: _,
        } = self;
        let fresh = Self::new(config);
        let mut values = Vec::new();
        for (number, page) in (0_u32..).zip(pages) {
            let Some(page) = page else { continue };
            for (at, value) in (0_u32..).zip(page.iter()) {
                let offset = number * 4096 + at * 4;
                let row = index.row(offset);
                let by_value = row.is_none_or(|r| r.saved == Saved::Image);
                if by_value && *value != fresh.get(offset) {
                    values.push((offset, *value));
                }
            }
        }
        RegistersV1 { values }
    }

    pub(crate) fn restore(config: &Config, state: &RegistersV1) -> Result<Self, BadRegister> {
        let RegistersV1 { values } = state;
        let mut file = Self::new(config);
        let mut next = 0;
        for &(offset, value) in values {
            let row = file.index.row(offset);
            let by_value = row.is_none_or(|r| r.saved == Saved::Image);
            let aligned = offset.is_multiple_of(4) && offset < REGISTER_BYTES;
            if !aligned || !by_value || offset < next {
                return Err(BadRegister(offset));
            }
            next = offset + 4;
            file.set(offset, value);
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_at_the_reset_values_and_allocates_little() {
        let file = RegisterFile::new(&Config::default());
        assert_eq!(file.get(0x9120), 1 << 25);
        assert_eq!(file.get(0x24d0), 0x2094);
        assert_eq!(file.get(0x1_a4fc), 0x1_a094);
        assert_eq!(file.get(pvinfo::NON_MAPPABLE_BASE), 0x1000_0000);
        assert_eq!(file.get(pvinfo::NON_MAPPABLE_SIZE), 0xf000_0000);
        assert!(file.bytes() <= 64 * 4096, "{}", file.bytes());
        assert_eq!(file.get(REGISTER_BYTES), 0);
        assert!(file.behaviour(0x2098).switched);
        assert!(!file.behaviour(0x1_2098).switched);
    }

    #[test]
    fn what_was_written_is_saved_and_restored() {
        let config = Config::default();
        let mut file = RegisterFile::new(&config);
        file.set(0x10_0008, 5);
        file.set(0x2080, 0x7000);
        file.set(0x4_1000, 0);
        let saved = file.save(&config);
        assert_eq!(
            saved.values,
            [(0x2080, 0x7000), (0x4_1000, 0), (0x10_0008, 5)]
        );
        let again = RegisterFile::restore(&config, &saved).unwrap();
        assert_eq!(again.save(&config), saved);
    }

    #[test]
    fn a_saved_register_that_is_none_is_refused() {
        let config = Config::default();
        for offset in [2, REGISTER_BYTES, 0x9120, 0x4_4304] {
            let state = RegistersV1 {
                values: vec![(offset, 1)],
            };
            let refused = RegisterFile::restore(&config, &state).err();
            assert_eq!(refused, Some(BadRegister(offset)));
        }
        let twice = RegistersV1 {
            values: vec![(8, 1), (8, 2)],
        };
        assert!(RegisterFile::restore(&config, &twice).is_err());
    }
}
