//! What a GPU may do to a region, round by round.

use proptest::prelude::*;

/// Pages of the regions here.
pub const PAGES: u32 = 64;

const ROUNDS: usize = 24;

/// A way to use memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A few pages all the time, others now and then.
    Desktop,
    /// All of it, all the time.
    Video,
    /// All of it for a few rounds, then nothing for many.
    Burst,
    /// Writable all the time, and seldom written.
    Streaming,
    /// Nothing.
    Idle,
    /// Anything.
    Chance,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Desktop,
        Self::Video,
        Self::Burst,
        Self::Streaming,
        Self::Idle,
        Self::Chance,
    ];
}

pub fn kind() -> impl Strategy<Value = Kind> {
    (0..Kind::ALL.len()).prop_map(|i| Kind::ALL[i])
}

/// For each round, a bit for each page: could it have been written, and did
/// it change.
pub struct History {
    pub rounds: Vec<(u64, u64)>,
}

impl History {
    pub fn new(kinds: &[Kind], seed: u64) -> Self {
        let mut chance = Chance(seed | 1);
        let mut rounds = Vec::new();
        for kind in kinds {
            let (start, touch, change) =
                (chance.next() % 12, chance.next() % 101, chance.next() % 101);
            for round in (0..).take(ROUNDS) {
                let (touched, changed) = match kind {
                    Kind::Desktop => (0xf | chance.bits(3), chance.bits(50)),
                    Kind::Video => (u64::MAX, u64::MAX),
                    Kind::Burst if (round + start) % 12 < 3 => (u64::MAX, chance.bits(90)),
                    Kind::Burst | Kind::Idle => (0, 0),
                    Kind::Streaming => (u64::MAX, chance.bits(3)),
                    Kind::Chance => (chance.bits(touch), chance.bits(change)),
                };
                rounds.push((touched, touched & changed));
            }
        }
        Self { rounds }
    }
}

struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// A word in which so many percent of the bits are set.
    fn bits(&mut self, percent: u64) -> u64 {
        (0..64)
            .filter(|_| self.next() % 100 < percent)
            .fold(0, |bits, bit| bits | 1 << bit)
    }
}
