//! The page of synchronous requests, one slot of 32 bytes a vCPU.
//!
//! Protocol (Xen common/ioreq.c:wait_for_io): NONE, then Xen fills a slot
//! and sets READY; we copy it, set INPROCESS, do it, store the data and set
//! RESP_READY; Xen takes it and sets NONE. A state that goes backwards makes
//! Xen crash the domain, so a slot in any other state than expected is left
//! alone.

use std::sync::atomic::{AtomicU8, Ordering};

use xen_sys::layout as at;

use super::{IoKind, IoRequest};
use crate::{Mapping, Port};

/// Slots in a page.
const SLOTS: u32 = 128;

/// Who has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoreqState {
    /// Nobody.
    None,
    /// We have, not yet looked at.
    Ready,
    /// We have.
    InProcess,
    /// Xen has, to take the answer.
    RespReady,
    /// Not a state.
    Unknown(u8),
}

impl IoreqState {
    pub(super) fn from_flags(flags: u8) -> Self {
        match u32::from(flags & at::IOREQ_FLAGS_STATE) {
            xen_sys::STATE_IOREQ_NONE => Self::None,
            xen_sys::STATE_IOREQ_READY => Self::Ready,
            xen_sys::STATE_IOREQ_INPROCESS => Self::InProcess,
            xen_sys::STATE_IORESP_READY => Self::RespReady,
            _ => Self::Unknown(flags & at::IOREQ_FLAGS_STATE),
        }
    }
}

/// Why a slot could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoreqError {
    /// There is no such slot.
    #[error("vcpu {vcpu} of {vcpus}")]
    NoSuchVcpu {
        /// The slot asked for.
        vcpu: u32,
        /// The slots there are.
        vcpus: u32,
    },
    /// The slot is not ours to answer.
    #[error("answering vcpu {vcpu} in state {state:?}, want InProcess")]
    State {
        /// The slot.
        vcpu: u32,
        /// The state it has.
        state: IoreqState,
    },
}

/// The page, shared with Xen.
#[derive(Debug)]
pub struct IoreqPage {
    page: Mapping,
    vcpus: u32,
}

impl IoreqPage {
    /// The page with slots for `vcpus` vCPUs, 128 at most.
    #[must_use]
    pub fn new(page: Mapping, vcpus: u32) -> Self {
        Self {
            page,
            vcpus: vcpus.min(SLOTS),
        }
    }

    /// The slots in use.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.vcpus
    }

    fn base(&self, vcpu: u32) -> Result<usize, IoreqError> {
        usize::try_from(vcpu)
            .ok()
            .filter(|_| vcpu < self.vcpus)
            .map(|n| n * at::IOREQ_SIZE)
            .ok_or(IoreqError::NoSuchVcpu {
                vcpu,
                vcpus: self.vcpus,
            })
    }

    fn flags(&self, vcpu: u32) -> Result<&AtomicU8, IoreqError> {
        let base = self.base(vcpu)?;
        // In range for every slot, and the page is writable.
        self.page
            .atomic_u8(base + at::IOREQ_FLAGS)
            .ok_or(IoreqError::NoSuchVcpu {
                vcpu,
                vcpus: self.vcpus,
            })
    }

    pub(super) fn field<const N: usize>(
        &self,
        vcpu: u32,
        offset: usize,
    ) -> Result<[u8; N], IoreqError> {
        let base = self.base(vcpu)?;
        let mut bytes = [0; N];
        // In range for every slot.
        self.page
            .read(base + offset, &mut bytes)
            .map_err(|_| IoreqError::NoSuchVcpu {
                vcpu,
                vcpus: self.vcpus,
            })?;
        Ok(bytes)
    }

    pub(super) fn put_field(
        &self,
        vcpu: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), IoreqError> {
        let base = self.base(vcpu)?;
        // In range for every slot.
        self.page
            .write(base + offset, bytes)
            .map_err(|_| IoreqError::NoSuchVcpu {
                vcpu,
                vcpus: self.vcpus,
            })
    }

    /// Stores the state and what is beside it, ordered after all earlier
    /// accesses.
    pub(super) fn set_flags(&self, vcpu: u32, flags: u8) -> Result<(), IoreqError> {
        self.flags(vcpu)?.store(flags, Ordering::Release);
        Ok(())
    }

    /// Who has the slot.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn state(&self, vcpu: u32) -> Result<IoreqState, IoreqError> {
        let flags = self.flags(vcpu)?.load(Ordering::Acquire);
        Ok(IoreqState::from_flags(flags))
    }

    /// The port to bind to for this vCPU. Valid once the server has been
    /// enabled.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn port(&self, vcpu: u32) -> Result<Port, IoreqError> {
        let bytes = self.field(vcpu, at::IOREQ_VP_EPORT)?;
        Ok(Port(u32::from_le_bytes(bytes)))
    }

    /// Takes the request that waits in the slot, if one does.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn take(&self, vcpu: u32) -> Result<Option<IoRequest>, IoreqError> {
        self.take_in(vcpu, &[IoreqState::Ready])
    }

    /// Like [`IoreqPage::take`], and also one that a former process took
    /// and did not answer. It may have been carried out in part or whole.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn take_unfinished(&self, vcpu: u32) -> Result<Option<IoRequest>, IoreqError> {
        self.take_in(vcpu, &[IoreqState::Ready, IoreqState::InProcess])
    }

    /// The request in the slot and who has it, left as it is. `None` when
    /// nobody has it.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn peek(&self, vcpu: u32) -> Result<Option<(IoreqState, IoRequest)>, IoreqError> {
        if self.state(vcpu)? == IoreqState::None {
            return Ok(None);
        }
        let last = self.last(vcpu)?;
        Ok(Some(last).filter(|(state, _)| *state != IoreqState::None))
    }

    /// The requests in the slots and who has them.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (IoreqState, IoRequest)> {
        (0..self.vcpus()).filter_map(|vcpu| self.peek(vcpu).ok().flatten())
    }

    /// What [`Self::peek`] gives, of a slot that nobody has, too: then it is
    /// the last one there was, or any when Xen is just writing the next.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub(crate) fn last(&self, vcpu: u32) -> Result<(IoreqState, IoRequest), IoreqError> {
        let slot = self.flags(vcpu)?;
        loop {
            let flags = slot.load(Ordering::Acquire);
            let request = self.request(vcpu, flags)?;
            // Xen may have taken an answer meanwhile and sent another.
            if slot.load(Ordering::Acquire) == flags {
                return Ok((IoreqState::from_flags(flags), request));
            }
        }
    }

    fn take_in(&self, vcpu: u32, wanted: &[IoreqState]) -> Result<Option<IoRequest>, IoreqError> {
        let slot = self.flags(vcpu)?;
        let flags = slot.load(Ordering::Acquire);
        if !wanted.contains(&IoreqState::from_flags(flags)) {
            return Ok(None);
        }
        let request = self.request(vcpu, flags)?;
        set_state(slot, flags, xen_sys::STATE_IOREQ_INPROCESS);
        Ok(Some(request))
    }

    /// A copy of what is in a slot.
    fn request(&self, vcpu: u32, flags: u8) -> Result<IoRequest, IoreqError> {
        let [kind] = self.field(vcpu, at::IOREQ_TYPE)?;
        Ok(IoRequest {
            vcpu,
            kind: IoKind::from_raw(kind),
            addr: u64::from_le_bytes(self.field(vcpu, at::IOREQ_ADDR)?),
            data: u64::from_le_bytes(self.field(vcpu, at::IOREQ_DATA)?),
            count: u32::from_le_bytes(self.field(vcpu, at::IOREQ_COUNT)?),
            size: u32::from_le_bytes(self.field(vcpu, at::IOREQ_ACCESS_SIZE)?),
            read: flags & at::IOREQ_FLAGS_DIR != 0,
            df: flags & at::IOREQ_FLAGS_DF != 0,
            data_is_ptr: flags & at::IOREQ_FLAGS_DATA_IS_PTR != 0,
            vp_eport: self.port(vcpu)?,
        })
    }

    /// Answers the request in the slot; the caller notifies the port then.
    /// `data` is what was read (ignored for writes and for `data_is_ptr`).
    ///
    /// # Errors
    /// [`IoreqError::State`] when the slot is not in process: the server was
    /// reset, and setting a state would crash the domain.
    pub fn complete(&self, vcpu: u32, data: u64) -> Result<(), IoreqError> {
        let slot = self.flags(vcpu)?;
        let flags = slot.load(Ordering::Acquire);
        let state = IoreqState::from_flags(flags);
        if state != IoreqState::InProcess {
            return Err(IoreqError::State { vcpu, state });
        }
        // Xen takes the data of reads only; with data_is_ptr the field is an
        // address that a request sent again is compared with.
        let plain_read = flags & (at::IOREQ_FLAGS_DIR | at::IOREQ_FLAGS_DATA_IS_PTR);
        if plain_read == at::IOREQ_FLAGS_DIR {
            let base = self.base(vcpu)?;
            if let Some(slot) = self.page.atomic_u64(base + at::IOREQ_DATA) {
                slot.store(data, Ordering::Relaxed);
            }
        }
        set_state(slot, flags, xen_sys::STATE_IORESP_READY);
        Ok(())
    }
}

/// Stores a new state beside the other bits of its byte, ordered after all
/// earlier accesses.
fn set_state(slot: &AtomicU8, flags: u8, state: u32) {
    // States are 0 to 3.
    let state = u8::try_from(state).unwrap_or(0) & at::IOREQ_FLAGS_STATE;
    slot.store(flags & !at::IOREQ_FLAGS_STATE | state, Ordering::Release);
}
