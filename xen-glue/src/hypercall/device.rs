//! Hypercalls through `/dev/xen/privcmd`.

#![expect(unsafe_code, reason = "the hypercall ioctl")]

use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use xen_sys::ioctl;
use xen_sys::layout::{domctl, hvm_param};

use super::{DomainMemory, DomainState, HypercallError};
use crate::{Access, DomId, Extent, Mapping};

nix::ioctl_readwrite_bad!(
    hypercall,
    ioctl::PRIVCMD_HYPERCALL,
    xen_sys::privcmd_hypercall
);
nix::ioctl_write_ptr_bad!(restrict, ioctl::PRIVCMD_RESTRICT, xen_sys::domid_t);

const PRIVCMD: &str = "/dev/xen/privcmd";
/// Gives pages that stay where they are while Xen reads them.
const BUFFER: &str = "/dev/xen/hypercall";

/// Where in the buffer a list of frames starts, behind any struct.
const LIST: usize = 256;
/// Frames to a list; with the struct they fill less than the one page.
const LIST_FRAMES: u64 = 256;

/// A handle for hypercalls.
#[derive(Debug)]
pub struct Hypercall {
    privcmd: File,
    /// One page. A call owns it from filling it to its return.
    buffer: Mutex<Mapping>,
}

/// A call: what it is named, the domain, and the registers.
struct Call {
    name: &'static str,
    domid: DomId,
    /// Hypercall number.
    number: u32,
    /// The operation, for a hypercall that has it as first argument.
    op: Option<u32>,
}

impl Call {
    const fn memory(name: &'static str, domid: DomId, op: u32) -> Self {
        Self {
            name,
            domid,
            number: xen_sys::__HYPERVISOR_memory_op,
            op: Some(op),
        }
    }

    fn failed(&self, errno: Errno) -> HypercallError {
        HypercallError::Call {
            op: self.name,
            domid: self.domid,
            errno,
        }
    }
}

fn put(argument: &mut [u8], at: usize, bytes: &[u8]) {
    argument[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A domctl's struct, without its version and what is its own.
fn domctl_of(command: u32, domid: DomId) -> [u8; domctl::SIZE] {
    let mut argument = [0; domctl::SIZE];
    put(&mut argument, 0, &command.to_le_bytes());
    put(&mut argument, domctl::DOMAIN, &domid.0.to_le_bytes());
    argument
}

/// What Xen tells of a domain. Of one that is not there it may tell what it
/// knows of the next.
fn state_of(domid: DomId, answer: &[u8; domctl::SIZE]) -> DomainState {
    let mut flags = [0; 4];
    flags.copy_from_slice(&answer[domctl::INFO_FLAGS..][..4]);
    let flags = u32::from_le_bytes(flags);
    let told = &answer[domctl::INFO_DOMAIN..][..2];
    if told != domid.0.to_le_bytes() || flags & domctl::INFO_DYING != 0 {
        DomainState::Gone
    } else if flags & domctl::INFO_SHUTDOWN != 0 {
        let [_, _, code, _] = flags.to_le_bytes();
        DomainState::Shutdown(code)
    } else {
        DomainState::Alive
    }
}

impl Hypercall {
    /// Opens the nodes.
    ///
    /// # Errors
    /// [`HypercallError::Open`].
    pub fn open() -> Result<Self, HypercallError> {
        let node = |path| {
            let file = OpenOptions::new().read(true).write(true).open(path);
            file.map_err(|e| HypercallError::Open {
                path,
                errno: Errno::from_raw(e.raw_os_error().unwrap_or(0)),
            })
        };
        let privcmd = node(PRIVCMD)?;
        let buffer = node(BUFFER)?;
        let buffer = Mapping::shared(&buffer, 0, 1, Access::ReadWrite);
        let buffer = buffer.map_err(|_| HypercallError::Open {
            path: BUFFER,
            errno: Errno::ENOMEM,
        })?;
        Ok(Self {
            privcmd,
            buffer: Mutex::new(buffer),
        })
    }

    /// Limits this handle as [`crate::Privcmd::restrict`] does one for device
    /// models: no hypercall goes through it any more, on no domain (Linux
    /// drivers/xen/privcmd.c:privcmd_ioctl_hypercall).
    ///
    /// # Errors
    /// [`HypercallError::Call`]: EINVAL when it is limited to another.
    pub fn restrict(&self, domid: DomId) -> Result<(), HypercallError> {
        // SAFETY: the kernel reads one domid from the pointer.
        let done = unsafe { restrict(self.privcmd.as_raw_fd(), &raw const domid.0) };
        done.map(drop).map_err(|errno| HypercallError::Call {
            op: "restrict",
            domid,
            errno,
        })
    }

    /// Makes a call whose struct is `argument`, and with it `list`.
    fn call(&self, call: &Call, argument: &[u8], list: &[u8]) -> Result<u64, HypercallError> {
        self.call_for(call, argument, list, &mut [])
    }

    /// The same; `answer` gets the first bytes of the struct as Xen left it.
    fn call_for(
        &self,
        call: &Call,
        argument: &[u8],
        list: &[u8],
        answer: &mut [u8],
    ) -> Result<u64, HypercallError> {
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = buffer
            .write(0, argument)
            .and_then(|()| buffer.write(LIST, list));
        filled.map_err(|_| call.failed(Errno::EFAULT))?;
        let at = buffer.address();
        let [a, b] = call.op.map_or([at, 0], |op| [u64::from(op), at]);
        let mut raw = xen_sys::privcmd_hypercall {
            op: u64::from(call.number),
            arg: [a, b, 0, 0, 0],
        };
        // SAFETY: Xen reads and writes the struct and the list in the buffer
        // alone, which is locked until after the call.
        let result = unsafe { hypercall(self.privcmd.as_raw_fd(), &raw mut raw) };
        let read = buffer.read(0, answer);
        drop(buffer);
        read.map_err(|_| call.failed(Errno::EFAULT))?;
        result
            .and_then(|value| u64::try_from(value).map_err(|_| Errno::EOVERFLOW))
            .map_err(|errno| call.failed(errno))
    }

    /// A domctl, in whichever version this Xen takes. Gives the struct as Xen
    /// left it.
    fn domctl(
        &self,
        name: &'static str,
        domid: DomId,
        mut argument: [u8; domctl::SIZE],
    ) -> Result<[u8; domctl::SIZE], HypercallError> {
        let call = Call {
            name,
            domid,
            number: xen_sys::__HYPERVISOR_domctl,
            op: None,
        };
        let mut refused = call.failed(Errno::EACCES);
        for version in domctl::VERSIONS {
            put(&mut argument, domctl::VERSION, &version.to_le_bytes());
            let mut answer = [0; domctl::SIZE];
            match self.call_for(&call, &argument, &[], &mut answer) {
                Ok(_) => return Ok(answer),
                Err(e) => refused = e,
            }
            let HypercallError::Call {
                errno: Errno::EACCES,
                ..
            } = refused
            else {
                break;
            };
        }
        Err(refused)
    }

    /// Lets the PV domain `stub` be the device model of the HVM domain `guest`
    /// (`XEN_DOMCTL_set_target`), for as long as it exists. `guest` cannot be
    /// freed before `stub` is.
    ///
    /// # Errors
    /// [`HypercallError::Call`]: ESRCH when there is no such domain, EINVAL
    /// when the stub has a target, EOPNOTSUPP when the guest is no HVM domain,
    /// EACCES when this Xen is newer than what is known here.
    pub fn set_target(&self, stub: DomId, guest: DomId) -> Result<(), HypercallError> {
        let mut argument = domctl_of(domctl::SET_TARGET, stub);
        put(&mut argument, domctl::TARGET, &guest.0.to_le_bytes());
        self.domctl("XEN_DOMCTL_set_target", stub, argument)?;
        Ok(())
    }

    /// Pauses a domain (`XEN_DOMCTL_pausedomain`): none of its vCPUs runs when
    /// this returns. Xen counts pauses.
    ///
    /// # Errors
    /// [`HypercallError::Call`]: ESRCH when there is no such domain, EACCES
    /// when this Xen is newer than what is known here.
    pub fn pause(&self, domid: DomId) -> Result<(), HypercallError> {
        let argument = domctl_of(domctl::PAUSE, domid);
        self.domctl("XEN_DOMCTL_pausedomain", domid, argument)?;
        Ok(())
    }

    /// Takes one pause back (`XEN_DOMCTL_unpausedomain`).
    ///
    /// # Errors
    /// As [`Self::pause`].
    pub fn unpause(&self, domid: DomId) -> Result<(), HypercallError> {
        let argument = domctl_of(domctl::UNPAUSE, domid);
        self.domctl("XEN_DOMCTL_unpausedomain", domid, argument)?;
        Ok(())
    }

    /// Whether a domain runs (`XEN_DOMCTL_getdomaininfo`).
    ///
    /// # Errors
    /// [`HypercallError::Call`]: EACCES when this Xen is newer than what is
    /// known here.
    pub fn domain_state(&self, domid: DomId) -> Result<DomainState, HypercallError> {
        let argument = domctl_of(domctl::GET_DOMAIN_INFO, domid);
        match self.domctl("XEN_DOMCTL_getdomaininfo", domid, argument) {
            Ok(answer) => Ok(state_of(domid, &answer)),
            Err(HypercallError::Call {
                errno: Errno::ESRCH,
                ..
            }) => Ok(DomainState::Gone),
            Err(e) => Err(e),
        }
    }

    /// The guest's frames in which pages of ioreq servers may lie. That of a
    /// server is there while the server is disabled.
    ///
    /// # Errors
    /// [`HypercallError::Call`]: EINVAL when it is no HVM domain, ESRCH when
    /// there is none.
    pub fn ioreq_frames(&self, domid: DomId) -> Result<Extent, HypercallError> {
        let first_gfn = self.hvm_param(domid, hvm_param::IOREQ_SERVER_PFN)?;
        let frames = self.hvm_param(domid, hvm_param::NR_IOREQ_SERVER_PAGES)?;
        // Xen takes no more than it has bits for them, which are 64.
        let frames = u32::try_from(frames.min(64)).unwrap_or(0);
        Ok(Extent { first_gfn, frames })
    }

    fn hvm_param(&self, domid: DomId, index: u32) -> Result<u64, HypercallError> {
        let call = Call {
            name: "HVMOP_get_param",
            domid,
            number: hvm_param::HYPERCALL,
            op: Some(hvm_param::GET),
        };
        let mut argument = [0; hvm_param::SIZE];
        put(&mut argument, 0, &domid.0.to_le_bytes());
        put(&mut argument, hvm_param::INDEX, &index.to_le_bytes());
        let mut answer = [0; hvm_param::SIZE];
        self.call_for(&call, &argument, &[], &mut answer)?;
        let mut value = [0; 8];
        value.copy_from_slice(&answer[hvm_param::VALUE..]);
        Ok(u64::from_le_bytes(value))
    }

    /// An operation on a list of frames, in pieces; how many were done.
    fn reservation(&self, call: &Call, extent: Extent) -> Result<u32, HypercallError> {
        type Arg = xen_sys::xen_memory_reservation;
        let list_at = {
            let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
            // LIST is far below the end of any address space.
            buffer.address().wrapping_add(LIST as u64)
        };
        let end = extent.first_gfn.checked_add(u64::from(extent.frames));
        let end = end.ok_or_else(|| call.failed(Errno::EOVERFLOW))?;
        let mut next = extent.first_gfn;
        while next < end {
            let piece = (end - next).min(LIST_FRAMES);
            let mut argument = [0; size_of::<Arg>()];
            let mut field = |at, bytes: &[u8]| put(&mut argument, at, bytes);
            field(offset_of!(Arg, extent_start), &list_at.to_le_bytes());
            field(offset_of!(Arg, nr_extents), &piece.to_le_bytes());
            field(offset_of!(Arg, domid), &call.domid.0.to_le_bytes());
            let list: Vec<u8> = (next..next + piece).flat_map(u64::to_le_bytes).collect();
            let done = self.call(call, &argument, &list)?.min(piece);
            next += done;
            if done < piece {
                break;
            }
        }
        // At most extent.frames.
        Ok(u32::try_from(next - extent.first_gfn).unwrap_or(extent.frames))
    }
}

impl DomainMemory for Hypercall {
    fn maximum_reservation(&self, domid: DomId) -> Result<u64, HypercallError> {
        let op = xen_sys::XENMEM_maximum_reservation;
        let call = Call::memory("XENMEM_maximum_reservation", domid, op);
        self.call(&call, &domid.0.to_le_bytes(), &[])
    }

    fn set_maximum_reservation(&self, domid: DomId, frames: u64) -> Result<(), HypercallError> {
        // 4 KiB to a frame.
        let kb = frames.saturating_mul(4);
        let mut argument = domctl_of(domctl::MAX_MEM, domid);
        put(&mut argument, domctl::MAX_MEM_KB, &kb.to_le_bytes());
        self.domctl("XEN_DOMCTL_max_mem", domid, argument)?;
        Ok(())
    }

    fn populate(&self, domid: DomId, extent: Extent) -> Result<u32, HypercallError> {
        let op = xen_sys::XENMEM_populate_physmap;
        self.reservation(&Call::memory("XENMEM_populate_physmap", domid, op), extent)
    }

    fn withdraw(&self, domid: DomId, extent: Extent) -> Result<u32, HypercallError> {
        let op = xen_sys::XENMEM_decrease_reservation;
        let call = Call::memory("XENMEM_decrease_reservation", domid, op);
        self.reservation(&call, extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_the_named_domains() {
        let mut answer = [0; domctl::SIZE];
        put(&mut answer, domctl::INFO_DOMAIN, &[7, 0]);
        assert_eq!(state_of(DomId(7), &answer), DomainState::Alive);
        assert_eq!(state_of(DomId(6), &answer), DomainState::Gone);
        // XEN_DOMINF_shutdown with SHUTDOWN_crash.
        put(&mut answer, domctl::INFO_FLAGS, &[4, 0, 3, 0]);
        assert_eq!(state_of(DomId(7), &answer), DomainState::Shutdown(3));
        put(&mut answer, domctl::INFO_FLAGS, &[5, 0, 3, 0]);
        assert_eq!(state_of(DomId(7), &answer), DomainState::Gone);
    }

    #[test]
    fn a_target_is_set_as_xen_lays_it_out() {
        // Xen public/domctl.h: cmd, version, domain, padding to 16 bytes, then
        // the command's own.
        let mut argument = domctl_of(domctl::SET_TARGET, DomId(7));
        put(&mut argument, domctl::TARGET, &DomId(0x102).0.to_le_bytes());
        assert_eq!(
            argument[..18],
            [46, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1]
        );
        assert!(argument[18..].iter().all(|b| *b == 0));
    }
}
