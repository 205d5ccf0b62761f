//! What vgpud's trace tells.

use serde::{Deserialize, Serialize};

/// What happened to a vGPU's workload on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// It is ready for the engine and waits for its turn.
    Ready,
    /// It went to the engine.
    Start {
        /// In which of the engine's two slots: 0 runs first.
        slot: u8,
    },
    /// The engine's registers became this vGPU's.
    Switch {
        /// Registers read for it.
        reads: u64,
        /// Registers written for it.
        writes: u64,
        /// Nanoseconds it took.
        ns: u64,
    },
    /// The engine's registers become this vGPU's by commands ahead of its
    /// workload, which waits in the second slot.
    Handover {
        /// Registers changed by them.
        pairs: u64,
    },
    /// It ran to its end.
    Done {
        /// Nanoseconds it held the engine.
        ran_ns: u64,
    },
    /// It failed or ran over the limit, and left the engine.
    Failed,
    /// The vGPU took it back.
    Cancelled,
    /// The engine was reset because of it.
    Reset,
    /// It is ready and over its cap, and waits for the bound's sake.
    Throttled,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// Its number; vgpud counts from 0.
    pub number: u64,
    /// When, in nanoseconds of vgpud's clock.
    pub at_ns: u64,
    /// The engine's name.
    pub engine: String,
    /// Whose: the domain id.
    pub vgpu: u64,
    /// What happened.
    pub what: What,
}

/// A piece of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePage {
    /// Process id of vgpud: with another one, events count anew.
    pub vgpud: u32,
    /// Events, oldest first.
    pub events: Vec<TraceEvent>,
    /// Where to go on.
    pub next: u64,
    /// Events from the cursor on that are lost: newer ones took their place.
    pub missed: u64,
}
