//! Requests that outlive the domain that was to answer them.
//!
//! A vCPU waits in the page of the server that its request went to (Xen
//! common/ioreq.c:vcpu_ioreq_handle_completion goes through all servers for one
//! that it waits in). Only a page can release it: the domain whose server that is
//! may be gone. So its request is copied to the page of a server that has a
//! domain, whose device model answers it there as any other, and the answer is
//! copied back. The event that ends the vCPU's sleep may be any server's of that
//! vCPU (common/event_channel.c:default_xen_notification_fn).
//!
//! All of it is for a guest that is paused, whose vCPUs look at no page, or for a
//! vCPU that waits in another page than the one that is written.

use xen_sys::layout as at;

use super::page::{IoreqError, IoreqPage, IoreqState};
use crate::{DeviceModelError, DomId, Privcmd, PrivcmdError};

/// A request in its slot, with its state, and without the port, which is the
/// server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Address, data, count and size.
    head: [u8; at::IOREQ_VP_EPORT],
    flags: u8,
    kind: u8,
}

impl Slot {
    /// How far the request is.
    #[must_use]
    pub fn state(&self) -> IoreqState {
        IoreqState::from_flags(self.flags)
    }
}

impl IoreqPage {
    /// The page of a server that told where it is in the guest
    /// ([`crate::IoreqServer::frame`]), for as many vCPUs as the domain has.
    ///
    /// # Errors
    /// What Xen says of the frame: it is there only while the server is
    /// disabled.
    pub fn of_frame(
        privcmd: &dyn Privcmd,
        domid: DomId,
        gfn: u64,
        vcpus: u32,
    ) -> Result<Self, DeviceModelError> {
        let map = privcmd.map_foreign(domid, &[gfn], crate::Access::ReadWrite);
        let map = map.and_then(|map| match map.errors.first().copied().flatten() {
            None => Ok(map.mapping),
            Some(errno) => Err(PrivcmdError::Call {
                op: String::new(),
                domid,
                errno,
            }),
        });
        let page = map.map_err(|e| DeviceModelError {
            op: format!("map frame {gfn:#x} with requests"),
            domid,
            errno: e.errno(),
        })?;
        Ok(Self::new(page, vcpus))
    }

    /// A copy of what is in a slot; `None` when nobody has it.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn lift(&self, vcpu: u32) -> Result<Option<Slot>, IoreqError> {
        if self.state(vcpu)? == IoreqState::None {
            return Ok(None);
        }
        let [flags] = self.field(vcpu, at::IOREQ_FLAGS)?;
        let [kind] = self.field(vcpu, at::IOREQ_TYPE)?;
        Ok(Some(Slot {
            head: self.field(vcpu, 0)?,
            flags,
            kind,
        }))
    }

    /// Puts a request into a slot, in which there is none that anybody waits for.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn lay(&self, vcpu: u32, slot: &Slot) -> Result<(), IoreqError> {
        self.put_field(vcpu, 0, &slot.head)?;
        self.put_field(vcpu, at::IOREQ_TYPE, &[slot.kind])?;
        self.set_flags(vcpu, slot.flags)
    }

    /// Moves an answer to the slot in which the vCPU waits, that of `home`; says
    /// whether there is one.
    ///
    /// # Errors
    /// [`IoreqError::NoSuchVcpu`].
    pub fn answer_to(&self, home: &Self, vcpu: u32) -> Result<bool, IoreqError> {
        let Some(slot) = self.lift(vcpu)? else {
            return Ok(false);
        };
        if slot.state() != IoreqState::RespReady {
            return Ok(false);
        }
        home.lay(vcpu, &slot)?;
        self.set_flags(vcpu, 0)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::{Access, Mapping};

    fn page(port: u32) -> IoreqPage {
        let file: OwnedFd = memfd_create(c"page", MFdFlags::empty()).unwrap();
        let file = File::from(file);
        file.set_len(4096).unwrap();
        let page = Mapping::shared(&file, 0, 1, Access::ReadWrite).unwrap();
        for vcpu in 0..2 {
            let at = vcpu * at::IOREQ_SIZE + at::IOREQ_VP_EPORT;
            page.write(at, &port.to_le_bytes()).unwrap();
        }
        IoreqPage::new(page, 2)
    }

    /// Sends a read of `addr`, as Xen does.
    fn ask(page: &IoreqPage, vcpu: u32, addr: u64) {
        page.put_field(vcpu, at::IOREQ_ADDR, &addr.to_le_bytes())
            .unwrap();
        page.put_field(vcpu, at::IOREQ_TYPE, &[1]).unwrap();
        page.set_flags(vcpu, at::IOREQ_FLAGS_DIR | 1).unwrap();
    }

    #[test]
    fn an_answer_comes_back_to_where_it_is_waited_for() {
        let (home, new) = (page(7), page(9));
        ask(&home, 1, 0x1234);
        assert_eq!(home.lift(0), Ok(None));
        let slot = home.lift(1).unwrap().unwrap();
        assert_eq!(slot.state(), IoreqState::Ready);
        new.lay(1, &slot).unwrap();
        assert_eq!(new.port(1).unwrap().0, 9);
        assert_eq!(new.answer_to(&home, 1), Ok(false));
        let request = new.take(1).unwrap().unwrap();
        assert_eq!((request.addr, request.read), (0x1234, true));
        assert_eq!(new.answer_to(&home, 1), Ok(false));
        new.complete(1, 0x77).unwrap();
        assert_eq!(new.answer_to(&home, 1), Ok(true));
        assert_eq!(new.state(1), Ok(IoreqState::None));
        let (state, answer) = home.peek(1).unwrap().unwrap();
        assert_eq!((state, answer.data), (IoreqState::RespReady, 0x77));
        assert_eq!(home.port(1).unwrap().0, 7);
    }
}
