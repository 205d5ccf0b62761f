//! The register file: values by offset, allocated a page at a time, and how
//! each offset behaves.

use std::sync::OnceLock;

use gen8::Platform;
use gen8::platform::PLATFORMS;
use gen8::vreg::{Access, REGISTER_BYTES, Register, Saved, pvinfo};
use serde::{Deserialize, Serialize};

use crate::config::Config;

const PAGE_DWORDS: usize = 1024;
const PAGES: usize = REGISTER_BYTES as usize / 4096;

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
}

impl RegisterFile {
    /// Every register at its reset value.
    pub(crate) fn new(config: &Config) -> Self {
        let mut file = Self {
            pages: vec![None; PAGES],
            index: index(config.gpu),
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
            Some(Some(page)) => page[at] = value,
            Some(empty) if value != 0 => {
                empty.insert(Box::new([0; PAGE_DWORDS]))[at] = value;
            }
            _ => {}
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
        let Self { pages, index } = self;
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
