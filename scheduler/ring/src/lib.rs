//! Shared rings between device models and vgpud, and their messages.
//!
//! One shared area belongs to each vGPU. It holds the submit ring (device
//! model to vgpud), the complete ring (vgpud to device model), what a device
//! model keeps for its successor, should it die, and the guest's global page
//! table, which the device model writes and vgpud reads at submission.
//!
//! ```text
//! page 0        header: magic, version, bytes, slots of each ring, GGTT entries
//! page 1        indices of the submit ring
//! then          its slots
//! next page     indices of the complete ring
//! then          its slots
//! next page     what the device model keeps for its successor
//! next page     guest GGTT: 2^20 qwords, one per 4 KiB page of 4 GiB
//! ```
//!
//! A ring has one producer and one consumer. Each of its three indices has a
//! cache line pair of its own ([`layout`]), so the two sides share a line only
//! when one really has news for the other. A producer rings the doorbell only
//! when the consumer has announced that it sleeps.
//!
//! Neither side trusts the other: an index that is further from one's own than
//! the ring is long, or a slot that does not decode, is a [`RingError`], after
//! which the ring is of no more use. The ring is written over the traits
//! [`Words`] and [`Doorbell`]; memfd and eventfd are one implementation
//! ([`SharedArea`], [`EventBell`]), loom another.
//!
//! What vgpud rings is its own: the device model gets an ear of the complete
//! doorbell, and the submit doorbell, which it rings, is one vgpud only waits
//! on ([`Bells::for_device_model`]). So it cannot make a thread of vgpud block.

mod area;
mod bell;
mod changes;
mod consumer;
mod error;
mod ggtt;
mod kept;
pub mod layout;
mod mapping;
mod memfd;
mod msg;
mod pipe;
mod producer;
mod words;

pub use area::{Area, AreaConfig, AreaError, Bells, DaemonEnd, DeviceBells, DeviceEnd};
pub use bell::{BellChannel, EventBell};
pub use changes::TableChanges;
pub use consumer::{Consumer, DEFAULT_SPIN, Wake};
pub use error::{PushError, RingError};
pub use ggtt::GgttTable;
pub use kept::KeptPart;
pub use mapping::{AreaWords, WordMemory};
pub use memfd::SharedArea;
pub use msg::{DecodeError, Event, FaultReason, Message, Outcome, Request, SLOT_QWORDS, Slot};
pub use pipe::{PIPE_AREA_WORDS, PIPE_WORDS, Pipe, PipeError, PipeLimits, PipeMessage, PipePlace};
pub use producer::Producer;
pub use words::{Doorbell, Words};
