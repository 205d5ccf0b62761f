//! The global page table.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gen8::pte;
use gpu_bus::GGTT_ENTRIES;

use crate::bits::{index, join, lo};

/// Entries made at once: 4 KiB of table, 2 MiB of address space.
const CHUNK: usize = 512;

/// 2^20 entries, made in chunks when a present one is first written.
pub(crate) struct Ggtt {
    chunks: Vec<OnceLock<Box<[AtomicU64; CHUNK]>>>,
}

impl Ggtt {
    pub(crate) fn new() -> Self {
        Self {
            chunks: (0..index(GGTT_ENTRIES) / CHUNK)
                .map(|_| OnceLock::new())
                .collect(),
        }
    }

    /// Entry `i`; zero when it was never written or there is none.
    pub(crate) fn entry(&self, i: u32) -> u64 {
        self.chunks
            .get(index(i) / CHUNK)
            .and_then(OnceLock::get)
            .and_then(|c| c.get(index(i) % CHUNK))
            .map_or(0, |e| e.load(Relaxed))
    }

    pub(crate) fn set_entry(&self, i: u32, value: u64) {
        let Some(slot) = self.chunks.get(index(i) / CHUNK) else {
            return;
        };
        if value == 0 && slot.get().is_none() {
            return;
        }
        let chunk = slot.get_or_init(|| Box::new([const { AtomicU64::new(0) }; CHUNK]));
        if let Some(e) = chunk.get(index(i) % CHUNK) {
            e.store(value, Relaxed);
        }
    }

    /// One half of entry `i`: a 32-bit driver writes it in two.
    pub(crate) fn set_half(&self, i: u32, high: bool, value: u32) {
        let old = self.entry(i);
        let new = if high {
            join(lo(old), value)
        } else {
            join(value, crate::bits::hi(old))
        };
        self.set_entry(i, new);
    }

    /// The bus address behind a graphics address, if its page is mapped.
    pub(crate) fn translate(&self, address: u32) -> Option<u64> {
        let e = self.entry(address >> 12);
        (e & pte::PRESENT != 0).then(|| (e & pte::ADDRESS) | u64::from(address & 0xfff))
    }

    #[cfg(test)]
    fn chunks_made(&self) -> usize {
        self.chunks.iter().filter(|c| c.get().is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_maps_its_page() {
        let g = Ggtt::new();
        assert_eq!(g.translate(0x1234), None);
        g.set_entry(1, 0x7f_ffff_f000 | 1);
        assert_eq!(g.translate(0x1234), Some(0x7f_ffff_f234));
        g.set_entry(1, 0x7f_ffff_f000);
        assert_eq!(g.translate(0x1234), None);
        g.set_entry(GGTT_ENTRIES - 1, 0x5001);
        assert_eq!(g.translate(0xffff_f008), Some(0x5008));
        g.set_entry(GGTT_ENTRIES, 0x5001);
        assert_eq!(g.entry(GGTT_ENTRIES), 0);
    }

    #[test]
    fn halves_make_a_whole() {
        let g = Ggtt::new();
        g.set_half(7, false, 0x2001);
        g.set_half(7, true, 0x10);
        assert_eq!(g.entry(7), 0x10_0000_2001);
    }

    #[test]
    fn clearing_what_is_clear_costs_nothing() {
        let g = Ggtt::new();
        for i in 0..GGTT_ENTRIES {
            g.set_entry(i, 0);
        }
        assert_eq!(g.chunks_made(), 0);
    }
}
