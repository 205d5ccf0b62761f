//! The register page of a context image, a copy of the guest's.

use gen8::cmd::mi_op;
use gen8::{Engine, Platform, lrc};
use guest_memory::{Gfn, PAGE_SIZE};

use super::shadow::ShadowRing;
use crate::audit::{AuditError, Auditor, Site};

/// A register page that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The ring is not enabled.
    #[error("RING_CTL {0:#x} has no valid bit")]
    RingOff(u32),
    /// Head or tail is not in the ring.
    #[error("ring {field} {value:#x}, allowed: below the ring's {size:#x} bytes")]
    OutsideRing {
        /// "head" or "tail".
        field: &'static str,
        /// The offset.
        value: u32,
        /// The ring's size in bytes.
        size: u32,
    },
    /// The ring passes the end of the global table.
    #[error("ring of {size:#x} bytes at {start:#x} passes the end of the table")]
    RingPastEnd {
        /// Its graphics address.
        start: u32,
        /// Its size in bytes.
        size: u32,
    },
}

/// A ring, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Graphics address, page aligned.
    pub start: u32,
    /// Bytes, whole pages.
    pub size: u32,
    /// Byte offset of the next command.
    pub head: u32,
    /// Byte offset behind the last command.
    pub tail: u32,
}

impl Ring {
    /// Bytes from head to tail.
    pub const fn pending(&self) -> u32 {
        if self.tail >= self.head {
            self.tail - self.head
        } else {
            self.size - self.head + self.tail
        }
    }
}

/// The copy, being made into a shadow.
pub struct Image {
    words: [u32; lrc::PAGE_DWORDS],
}

impl Image {
    /// The values and the GPU's own part of a guest's page. The page is
    /// commands to the GPU, so all else is made anew: a guest chooses no
    /// register of it.
    pub fn new(gpu: &Platform, engine: Engine, bytes: &[u8; PAGE_SIZE]) -> Self {
        let mut guest = [0; lrc::PAGE_DWORDS];
        for (w, b) in guest.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *w = u32::from_le_bytes(*b);
        }
        let mut words = [0; lrc::PAGE_DWORDS];
        words[lrc::PRIVATE..].copy_from_slice(&guest[lrc::PRIVATE..]);
        for load in gpu.image(engine).loads {
            // The length field is the number of dwords less two.
            let length = u32::try_from(2 * load.registers.len() - 1).unwrap_or(0);
            words[load.header] = (mi_op::LOAD_REGISTER_IMM << 23) | length;
            for (n, register) in load.registers.iter().enumerate() {
                let value = load.value(n);
                words[value - 1] = engine.mmio_base() + register;
                words[value] = guest[value];
            }
        }
        Self { words }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    pub fn set(&mut self, index: usize, value: u32) {
        self.words[index] = value;
    }

    /// The guest's ring, checked.
    pub fn ring(&self) -> Result<Ring, ImageError> {
        let ctl = self.words[lrc::RING_CTL];
        if ctl & 1 == 0 {
            return Err(ImageError::RingOff(ctl));
        }
        let ring = Ring {
            start: self.words[lrc::RING_START] & !0xfff,
            size: lrc::ring_bytes(ctl),
            head: self.words[lrc::RING_HEAD] & lrc::HEAD_OFFSET,
            tail: self.words[lrc::RING_TAIL] & lrc::TAIL_OFFSET,
        };
        for (field, value) in [("head", ring.head), ("tail", ring.tail)] {
            if value >= ring.size {
                return Err(ImageError::OutsideRing {
                    field,
                    value,
                    size: ring.size,
                });
            }
        }
        if ring.start.checked_add(ring.size - 1).is_none() {
            return Err(ImageError::RingPastEnd {
                start: ring.start,
                size: ring.size,
            });
        }
        Ok(ring)
    }

    /// Names the shadow ring, which stands at `start`.
    pub fn set_ring(&mut self, start: u32, ring: &ShadowRing) {
        self.set(lrc::RING_START, start);
        self.set(lrc::RING_HEAD, ring.head);
        self.set(lrc::RING_TAIL, ring.tail);
        self.set(lrc::RING_CTL, (ring.size - 0x1000) | 1);
    }

    /// The guest's root table.
    pub fn root(&self) -> Gfn {
        let high = u64::from(self.words[lrc::PDP0_UDW]);
        Gfn::containing(high << 32 | u64::from(self.words[lrc::PDP0_LDW]))
    }

    /// Names the shadow root, and no other pointer.
    pub fn set_root(&mut self, bus: u64) {
        for index in (lrc::PDP3_UDW..lrc::PDP0_UDW).step_by(2) {
            self.set(index, 0);
        }
        let b = bus.to_le_bytes();
        self.set(lrc::PDP0_LDW, u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        self.set(lrc::PDP0_UDW, u32::from_le_bytes([b[4], b[5], b[6], b[7]]));
    }

    /// Keeps of CTX_CONTROL what a guest may choose; returns whether it
    /// inhibits the restore. The save must happen: vgpud reads the head from
    /// it. Bit 1 enables the resource streamer
    /// (Linux `gt/intel_lrc.c:init_common_regs`).
    pub fn control(&mut self) -> bool {
        const RESOURCE_STREAMER: u32 = 1 << 1;
        let have = self.words[lrc::CONTEXT_CONTROL];
        let keep = have & (lrc::RESTORE_INHIBIT | lrc::INHIBIT_SYNC_SWITCH | RESOURCE_STREAMER);
        let mask =
            lrc::RESTORE_INHIBIT | lrc::SAVE_INHIBIT | lrc::INHIBIT_SYNC_SWITCH | RESOURCE_STREAMER;
        self.set(lrc::CONTEXT_CONTROL, (mask << 16) | keep);
        have & lrc::RESTORE_INHIBIT != 0
    }

    /// Clears a batch in progress. Nothing of ours is ever interrupted inside
    /// one, so this would be the guest's way to privileged commands that no
    /// audit saw.
    pub fn no_batch_state(&mut self) {
        for index in [
            lrc::BB_HEAD_UDW,
            lrc::BB_HEAD,
            lrc::SBB_HEAD_UDW,
            lrc::SBB_HEAD,
            lrc::SBB_STATE,
        ] {
            self.set(index, 0);
        }
        self.set(lrc::BB_STATE, gen8::ring::BB_STATE_PPGTT);
    }

    /// Copies and audits the batches that run around a context switch.
    pub fn audit_batches<S: Site>(
        &mut self,
        auditor: &mut Auditor<'_, S>,
    ) -> Result<(), AuditError> {
        // Bits 5:0 count cache lines (Linux gt/intel_lrc.c:lrc_setup_indirect_ctx).
        let indirect = self.words[lrc::INDIRECT_CTX];
        let lines = indirect & 0x3f;
        if lines != 0 {
            let (copy, lines) = auditor.indirect(indirect & !0x3f, lines)?;
            self.set(lrc::INDIRECT_CTX, copy | lines);
        } else {
            self.set(lrc::INDIRECT_CTX, 0);
        }
        let per_context = self.words[lrc::PER_CTX_BB];
        let copy = if per_context & 1 != 0 {
            auditor.batch(per_context & !0xfff)? | 1
        } else {
            0
        };
        self.set(lrc::PER_CTX_BB, copy);
        Ok(())
    }
}
