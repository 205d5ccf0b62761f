//! Taking words apart without truncating casts.

/// The low half.
pub(crate) const fn lo(v: u64) -> u32 {
    let b = v.to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// The high half.
pub(crate) const fn hi(v: u64) -> u32 {
    lo(v >> 32)
}

/// Both halves together.
pub(crate) const fn join(lo: u32, hi: u32) -> u64 {
    let (l, h) = (lo.to_le_bytes(), hi.to_le_bytes());
    u64::from_le_bytes([l[0], l[1], l[2], l[3], h[0], h[1], h[2], h[3]])
}

/// An index from 32 bits: this crate is for hosts where it always fits.
pub(crate) const fn index(v: u32) -> usize {
    const { assert!(usize::BITS >= 32) };
    v as usize
}
