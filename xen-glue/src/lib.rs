//! Xen for a device model, over the device nodes and without C libraries.
//!
//! A few traits are the seam: [`Privcmd`] (device-model operations and
//! mappings), [`EventChannels`], [`GrantPages`] and [`MapGrants`]. [`XenHost`]
//! opens the real nodes; the crate `fake-xen` implements the same traits
//! in-process. Everything above the seam ([`DeviceModel`], [`IoreqServer`], [`IoreqPage`],
//! [`ForeignMemory`]) is the same code on both.
//!
//! The README of this crate lists the order of calls an ioreq server makes.

mod device_model;
mod evtchn;
mod foreign;
mod grants;
mod handles;
mod hypercall;
mod hypervisor;
mod ioreq;
mod mapping;
mod privcmd;
mod table;
mod xenstore;

pub use device_model::{
    DeviceModel, DeviceModelError, Extent, IoreqServer, IoreqServerId, IoreqServerInfo, MemType,
    ModifiedMemoryError, Sbdf,
};
pub use evtchn::{EventChannel, EventChannelError, EventChannels, EvtchnDevice, Port};
pub use foreign::{ForeignMemory, ForeignMemoryConfig, ForeignMemoryStats};
pub use grants::{
    GrantAllocator, GrantError, GrantHold, GrantMapper, GrantMapping, GrantPages, GrantRef,
    GrantedPages, MapGrants, UnmapNotify,
};
pub use handles::{DEVICE_MODEL_REQUESTS, Handles, HandlesError};
pub use hypercall::{DomainMemory, DomainState, Hypercall, HypercallError};
pub use hypervisor::{DomId, Hypervisor, HypervisorError, XenHost};
pub use ioreq::{
    IoHandler, IoKind, IoRequest, IoreqError, IoreqPage, IoreqPages, IoreqState, PagesError, Slot,
    VcpuIoreqs, VcpuIoreqsError, execute,
};
pub use mapping::{Access, Mapping, MappingError};
pub use privcmd::{
    ForeignMap, MAX_DM_OP_BUF, MAX_DM_OP_BUFS, Privcmd, PrivcmdDevice, PrivcmdError, Resource,
};
pub use table::{PARKING_GFN, TABLE_FRAMES, TableError, TableFrames, give_frames};
pub use xenstore::{Xenstore, XenstoreError, XenstoreWatch};

/// An error number as the kernel or the hypervisor gave it.
pub use nix::errno::Errno;
