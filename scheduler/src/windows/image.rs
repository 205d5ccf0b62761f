//! What the physical global page table holds, as far as we know.

use gpu_bus::{GGTT_ENTRIES, ggtt_entry};

use crate::registers::Registers;

/// Entries of a part of the image; parts appear when first written.
const PART: usize = 512;

/// No valid entry has these bits: a place we have not written yet.
const UNKNOWN: u64 = u64::MAX;

/// The image of the table.
pub struct PteImage {
    parts: Vec<Option<Box<[u64; PART]>>>,
    /// Entries written to the GPU so far.
    pub written: u64,
    /// Of these, entries that name scratch in place of what went.
    pub cleared: u64,
}

impl PteImage {
    /// Nothing is known.
    #[must_use]
    pub fn new() -> Self {
        let parts = usize::try_from(GGTT_ENTRIES).unwrap_or(0) / PART;
        Self {
            parts: (0..parts).map(|_| None).collect(),
            written: 0,
            cleared: 0,
        }
    }

    /// Makes entry `index` hold `pte`; writes only what differs. Returns
    /// whether it wrote.
    pub fn store(&mut self, gpu: &Registers, index: u32, pte: u64) -> bool {
        let Ok(at) = usize::try_from(index) else {
            return false;
        };
        let Some(part) = self.parts.get_mut(at / PART) else {
            return false;
        };
        let part = part.get_or_insert_with(|| Box::new([UNKNOWN; PART]));
        if part[at % PART] == pte {
            return false;
        }
        part[at % PART] = pte;
        gpu.write64(ggtt_entry(index), pte);
        self.written += 1;
        true
    }
}
