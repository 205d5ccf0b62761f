//! Why something may not run.

use gen8::cmd::Dwords;

use crate::ggtt::NotMapped;

/// Which rule a command broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// The command is not for guests.
    #[error("guests may not use it")]
    Forbidden,
    /// Too short for its own fields.
    #[error("{have} dwords, at least {need} needed")]
    Short {
        /// Its dwords.
        have: u32,
        /// What its fields need.
        need: u32,
    },
    /// Not one of its lengths.
    #[error("{have} dwords, allowed: {allowed}")]
    Length {
        /// Its dwords.
        have: u32,
        /// The lengths it may have.
        allowed: Dwords,
    },
    /// Longer than what was submitted.
    #[error("{need} dwords, but only {left} up to the end")]
    PastEnd {
        /// Its dwords.
        need: u32,
        /// Dwords left.
        left: u32,
    },
    /// It lies across the end of the ring.
    #[error("it lies across the end of the ring")]
    AcrossWrap,
    /// A register it may not write.
    #[error("may not write {value:?} to register {offset:#x}")]
    RegisterWrite {
        /// BAR0 offset.
        offset: u32,
        /// The value, if known.
        value: Option<u32>,
    },
    /// A register it may not read.
    #[error("may not read register {offset:#x}")]
    RegisterRead {
        /// BAR0 offset.
        offset: u32,
    },
    /// A global address above 4 GiB.
    #[error("global address has upper half {upper:#x}, allowed: 0")]
    HighAddress {
        /// The upper dword.
        upper: u32,
    },
    /// An offset outside the status page.
    #[error("status page offset {offset:#x}, allowed: up to 0xff8")]
    StatusOffset {
        /// The offset.
        offset: u32,
    },
    /// Batches too deep.
    #[error("batches nest or chain more than {max} deep")]
    Depth {
        /// The limit.
        max: u32,
    },
    /// Too much to copy.
    #[error("more than {max} dwords of privileged commands")]
    Budget {
        /// The limit.
        max: u32,
    },
}

/// A refused command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{command} ({header:#010x}) at {at}: {rule}")]
pub struct Refusal {
    /// The command's name.
    pub command: &'static str,
    /// Its first dword.
    pub header: u32,
    /// Where it stands.
    pub at: At,
    /// What it broke.
    pub rule: Rule,
}

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Byte offset in the ring.
    Ring(u32),
    /// The guest's global address.
    Batch(u32),
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ring(o) => write!(f, "ring offset {o:#x}"),
            Self::Batch(a) => write!(f, "global address {a:#x}"),
        }
    }
}

/// Why a buffer may not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// A command broke a rule.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The command streamer could not decode it either.
    #[error("{header:#010x} at {at} is no command of this engine")]
    Unknown {
        /// The dword.
        header: u32,
        /// Where it stands.
        at: At,
    },
    /// It needs a page the guest has not mapped.
    #[error(transparent)]
    NotMapped(#[from] NotMapped),
    /// No room for windows or copies.
    #[error("{0}")]
    Exhausted(String),
}

impl AuditError {
    /// The dword concerned, for IPEHR.
    #[must_use]
    pub const fn header(&self) -> u32 {
        match self {
            Self::Refused(r) => r.header,
            Self::Unknown { header, .. } => *header,
            Self::NotMapped(_) | Self::Exhausted(_) => 0,
        }
    }
}
