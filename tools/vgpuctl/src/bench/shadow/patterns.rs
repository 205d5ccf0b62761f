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
    /// A program with more buffers than there is room for: tables are taken
    /// out, their pages hold other things, and are tables again.
    Recycled,
}

/// A submission at which the steady guest binds something.
const STEADY_EVERY: u64 = 256;
/// A submission before which a table is written anew.
const BURST_EVERY: u64 = 64;
/// Tables the video's surfaces are in, and entries of each surface.
const CHURN_TABLES: u64 = 4;
const CHURN_ENTRIES: u64 = 16;
/// A submission before which a table is taken out, and how many later its page
/// is one again.
const RECYCLE_EVERY: u64 = 16;
const RECYCLE_AFTER: u64 = 8;

/// What becomes of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is taken out, and its page is filled with other things.
    Out(u64),
    /// It is filled with entries and put back.
    Back(u64),
}

impl Pattern {
    pub const ALL: [Self; 4] = [Self::Steady, Self::Bursts, Self::Churn, Self::Recycled];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Bursts => "bursts",
            Self::Churn => "churn",
            Self::Recycled => "recycled",
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
            Self::Steady | Self::Bursts | Self::Recycled => None,
        }
    }

    /// What becomes of a whole table before the submission of number `n`.
    pub const fn turn(self, n: u64) -> Option<Turn> {
        if !matches!(self, Self::Recycled) {
            return None;
        }
        let leaf = n / RECYCLE_EVERY % LEAVES;
        match n % RECYCLE_EVERY {
            0 => Some(Turn::Out(leaf)),
            RECYCLE_AFTER => Some(Turn::Back(leaf)),
            _ => None,
        }
    }
}
