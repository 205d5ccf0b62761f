//! How guests write their page tables.

use super::guest::LEAVES;

/// Entries of a table.
pub const ENTRIES: u64 = 512;

/// A way of writing, generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A desktop at rest: an object is bound now and then.
    Steady,
    /// A program that builds its address space, again and again: whole
    /// tables, entry by entry.
    Bursts,
    /// A video: surfaces of some tables are bound anew with each frame, the
    /// rest stays.
    Churn,
}

/// A submission at which the steady guest binds something.
const STEADY_EVERY: u64 = 256;
/// A submission before which a table is written anew.
const BURST_EVERY: u64 = 64;
/// Tables the video's surfaces are in, and entries of each surface.
const CHURN_TABLES: u64 = 4;
const CHURN_ENTRIES: u64 = 16;

impl Pattern {
    pub const ALL: [Self; 3] = [Self::Steady, Self::Bursts, Self::Churn];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Bursts => "bursts",
            Self::Churn => "churn",
        }
    }

    /// What is written before the submission of number `n`: a table, the
    /// first entry, and how many.
    pub const fn before(self, n: u64) -> Option<(u64, u64, u64)> {
        match self {
            Self::Steady if n.is_multiple_of(STEADY_EVERY) => {
                let k = n / STEADY_EVERY;
                Some((k % LEAVES, k / LEAVES % ENTRIES, 1))
            }
            Self::Bursts if n.is_multiple_of(BURST_EVERY) => {
                Some((n / BURST_EVERY % LEAVES, 0, ENTRIES))
            }
            Self::Churn => {
                let surface = n / CHURN_TABLES % (ENTRIES / CHURN_ENTRIES);
                Some((n % CHURN_TABLES, surface * CHURN_ENTRIES, CHURN_ENTRIES))
            }
            Self::Steady | Self::Bursts => None,
        }
    }
}
