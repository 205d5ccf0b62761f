//! What a domain has and is, for the daemon in dom0 alone.

mod device;

pub use device::Hypercall;

use nix::errno::Errno;

use crate::{DomId, Extent};

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

/// How a domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// It runs, or is paused.
    Alive,
    /// It ended, for the reason `SHUTDOWN_*` (Xen `public/sched.h`), and is
    /// not yet destroyed.
    Shutdown(u8),
    /// It is being destroyed, or there is none.
    Gone,
}

/// A domain's memory as the toolstack sees it.
pub trait DomainMemory: Send + Sync {
    /// Most frames the domain may have (`XENMEM_maximum_reservation`).
    ///
    /// # Errors
    /// [`HypercallError::Call`]: ESRCH when there is no such domain.
    fn maximum_reservation(&self, domid: DomId) -> Result<u64, HypercallError>;

    /// Changes that (`XEN_DOMCTL_max_mem`). What the domain has above it
    /// stays.
    ///
    /// # Errors
    /// [`HypercallError::Call`]: ESRCH when there is no such domain, EACCES
    /// when this Xen is newer than what is known here.
    fn set_maximum_reservation(&self, domid: DomId, frames: u64) -> Result<(), HypercallError>;

    /// Gives the domain new frames at `extent` (`XENMEM_populate_physmap`)
    /// and says how many: fewer when it has its most or the host has no more.
    /// RAM that is there already is lost to the guest.
    ///
    /// # Errors
    /// [`HypercallError::Call`]: ESRCH when there is no such domain.
    fn populate(&self, domid: DomId, extent: Extent) -> Result<u32, HypercallError>;

    /// Takes the frames at `extent` from the domain
    /// (`XENMEM_decrease_reservation`) and says how many it took: it stops at
    /// one that is not RAM.
    ///
    /// # Errors
    /// [`HypercallError::Call`]: ESRCH when there is no such domain.
    fn withdraw(&self, domid: DomId, extent: Extent) -> Result<u32, HypercallError>;
}
