//! Shared rings between device models and vgpud, and their messages.
//!
//! One shared area belongs to each vGPU. It holds the submit ring (device
//! model to vgpud), the complete ring (vgpud to device model) and the guest's
//! global page table, which the device model writes and vgpud reads at
//! submission.

mod msg;

pub use msg::{DecodeError, Event, FaultReason, Message, Request, SLOT_QWORDS, Slot};
