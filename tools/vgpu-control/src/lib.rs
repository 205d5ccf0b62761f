//! The messages between vgpud, its device models and its clients.
//!
//! All of them go over Unix sockets of type SEQPACKET, one JSON value a
//! packet, descriptors beside it by SCM_RIGHTS ([`Connection`]).
//!
//! **Clients** (vgpu-launcher, vgpuctl, xl-vgpu) connect to [`DEFAULT_SOCKET`], send a
//! [`ClientRequest`] and get a [`Reply`] for each. Only root may.
//!
//! **A vgpu-dm** is started by vgpud with its end of a socket pair as
//! standard input, so it needs no unsafe code to take an inherited
//! descriptor. The first packet is [`ToDm::Start`] with three descriptors:
//! the shared area's memfd, the submit doorbell, the complete doorbell. It
//! attaches to its domain and answers [`FromDm::Attached`] or
//! [`FromDm::Failed`]; from then on it serves the guest. A fourth descriptor is
//! of a saved device's file when the guest's vGPU is restored. On [`ToDm::Stop`]
//! it destroys its ioreq server and exits. When the socket ends it serves the
//! guest on, as long as the domain lives: the next vgpud ends it and has a
//! successor go on.
//!
//! **A vgpu-dm in a domain of its own** says and hears the same over a pipe in
//! memory it grants ([`PipeConnection`]); in the place of files, their bytes
//! are attached to messages.

#![forbid(unsafe_code)]

mod client;
mod dm;
mod listener;
mod migration;
mod order;
mod pipe;
mod socket;
mod top;
mod trace;

pub use client::{
    ClientRequest, Entry, Held, Place, QmpSockets, Register, Registered, Reply, State, Version,
};
pub use dm::{FromDm, MAX_DEVICE, MAX_RUNS, StartDm, ToDm};
pub use listener::{ListenError, Listener};
pub use migration::{Ahead, Cause, Failing, Migration, Pages, Phase, Step};
pub use order::{Disturb, NoOrder, StubOrder};
pub use pipe::PipeConnection;
pub use socket::{Connection, ControlError, MAX_FDS, MAX_MESSAGE, Peer, printable};
pub use top::{EngineSample, LaneSample, Sample, VgpuSample};
pub use trace::{TraceEvent, TracePage, What};

/// The node below a stub domain's `/local/domain/ID` that its device model may
/// write. vgpud makes it.
pub const STUB_FOLDER: &str = "device-model-vgpu";

/// The node in it with what the device model offers to vgpud.
pub const STUB_OFFER: &str = "offer";

/// The node in it with the reason why there is no offer.
pub const STUB_FAILED: &str = "failed";

/// In that folder, written by vgpud: what the first process is to do to a device
/// model, a [`StubOrder`].
pub const STUB_ORDER: &str = "order";

/// Where vgpud listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/vgpud.sock";
