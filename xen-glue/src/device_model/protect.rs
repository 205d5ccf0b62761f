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
//! A slot shows that as `let_go` has it. Between the answer and the end of the
//! instruction it shows what was answered; if that is such a write, the domain is
//! paused for an instant.

use guest_memory::Gfn;

use super::let_go::{all_fetched, written};
use super::{DeviceModelError, IoreqServer, MemType};
use crate::{IoreqPage, IoreqState};

/// Bytes of the widest store, all but one of which can be in the next frame.
const WIDEST: u64 = 64;

/// Whether a vCPU's request writes to the start of the frame after `gfn`: one
/// that is in its slot, or `ever` was the last there.
fn crosses_into_next(page: &IoreqPage, gfn: u64, ever: bool) -> bool {
    let next = gfn.wrapping_add(1);
    let Some(start) = Gfn(next).address() else {
        return false;
    };
    (0..page.vcpus()).any(|vcpu| {
        let last = page.last(vcpu);
        last.is_ok_and(|(state, r)| {
            (ever || state != IoreqState::None)
                && r.frames_written().contains(&next)
                && r.addr.wrapping_sub(start) < WIDEST
        })
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
        if crosses_into_next(page, gfn, true) {
            if !all_fetched(page) || crosses_into_next(page, gfn, false) {
                return Ok(false);
            }
            // Pauses the domain.
            self.set_enabled(true)?;
        }
        self.set_type(gfn, MemType::WriteProtected)?;
        if !crosses_into_next(page, gfn, false) {
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
