//! Ending the protection of frames under the hands of vCPUs.
//!
//! Xen 4.17 emulates a write to a protected frame twice: once to send the
//! request, and once more to take its answer. The first time it holds the lock
//! of the guest's frame types from the look at the type until the request is in
//! its slot (arch/x86/hvm/hvm.c:hvm_hap_nested_page_fault). The second time it
//! looks anew. Where it finds RAM then, `rep stos`, `rep movs` and what crosses
//! a page's edge do all of it by themselves and leave the answer behind, and
//! the vCPU's next access to any device ends in `domain_crash`
//! (arch/x86/hvm/emulate.c:hvmemul_do_io); of a store of more than 8 bytes the
//! rest is lost. So a frame must not become RAM while a vCPU is inside an
//! instruction that wrote to it.
//!
//! A vCPU is, while its slot has such a request, and then from the moment at
//! which Xen takes the answer to the end of the instruction or its next
//! request. In that time it keeps its CPU, for Xen is not preempted; so when a
//! domain is paused, which waits for all vCPUs to leave theirs
//! (common/domain.c:domain_pause), no vCPU is at that point. Setting the state
//! of an ioreq server pauses the domain for an instant, even to what it is
//! (common/ioreq.c:ioreq_server_set_state).
//!
//! That leaves writes that begin after that instant: those that came before the
//! change of the type are in their slots when it is done, unanswered, and then
//! the frame is protected again before anyone answers. Whoever takes the place
//! of a device model that died does that first, since it may have died there.
//!
//! An instruction that goes on after an answer looks at its next frame's type
//! without that lock. It could find a frame protected that is RAM when it sends
//! the request, which is lost then. So nothing is changed while an answer is in
//! a slot, and none comes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{DeviceModelError, Extent, IoreqServer, MemType};
use crate::{Errno, IoreqPage, IoreqState};

/// How long vCPUs may take to fetch answers. Those of a paused domain do not.
const FETCH: Duration = Duration::from_millis(1);

impl IoreqPage {
    /// The frames to which vCPUs' requests write, answered or not.
    pub fn frames_written(&self) -> impl Iterator<Item = u64> {
        self.requests().flat_map(|(_, r)| r.frames_written())
    }
}

/// Those, once each.
fn written(page: &IoreqPage) -> BTreeSet<u64> {
    page.frames_written().collect()
}

/// Whether all answers are fetched, or are in a moment.
pub(super) fn all_fetched(page: &IoreqPage) -> bool {
    let start = Instant::now();
    let answered = |vcpu| page.state(vcpu) == Ok(IoreqState::RespReady);
    while (0..page.vcpus()).any(answered) {
        if start.elapsed() >= FETCH {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

impl IoreqServer {
    pub(super) fn set_type(&self, gfn: u64, to: MemType) -> Result<(), DeviceModelError> {
        let extent = Extent {
            first_gfn: gfn,
            frames: 1,
        };
        self.device_model().set_mem_type(extent, to)
    }

    /// Makes protected frames plain RAM, but for those that a vCPU's
    /// instruction may write to just now, which are returned: all of them, if
    /// an answer is not fetched in a millisecond. Those for which
    /// [`IoreqPage::crossings`] has more afterwards than before must become RAM
    /// before these requests are answered. The server must be
    /// enabled, `page` its page, and until this returns nobody may answer
    /// a request. Frames that left the guest count as RAM. Pauses the domain
    /// for an instant.
    ///
    /// # Errors
    /// When the server or the domain is gone; nothing is changed then.
    pub fn let_go(
        &self,
        page: &IoreqPage,
        frames: &BTreeSet<u64>,
    ) -> Result<BTreeSet<u64>, DeviceModelError> {
        if !all_fetched(page) {
            return Ok(frames.clone());
        }
        let busy = written(page);
        let mut left: BTreeSet<u64> = frames.intersection(&busy).copied().collect();
        if left.len() == frames.len() {
            return Ok(left);
        }
        self.set_enabled(true)?;
        let mut changed = BTreeSet::new();
        for &gfn in frames.difference(&busy) {
            match self.set_type(gfn, MemType::Ram) {
                Ok(()) => drop(changed.insert(gfn)),
                Err(e) => log::debug!("{e}"),
            }
        }
        for &gfn in changed.intersection(&written(page)) {
            match self.set_type(gfn, MemType::WriteProtected) {
                Ok(()) => drop(left.insert(gfn)),
                Err(e) => log::warn!("a vCPU writes to a frame that became RAM: {e}"),
            }
        }
        Ok(left)
    }

    /// Protects again each frame to which a request in a slot writes. For one
    /// who takes the place of a device model that may have died in
    /// [`Self::let_go`] or [`Self::end_claim`], before it answers any request.
    /// A request that an instruction sent when its frame was protected is in
    /// its slot still then, since nobody has answered it. Frames that are
    /// protected stay so, and the server may have a claim or not; afterwards
    /// it has one, if there is such a frame. One that [`Self::protect`] protected
    /// while a store across its edge began becomes RAM. `is_memory` as in
    /// [`Self::end_claim`].
    pub fn protect_again(&self, page: &IoreqPage, is_memory: impl Fn(u64) -> bool) {
        let frames: Vec<u64> = written(page)
            .into_iter()
            .filter(|g| is_memory(*g))
            .collect();
        if frames.is_empty() {
            return;
        }
        if let Err(e) = self.claim_write_protection()
            && e.errno != Errno::EBUSY
        {
            log::warn!("a vCPU writes to a frame that may have become RAM: {e}");
        }
        for &gfn in &frames {
            // Xen refuses it for one that is protected.
            match self.set_type(gfn, MemType::WriteProtected) {
                Ok(()) => log::info!("frame {gfn:#x} is protected again until a write to it ends"),
                Err(e) => log::debug!("{e}"),
            }
        }
        let before = frames.iter().filter_map(|gfn| gfn.checked_sub(1));
        let crossings = page.crossings(&before.collect());
        let crossed = crossings.into_iter().map(|(_, gfn)| gfn);
        let crossed: BTreeSet<u64> = crossed
            .filter(|gfn| !frames.contains(gfn) && is_memory(*gfn))
            .collect();
        if crossed.is_empty() {
            return;
        }
        // No vCPU is inside another instruction that goes on in one of them.
        let made_ram = self.set_enabled(true).and_then(|()| {
            let mut frames = crossed.into_iter();
            frames.try_for_each(|gfn| self.set_type(gfn, MemType::Ram))
        });
        if let Err(e) = made_ram {
            log::debug!("{e}");
        }
    }

    /// Ends this server's claim of write protection and makes every protected
    /// frame plain RAM, whichever there are, unless a vCPU's instruction writes
    /// to one just now: then some may be protected still, and what waits is to
    /// be answered before this is tried again. Says whether it is done.
    /// `is_memory` tells frames from windows. Else as [`Self::let_go`].
    ///
    /// # Errors
    /// When Xen refuses, since this server has no claim for one.
    pub fn end_claim(
        &self,
        page: &IoreqPage,
        is_memory: impl Fn(u64) -> bool,
    ) -> Result<bool, DeviceModelError> {
        let memory = |frames: BTreeSet<u64>| -> Vec<u64> {
            frames.into_iter().filter(|gfn| is_memory(*gfn)).collect()
        };
        if !all_fetched(page) || !memory(written(page)).is_empty() {
            return Ok(false);
        }
        self.set_enabled(true)?;
        self.release_write_protection()?;
        let late = memory(written(page));
        if late.is_empty() {
            return Ok(true);
        }
        self.claim_write_protection()?;
        for gfn in late {
            if let Err(e) = self.set_type(gfn, MemType::WriteProtected) {
                log::warn!("a vCPU writes to a frame that became RAM: {e}");
            }
        }
        Ok(false)
    }
}
