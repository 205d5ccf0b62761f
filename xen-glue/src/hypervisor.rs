//! The seam as one object: where the two node handles come from.

use std::fmt;
use std::sync::Arc;

use crate::{
    DomainMemory, EventChannelError, EventChannels, EvtchnDevice, GrantAllocator, GrantError,
    GrantMapper, GrantPages, Hypercall, HypercallError, MapGrants, Privcmd, PrivcmdDevice,
    PrivcmdError,
};

/// A Xen domain id. Ids from 0x7ff0 up are reserved by Xen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomId(pub u16);

impl fmt::Display for DomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain {}", self.0)
    }
}

/// Why a handle could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum HypervisorError {
    /// The privcmd node.
    #[error(transparent)]
    Privcmd(#[from] PrivcmdError),
    /// The event channel node.
    #[error(transparent)]
    EventChannels(#[from] EventChannelError),
    /// The nodes for hypercalls.
    #[error(transparent)]
    Hypercall(#[from] HypercallError),
    /// The nodes for shared pages.
    #[error(transparent)]
    Grants(#[from] GrantError),
}

/// Opens handles on a hypervisor: the real one, or `fake-xen`.
pub trait Hypervisor: Send + Sync {
    /// A new privcmd handle, unrestricted as far as the node allows it.
    ///
    /// # Errors
    /// [`HypervisorError::Privcmd`] when the node cannot be opened.
    fn open_privcmd(&self) -> Result<Arc<dyn Privcmd>, HypervisorError>;

    /// A new event channel handle. Ports bound on it are waited for on it
    /// alone, so a thread that serves one vCPU opens its own.
    ///
    /// # Errors
    /// [`HypervisorError::EventChannels`] when the node cannot be opened.
    fn open_event_channels(&self) -> Result<Arc<dyn EventChannels>, HypervisorError>;

    /// A handle for what only dom0's daemon may do.
    ///
    /// # Errors
    /// [`HypervisorError::Hypercall`] when the nodes cannot be opened.
    fn open_domain_memory(&self) -> Result<Arc<dyn DomainMemory>, HypervisorError>;

    /// A handle that grants pages of this domain.
    ///
    /// # Errors
    /// [`HypervisorError::Grants`] when the node cannot be opened.
    fn open_grant_pages(&self) -> Result<Arc<dyn GrantPages>, HypervisorError>;

    /// A handle that maps what other domains granted.
    ///
    /// # Errors
    /// [`HypervisorError::Grants`] when the node cannot be opened.
    fn open_map_grants(&self) -> Result<Arc<dyn MapGrants>, HypervisorError>;
}

/// The Xen this process runs on, through `/dev/xen`.
#[derive(Clone, Copy, Debug, Default)]
pub struct XenHost;

impl Hypervisor for XenHost {
    fn open_privcmd(&self) -> Result<Arc<dyn Privcmd>, HypervisorError> {
        Ok(Arc::new(PrivcmdDevice::open()?))
    }

    fn open_event_channels(&self) -> Result<Arc<dyn EventChannels>, HypervisorError> {
        Ok(Arc::new(EvtchnDevice::open()?))
    }

    fn open_domain_memory(&self) -> Result<Arc<dyn DomainMemory>, HypervisorError> {
        Ok(Arc::new(Hypercall::open()?))
    }

    fn open_grant_pages(&self) -> Result<Arc<dyn GrantPages>, HypervisorError> {
        Ok(Arc::new(GrantAllocator::open()?))
    }

    fn open_map_grants(&self) -> Result<Arc<dyn MapGrants>, HypervisorError> {
        Ok(Arc::new(GrantMapper::open()?))
    }
}
