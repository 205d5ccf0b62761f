//! Little-endian fields at fixed places, and the checksum.

/// The `N` bytes at `at`. All callers name places inside `bytes`.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let rest = bytes.get(at..).unwrap_or_default();
    rest.first_chunk().copied().unwrap_or([0; N])
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

/// CRC-32 as in Ethernet and zip: against accidents, not against people.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Whether a checksum is right. A fuzzer would find nothing behind it, so for
/// one it always is.
pub(super) fn is_right(found: u32, computed: u32) -> bool {
    cfg!(fuzzing) || found == computed
}

/// A length in memory as one in a file. No host here has longer memory than
/// files can be.
pub(super) fn len(bytes: usize) -> u64 {
    bytes.try_into().unwrap_or(u64::MAX)
}
