//! Sections.

use std::borrow::Cow;
use std::io::{self, Read};

use super::error::{Part, StreamError};
use super::name::Name;
use super::wire::{checksum, field, is_right, len, u16_at, u32_at, u64_at};

/// A section: a name, a version, and bytes that only those who know both can
/// read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// What it is.
    pub name: Name,
    /// How its body is to be read.
    pub version: u16,
    /// Whether who does not know it must refuse the stream.
    pub required: bool,
    /// The body.
    pub body: Cow<'a, [u8]>,
}

/// A section's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct SectionHeader {
    name: Name,
    version: u16,
    required: bool,
    pub(super) len: u64,
    body_checksum: u32,
}

const REQUIRED: u16 = 1;

impl SectionHeader {
    /// Bytes of it.
    pub(super) const LEN: usize = 40;

    /// Reads the one at byte `at` of a stream.
    pub(super) fn parse(bytes: &[u8; Self::LEN], at: u64) -> Result<Self, StreamError> {
        let part = Part::SectionHeader(at);
        let (found, computed) = (u32_at(bytes, 36), checksum(&bytes[..36]));
        if !is_right(found, computed) {
            return Err(StreamError::Checksum {
                part,
                found,
                computed,
            });
        }
        let flags = u16_at(bytes, 18);
        let value = u64::from(flags & !REQUIRED) | u64::from(u32_at(bytes, 32)) << 16;
        if value != 0 {
            return Err(StreamError::Reserved { part, value });
        }
        Ok(Self {
            name: Name::from_bytes(field(bytes, 0)).ok_or(StreamError::BadName { at })?,
            version: u16_at(bytes, 16),
            required: flags & REQUIRED != 0,
            len: u64_at(bytes, 20),
            body_checksum: u32_at(bytes, 28),
        })
    }

    /// The section, with the body that followed.
    pub(super) fn with<'a>(&self, body: Cow<'a, [u8]>) -> Result<Section<'a>, StreamError> {
        let (found, computed) = (self.body_checksum, checksum(&body));
        if !is_right(found, computed) {
            return Err(StreamError::Checksum {
                part: Part::Body(self.name),
                found,
                computed,
            });
        }
        Ok(Section {
            name: self.name,
            version: self.version,
            required: self.required,
            body,
        })
    }

    /// That its body is not all there.
    pub(super) fn short(&self, left: u64) -> StreamError {
        StreamError::Short {
            part: Part::Body(self.name),
            need: self.len,
            left,
        }
    }
}

impl Section<'_> {
    /// A section that must be understood.
    #[must_use]
    pub fn required(name: Name, version: u16, body: &[u8]) -> Section<'_> {
        Section {
            name,
            version,
            required: true,
            body: Cow::Borrowed(body),
        }
    }

    /// A section that may be left out.
    #[must_use]
    pub fn optional(name: Name, version: u16, body: &[u8]) -> Section<'_> {
        Section {
            required: false,
            ..Section::required(name, version, body)
        }
    }

    /// Bytes of it in a stream.
    #[must_use]
    pub fn stream_len(&self) -> u64 {
        len(self.body.len()).saturating_add(len(SectionHeader::LEN))
    }

    /// Appends it to `to`, as in a stream.
    pub fn write(&self, to: &mut Vec<u8>) {
        let mut header = [0; SectionHeader::LEN];
        let flags = if self.required { REQUIRED } else { 0 };
        header[..16].copy_from_slice(&self.name.to_bytes());
        header[16..18].copy_from_slice(&self.version.to_le_bytes());
        header[18..20].copy_from_slice(&flags.to_le_bytes());
        header[20..28].copy_from_slice(&len(self.body.len()).to_le_bytes());
        header[28..32].copy_from_slice(&checksum(&self.body).to_le_bytes());
        let sum = checksum(&header[..36]);
        header[36..].copy_from_slice(&sum.to_le_bytes());
        to.extend_from_slice(&header);
        to.extend_from_slice(&self.body);
    }
}

/// Bytes of a body that are made room for before they have come.
const STEP: u64 = 64 << 10;

/// Reads one section from a connection, of which `at` bytes have been read.
/// A body longer than `most` is refused; a shorter one takes only as much
/// memory as has arrived of it, and a step. `None` at the end.
///
/// # Errors
/// When it is damaged, too long or incomplete, or reading fails.
pub fn read_section(
    from: &mut impl Read,
    at: u64,
    most: u64,
) -> Result<Option<Section<'static>>, StreamError> {
    let mut header = Vec::with_capacity(SectionHeader::LEN);
    let need = len(SectionHeader::LEN);
    read_up_to(from, need, &mut header)?;
    let Some(header) = header.first_chunk() else {
        if header.is_empty() {
            return Ok(None);
        }
        return Err(StreamError::Short {
            part: Part::SectionHeader(at),
            need,
            left: len(header.len()),
        });
    };
    let header = SectionHeader::parse(header, at)?;
    if header.len > most {
        return Err(StreamError::TooLong { len: header.len });
    }
    let mut body = Vec::new();
    let mut left = header.len;
    while left > 0 {
        let step = left.min(STEP);
        let before = body.len();
        read_up_to(from, step, &mut body)?;
        let got = len(body.len() - before);
        if got < step {
            return Err(header.short(len(body.len())));
        }
        left -= got;
    }
    header.with(Cow::Owned(body)).map(Some)
}

fn read_up_to(from: &mut impl Read, most: u64, to: &mut Vec<u8>) -> io::Result<()> {
    from.by_ref().take(most).read_to_end(to).map(drop)
}
