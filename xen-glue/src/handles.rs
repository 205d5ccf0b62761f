//! Handles opened ahead, before a process gives up opening anything.

use std::sync::Arc;

use crate::{
    DeviceModel, DeviceModelError, DomId, EventChannels, Hypervisor, HypervisorError, Privcmd,
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

/// All handles that one domain's device model needs, restricted to the domain.
pub struct Handles {
    /// The domain.
    pub domid: DomId,
    /// For its operations and its memory.
    pub privcmd: Arc<dyn Privcmd>,
    /// For the events of each vCPU, by its number.
    pub channels: Vec<Arc<dyn EventChannels>>,
}

impl Handles {
    /// Opens them, each restricted before it is used.
    ///
    /// # Errors
    /// [`HandlesError`].
    pub fn open(hypervisor: &dyn Hypervisor, domid: DomId) -> Result<Self, HandlesError> {
        let privcmd = hypervisor.open_privcmd()?;
        // A guest that takes this process over reaches no other domain.
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
            channels,
        })
    }
}
