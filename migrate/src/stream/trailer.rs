//! The trailer: where the stream began, said at its end.

use super::error::{Part, StreamError};
use super::wire::{checksum, field, is_right, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"XVGPUEND";

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    /// Bytes from the header's first to the trailer's last.
    pub(super) len: u64,
    /// The last field of the header that belongs to it.
    pub(super) header_checksum: u32,
}

impl Trailer {
    /// Bytes of it.
    pub(super) const LEN: usize = 24;

    /// `None` when it is none; an error when it is a damaged one.
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Result<Option<Self>, StreamError> {
        if field(bytes, 0) != MAGIC {
            return Ok(None);
        }
        let (found, computed) = (u32_at(bytes, 20), checksum(&bytes[..20]));
        if !is_right(found, computed) {
            let part = Part::Trailer;
            return Err(StreamError::Checksum {
                part,
                found,
                computed,
            });
        }
        Ok(Some(Self {
            len: u64_at(bytes, 8),
            header_checksum: u32_at(bytes, 16),
        }))
    }

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.header_checksum.to_le_bytes());
        let checksum = checksum(&bytes[..20]);
        bytes[20..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}
