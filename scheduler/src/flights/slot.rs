//! One workload's part of the log.

use std::sync::Arc;

use gen8::{Engine, lrc, ring};

use super::layout::{self, Bank, active, field};
use super::{FlightLog, KeptWords};
use crate::workload::InBatch;

/// What leads from where the GPU is to where the guest's context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Where the guest has the context's image, in its global address space.
    pub lrca: u32,
    /// Offset of the first command in the GPU's ring, and bytes from there on.
    pub commands: (u32, u32),
    /// Offset of the same in the guest's ring, and that ring's bytes.
    pub ring: (u32, u32),
    /// It was interrupted before, in the ring or in that batch.
    pub resumed: Option<Option<InBatch>>,
}

/// What the context's image has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landing {
    /// Offset in the guest's ring of the next command.
    pub head: u32,
    /// In which batch it is; `None` between commands of the ring.
    pub batch: Option<InBatch>,
    /// It had begun. Else the image says all.
    pub began: bool,
    /// The GPU's own dwords of the image, from [`lrc::PRIVATE`] on.
    pub own: Vec<u32>,
}

/// The context cannot go on: it was inside a batch with privilege, which was
/// a copy in memory that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// A workload's slot. It is free when this is dropped.
#[derive(Debug)]
pub struct FlightSlot {
    log: Arc<FlightLog>,
    engine: Engine,
    at: usize,
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    let b = word.to_le_bytes();
    (
        u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
    )
}

impl FlightSlot {
    pub(super) const fn new(log: Arc<FlightLog>, engine: Engine, at: usize) -> Self {
        Self { log, engine, at }
    }

    fn load(&self, index: usize) -> u64 {
        self.log.load(layout::slot(self.engine, self.at) + index)
    }

    fn store(&self, index: usize, value: u64) {
        self.log
            .store(layout::slot(self.engine, self.at) + index, value);
    }

    pub(super) fn describe(&self, vgpu: u64, flight: &Flight) {
        let Flight {
            lrca,
            commands,
            ring,
            resumed,
        } = *flight;
        let batch = resumed.flatten().unwrap_or_default();
        for (index, word) in [
            (field::VGPU, vgpu),
            (field::TAG, field::NO_TAG),
            (field::LRCA, lrca.into()),
            (field::COMMANDS, join(commands.0, commands.1)),
            (field::RING, join(ring.0, ring.1)),
            (field::FIRST, batch.first),
            (field::SECOND, batch.second),
            (field::RESUMED, resumed.is_some().into()),
            (field::ACTIVE, 0),
            (field::STATUS, field::IN_USE),
        ] {
            self.store(index, word);
        }
    }

    /// It is going to be loaded with a descriptor whose upper half is `tag`.
    pub fn name(&self, tag: u32) {
        self.store(field::TAG, tag.into());
    }

    /// On which engine it is.
    #[must_use]
    pub const fn engine(&self) -> Engine {
        self.engine
    }

    /// Whose it is.
    #[must_use]
    pub fn vgpu(&self) -> u64 {
        self.load(field::VGPU)
    }

    /// Where the guest has the context's image.
    #[must_use]
    pub fn lrca(&self) -> u32 {
        halves(self.load(field::LRCA)).0
    }

    fn bank(&self, bank: Bank, second: bool) -> Vec<u32> {
        let start = bank.start(second);
        let count = usize::try_from(self.load(start)).unwrap_or(0);
        let count = count.min(bank.most());
        let words = (start + 1..).take(count.div_ceil(2));
        let mut dwords: Vec<u32> = words
            .flat_map(|at| <[u32; 2]>::from(halves(self.load(at))))
            .collect();
        dwords.truncate(count);
        dwords
    }

    /// Where the context is, of a slot that another process left. What is in
    /// it is taken for what it may be, not for true.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn landing(&self) -> Result<Landing, Lost> {
        let (first, pending) = halves(self.load(field::COMMANDS));
        let (head, size) = halves(self.load(field::RING));
        let (head, pending) = (head & lrc::HEAD_OFFSET, pending & lrc::HEAD_OFFSET);
        let counts = self.load(field::ACTIVE);
        if counts & active::BEGAN == 0 {
            let resumed = self.load(field::RESUMED) != 0;
            let batch = InBatch {
                first: self.load(field::FIRST),
                second: self.load(field::SECOND),
            };
            return Ok(Landing {
                head,
                batch: (resumed && batch.first & 1 != 0).then_some(batch),
                began: false,
                own: Vec::new(),
            });
        }
        let at = layout::place(counts & active::PLACE != 0);
        let (states, more) = halves(self.load(at + 3));
        let batch = |address: u64, state: u32| match address & 1 != 0 {
            true if state & ring::BB_STATE_PPGTT == 0 => Err(Lost),
            true => Ok(address),
            false => Ok(0),
        };
        let in_first = batch(self.load(at + 1), states)?;
        let in_second = match in_first {
            0 => 0,
            _ => batch(self.load(at + 2), more)?,
        };
        let now = halves(self.load(at)).0 & lrc::HEAD_OFFSET;
        // What stands in front of its commands and behind them is ours.
        let ran = now.saturating_sub(first).min(pending);
        let mut own = self.bank(Bank::Own, counts & active::OWN != 0);
        if !own.is_empty() && counts & active::HAS_EFFECT != 0 {
            own.extend(self.bank(Bank::Effect, counts & active::EFFECT != 0));
        } else if !own.is_empty() {
            own.push(0);
        }
        own.truncate(lrc::PAGE_DWORDS - lrc::PRIVATE);
        Ok(Landing {
            head: head.saturating_add(ran).checked_rem(size).unwrap_or(0),
            batch: (in_first != 0).then_some(InBatch {
                first: in_first,
                second: in_second,
            }),
            began: true,
            own,
        })
    }
}

impl Drop for FlightSlot {
    fn drop(&mut self) {
        self.log.free(self.engine, self.at);
    }
}

/// Zeroes, for tests and for a host that keeps nothing.
impl KeptWords for Vec<std::sync::atomic::AtomicU64> {
    fn load(&self, index: usize) -> u64 {
        self[index].load(std::sync::atomic::Ordering::Acquire)
    }

    fn store(&self, index: usize, value: u64) {
        self[index].store(value, std::sync::atomic::Ordering::Release);
    }
}
