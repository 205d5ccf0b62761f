//! Why there is no area.

use vgpu_ring::AreaError;
use xen_glue::{EventChannelError, GrantError, HypervisorError, MappingError};

/// Why a region could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum GrantAreaError {
    /// A node could not be opened.
    #[error(transparent)]
    Node(#[from] HypervisorError),
    /// Pages could not be granted or mapped.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A port could not be made or bound.
    #[error(transparent)]
    Channel(#[from] EventChannelError),
    /// Pages could not be reached.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The system has no more descriptors.
    #[error("no doorbell")]
    Bell(#[source] std::io::Error),
    /// What is in the pages is no area.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// Something of the other side's is not acceptable.
    #[error("shared region: {field} is {value:#x}, allowed: {allowed}")]
    Field {
        /// What.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        allowed: String,
    },
    /// The other side ended meanwhile.
    #[error("shared region: the other side is gone")]
    Gone,
}
