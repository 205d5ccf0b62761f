//! A small driver that probes and submits the way i915 does, for tests and
//! the demo.
//!
//! It sees what a guest sees: PCI config cycles, BAR0, its own memory and an
//! interrupt. It keeps i915's books for execlists and reports any event that
//! i915 would answer with an engine reset.

#![forbid(unsafe_code)]

mod batch;
mod context;
mod driver;
mod execlists;
mod frames;
mod platform;
mod probe;
mod random;
mod workload;

pub use batch::{Batch, Rect, Surface, Tiling};
pub use context::{Context, Slot};
pub use driver::{Driver, Finished};
pub use execlists::{Accounting, ExeclistError};
pub use frames::Frames;
pub use platform::Platform;
pub use probe::{Gpu, ProbeError};
pub use random::Random;
pub use workload::{Given, Kind, Mismatch};

/// Why the driver gave up.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The device is not what it must be.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The context status buffer told what i915 would not believe.
    #[error(transparent)]
    Execlists(#[from] ExeclistError),
    /// The guest's own memory failed.
    #[error(transparent)]
    Memory(#[from] guest_memory::MemoryError),
    /// The guest has no more memory to give to the driver.
    #[error("out of guest memory: {wanted} pages wanted, {left} left")]
    NoMemory {
        /// Pages asked for.
        wanted: u64,
        /// Pages left.
        left: u64,
    },
    /// No interrupt came while a request was running.
    #[error("{engine} did not finish request {seqno} within {seconds} s")]
    Hang {
        /// sysfs name of the engine.
        engine: &'static str,
        /// The request.
        seqno: u32,
        /// How long was waited.
        seconds: u64,
    },
    /// The GPU computed something else than the CPU did.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}
