//! A simulated host: guests on fake-xen, a device model each, vgpud's
//! scheduler on softgpu. All in one process, all with the real code: rings in
//! shared memory, ioreqs in Xen's page layout, a GPU behind registers.

#![forbid(unsafe_code)]

mod bare;
mod host;
mod link;

pub use bare::BareGuest;
pub use host::{SimHost, SimHostConfig};
