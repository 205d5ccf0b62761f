//! Device-model operations and mappings: the seam and its errors.

mod device;

pub use device::PrivcmdDevice;

use nix::errno::Errno;

use crate::{Access, DomId, Mapping, MappingError};

/// Most buffers a dm_op may have (Linux drivers/xen/privcmd.c,
/// `dm_op_max_nr_bufs`).
pub const MAX_DM_OP_BUFS: usize = 16;

/// Most bytes one of them may have (`dm_op_buf_max_size`).
pub const MAX_DM_OP_BUF: usize = 4096;

/// Why a privcmd call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrivcmdError {
    /// The node could not be opened.
    #[error("open {path}: {errno}")]
    Open {
        /// The node.
        path: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A call the kernel or the hypervisor refused.
    #[error("{op} on {domid}: {errno}")]
    Call {
        /// The call, with the values that matter.
        op: String,
        /// The domain it named.
        domid: DomId,
        /// What came back.
        errno: Errno,
    },
    /// Address space for a mapping could not be had.
    #[error("mapping memory of {domid}: {source}")]
    Mapping {
        /// The domain.
        domid: DomId,
        /// Why.
        source: MappingError,
    },
}

impl PrivcmdError {
    /// The error number behind it.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Open { errno, .. }
            | Self::Call { errno, .. }
            | Self::Mapping {
                source: MappingError::Mmap { errno, .. },
                ..
            } => *errno,
            Self::Mapping { .. } => Errno::EINVAL,
        }
    }
}

/// Foreign frames in this process.
#[derive(Debug)]
pub struct ForeignMap {
    /// One page per frame asked for, in that order.
    pub mapping: Mapping,
    /// For each, why it is not there. ENOENT: paged out, ask again. Such a
    /// page of the mapping must not be touched.
    pub errors: Vec<Option<Errno>>,
}

/// Frames of a resource Xen keeps for a domain (`XENMEM_acquire_resource`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `XENMEM_resource_*`.
    pub kind: u32,
    /// What the kind says; for ioreq servers, the server's id.
    pub id: u32,
    /// First frame.
    pub frame: u32,
    /// Frames, at least 1.
    pub count: u32,
}

/// A handle on the privcmd node, or something that obeys the same rules.
pub trait Privcmd: Send + Sync {
    /// A device-model operation. `bufs[0]` is a `struct xen_dm_op`; Xen may
    /// write to any of them, and reads them where they are.
    ///
    /// # Errors
    /// [`PrivcmdError::Call`]: E2BIG for more than [`MAX_DM_OP_BUFS`]
    /// buffers or one longer than [`MAX_DM_OP_BUF`], EPERM on a handle
    /// restricted to another domain, else what the operation gives.
    fn dm_op(&self, domid: DomId, bufs: &mut [&mut [u8]]) -> Result<(), PrivcmdError>;

    /// Maps guest frames, one page each.
    ///
    /// # Errors
    /// [`PrivcmdError::Call`] when nothing could be mapped at all; frames
    /// that could not are named in [`ForeignMap::errors`].
    fn map_foreign(
        &self,
        domid: DomId,
        gfns: &[u64],
        access: Access,
    ) -> Result<ForeignMap, PrivcmdError>;

    /// Maps frames of a resource, for reading and writing.
    ///
    /// # Errors
    /// [`PrivcmdError::Call`]: ENOENT when there is no such id or frame,
    /// EPERM when it belongs to another emulator.
    fn map_resource(&self, domid: DomId, resource: Resource) -> Result<Mapping, PrivcmdError>;

    /// Limits this handle to one domain, for good.
    ///
    /// # Errors
    /// [`PrivcmdError::Call`]: EINVAL when it is limited to another.
    fn restrict(&self, domid: DomId) -> Result<(), PrivcmdError>;
}
