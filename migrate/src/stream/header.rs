//! The header: all that can be known without looking further. Its layout is
//! the same in all formats, those to come included.

use std::io::{self, Read};

use super::error::{Part, StreamError};
use super::wire::{checksum, field, is_right, u16_at, u32_at, u64_at};

/// The newest format.
pub const FORMAT: u16 = 1;

/// The first bytes. The last of them is no letter, so it is no text file.
const MAGIC: [u8; 8] = *b"XENVGPU\x1a";

/// The header of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The format of all that follows.
    pub format: u16,
    /// Sections there are.
    pub sections: u32,
    /// Bytes from the header's first to the trailer's last.
    pub len: u64,
    /// What was before the stream in its file.
    pub before: Before,
    /// Checksum of all between header and trailer.
    pub(super) body_checksum: u32,
}

/// Bytes of somebody else before a stream in its file. They tell the stream
/// that belongs to them from one of a former save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// How many.
    pub len: u64,
    /// Their CRC-32.
    pub checksum: u32,
}

impl Before {
    /// Of all that `from` gives, read in small pieces.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(mut from: impl Read) -> io::Result<Self> {
        let mut hasher = crc32fast::Hasher::new();
        let mut len = 0_u64;
        let mut buf = [0; 4096];
        loop {
            match from.read(&mut buf) {
                Ok(0) => break,
                Ok(n) => {
                    let got = buf.get(..n).unwrap_or_default();
                    hasher.update(got);
                    len = len.saturating_add(super::wire::len(got.len()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            len,
            checksum: hasher.finalize(),
        })
    }

    /// Of these.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            len: super::wire::len(bytes.len()),
            checksum: checksum(bytes),
        }
    }
}

impl Header {
    /// Bytes of it.
    pub const LEN: usize = 48;

    /// Reads it. What follows need not be there.
    ///
    /// # Errors
    /// When it is none, damaged, or of a format not known here.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, StreamError> {
        if field(bytes, 0) != MAGIC {
            return Err(StreamError::NoHeader { at: 0 });
        }
        let (found, computed) = (u32_at(bytes, 44), checksum(&bytes[..44]));
        let part = Part::Header;
        if !is_right(found, computed) {
            return Err(StreamError::Checksum {
                part,
                found,
                computed,
            });
        }
        let format = u16_at(bytes, 8);
        if format > FORMAT {
            return Err(StreamError::NewerFormat { found: format });
        }
        let reserved = u64::from(u16_at(bytes, 10)) | u64::from(u32_at(bytes, 40)) << 16;
        if reserved != 0 {
            let value = reserved;
            return Err(StreamError::Reserved { part, value });
        }
        Ok(Self {
            format,
            sections: u32_at(bytes, 12),
            len: u64_at(bytes, 16),
            before: Before {
                len: u64_at(bytes, 24),
                checksum: u32_at(bytes, 32),
            },
            body_checksum: u32_at(bytes, 36),
        })
    }

    /// As in a stream.
    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.format.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sections.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.before.len.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.before.checksum.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.body_checksum.to_le_bytes());
        let checksum = checksum(&bytes[..44]);
        bytes[44..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}
