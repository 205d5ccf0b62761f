//! What the GPU and each vGPU did so far.
//!
//! All figures only grow while a vgpud and a vGPU live, and each carries the
//! time it was taken: rates are the reader's affair.

use serde::{Deserialize, Serialize};
use vgpu_config::Share;

use crate::State;

/// The GPU, and the vGPUs that fit a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Process id of vgpud: with another one, all counts start anew.
    pub vgpud: u32,
    /// When the engines were looked at, in nanoseconds of vgpud's clock.
    pub at_ns: u64,
    /// The engines, in the order of [`LaneSample::engine`].
    pub engines: Vec<EngineSample>,
    /// vGPUs, by domain id.
    pub vgpus: Vec<VgpuSample>,
    /// There are more vGPUs: ask for those after this domain.
    pub next: Option<u16>,
}

/// An engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSample {
    /// Its name.
    pub name: String,
    /// Nanoseconds with something to run, what runs now included.
    pub busy_ns: u64,
    /// Switches between vGPUs by register accesses.
    pub switches: u64,
    /// Switches between vGPUs by commands from the second slot.
    pub handovers: u64,
    /// Nanoseconds in switches.
    pub switch_ns: u64,
    /// Resets.
    pub resets: u64,
    /// vGPUs that wait for it.
    pub waiting: u64,
    /// The vGPU that runs.
    pub running: Option<u64>,
    /// The vGPU whose registers it holds.
    pub owner: Option<u64>,
    /// Why it is out of use.
    pub dead: Option<String>,
}

/// A vGPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VgpuSample {
    /// The guest.
    pub domid: u16,
    /// Its name, as far as Xen's toolstack told.
    pub name: Option<String>,
    /// How it is.
    pub state: State,
    /// What it gets of the GPU's time.
    pub share: Share,
    /// When it was looked at, in nanoseconds of vgpud's clock.
    pub at_ns: u64,
    /// The engines it has used.
    pub lanes: Vec<LaneSample>,
}

/// A vGPU on an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSample {
    /// Index in [`Sample::engines`].
    pub engine: u8,
    /// Requests run to their end.
    pub completed: u64,
    /// Requests that failed or were reset.
    pub failed: u64,
    /// Nanoseconds on the engine, what runs now included.
    pub busy_ns: u64,
    /// Requests that ran on past the slice while others waited.
    pub overruns: u64,
    /// Times it was ready and had to wait because of its cap alone.
    pub throttled: u64,
    /// Switches to it by register accesses.
    pub switches: u64,
    /// Switches to it by commands from the second slot.
    pub handovers: u64,
    /// Registers read and written in its switches.
    pub switch_accesses: u64,
    /// Reads and writes that its switches would have needed besides if they
    /// saved, restored and read back the whole list.
    pub switch_accesses_saved: u64,
    /// Nanoseconds in its switches.
    pub switch_ns: u64,
    /// Bytes copied from and to the guest.
    pub bytes_copied: u64,
    /// How long its requests waited: the longest wait in nanoseconds that a
    /// bucket stands for, and the waits in it. Buckets ascend; empty ones are
    /// left out, and their borders never change.
    pub waits: Vec<(u64, u64)>,
}
