//! Reading a stream.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::MAX_LEN;
use super::error::{Part, StreamError};
use super::header::Header;
use super::name::Name;
use super::section::{Section, SectionHeader};
use super::trailer::Trailer;
use super::wire::{checksum, is_right, len, u32_at};

/// A section that the reader can read, in some versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Which.
    pub name: Name,
    /// The oldest version it can read.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

/// A stream all of whose parts are whole, and whose sections are known or may
/// be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream<'a> {
    header: Header,
    sections: BTreeMap<Name, Section<'a>>,
    skipped: Vec<(Name, u16)>,
}

impl<'a> Stream<'a> {
    /// Reads the stream that `bytes` are. Bodies are not copied.
    ///
    /// # Errors
    /// When anything is damaged, missing, too much or not known.
    pub fn parse(bytes: &'a [u8], known: &[Known]) -> Result<Self, StreamError> {
        let (header, body) = frame(bytes)?;
        let mut stream = Self {
            header,
            sections: BTreeMap::new(),
            skipped: Vec::new(),
        };
        let mut count = 0_u32;
        let mut rest = body;
        while !rest.is_empty() {
            let at = len(Header::LEN + (body.len() - rest.len()));
            let section = take(&mut rest, at)?;
            count = count.saturating_add(1);
            if count > header.sections {
                break;
            }
            stream.take(section, known)?;
        }
        if count != header.sections {
            return Err(StreamError::Disagree {
                part: Part::Header,
                said: header.sections.into(),
                actual: count.into(),
            });
        }
        let (found, computed) = (header.body_checksum, checksum(body));
        if !is_right(found, computed) {
            let part = Part::Header;
            return Err(StreamError::Checksum {
                part,
                found,
                computed,
            });
        }
        Ok(stream)
    }

    fn take(&mut self, section: Section<'a>, known: &[Known]) -> Result<(), StreamError> {
        let (name, version) = (section.name, section.version);
        let known = known.iter().find(|known| known.name == name);
        let refusal = match known {
            None => Some(StreamError::Unknown { name, version }),
            Some(&Known { newest, .. }) if version > newest => Some(StreamError::Newer {
                name,
                version,
                newest,
            }),
            Some(&Known { oldest, .. }) if version < oldest => Some(StreamError::Older {
                name,
                version,
                oldest,
            }),
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            if section.required {
                return Err(refusal);
            }
            self.skipped.push((name, version));
            return Ok(());
        }
        match self.sections.entry(name) {
            Entry::Occupied(_) => Err(StreamError::Twice(name)),
            Entry::Vacant(place) => {
                place.insert(section);
                Ok(())
            }
        }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A section that may be missing.
    #[must_use]
    pub fn get(&self, name: Name) -> Option<&Section<'a>> {
        self.sections.get(&name)
    }

    /// A section that may not.
    ///
    /// # Errors
    /// When it is missing.
    pub fn require(&self, name: Name) -> Result<&Section<'a>, StreamError> {
        self.get(name).ok_or(StreamError::Missing(name))
    }

    /// Sections that were not known and could be left out, with their
    /// versions.
    #[must_use]
    pub fn skipped(&self) -> &[(Name, u16)] {
        &self.skipped
    }
}

/// Checks the ends of a stream; gives the header and all between.
fn frame(bytes: &[u8]) -> Result<(Header, &[u8]), StreamError> {
    let whole = len(bytes.len());
    let short = |part, need: usize| StreamError::Short {
        part,
        need: len(need),
        left: whole,
    };
    let (first, rest) =
        (bytes.split_first_chunk::<{ Header::LEN }>()).ok_or(short(Part::Header, Header::LEN))?;
    let header = Header::parse(first)?;
    if header.len > MAX_LEN {
        return Err(StreamError::TooLong { len: header.len });
    }
    if header.len != whole {
        return Err(StreamError::Disagree {
            part: Part::Header,
            said: header.len,
            actual: whole,
        });
    }
    let (body, last) = (rest.split_last_chunk::<{ Trailer::LEN }>())
        .ok_or(short(Part::Trailer, Header::LEN + Trailer::LEN))?;
    let trailer = Trailer::parse(last)?.ok_or(StreamError::NoTrailer { len: whole })?;
    if trailer.len != whole {
        return Err(StreamError::Disagree {
            part: Part::Trailer,
            said: trailer.len,
            actual: whole,
        });
    }
    let (found, computed) = (trailer.header_checksum, u32_at(first, Header::LEN - 4));
    if !is_right(found, computed) {
        let part = Part::Trailer;
        return Err(StreamError::Checksum {
            part,
            found,
            computed,
        });
    }
    Ok((header, body))
}

/// Takes a section from the front, which is byte `at` of the stream.
fn take<'a>(rest: &mut &'a [u8], at: u64) -> Result<Section<'a>, StreamError> {
    let left = len(rest.len());
    let (header, body) = (rest.split_first_chunk()).ok_or(StreamError::Short {
        part: Part::SectionHeader(at),
        need: len(SectionHeader::LEN),
        left,
    })?;
    let header = SectionHeader::parse(header, at)?;
    let end = usize::try_from(header.len).ok();
    let (body, behind) = (end.and_then(|end| body.split_at_checked(end)))
        .ok_or_else(|| header.short(len(body.len())))?;
    *rest = behind;
    header.with(Cow::Borrowed(body))
}
