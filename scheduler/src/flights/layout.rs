//! Where everything lies in the log. In words of 8 bytes.

use gen8::Engine;

use super::KeptWords;

/// First word: "VGPUFLIT" in memory.
const MAGIC: u64 = u64::from_le_bytes(*b"VGPUFLIT");
/// Version of this layout, and of what softgpu notes.
const VERSION: u64 = 1;
/// Words before the first slot.
const HEADER: usize = 512;

/// Slots of an engine. What it holds is three workloads at most; those that
/// are through keep theirs until their guest has been told.
pub const SLOTS: usize = 12;

/// Words of a slot: two pages.
const SLOT_WORDS: usize = 1024;

/// Words of a log.
pub const LOG_WORDS: usize = HEADER + Engine::COUNT * SLOTS * SLOT_WORDS;

/// The first word of a slot.
pub const fn slot(engine: Engine, at: usize) -> usize {
    HEADER + (engine.index() * SLOTS + at) * SLOT_WORDS
}

/// Words of a slot.
pub mod field {
    /// [`IN_USE`], or it is free.
    pub const STATUS: usize = 0;
    pub const IN_USE: u64 = 1;
    pub const VGPU: usize = 1;
    /// Upper half of the descriptor that was loaded.
    pub const TAG: usize = 2;
    /// Of none.
    pub const NO_TAG: u64 = u64::MAX;
    /// Where the guest has the context's image.
    pub const LRCA: usize = 3;
    /// Where the commands begin in the ring that the GPU has, and how many
    /// bytes there are.
    pub const COMMANDS: usize = 4;
    /// Where they begin in the guest's ring, and how long that is.
    pub const RING: usize = 5;
    /// In which batch it begins, if it was interrupted there: both levels.
    pub const FIRST: usize = 6;
    pub const SECOND: usize = 7;
    /// 1 if it had begun before.
    pub const RESUMED: usize = 8;
    /// See [`super::active`].
    pub const ACTIVE: usize = 9;
}

/// Which parts of a slot count. 0 when it is new.
pub mod active {
    /// The second of both places does.
    pub const PLACE: u64 = 1 << 0;
    /// Likewise the GPU's own dwords.
    pub const OWN: u64 = 1 << 1;
    /// Likewise what the next command may have done.
    pub const EFFECT: u64 = 1 << 2;
    /// There is such.
    pub const HAS_EFFECT: u64 = 1 << 3;
    /// The GPU loaded it.
    pub const BEGAN: u64 = 1 << 4;
}

/// Words of a place: head, first batch, second batch, their states.
pub const fn place(second: bool) -> usize {
    if second { 24 } else { 16 }
}

/// A pair of banks of dwords: their number, then two to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bank {
    Own,
    Effect,
}

impl Bank {
    /// Dwords that fit: of both together no more than an image has of the
    /// GPU's own.
    pub const fn most(self) -> usize {
        match self {
            Self::Own => 520,
            Self::Effect => 264,
        }
    }

    const fn words(self) -> usize {
        1 + self.most() / 2
    }

    pub const fn start(self, second: bool) -> usize {
        let first = match self {
            Self::Own => 32,
            Self::Effect => 32 + 2 * Self::Own.words(),
        };
        if second { first + self.words() } else { first }
    }
}

const _: () = assert!(Bank::Effect.start(true) + Bank::Effect.words() <= SLOT_WORDS);

/// The memory is something else than a log of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flight log: {field} is {value:#x}, allowed: {allowed:#x}")]
pub struct NotALog {
    /// Which word.
    pub field: &'static str,
    /// What it holds.
    pub value: u64,
    /// What it has to hold.
    pub allowed: u64,
}

/// Makes zeroes a log; says what is none.
pub fn check(words: &dyn KeptWords) -> Result<(), NotALog> {
    if words.load(0) == 0 && words.load(1) == 0 {
        words.store(1, VERSION);
        words.store(0, MAGIC);
        return Ok(());
    }
    for (at, field, allowed) in [(0, "magic", MAGIC), (1, "version", VERSION)] {
        let value = words.load(at);
        if value != allowed {
            return Err(NotALog {
                field,
                value,
                allowed,
            });
        }
    }
    Ok(())
}
