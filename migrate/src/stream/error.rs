//! What can be wrong with a stream.

use std::fmt;

use super::{FORMAT, MAX_LEN, Name};

/// Part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The header.
    Header,
    /// A section's header, at this byte of the stream.
    SectionHeader(u64),
    /// A section's body.
    Body(Name),
    /// The trailer.
    Trailer,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::SectionHeader(at) => write!(f, "the section header at byte {at}"),
            Self::Body(name) => write!(f, "the body of section {name}"),
            Self::Trailer => f.write_str("the trailer"),
        }
    }
}

/// Why a stream is not used.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// There is no trailer at the end: nothing of ours is in the file, or its
    /// end is lost.
    #[error("no vGPU state at the end of the {len} bytes")]
    NoTrailer {
        /// Bytes there are.
        len: u64,
    },
    /// It does not begin as a stream does.
    #[error("no vGPU state begins at byte {at}")]
    NoHeader {
        /// Where it was looked for.
        at: u64,
    },
    /// It ends too early.
    #[error("{part} needs {need} bytes and {left} are left")]
    Short {
        /// What is incomplete.
        part: Part,
        /// Bytes it has.
        need: u64,
        /// Bytes there are.
        left: u64,
    },
    /// Something has changed on the way.
    #[error("{part} is damaged: its checksum is {computed:#010x} and {found:#010x} is written")]
    Checksum {
        /// What it is that changed.
        part: Part,
        /// As it is written.
        found: u32,
        /// As it is.
        computed: u32,
    },
    /// A field that must be zero is not, so something is meant that this
    /// version does not know.
    #[error("{part} has {value:#x} where zero must be")]
    Reserved {
        /// Where the field is.
        part: Part,
        /// What it holds.
        value: u64,
    },
    /// A section's name is no name.
    #[error("the section at byte {at} has a name that is none")]
    BadName {
        /// Where the section is.
        at: u64,
    },
    /// The header is of a later format.
    #[error("format {found} is newer than {FORMAT}, the newest known here")]
    NewerFormat {
        /// Its format.
        found: u16,
    },
    /// Lengths do not agree.
    #[error("{part} says {said} and it is {actual}")]
    Disagree {
        /// Who says it.
        part: Part,
        /// What it says.
        said: u64,
        /// What is so.
        actual: u64,
    },
    /// It is longer than any stream may be.
    #[error("{len} bytes are more than a vGPU's state may have, {MAX_LEN}")]
    TooLong {
        /// Its length.
        len: u64,
    },
    /// The state was saved with other bytes before it: it is left from a
    /// former save.
    #[error(
        "the vGPU state was saved behind {said} bytes of the device model with checksum \
         {said_checksum:#010x}; here are {actual} with {actual_checksum:#010x}: it is left from \
         another save"
    )]
    Stale {
        /// Bytes that were before it.
        said: u64,
        /// Their checksum.
        said_checksum: u32,
        /// Bytes before it now.
        actual: u64,
        /// Their checksum.
        actual_checksum: u32,
    },
    /// A section that cannot be left out is not known here.
    #[error("section {name}, version {version}, is required and not known here")]
    Unknown {
        /// The section.
        name: Name,
        /// Its version.
        version: u16,
    },
    /// A section that cannot be left out is newer than what is known here.
    #[error("section {name} has version {version}; the newest known here is {newest}")]
    Newer {
        /// The section.
        name: Name,
        /// Its version.
        version: u16,
        /// The newest that is known.
        newest: u16,
    },
    /// A section is too old.
    #[error("section {name} has version {version}; the oldest still known here is {oldest}")]
    Older {
        /// The section.
        name: Name,
        /// Its version.
        version: u16,
        /// The oldest that is known.
        oldest: u16,
    },
    /// A section is there twice.
    #[error("section {0} is there twice")]
    Twice(Name),
    /// A section is not there.
    #[error("section {0} is missing")]
    Missing(Name),
    /// It could not be read.
    #[error("cannot read the state")]
    Io(#[from] std::io::Error),
}
