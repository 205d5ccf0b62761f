//! Live migration of a vGPU: which pages the GPU changed, and the format of
//! the state that travels.
//!
//! A GPU leaves no dirty bits. A page it could have written is copied once,
//! and the copy is held against what the target was given: against a retained
//! copy, or a keyed digest of one. [`Detector`] is the one seam for that.
//! Nothing here knows a device, a daemon or a hypervisor.

#![forbid(unsafe_code)]

pub mod adaptive;
mod detect;
mod nh;
mod page;
mod pass;
mod settling;
pub mod stream;

pub use detect::{
    Blind, Compare, Detector, DigestOf, Fallback, Footprint, Frame, Method, Probes, Sampled,
    Verdict,
};
pub use nh::{Digest, Key};
pub use page::{Page, is_zero};
pub use pass::{Outcome, retain, verify};
pub use settling::Settling;
