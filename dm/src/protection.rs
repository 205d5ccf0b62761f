//! Guest frames whose writes vgpud wants to hear of: its page tables.
//!
//! Xen makes a write to such a frame a request, and we do it: announce it, do
//! it, tell of it, and only then let the vCPU go on. Whoever sees what was
//! written, or anything that the vCPU did after it, sees the announcement too,
//! so vgpud knows when it has not been told everything yet.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_memory::{Gfn, GuestMemory, MemoryError, for_each_page};
use serde::Serialize;
use vgpu_device::{GpuPort, Kept};
use vgpu_ring::{Event, Outcome, Request};
use xen_glue::{DeviceModel, DeviceModelError, Extent, IoreqServer, MemType};

use crate::outside::SubmitRing;

/// Frames protected at a time. vgpud shadows no more than 4096 tables; some
/// of before may wait to be let go of.
const MOST_FRAMES: usize = 8192;

/// Refusals in a row after which no more is tried: Xen refuses every frame
/// while it logs writes for a migration, and one that the guest gave back.
const MOST_REFUSALS: u32 = 16;

/// Bits of an entry above the GPU's 39-bit bus. Tables have none of these;
/// pointers of a kernel do.
const ABOVE_BUS: u64 = !0 << 39;

/// What there is to see of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProtectionState {
    /// Whether frames can be protected.
    pub offered: bool,
    /// Frames protected now.
    pub frames: usize,
    /// Writes to them that were done for the guest.
    pub writes: u64,
    /// Frames let go of because they were written as tables are not.
    pub released: u64,
    /// Frames that Xen did not protect.
    pub refused: u64,
}

#[derive(Default)]
struct State {
    /// Xen grants it.
    offered: bool,
    frames: HashSet<u64>,
    refusals: u32,
    seen: ProtectionState,
}

/// The guest's memory, with its protected frames.
pub(crate) struct Protection {
    dm: DeviceModel,
    server: Arc<IoreqServer>,
    ring: Arc<SubmitRing>,
    memory: Arc<dyn GuestMemory>,
    kept: Arc<dyn Kept>,
    state: Mutex<State>,
}

impl Protection {
    /// Claims the guest's write protection, if Xen has it for this guest.
    pub(crate) fn claim(
        server: Arc<IoreqServer>,
        ring: Arc<SubmitRing>,
        memory: Arc<dyn GuestMemory>,
        kept: Arc<dyn Kept>,
    ) -> Self {
        let this = Self::new(server, ring, memory, kept);
        if this.claim_again(&mut this.lock()) {
            this.say(true);
        }
        this
    }

    /// Takes the protection over that a former device model may have claimed:
    /// no frame is protected any more. What was done to some is not known, so
    /// vgpud is to compare all.
    pub(crate) fn take_over(
        server: Arc<IoreqServer>,
        ring: Arc<SubmitRing>,
        memory: Arc<dyn GuestMemory>,
        kept: Arc<dyn Kept>,
    ) -> Self {
        let this = Self::new(server, ring, memory, kept);
        this.ring.announce();
        if let Err(e) = this.server.release_write_protection() {
            log::debug!("{e}");
        }
        let offered = this.claim_again(&mut this.lock());
        this.ring.take_over(offered);
        this
    }

    fn new(
        server: Arc<IoreqServer>,
        ring: Arc<SubmitRing>,
        memory: Arc<dyn GuestMemory>,
        kept: Arc<dyn Kept>,
    ) -> Self {
        Self {
            dm: server.device_model().clone(),
            server,
            ring,
            memory,
            kept,
            state: Mutex::default(),
        }
    }

    /// Claims it unless it is claimed; says whether it is.
    fn claim_again(&self, state: &mut State) -> bool {
        if !state.offered {
            match self.server.claim_write_protection() {
                Ok(()) => state.offered = true,
                Err(e) => log::info!("page tables are compared, not protected: {e}"),
            }
        }
        state.offered
    }

    /// Says that no frame is protected, and whether some can be.
    fn say(&self, offered: bool) {
        self.ring.announce();
        self.ring.owe(Request::Protection { offered });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> ProtectionState {
        let state = self.lock();
        ProtectionState {
            offered: state.offered,
            frames: state.frames.len(),
            ..state.seen
        }
    }

    /// An order of vgpud; others are not for us and come back.
    pub(crate) fn handle(&self, event: Event) -> Option<Event> {
        let (gfn, serial, outcome) = match event {
            Event::Protect { gfn, serial } => (gfn, serial, self.protect(gfn)),
            Event::Unprotect { gfn } => (gfn, 0, self.unprotect(gfn)),
            other => return Some(other),
        };
        self.ring.owe(Request::Protected {
            gfn,
            serial,
            outcome,
        });
        None
    }

    fn set_type(&self, gfn: u64, to: MemType) -> Result<(), DeviceModelError> {
        let extent = Extent {
            first_gfn: gfn,
            frames: 1,
        };
        self.dm.set_mem_type(extent, to)
    }

    fn protect(&self, gfn: u64) -> Outcome {
        let state = &mut *self.lock();
        if state.frames.contains(&gfn) {
            return Outcome::Done;
        }
        if !state.offered || state.frames.len() >= MOST_FRAMES {
            return Outcome::Refused;
        }
        match self.set_type(gfn, MemType::WriteProtected) {
            Ok(()) => {
                state.refusals = 0;
                state.frames.insert(gfn);
                Outcome::Done
            }
            Err(e) => {
                state.seen.refused += 1;
                state.refusals += 1;
                log::debug!("{e}");
                if state.refusals >= MOST_REFUSALS {
                    self.give_up(state, &e);
                }
                Outcome::Refused
            }
        }
    }

    fn unprotect(&self, gfn: u64) -> Outcome {
        let state = &mut *self.lock();
        if state.frames.remove(&gfn) {
            // The guest may have given the frame back.
            if let Err(e) = self.set_type(gfn, MemType::Ram) {
                log::debug!("{e}");
            }
        }
        Outcome::Ended
    }

    /// Lets frames be protected again that [`Self::end`] let go of, and those
    /// that Xen refused.
    pub(crate) fn begin_again(&self) {
        let state = &mut *self.lock();
        state.refusals = 0;
        if !state.offered && self.claim_again(state) {
            self.say(true);
        }
    }

    /// Xen does not protect frames any more.
    fn give_up(&self, state: &mut State, why: &DeviceModelError) {
        log::warn!("page tables are compared from now on, not protected: {why}");
        self.say(false);
        self.release(state);
    }

    fn release(&self, state: &mut State) {
        state.offered = false;
        state.frames.clear();
        if let Err(e) = self.server.release_write_protection() {
            // The domain is destroyed before its device models, often.
            log::debug!("{e}");
        }
    }

    /// Frames left the guest, and others may be in their places, which nobody
    /// protected: none is, until vgpud asks again.
    pub(crate) fn frames_left(&self) {
        let state = &mut *self.lock();
        if state.frames.is_empty() {
            return;
        }
        self.ring.announce();
        for gfn in std::mem::take(&mut state.frames) {
            // Xen refuses those that are gone.
            if let Err(e) = self.set_type(gfn, MemType::Ram) {
                log::trace!("{e}");
            }
        }
        self.ring.owe(Request::Protection { offered: true });
    }

    /// Makes every frame plain RAM, and protects none until
    /// [`Self::begin_again`]. Requests must still be answered: a vCPU may wait
    /// with a write.
    pub(crate) fn end(&self) {
        let state = &mut *self.lock();
        if state.offered {
            self.say(false);
            self.release(state);
        }
    }

    /// Does a vCPU's write inside a page, and tells of it if the frame is
    /// protected. `since_ns` as in [`Request::TableWrite`]. One that was
    /// protected a moment ago is written all the same.
    ///
    /// # Errors
    /// When the guest has no memory there.
    pub(crate) fn write_in_page(
        &self,
        gpa: u64,
        data: &[u8],
        since_ns: u32,
    ) -> Result<(), MemoryError> {
        let state = &mut *self.lock();
        let gfn = Gfn::containing(gpa).0;
        self.kept.about_to();
        if data.is_empty() || !state.frames.contains(&gfn) {
            return self.memory.write(gpa, data);
        }
        self.ring.announce();
        let written = self.memory.write(gpa, data);
        state.seen.writes += 1;
        if like_entries(gpa, data) || !self.let_go(state, gfn) {
            // Inside a page.
            let size = u16::try_from(data.len()).unwrap_or(4096);
            self.ring.tell(Request::TableWrite {
                gpa,
                size,
                since_ns,
            });
        }
        written
    }

    /// A page that is used for something else is let go of before its vCPU
    /// goes on: soon Xen might have to write to it, for a hypercall, and that
    /// fails in a protected frame (Xen arch/x86/hvm/hvm.c:__hvm_copy).
    fn let_go(&self, state: &mut State, gfn: u64) -> bool {
        if self.ring.send(Request::TableReleased { gfn }).is_err() {
            return false;
        }
        state.seen.released += 1;
        state.frames.remove(&gfn);
        if let Err(e) = self.set_type(gfn, MemType::Ram) {
            log::debug!("{e}");
        }
        true
    }
}

/// Whether a write is one of whole entries that a table can hold.
fn like_entries(gpa: u64, data: &[u8]) -> bool {
    let (entries, rest) = data.as_chunks::<8>();
    gpa.is_multiple_of(8)
        && rest.is_empty()
        && entries
            .iter()
            .all(|e| u64::from_le_bytes(*e) & ABOVE_BUS == 0)
}

/// What the device writes reaches protected frames too: a guest can put its
/// tables behind the aperture.
impl GuestMemory for Protection {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        for_each_page(gpa, data.len(), |_, _, range| {
            // Inside what for_each_page found not to wrap.
            let at = gpa.wrapping_add(u64::try_from(range.start).unwrap_or(0));
            self.write_in_page(at, &data[range], 0)
        })
    }

    fn read_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        buf: &mut [u8],
    ) -> Result<(), MemoryError> {
        self.memory.read_pieces(gpa, piece, stride, buf)
    }

    fn write_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        let state = self.lock();
        if state.frames.is_empty() {
            self.kept.about_to();
            // Under the lock: no frame becomes protected meanwhile.
            return self.memory.write_pieces(gpa, piece, stride, data);
        }
        drop(state);
        guest_memory::for_each_piece(gpa, piece, stride, data.len(), |at, range| {
            self.write(at, &data[range])
        })
    }

    fn invalidate(&self) {
        self.memory.invalidate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_from_other_data() {
        let entry = 0x12_3456_7003_u64.to_le_bytes();
        assert!(like_entries(0x1008, &entry));
        assert!(like_entries(0x1008, &[0; 4088]));
        assert!(!like_entries(0x1004, &entry));
        assert!(!like_entries(0x1000, &entry[..4]));
        assert!(!like_entries(
            0x1000,
            &0xffff_8880_1234_5678_u64.to_le_bytes()
        ));
    }
}
