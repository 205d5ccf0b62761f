//! The sums: with AVX2 where there is, which every host with a Gen8 GPU has,
//! and without.

use fearless_simd::Level;

use super::{KeyLines, LANES, LINE, SUMS};
use crate::page::Page;

/// The sums of one page.
pub(super) fn of_one(level: Level, key: &KeyLines, page: &Page) -> [u64; SUMS] {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = level.as_avx2() {
        let [sums] = x86::of_one(avx2, key, &[page]);
        return sums;
    }
    plain(key, page)
}

/// The sums of several pages, all under way at once.
pub(super) fn of_lanes(
    level: Level,
    key: &KeyLines,
    pages: &[&Page; LANES],
) -> [[u64; SUMS]; LANES] {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = level.as_avx2() {
        return x86::of_lanes(avx2, key, pages);
    }
    pages.map(|page| plain(key, page))
}

/// The sums of one page, by any processor.
pub(super) fn plain(key: &KeyLines, page: &Page) -> [u64; SUMS] {
    let mut sums = [0_u64; SUMS];
    let lines = page.as_chunks::<LINE>().0.iter().zip(key.windows(SUMS));
    for (line, keys) in lines {
        for (sum, key) in sums.iter_mut().zip(keys) {
            let pairs = line.as_chunks::<8>().0.iter().zip(key.as_chunks().0);
            for (pair, [low, high]) in pairs {
                let [a, b, c, d, e, f, g, h] = *pair;
                let low = u32::from_le_bytes([a, b, c, d]).wrapping_add(*low);
                let high = u32::from_le_bytes([e, f, g, h]).wrapping_add(*high);
                *sum = sum.wrapping_add(u64::from(low) * u64::from(high));
            }
        }
    }
    sums
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_add_epi64, _mm256_mul_epu32, _mm256_setzero_si256,
        _mm256_srli_epi64,
    };

    use fearless_simd::prelude::*;
    use fearless_simd::x86::Avx2;
    use fearless_simd::{u8x32, u32x8, u64x4};

    use super::super::{KeyLines, LANES, LINE, SUMS};
    use crate::page::Page;

    /// A line of each page in turn.
    macro_rules! sums {
        ($name:ident, $lanes:expr) => {
            fearless_simd::kernel!(
                pub(super) fn $name(
                    avx2: Avx2,
                    key: &KeyLines,
                    pages: &[&Page; $lanes],
                ) -> [[u64; SUMS]; $lanes] {
                    let mut sums = [[_mm256_setzero_si256(); SUMS]; $lanes];
                    for line in 0..4096 / LINE {
                        for (sums, page) in sums.iter_mut().zip(pages) {
                            for half in 0..2 {
                                let words = page.as_chunks::<32>().0[line * 2 + half];
                                let words: u8x32<Avx2> = words.simd_into(avx2);
                                let words: __m256i = words.into();
                                for (further, sum) in sums.iter_mut().enumerate() {
                                    let key = key[line + further].as_chunks::<8>().0[half];
                                    let key: u32x8<Avx2> = key.simd_into(avx2);
                                    let both = _mm256_add_epi32(words, key.into());
                                    let high = _mm256_srli_epi64::<32>(both);
                                    let product = _mm256_mul_epu32(both, high);
                                    *sum = _mm256_add_epi64(*sum, product);
                                }
                            }
                        }
                    }
                    sums.map(|sums| {
                        sums.map(|sum| {
                            let sum: u64x4<Avx2> = sum.simd_into(avx2);
                            let parts: [u64; 4] = sum.into();
                            parts.into_iter().fold(0, u64::wrapping_add)
                        })
                    })
                }
            );
        };
    }

    sums!(of_one, 1);
    sums!(of_lanes, LANES);
}
