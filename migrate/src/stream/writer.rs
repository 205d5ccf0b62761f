//! Writing a stream.

use super::MAX_LEN;
use super::error::StreamError;
use super::header::{Before, FORMAT, Header};
use super::section::Section;
use super::trailer::Trailer;
use super::wire::{checksum, len, u32_at};

/// Puts a stream together.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    body: Vec<u8>,
    sections: u32,
}

impl Writer {
    /// A stream without sections.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a section.
    #[must_use]
    pub fn section(mut self, section: &Section<'_>) -> Self {
        section.write(&mut self.body);
        self.sections = self.sections.saturating_add(1);
        self
    }

    /// The stream, to be put behind `before`.
    ///
    /// # Errors
    /// When it is too long to be read again.
    pub fn finish(self, before: Before) -> Result<Vec<u8>, StreamError> {
        let ends = len(Header::LEN + Trailer::LEN);
        let whole = len(self.body.len()).saturating_add(ends);
        if whole > MAX_LEN {
            return Err(StreamError::TooLong { len: whole });
        }
        let header = Header {
            format: FORMAT,
            sections: self.sections,
            len: whole,
            before,
            body_checksum: checksum(&self.body),
        };
        let header = header.to_bytes();
        let trailer = Trailer {
            len: whole,
            header_checksum: u32_at(&header, Header::LEN - 4),
        };
        let mut stream = self.body;
        stream.splice(0..0, header);
        stream.extend_from_slice(&trailer.to_bytes());
        Ok(stream)
    }
}

#[cfg(test)]
impl Writer {
    /// With a body that no writer would make.
    pub(super) fn with_body(mut self, body: Vec<u8>, sections: u32) -> Self {
        self.body = body;
        self.sections = sections;
        self
    }
}
