//! The guest's global page table, packed.
//!
//! Most of it is one scratch page's entry, and buffers are often in one piece.
//! So it is runs: a dword, of which bits 31:30 tell the kind and the others the
//! number of entries, and then the entries, or the first of them.

/// Entries of a table: 4 GiB of 4 KiB pages.
const ENTRIES: u32 = 1 << 20;

const COUNT: u32 = (1 << 30) - 1;
/// Each entry follows.
const LITERAL: u32 = 0;
/// All are the one that follows.
const SAME: u32 = 1;
/// Each is a page behind the one before.
const RISING: u32 = 2;
/// Bytes of a page, which is also what entries of neighbours differ by.
const PAGE: u64 = 4096;
/// Runs that are not literal pay from so many entries on.
const PAYS: usize = 3;

/// A saved page table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedTable(Vec<u8>);

/// A packed table that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTable {
    /// A run's kind.
    #[error("run at byte {at} is of kind {kind}, allowed: 0 to 2")]
    Kind {
        /// Where.
        at: usize,
        /// Which.
        kind: u32,
    },
    /// A run is empty, or there are more entries than a table has.
    #[error(
        "run at byte {at} has {entries} entries behind {before}, allowed: 1 up to 0x100000 in all"
    )]
    Count {
        /// Where.
        at: usize,
        /// How many.
        entries: u32,
        /// Entries before it.
        before: u32,
    },
    /// It ends early.
    #[error("it ends at byte {at} after {entries:#x} entries, allowed: 0x100000")]
    Short {
        /// Its length.
        at: usize,
        /// What there was.
        entries: u32,
    },
}

/// How many of `entries` are the first, or follow it `step` apart.
fn run(entries: &[u64], step: u64) -> usize {
    let follows = entries
        .windows(2)
        .take_while(|w| w[0].wrapping_add(step) == w[1]);
    follows.count() + 1
}

impl PackedTable {
    /// The table whose entries `load` gives.
    #[must_use]
    pub fn pack(load: impl Fn(u32) -> u64) -> Self {
        let entries: Vec<u64> = (0..ENTRIES).map(load).collect();
        let mut bytes = Vec::new();
        let mut literal = Vec::new();
        let mut rest = entries.as_slice();
        while let Some(&first) = rest.first() {
            let same = run(rest, 0);
            let rising = run(rest, PAGE);
            let (kind, count) = if same >= rising {
                (SAME, same)
            } else {
                (RISING, rising)
            };
            if count < PAYS {
                literal.push(first);
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            put(&mut bytes, LITERAL, literal.len(), &literal);
            literal.clear();
            put(&mut bytes, kind, count, &[first]);
            rest = rest.get(count..).unwrap_or_default();
        }
        put(&mut bytes, LITERAL, literal.len(), &literal);
        Self(bytes)
    }

    /// A packed table as it was saved.
    ///
    /// # Errors
    /// [`BadTable`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadTable> {
        walk(bytes, |_, _| {})?;
        Ok(Self(bytes.to_vec()))
    }

    /// The packed bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Gives every entry with its index to `store`.
    pub fn unpack(&self, store: impl FnMut(u32, u64)) {
        // It was walked when it was made.
        if let Err(e) = walk(&self.0, store) {
            log::error!("{e}");
        }
    }
}

fn put(bytes: &mut Vec<u8>, kind: u32, count: usize, entries: &[u64]) {
    if count == 0 {
        return;
    }
    // At most a table's.
    let count = u32::try_from(count).unwrap_or(COUNT);
    bytes.extend_from_slice(&(kind << 30 | count).to_le_bytes());
    for entry in entries {
        bytes.extend_from_slice(&entry.to_le_bytes());
    }
}

fn walk(bytes: &[u8], mut store: impl FnMut(u32, u64)) -> Result<(), BadTable> {
    let mut rest = bytes;
    let mut done = 0;
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let short = BadTable::Short {
            at: bytes.len(),
            entries: done,
        };
        let (head, behind) = rest.split_first_chunk::<4>().ok_or(short)?;
        rest = behind;
        let head = u32::from_le_bytes(*head);
        let (kind, count) = (head >> 30, head & COUNT);
        if kind > RISING {
            return Err(BadTable::Kind { at, kind });
        }
        if count == 0 || count > ENTRIES - done {
            return Err(BadTable::Count {
                at,
                entries: count,
                before: done,
            });
        }
        let mut entry = 0;
        for i in 0..count {
            if kind == LITERAL || i == 0 {
                let (value, behind) = rest.split_first_chunk::<8>().ok_or(short)?;
                rest = behind;
                entry = u64::from_le_bytes(*value);
            } else if kind == RISING {
                entry = entry.wrapping_add(PAGE);
            }
            store(done + i, entry);
        }
        done += count;
    }
    if done < ENTRIES {
        return Err(BadTable::Short {
            at: bytes.len(),
            entries: done,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unpacked(table: &PackedTable) -> Vec<u64> {
        let mut entries = Vec::new();
        table.unpack(|index, entry| {
            assert_eq!(usize::try_from(index).unwrap(), entries.len());
            entries.push(entry);
        });
        entries
    }

    #[test]
    fn a_drivers_table_takes_a_few_bytes() {
        let scratch = 0x7000_0083;
        let table = PackedTable::pack(|i| match i {
            0x100..0x200 => u64::from(i) << 12 | 1,
            0x300 => 5,
            _ => scratch,
        });
        assert!(table.bytes().len() < 80, "{}", table.bytes().len());
        let entries = unpacked(&table);
        assert_eq!(entries.len(), 1 << 20);
        assert_eq!((entries[0x1ff], entries[0x300]), (0x1f_f001, 5));
        assert_eq!((entries[0], entries[0xf_ffff]), (scratch, scratch));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let table = PackedTable::pack(|_| 1);
        let bytes = table.bytes();
        assert_eq!(bytes.len(), 12);
        for end in 0..bytes.len() {
            let error = PackedTable::from_bytes(&bytes[..end]).unwrap_err();
            assert!(matches!(error, BadTable::Short { .. }), "{error}");
        }
        let mut kind = bytes.to_vec();
        kind[3] |= 0xc0;
        let error = PackedTable::from_bytes(&kind).unwrap_err();
        assert_eq!(error, BadTable::Kind { at: 0, kind: 3 });
        let twice = [bytes, bytes].concat();
        let error = PackedTable::from_bytes(&twice).unwrap_err();
        assert!(matches!(error, BadTable::Count { at: 12, .. }), "{error}");
        let none = [&[0; 4], bytes].concat();
        let error = PackedTable::from_bytes(&none).unwrap_err();
        assert!(matches!(error, BadTable::Count { at: 0, .. }), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn any_table_comes_back(
            runs in prop::collection::vec((0..3_u32, 1..5000_u32, any::<u64>()), 1..40),
        ) {
            let mut entries = Vec::new();
            for (kind, count, first) in runs {
                for i in 0..u64::from(count) {
                    entries.push(match kind {
                        0 => first,
                        1 => first.wrapping_add(i << 12),
                        _ => first.wrapping_mul(i | 1).rotate_left(7),
                    });
                }
            }
            entries.resize(1 << 20, 0x1234);
            let at = |i: u32| entries[usize::try_from(i).unwrap()];
            let table = PackedTable::pack(at);
            prop_assert_eq!(unpacked(&table), entries);
            prop_assert_eq!(PackedTable::from_bytes(table.bytes()), Ok(table));
        }
    }
}
