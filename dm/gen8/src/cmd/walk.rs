//! Command by command through a buffer.

use super::{Command, Dwords, Flow, Table};
use crate::Engine;

/// A command in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Dwords from the buffer's start to it.
    pub offset: usize,
    /// Its row.
    pub command: &'static Command,
    /// All of its dwords.
    pub words: &'a [u32],
}

impl Item<'_> {
    /// Whether the batch ends with it.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.command.flow == Flow::EndsBatch
    }
}

/// Why a buffer could not be decoded further.
#[derive(Clone, Copy, Debug)]
pub enum WalkError {
    /// The command streamer has no such command.
    Unknown {
        /// Dwords from the buffer's start.
        offset: usize,
        /// The dword.
        header: u32,
    },
    /// The command goes past the buffer's end.
    PastEnd {
        /// Dwords from the buffer's start.
        offset: usize,
        /// Its row.
        command: &'static Command,
        /// Its length in dwords.
        need: u32,
        /// Dwords up to the end.
        left: usize,
    },
    /// The command cannot be that long.
    Length {
        /// Dwords from the buffer's start.
        offset: usize,
        /// Its row.
        command: &'static Command,
        /// The length it says it has, in dwords.
        found: u32,
        /// What its row allows.
        allowed: Dwords,
    },
}

impl WalkError {
    /// Dwords from the buffer's start to what could not be decoded.
    #[must_use]
    pub const fn offset(&self) -> usize {
        match self {
            Self::Unknown { offset, .. }
            | Self::PastEnd { offset, .. }
            | Self::Length { offset, .. } => *offset,
        }
    }
}

impl core::fmt::Display for WalkError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unknown { offset, header } => {
                write!(
                    f,
                    "dword {offset}: {header:#010x} is no command of this engine"
                )
            }
            Self::PastEnd {
                offset,
                command,
                need,
                left,
            } => {
                let name = command.name;
                write!(
                    f,
                    "dword {offset}: {name} has {need} dwords, but {left} are left"
                )
            }
            Self::Length {
                offset,
                command,
                found,
                allowed,
            } => {
                let name = command.name;
                write!(
                    f,
                    "dword {offset}: {name} has {found} dwords, allowed: {allowed}"
                )
            }
        }
    }
}

impl core::error::Error for WalkError {}

impl core::fmt::Display for Dwords {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Exactly(n) => write!(f, "{n}"),
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::AtLeast(n) => write!(f, "{n} or more"),
            Self::Inferred(least, most) if least == most => write!(f, "probably {least}"),
            Self::Inferred(least, most) => write!(f, "probably {least} to {most}"),
            Self::Unsure => f.write_str("any"),
        }
    }
}

/// The commands of a buffer, up to its end or the first error.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    table: &'static Table,
    engine: Engine,
    words: &'a [u32],
    offset: usize,
    failed: bool,
}

impl<'a> Walk<'a> {
    pub(super) const fn new(table: &'static Table, engine: Engine, words: &'a [u32]) -> Self {
        Self {
            table,
            engine,
            words,
            offset: 0,
            failed: false,
        }
    }

    /// Dwords from the buffer's start to the next command.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    #[inline]
    fn one(&self, rest: &'a [u32], header: u32) -> Result<Item<'a>, WalkError> {
        let offset = self.offset;
        let command = self
            .table
            .decode(self.engine, header)
            .ok_or(WalkError::Unknown { offset, header })?;
        let need = command.dwords(header);
        if !command.lengths.allow(need) {
            return Err(WalkError::Length {
                offset,
                command,
                found: need,
                allowed: command.lengths,
            });
        }
        let words = usize::try_from(need)
            .ok()
            .and_then(|n| rest.get(..n))
            .ok_or(WalkError::PastEnd {
                offset,
                command,
                need,
                left: rest.len(),
            })?;
        Ok(Item {
            offset,
            command,
            words,
        })
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<Item<'a>, WalkError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let rest = self.words.get(self.offset..)?;
        let item = self.one(rest, *rest.first()?);
        match &item {
            Ok(item) => self.offset += item.words.len(),
            Err(_) => self.failed = true,
        }
        Some(item)
    }
}

impl core::iter::FusedIterator for Walk<'_> {}
