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

use guest_memory::Gfn;

use super::let_go::{all_fetched, written};
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

/// Whether a request in a slot is one.
fn is_crossed(page: &IoreqPage, gfn: u64) -> bool {
    let mut requests = (0..page.vcpus()).filter_map(|vcpu| page.peek(vcpu).ok().flatten());
    requests.any(|(_, r)| crosses_into_next(&r, gfn))
}

/// Whether a vCPU that does not wait may be inside an instruction whose last
/// request was one, or that can have one yet.
fn may_go_on(page: &IoreqPage, gfn: u64) -> bool {
    let mut last = (0..page.vcpus()).filter_map(|vcpu| page.last(vcpu).ok());
    last.any(|(state, r)| {
        let waits = matches!(state, IoreqState::Ready | IoreqState::InProcess);
        let plain_read = r.kind == IoKind::Copy && r.read && !r.data_is_ptr;
        !waits && (plain_read || crosses_into_next(&r, gfn))
    })
}

impl IoreqServer {
    /// Protects a frame, unless a vCPU's instruction may have written to it
    /// that is not through; says whether it did. Until this returns nobody may
    /// answer a request; `page` is the server's.
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
        if is_crossed(page, gfn) {
            return Ok(false);
        }
        self.set_type(gfn, MemType::WriteProtected)?;
        if !is_crossed(page, gfn) {
            return Ok(true);
        }
        // One that began meanwhile.
        self.set_type(gfn, MemType::Ram)?;
        if written(page).contains(&gfn) {
            // Another vCPU writes to the frame as one that is protected.
            self.set_type(gfn, MemType::WriteProtected)?;
            return Ok(true);
        }
        Ok(false)
    }
}
