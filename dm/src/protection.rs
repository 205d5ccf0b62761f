//! Guest frames whose writes vgpud wants to hear of: its page tables.
//!
//! Xen makes a write to such a frame a request, and we do it: announce it, do
//! it, tell of it, and only then let the vCPU go on. Whoever sees what was
//! written, or anything that the vCPU did after it, sees the announcement too,
//! so vgpud knows when it has not been told everything yet.
//!
//! A frame that is let go of is so for vgpud at once, and becomes RAM when no
//! vCPU is inside an instruction that wrote to it (`xen_glue`,
//! `IoreqServer::let_go`). Until then its writes are done, and told to nobody.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use guest_memory::{Gfn, GuestMemory, MemoryError, for_each_page};
use serde::Serialize;
use vgpu_device::{GpuPort, Kept};
use vgpu_ring::{Event, Outcome, Request};
use xen_glue::{DeviceModelError, Errno, IoreqPage, IoreqServer};

use crate::alarm::Alarm;
use crate::outside::SubmitRing;

/// Frames protected at a time. vgpud shadows no more than 4096 tables; some
/// of before may wait to be let go of.
const MOST_FRAMES: usize = 8192;

/// Refusals in a row after which no more is tried: Xen refuses every frame
/// while it logs writes for a migration, and one that the guest gave back.
const MOST_REFUSALS: u32 = 16;

/// Frames made RAM at a time: no request is answered meanwhile.
const BATCH: usize = 256;

/// How long after a frame was let go of it is made RAM, and how long a frame
/// waits at most that a vCPU wrote to just then.
const SOON: Duration = Duration::from_micros(100);
const LATE: Duration = Duration::from_millis(10);

/// How long a moment is waited for in which no vCPU writes to a frame. A vCPU
/// that fills it has a request in its slot nearly always, but not between two.
const MOMENT: Duration = Duration::from_millis(1);

/// How long all frames may take to become RAM. A vCPU that writes to one as
/// fast as it can has it trapped thousands of times in that.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Bits of an entry above the GPU's 39-bit bus. Tables have none of these;
/// pointers of a kernel do.
const ABOVE_BUS: u64 = !0 << 39;

/// Frames could not be made RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} frames or more stay write-protected: a vCPU writes to them, or is paused in the middle of it"
)]
pub struct StillProtected(pub usize);

/// What there is to see of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProtectionState {
    /// Whether frames can be protected.
    pub offered: bool,
    /// Frames protected now.
    pub frames: usize,
    /// Frames let go of that are not RAM yet.
    pub leaving: usize,
    /// Writes to them that were done for the guest.
    pub writes: u64,
    /// Writes to frames let go of that were not RAM yet.
    pub late: u64,
    /// Frames let go of because they were written as tables are not.
    pub released: u64,
    /// Frames that Xen did not protect.
    pub refused: u64,
}

#[derive(Default)]
struct State {
    /// Xen sends us writes to protected frames.
    claimed: bool,
    /// A predecessor may have had this server protect frames, and nobody knows
    /// which; or that was found out.
    inherited: bool,
    disowned: bool,
    /// Frames are to be protected, if that can be.
    wanted: bool,
    /// vgpud may have frames protected.
    offered: bool,
    frames: HashSet<u64>,
    /// What vgpud does not rely on any more, and is to become RAM.
    leaving: BTreeSet<u64>,
    /// Other frames may be in the places of those, which are RAM.
    unsure: bool,
    /// When they are tried to be made RAM next, and how long after that again.
    next: Option<Instant>,
    patience: Duration,
    refusals: u32,
    seen: ProtectionState,
}

impl State {
    /// Has a frame become RAM.
    fn leave(&mut self, gfn: u64) {
        self.leaving.insert(gfn);
        self.patience = SOON;
        self.try_at(SOON);
    }

    /// Has what is to be done be tried so much later, or before.
    fn try_at(&mut self, later: Duration) {
        let at = Instant::now() + later;
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Whether a frame may be protected, but for `frames`.
    fn is_busy(&self) -> bool {
        self.inherited || !self.leaving.is_empty()
    }

    fn leave_all(&mut self) {
        for gfn in std::mem::take(&mut self.frames) {
            self.leave(gfn);
        }
    }
}

/// The guest's memory, with its protected frames.
pub(crate) struct Protection {
    server: Arc<IoreqServer>,
    page: Arc<IoreqPage>,
    ring: Arc<SubmitRing>,
    /// Wakes the event thread, which makes frames RAM.
    alarm: Arc<Alarm>,
    memory: Arc<dyn GuestMemory>,
    kept: Arc<dyn Kept>,
    state: Mutex<State>,
    /// Held shared to answer a request, and alone while types of frames change.
    /// Taken after `state`, or without it. vCPUs that are not answered before a
    /// frame is RAM, which is in `leaving` ([`IoreqPage::crossings`]).
    answers: RwLock<BTreeSet<(u32, u64)>>,
}

impl Protection {
    /// Protects nothing until [`Self::begin_again`].
    pub(crate) fn new(
        server: Arc<IoreqServer>,
        page: Arc<IoreqPage>,
        ring: Arc<SubmitRing>,
        alarm: Arc<Alarm>,
        memory: Arc<dyn GuestMemory>,
        kept: Arc<dyn Kept>,
    ) -> Self {
        Self {
            server,
            page,
            ring,
            alarm,
            memory,
            kept,
            state: Mutex::default(),
            answers: RwLock::default(),
        }
    }

    /// It stands in the place of a device model that died and may have had
    /// frames protected: vgpud is to rely on none, and to compare every table.
    /// Before any request is answered.
    pub(crate) fn take_over(&self) {
        // It may have died when it made frames RAM.
        self.server
            .protect_again(&self.page, |gfn| self.is_memory(gfn));
        self.ring.announce();
        self.ring.take_over();
    }

    /// Claims it unless it is claimed, and says that.
    fn claim_again(&self, state: &mut State) {
        if state.claimed {
            state.offered = true;
        } else if !state.inherited {
            match self.server.claim_write_protection() {
                Ok(()) => (state.claimed, state.offered) = (true, true),
                Err(e) if e.errno == Errno::EBUSY && !state.disowned => {
                    state.inherited = true;
                    state.try_at(Duration::ZERO);
                }
                Err(e) => log::info!("page tables are compared, not protected: {e}"),
            }
        }
        if state.offered {
            self.say(true);
        }
    }

    /// Ends the claim of a predecessor with this server, if it is one and that
    /// can be done now.
    fn disown(&self, state: &mut State) {
        let ended = {
            let _none = self.answer_none();
            self.server.end_claim(&self.page, |gfn| self.is_memory(gfn))
        };
        match ended {
            Ok(false) => return state.try_at(LATE),
            Ok(true) => log::info!("frames that a predecessor protected are RAM again"),
            Err(e) => log::debug!("{e}"),
        }
        state.inherited = false;
        state.disowned = true;
        if state.wanted {
            self.claim_again(state);
        }
    }

    fn is_memory(&self, gfn: u64) -> bool {
        let gpa = Gfn(gfn).address();
        gpa.is_some_and(|gpa| self.memory.read(gpa, &mut [0]).is_ok())
    }

    /// Says that no frame is protected, and whether some can be.
    fn say(&self, offered: bool) {
        self.ring.announce();
        self.ring.owe(Request::Protection { offered });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held while a request of a vCPU is answered. Waits until that may be,
    /// or `stop` says not to.
    pub(crate) fn answering(&self, vcpu: u32, stop: &AtomicBool) -> impl Sized {
        loop {
            let held = self.answers.read().unwrap_or_else(PoisonError::into_inner);
            if stop.load(Ordering::Acquire) || held.iter().all(|(one, _)| *one != vcpu) {
                return held;
            }
            drop(held);
            thread::sleep(SOON);
        }
    }

    /// To be held while types of frames change.
    fn answer_none(&self) -> RwLockWriteGuard<'_, BTreeSet<(u32, u64)>> {
        self.answers.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> ProtectionState {
        let state = self.lock();
        ProtectionState {
            offered: state.offered,
            frames: state.frames.len(),
            leaving: state.leaving.len(),
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

    fn protect(&self, gfn: u64) -> Outcome {
        let state = &mut *self.lock();
        if state.frames.contains(&gfn) {
            return Outcome::Done;
        }
        if !state.offered || state.frames.len() + state.leaving.len() >= MOST_FRAMES {
            return Outcome::Refused;
        }
        if state.unsure && state.leaving.contains(&gfn) {
            self.make_ram(state);
            if state.leaving.contains(&gfn) {
                return Outcome::Refused;
            }
        }
        let mut held = self.answer_none();
        if held.iter().any(|(_, one)| *one == gfn) {
            return Outcome::Refused;
        }
        if state.leaving.remove(&gfn) {
            // It is still.
            state.frames.insert(gfn);
            return Outcome::Done;
        }
        self.kept.about_to();
        let one = BTreeSet::from([gfn]);
        let before = self.page.crossings(&one);
        let protected = self.server.protect(&self.page, gfn);
        let after = self.page.crossings(&one);
        match protected {
            Ok(true) => {
                state.refusals = 0;
                state.frames.insert(gfn);
                Outcome::Done
            }
            // A vCPU's instruction is in the way.
            Ok(false) => {
                if !after.is_subset(&before) {
                    held.extend(after);
                    state.leave(gfn);
                }
                Outcome::Refused
            }
            Err(e) => {
                drop(held);
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
            state.leave(gfn);
        }
        Outcome::Ended
    }

    /// Lets frames be protected again that [`Self::end`] let go of, and those
    /// that Xen refused.
    pub(crate) fn begin_again(&self) {
        let state = &mut *self.lock();
        state.refusals = 0;
        state.wanted = true;
        if !state.offered {
            self.claim_again(state);
        }
    }

    /// Xen does not protect frames any more.
    fn give_up(&self, state: &mut State, why: &DeviceModelError) {
        log::warn!("page tables are compared from now on, not protected: {why}");
        self.withdraw(state);
    }

    /// Protects no frame any more.
    fn withdraw(&self, state: &mut State) {
        if state.offered {
            self.say(false);
        }
        state.offered = false;
        state.wanted = false;
        state.leave_all();
        self.end_claim(state);
    }

    /// Gives the claim back once there is nothing more it is needed for.
    fn end_claim(&self, state: &mut State) {
        if state.claimed && !state.offered && state.leaving.is_empty() {
            state.claimed = false;
            if let Err(e) = self.server.release_write_protection() {
                // The domain is destroyed before its device models, often.
                log::debug!("{e}");
            }
        }
    }

    /// Makes RAM of frames let go of, as far as that can be done now.
    fn make_ram(&self, state: &mut State) {
        let batch: BTreeSet<u64> = state.leaving.iter().take(BATCH).copied().collect();
        let mut held = self.answer_none();
        let before = self.page.crossings(&batch);
        // Without a server there is nothing to do for them.
        let left = self.server.let_go(&self.page, &batch).unwrap_or_else(|e| {
            log::debug!("{e}");
            BTreeSet::new()
        });
        held.retain(|(_, gfn)| left.contains(gfn) || !batch.contains(gfn));
        held.extend(self.page.crossings(&left).difference(&before));
        drop(held);
        let done = batch.len() - left.len();
        // Those left are tried first the next time. There are no more of them
        // than twice the vCPUs, or none could be done.
        state
            .leaving
            .retain(|gfn| !batch.contains(gfn) || left.contains(gfn));
        state.unsure &= !state.leaving.is_empty();
        state.patience = if done > 0 {
            SOON
        } else {
            (state.patience * 2).min(LATE)
        };
        if !state.leaving.is_empty() {
            state.try_at(state.patience);
        }
        self.end_claim(state);
    }

    /// Does what can be done now to have frames become RAM.
    fn step(&self, state: &mut State) {
        state.next = None;
        if state.inherited {
            self.disown(state);
        }
        if !state.leaving.is_empty() {
            self.make_ram(state);
        }
    }

    /// Makes RAM of frames let go of, if it is time; how long it is until it
    /// is time again.
    pub(crate) fn tend(&self) -> Option<Duration> {
        let leaving = {
            let state = self.lock();
            let due = state.next? <= Instant::now();
            due.then(|| state.leaving.clone())
        };
        if let Some(leaving) = &leaving {
            self.wait_for_a_moment(leaving);
        }
        let state = &mut *self.lock();
        if leaving.is_some() {
            self.step(state);
        }
        Some(state.next?.saturating_duration_since(Instant::now()))
    }

    /// Waits a little until no request writes to any of some frames. Requests
    /// are answered meanwhile.
    fn wait_for_a_moment(&self, frames: &BTreeSet<u64>) {
        let start = Instant::now();
        while self.page.frames_written().any(|gfn| frames.contains(&gfn)) {
            if start.elapsed() >= MOMENT {
                return;
            }
            thread::yield_now();
        }
    }

    /// Frames left the guest, and others may be in their places, which nobody
    /// protected: none is, until vgpud asks again.
    pub(crate) fn frames_left(&self) {
        let state = &mut *self.lock();
        state.unsure |= !(state.frames.is_empty() && state.leaving.is_empty());
        if state.frames.is_empty() {
            return;
        }
        self.ring.announce();
        state.leave_all();
        self.ring.owe(Request::Protection { offered: true });
        self.alarm.ring();
    }

    /// Makes every frame plain RAM, and protects none until
    /// [`Self::begin_again`]. Requests must be answered meanwhile.
    ///
    /// # Errors
    /// [`StillProtected`]; those frames become RAM when they can.
    pub(crate) fn end(&self) -> Result<(), StillProtected> {
        let start = Instant::now();
        self.withdraw(&mut self.lock());
        loop {
            {
                let state = &mut *self.lock();
                self.step(state);
                if !state.is_busy() {
                    return Ok(());
                }
                let left = state.leaving.len();
                if start.elapsed() >= END_LIMIT {
                    return Err(StillProtected(left));
                }
            }
            // For them to be answered.
            thread::sleep(SOON);
        }
    }

    /// [`Self::end`], for good: a frame that stayed protected could never be
    /// written again.
    pub(crate) fn finish(&self) {
        if let Err(e) = self.end() {
            log::warn!("{e}");
            let state = &mut *self.lock();
            state.leaving.clear();
            self.answer_none().clear();
            state.claimed |= std::mem::take(&mut state.inherited);
            self.end_claim(state);
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
            state.seen.late += u64::from(state.leaving.contains(&gfn));
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

    /// A page that is used for something else is let go of: soon Xen might
    /// have to write to it, for a hypercall, and that fails in a protected
    /// frame (Xen arch/x86/hvm/hvm.c:__hvm_copy).
    fn let_go(&self, state: &mut State, gfn: u64) -> bool {
        if self.ring.send(Request::TableReleased { gfn }).is_err() {
            return false;
        }
        state.seen.released += 1;
        state.frames.remove(&gfn);
        state.leave(gfn);
        self.alarm.ring();
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
