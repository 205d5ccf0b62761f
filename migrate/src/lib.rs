//! Live migration of a vGPU: which pages the GPU changed, and the format of
//! the state that travels.
//!
//! A GPU leaves no dirty bits. A page it could have written is copied once,
//! and the copy is held against what the target was given: against a retained
//! copy, or a keyed digest of one. [`Detector`] is the one seam for that.
//! Nothing here knows a device, a daemon or a hypervisor.
//!
//! [`precopy`] puts it together:
//!
//! ```
//! use guest_memory::{Gfn, VecMemory};
//! use vgpu_migrate::Method;
//! use vgpu_migrate::precopy::{
//!     Candidates, Carrier, Host, Namer, Options, Precopy, PrecopyError, RealClock,
//! };
//!
//! /// vgpud: which pages contexts could write that ran since the last call.
//! struct Scheduler;
//! impl Candidates for Scheduler {
//!     fn take(&self, each: &mut dyn FnMut(Gfn)) {
//!         each(Gfn(3));
//!     }
//! }
//! /// libxc, by way of Xen's modified_memory.
//! struct Xen;
//! impl Namer for Xen {
//!     fn name(&self, _gfns: &[Gfn]) -> std::io::Result<()> {
//!         Ok(())
//!     }
//!     fn bytes_per_second(&self) -> f64 {
//!         1.25e9
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = VecMemory::new(64);
//! let host = Host {
//!     memory: &memory,
//!     candidates: &Scheduler,
//!     carrier: Carrier::Names(&Xen),
//!     clock: &RealClock::start(),
//! };
//! let detector = Method::default().detector(64, 1 << 20)?;
//! let mut precopy = Precopy::new(detector, 64, Options::default());
//! // A round, as often as there is time. The first names everything.
//! let round = precopy.round(&host)?;
//! assert_eq!((round.candidates, round.sent), (1, 1));
//! // It was seen that libxc began a round. Before the next round() here.
//! precopy.carrier_began_round();
//! let predicted = precopy.predicted_stop(host.carrier);
//! // The guest stands still and the GPU is drained.
//! let stop = precopy.stop(&host)?;
//! assert_eq!(stop.candidates, 1);
//! # let _ = (predicted, precopy.total(), precopy.forget(Gfn(3)));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod adaptive;
pub mod connection;
mod detect;
mod nh;
mod page;
pub mod precopy;
mod settling;
pub mod stream;

pub use detect::{
    Blind, Compare, Detector, DigestOf, Fallback, Footprint, Frame, Method, Probes, Sampled,
    Verdict,
};
pub use nh::{Digest, Key};
pub use page::{Page, is_zero};
pub use settling::Settling;
