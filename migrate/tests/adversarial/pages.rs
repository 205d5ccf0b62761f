//! Pages, and things to do to them.

use vgpu_migrate::Page;

/// A page of `unit` over and over.
pub fn filled(unit: &[u8]) -> Page {
    std::array::from_fn(|i| unit[i % unit.len()])
}

/// Bytes without a pattern, the same each time.
pub fn noise(seed: u64) -> Page {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut page = [0; 4096];
    for word in page.as_chunks_mut().0 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *word = x.to_le_bytes();
    }
    page
}

/// Words that count up, as in page tables.
pub fn ramp() -> Page {
    let mut page = [0; 4096];
    for (i, word) in (0_u64..).zip(page.as_chunks_mut().0) {
        *word = (i << 12 | 3).to_le_bytes();
    }
    page
}

/// Bytes of few values.
pub fn text() -> Page {
    filled(b"the quick brown fox jumps over the lazy dog; ")
}

pub fn rotated(page: &Page, by: usize) -> Page {
    let mut page = *page;
    page.rotate_left(by);
    page
}

/// The same delta, by exclusive or, in units `a` and `b`.
pub fn paired_delta(page: &Page, unit: usize, a: usize, b: usize, delta: u8) -> Page {
    let mut page = *page;
    page[a * unit] ^= delta;
    page[b * unit] ^= delta;
    page
}

/// A delta added to unit `a` and taken from unit `b`.
pub fn paired_sum(page: &Page, unit: usize, a: usize, b: usize, delta: u8) -> Page {
    let mut page = *page;
    page[a * unit] = page[a * unit].wrapping_add(delta);
    page[b * unit] = page[b * unit].wrapping_sub(delta);
    page
}

pub fn swapped(page: &Page, unit: usize, a: usize, b: usize) -> Page {
    let mut units: Vec<_> = page.chunks(unit).collect();
    units.swap(a, b);
    units.concat().try_into().unwrap()
}

pub fn reversed(page: &Page, unit: usize) -> Page {
    let units: Vec<_> = page.chunks(unit).rev().collect();
    units.concat().try_into().unwrap()
}

pub fn flipped(page: &Page, bit: usize) -> Page {
    let mut page = *page;
    page[bit / 8] ^= 1 << (bit % 8);
    page
}

pub fn with(page: &Page, at: usize, bytes: &[u8]) -> Page {
    let mut page = *page;
    page[at..at + bytes.len()].copy_from_slice(bytes);
    page
}

/// Pairs in which `word` stands somewhere and a neighbour of it differs.
pub fn around(word: u64) -> Vec<(Page, Page)> {
    let mut pairs = Vec::new();
    for base in [[0; 4096], noise(word)] {
        for at in [8, 16, 32, 64, 1024, 4080] {
            for near in [at - 8, at + 8] {
                let old = with(&base, at, &word.to_le_bytes());
                pairs.push((old, with(&old, near, &0x1234_u64.to_le_bytes())));
            }
        }
        // Both words of a pair, negated too: whatever is added to make zero.
        for word in [word, word.wrapping_neg(), !word] {
            let old = with(&base, 512, &word.to_le_bytes());
            pairs.push((old, with(&old, 520, &word.to_le_bytes())));
        }
    }
    pairs
}
