//! Everything at one moment, as a tree.

use std::collections::BTreeMap;

use gen8::Engine;
use vgpu_config::Share;

use crate::complaint::Complaint;
use crate::counters::CounterValues;
use crate::engine::EngineView;
use crate::ppgtt::{ShadowMode, TableCounts};
use crate::registers::Accesses;
use crate::vgpu::MemoryView;
use crate::windows::{ShareCounts, WindowCounts};

/// One vGPU's way to one engine.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LaneView {
    /// The engine.
    pub name: &'static str,
    /// Number of the load whose element is at the engine.
    pub active_load: Option<u64>,
    /// Loads that wait.
    pub waiting_loads: usize,
    /// Stopped by a fault until the guest resets the engine.
    pub stopped: bool,
    /// Counters.
    pub counters: CounterValues,
    /// The values a switch carries over, by name.
    pub registers: BTreeMap<String, u32>,
}

/// What one vGPU did on one engine so far.
#[derive(Clone, Debug)]
pub struct LaneCounters {
    /// The engine.
    pub engine: Engine,
    /// Counters; the time on the engine includes what runs now.
    pub values: CounterValues,
    /// Its waits, as [`Histogram::buckets`](crate::histogram::Histogram::buckets)
    /// gives them.
    pub waits: Vec<(u64, u64)>,
}

/// One vGPU.
#[derive(Clone, Debug, serde::Serialize)]
pub struct VgpuView {
    /// Its id.
    pub id: u64,
    /// Why it is of no more use.
    pub failed: Option<String>,
    /// What it gets of the GPU's time.
    pub share: Share,
    /// 2 MiB pieces of its memory on the GPU's bus.
    pub chunks: usize,
    /// Its shadow tables.
    pub tables: TableCounts,
    /// How its page tables are followed.
    pub shadow: ShadowMode,
    /// Its part of the physical global table.
    pub windows: ShareCounts,
    /// What vgpud holds for it.
    pub memory: MemoryView,
    /// Events its device model has not taken.
    pub events_waiting: usize,
    /// Contexts that were refused, the last ones, oldest first.
    pub refusals: Vec<Complaint>,
    /// What batches without privilege held that has no place there, likewise.
    /// They ran.
    pub noticed: Vec<Complaint>,
    /// Engine by engine.
    pub engines: Vec<LaneView>,
}

/// The GPU and who uses it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SchedulerView {
    /// Register accesses so far.
    pub accesses: Accesses,
    /// The physical global table.
    pub windows: WindowCounts,
    /// vgpud's own pages in use.
    pub own_pages: usize,
    /// 2 MiB chunks on the bus.
    pub chunks: usize,
    /// The engines.
    pub engines: Vec<EngineView>,
    /// The vGPUs.
    pub vgpus: Vec<VgpuView>,
}
