//! A simulated host: guests on fake-xen, a device model each, vgpud's
//! scheduler on softgpu. All in one process, all with the real code: rings in
//! shared memory, ioreqs in Xen's page layout, a GPU behind registers.

#![forbid(unsafe_code)]

mod doom;
mod guest;
mod host;
mod link;
mod mortal;
mod rogue;
mod saving;
mod table;
mod witness;

pub use doom::{Doom, LogWords};
pub use guest::{Cpu, SharedGuest, SimGuest, SimGuestConfig};
pub use host::{SimHost, SimHostConfig};
pub use link::{Link, Orphan};
pub use mortal::{Death, MortalGuest};
pub use rogue::Rogue;
pub use witness::Witness;
