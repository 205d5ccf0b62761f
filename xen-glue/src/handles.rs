//! Handles opened ahead, before a process gives up opening anything.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    DeviceModel, DeviceModelError, DomId, DomainMemory, EventChannels, Hypervisor, HypervisorError,
    Privcmd,
};

/// The ioctl requests that a device model makes on its handles, for a filter
/// of system calls.
pub const DEVICE_MODEL_REQUESTS: [u32; 6] = [
    xen_sys::ioctl::PRIVCMD_DM_OP,
    xen_sys::ioctl::PRIVCMD_MMAPBATCH_V2,
    xen_sys::ioctl::PRIVCMD_MMAP_RESOURCE,
    xen_sys::ioctl::EVTCHN_BIND_INTERDOMAIN,
    xen_sys::ioctl::EVTCHN_UNBIND,
    xen_sys::ioctl::EVTCHN_NOTIFY,
];

/// Why there are no handles.
#[derive(Debug, thiserror::Error)]
pub enum HandlesError {
    /// A node.
    #[error(transparent)]
    Node(#[from] HypervisorError),
    /// How many vCPUs the domain has.
    #[error(transparent)]
    Domain(#[from] DeviceModelError),
}

/// All handles that one domain's device model needs, restricted to the domain:
/// one for its operations, one a vCPU for its events.
pub struct Handles {
    domid: DomId,
    privcmd: Arc<dyn Privcmd>,
    channels: Mutex<Vec<Arc<dyn EventChannels>>>,
}

impl Handles {
    /// Opens them, restricted before anything of the domain is looked at.
    ///
    /// # Errors
    /// [`HandlesError`].
    pub fn open(hypervisor: &dyn Hypervisor, domid: DomId) -> Result<Self, HandlesError> {
        let privcmd = hypervisor.open_privcmd()?;
        privcmd.restrict(domid).map_err(HypervisorError::from)?;
        let vcpus = DeviceModel::new(Arc::clone(&privcmd), domid).nr_vcpus()?;
        let channel = |_| -> Result<_, HypervisorError> {
            let channels = hypervisor.open_event_channels()?;
            channels.restrict(domid)?;
            Ok(channels)
        };
        let channels = (0..vcpus).map(channel).collect::<Result<_, _>>()?;
        Ok(Self {
            domid,
            privcmd,
            channels: Mutex::new(channels),
        })
    }
}

impl Hypervisor for Handles {
    fn open_privcmd(&self) -> Result<Arc<dyn Privcmd>, HypervisorError> {
        Ok(Arc::clone(&self.privcmd))
    }

    fn open_event_channels(&self) -> Result<Arc<dyn EventChannels>, HypervisorError> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.pop().ok_or(HypervisorError::NotOpened {
            what: "another event channel handle",
            domid: self.domid,
        })
    }

    fn open_domain_memory(&self) -> Result<Arc<dyn DomainMemory>, HypervisorError> {
        Err(HypervisorError::NotOpened {
            what: "the domain's memory",
            domid: self.domid,
        })
    }
}
