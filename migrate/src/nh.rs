//! The digest of a page: NH, a universal hash with a proof.
//!
//! The guest chooses both pages that are compared, so the digest must hold
//! against whoever knows the function and not the key. NH (Black, Halevi,
//! Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999) adds a key word to each
//! word of the message and multiplies in pairs, here of 32-bit words:
//!
//! ```text
//! NH(m) = Σ (m[2i] + k[2i] mod 2^32) · (m[2i+1] + k[2i+1] mod 2^32)  mod 2^64
//! ```
//!
//! For any two different messages of one length, at most one key in 2^32 gives
//! both the same sum. Here it is done four times, each with the key moved on
//! by a line, so that four sums are the same for one key in 2^128. (Take the
//! last pair of words that differs. The key words it meets in one of the sums
//! meet in the earlier ones only pairs behind it, which are the same in both
//! messages and cancel. So each sum adds its own factor of 2^-32.)
//!
//! That bound needs nothing but a uniform key which the guest does not know
//! and digests which it never sees, and both stay inside one process for one
//! migration. It also needs equal lengths; all pages have one.
//!
//! A page meets only its own former digest, never another page's. So with n
//! comparisons a change is missed with a chance of at most n / 2^128.
//!
//! The alternatives, measured beside this on one core with AVX-512, in memory
//! that no cache holds, in microseconds a page: this 0.37, XXH3-128 0.49,
//! HighwayHash-128 0.69, POLYVAL 0.73, SipHash-1-3-128 1.3, BLAKE3 keyed 1.9,
//! AES-GMAC 2.0, Poly1305 2.8. XXH3 with a secret promises nothing against
//! those who choose the input: a word that meets its key word makes a product
//! of zero, whatever its partner is. HighwayHash has no proof. CRCs and XOR
//! folds are linear: whoever knows them can cancel a change, and a surface
//! cleared to another colour cancels itself.

mod kernel;

use std::fmt;
use std::io;

use fearless_simd::Level;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::page::Page;

/// Sums of one digest.
const SUMS: usize = 4;

/// Bytes of the message that one step takes: a cache line.
const LINE: usize = 64;

/// Lines of key: as a page has, and one more for each further sum.
const KEY_LINES: usize = 4096 / LINE + SUMS - 1;

/// A key, as words of each line.
type KeyLines = [[u32; LINE / 4]; KEY_LINES];

/// Pages hashed at a time. A core that has several pages under way waits less
/// for memory: its prefetcher stops at the end of each.
pub(crate) const LANES: usize = 8;

/// The key of one migration. Two migrations never share one.
pub struct Key {
    lines: Box<KeyLines>,
    level: Level,
}

/// What a page was, under one [`Key`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u64; SUMS]);

impl Key {
    /// Bytes of a key.
    pub const LEN: usize = KEY_LINES * LINE;

    /// A key nobody knows.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn fresh() -> io::Result<Self> {
        let mut bytes = [0; Self::LEN];
        let mut rest = &mut bytes[..];
        while !rest.is_empty() {
            let got = getrandom(&mut *rest, GetRandomFlags::empty())?;
            rest = rest.get_mut(got..).unwrap_or_default();
        }
        Ok(Self::from_bytes(&bytes))
    }

    /// This key, for tests that must come out the same each time.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut lines = Box::new([[0; LINE / 4]; KEY_LINES]);
        for (word, bytes) in lines.as_flattened_mut().iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Self {
            lines,
            level: Level::new(),
        }
    }

    /// The digest of `page`.
    #[must_use]
    pub fn digest(&self, page: &Page) -> Digest {
        Digest(kernel::of_one(self.level, &self.lines, page))
    }

    /// The digests of pages, all under way at once.
    pub(crate) fn digests(&self, pages: [&Page; LANES]) -> [Digest; LANES] {
        kernel::of_lanes(self.level, &self.lines, &pages).map(Digest)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

impl fmt::Debug for Digest {
    // With digests of pages of one's choice one can solve for the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(secret)")
    }
}

#[cfg(test)]
mod tests;
