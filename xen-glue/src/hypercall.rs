//! Raw hypercalls, for the daemon in dom0 alone.

#![expect(unsafe_code, reason = "the hypercall ioctl")]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use xen_sys::ioctl;

use crate::{Access, DomId, Mapping};

nix::ioctl_readwrite_bad!(
    hypercall,
    ioctl::PRIVCMD_HYPERCALL,
    xen_sys::privcmd_hypercall
);

const PRIVCMD: &str = "/dev/xen/privcmd";
/// Gives pages that stay where they are while Xen reads them.
const BUFFER: &str = "/dev/xen/hypercall";

/// Why a hypercall failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HypercallError {
    /// A node could not be opened.
    #[error("open {path}: {errno}")]
    Open {
        /// The node.
        path: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A call was refused. EPERM: the handle is restricted.
    #[error("{op} on {domid}: {errno}")]
    Call {
        /// The hypercall.
        op: &'static str,
        /// The domain it named.
        domid: DomId,
        /// What came back.
        errno: Errno,
    },
}

/// A handle for hypercalls.
#[derive(Debug)]
pub struct Hypercall {
    privcmd: File,
    argument: Mapping,
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
        let argument = Mapping::shared(&buffer, 0, 1, Access::ReadWrite);
        let argument = argument.map_err(|_| HypercallError::Open {
            path: BUFFER,
            errno: Errno::ENOMEM,
        })?;
        Ok(Self { privcmd, argument })
    }

    /// The highest frame number the domain has or had (`XENMEM_maximum_gpfn`).
    ///
    /// # Errors
    /// [`HypercallError::Call`]: ESRCH when there is no such domain.
    pub fn maximum_gpfn(&self, domid: DomId) -> Result<u64, HypercallError> {
        let failed = |errno| HypercallError::Call {
            op: "XENMEM_maximum_gpfn",
            domid,
            errno,
        };
        self.argument
            .write(0, &domid.0.to_le_bytes())
            .map_err(|_| failed(Errno::EFAULT))?;
        let mut call = xen_sys::privcmd_hypercall {
            op: u64::from(xen_sys::__HYPERVISOR_memory_op),
            arg: [
                u64::from(xen_sys::XENMEM_maximum_gpfn),
                self.argument.address(),
                0,
                0,
                0,
            ],
        };
        // SAFETY: Xen reads one domid from the buffer, which outlives the
        // call, and writes nothing.
        let result = unsafe { hypercall(self.privcmd.as_raw_fd(), &raw mut call) };
        result
            .and_then(|gfn| u64::try_from(gfn).map_err(|_| Errno::EOVERFLOW))
            .map_err(failed)
    }
}
