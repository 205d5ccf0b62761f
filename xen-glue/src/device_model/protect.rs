//! Protecting a frame under the hands of vCPUs.
//!
//! Of a store across a page's edge Xen 4.17 writes what is RAM by itself, sends
//! a request for what is in a protected frame, and does all of it once more when
//! it has the answer. If the first frame is protected by then, there is a
//! request to send for that, too, with the answer to another one in hand, and
//! this ends in `domain_crash` (arch/x86/hvm/emulate.c:linear_write and
//! hvmemul_do_io). So no frame becomes protected while a vCPU is inside an
//! instruction that writes to the start of the next one.
//!
//! A slot shows that as `let_go` has it. Between an answer and the end of the
//! instruction, or its next request, it shows what was answered. If that is such a
//! write, or a read, which can be of an instruction that has yet to store across
//! the edge (a `movs`), the domain is paused for an instant.

use std::collections::BTreeSet;

use guest_memory::Gfn;

use super::let_go::all_fetched;
use super::{DeviceModelError, IoreqServer, MemType};
use crate::{IoKind, IoRequest, IoreqPage, IoreqState};

/// Bytes of the widest store, all but one of which can be in the next frame.
const WIDEST: u64 = 64;

/// Whether a request is a write to the start of the frame after `gfn`.
fn crosses_into_next(r: &IoRequest, gfn: u64) -> bool {
    let next = gfn.wrapping_add(1);
    let start = Gfn(next).address();
    start.is_some_and(|start| {
        r.frames_written().contains(&next) && r.addr.wrapping_sub(start) < WIDEST
    })
}

/// Whether it is for the device model to answer.
fn is_unanswered(state: IoreqState) -> bool {
    matches!(state, IoreqState::Ready | IoreqState::InProcess)
}

impl IoreqPage {
    /// vCPUs that wait for an answer to a write to the start of the frame after
    /// one of `frames`, with that one. Of what such a vCPU stores a part may be
    /// in it; if it became protected when that was written, it has to be RAM
    /// before the request is answered.
    #[must_use]
    pub fn crossings(&self, frames: &BTreeSet<u64>) -> BTreeSet<(u32, u64)> {
        self.requests()
            .filter_map(|(state, r)| {
                let gfn = Gfn::containing(r.addr).0.checked_sub(1)?;
                let crosses = frames.contains(&gfn) && crosses_into_next(&r, gfn);
                (is_unanswered(state) && crosses).then_some((r.vcpu, gfn))
            })
            .collect()
    }
}

/// Whether a vCPU that does not wait may be inside an instruction whose last
/// request was one, or that can have one yet.
fn may_go_on(page: &IoreqPage, gfn: u64) -> bool {
    let mut last = (0..page.vcpus()).filter_map(|vcpu| page.last(vcpu).ok());
    last.any(|(state, r)| {
        let plain_read = r.kind == IoKind::Copy && r.read && !r.data_is_ptr;
        !is_unanswered(state) && (plain_read || crosses_into_next(&r, gfn))
    })
}

impl IoreqServer {
    /// Protects a frame, unless a vCPU's instruction may have written to it
    /// that is not through; says whether it is protected. If not, and
    /// [`IoreqPage::crossings`] has more of it than before, it may be all the
    /// same, and must become RAM before these requests are answered. Until this
    /// returns nobody may answer a request; `page` is the server's.
    ///
    /// # Errors
    /// When Xen refuses.
    pub fn protect(&self, page: &IoreqPage, gfn: u64) -> Result<bool, DeviceModelError> {
        if may_go_on(page, gfn) {
            if !all_fetched(page) {
                return Ok(false);
            }
            // Pauses the domain.
            self.set_enabled(true)?;
        }
        let is_crossed = || !page.crossings(&BTreeSet::from([gfn])).is_empty();
        if is_crossed() {
            return Ok(false);
        }
        self.set_type(gfn, MemType::WriteProtected)?;
        // By a store that began meanwhile. It cannot be made RAM just so: other
        // vCPUs may write to it as one that is protected.
        Ok(!is_crossed())
    }
}
