//! A workload that was taken off the engine before its end, and goes on.

use gen8::{Engine, Platform, lrc, ring};
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::{PAGE_SIZE, Workload};

/// A place in batches without privilege, as a context image has it: addresses
/// of the context's own space, bit 0 set for one that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InBatch {
    /// In the batch that the ring started.
    pub first: u64,
    /// In the one that the first called; 0 for none.
    pub second: u64,
}

/// Where a workload was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// Offset in the guest's ring of the next command.
    pub head: u32,
    /// In which batch; `None` between commands of the ring.
    pub batch: Option<InBatch>,
}

const THERE: u64 = 1;

impl InBatch {
    /// Where batches go on.
    pub(super) fn addresses(self) -> impl Iterator<Item = u64> {
        let both = [self.first, self.second].into_iter();
        both.filter(|a| a & THERE != 0).map(|a| a & !3)
    }

    /// Names the place in an image, without privilege whatever it says.
    pub(super) fn name(self, image: &mut Image) {
        let mut put = |low, high, state, address: u64| {
            if address & THERE == 0 {
                return;
            }
            let b = address.to_le_bytes();
            image.set(low, u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            image.set(high, u32::from_le_bytes([b[4], b[5], b[6], b[7]]));
            image.set(state, ring::BB_STATE_PPGTT);
        };
        put(lrc::BB_HEAD, lrc::BB_HEAD_UDW, lrc::BB_STATE, self.first);
        put(
            lrc::SBB_HEAD,
            lrc::SBB_HEAD_UDW,
            lrc::SBB_STATE,
            self.second,
        );
    }
}

/// A register page as the GPU saved it.
struct Saved([u8; PAGE_SIZE]);

impl Saved {
    fn dword(&self, index: usize) -> u32 {
        let at = index * 4;
        let bytes = self.0.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    }

    /// A batch's address, if it runs one; `None` when that has privilege.
    fn batch(&self, low: usize, high: usize, state: usize) -> Option<u64> {
        let address = u64::from(self.dword(high)) << 32 | u64::from(self.dword(low));
        if address & THERE == 0 {
            return Some(0);
        }
        (self.dword(state) & ring::BB_STATE_PPGTT != 0).then_some(address)
    }
}

impl Workload {
    /// Where the GPU, which has saved it, left it. `None` inside a batch with
    /// privilege: that is a copy of ours, and only here it can go on.
    #[must_use]
    pub fn interrupted(&self) -> Option<Interrupted> {
        let mut saved = Saved([0; PAGE_SIZE]);
        self.registers.read(0, &mut saved.0);
        let first = saved.batch(lrc::BB_HEAD, lrc::BB_HEAD_UDW, lrc::BB_STATE)?;
        let second = if first == 0 {
            0
        } else {
            saved.batch(lrc::SBB_HEAD, lrc::SBB_HEAD_UDW, lrc::SBB_STATE)?
        };
        let batch = (first != 0).then_some(InBatch { first, second });
        let ring = self.guest_ring;
        let at = saved.dword(lrc::RING_HEAD) & lrc::HEAD_OFFSET;
        let began = self.held.as_ref().map_or(0, |h| h.ring.head);
        // What stands in front of its commands and behind them is ours.
        let ran = at.saturating_sub(began).min(ring.pending());
        Some(Interrupted {
            // Both are less than the largest ring.
            head: (ring.head + ran) % ring.size.max(1),
            batch,
        })
    }

    /// It goes on from where the GPU left it when it is loaded again.
    pub fn goes_on(&mut self) {
        self.resumes = true;
        self.restore_inhibit = false;
    }
}

/// Bytes of no-ops in the ring of [`idle_page`].
const IDLE_TAIL: u32 = 8;

/// The register page of a context of ours that does nothing, in a ring of one
/// page of no-ops at `ring_start`. Loading it takes a guest's off the engine.
#[must_use]
pub fn idle_page(gpu: &Platform, engine: Engine, ring_start: u32) -> Vec<u8> {
    let mut image = Image::new(gpu, engine, &[0; PAGE_SIZE]);
    // It has no state to load, and saves its own.
    let control = lrc::RESTORE_INHIBIT | lrc::INHIBIT_SYNC_SWITCH;
    image.set(
        lrc::CONTEXT_CONTROL,
        (control | lrc::SAVE_INHIBIT) << 16 | control,
    );
    image.set(lrc::RING_START, ring_start);
    image.set(lrc::RING_HEAD, 0);
    image.set(lrc::RING_TAIL, IDLE_TAIL);
    // One page, valid.
    image.set(lrc::RING_CTL, 1);
    image.set(lrc::BB_STATE, ring::BB_STATE_PPGTT);
    image.bytes()
}
