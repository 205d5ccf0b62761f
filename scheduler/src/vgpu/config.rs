//! What can be chosen about a vGPU, and why one cannot go on.

use std::time::Duration;

use vgpu_config::Share;

use super::SchedulerV1;
use crate::audit::AuditLimits;
use crate::dma::MapLimits;
use crate::ppgtt::{ShadowConfig, TableLimits};
use crate::scan::{ScanLimits, ScanMode};
use crate::windows::WindowLimits;

/// What can be chosen about a vGPU.
#[derive(Clone, Debug, Default)]
pub struct VgpuConfig {
    /// Identifies it; not in use by another. A domain id, say.
    pub id: u64,
    /// What it gets of the GPU's time at first.
    pub share: Share,
    /// Its share of the GPU's bus.
    pub map: MapLimits,
    /// Its share of shadow tables.
    pub tables: TableLimits,
    /// How its page tables are followed.
    pub shadow: ShadowConfig,
    /// Its share of the global page table.
    pub windows: WindowLimits,
    /// What one submission may cost.
    pub audit: AuditLimits,
    /// What is done about its batches without privilege.
    pub scan: ScanMode,
    /// What that may cost in one submission.
    pub scan_limits: ScanLimits,
    /// What was saved of it, if it is not new.
    pub restored: Option<SchedulerV1>,
    /// Its guest was another vgpud's, which died.
    pub adopted: bool,
    /// What preparing an element may take as a rule before the vGPU's worker
    /// does it, which costs a hand-over, and not the thread that reads the
    /// requests. `None`: a millisecond.
    pub worker_above: Option<Duration>,
}

/// Why a vGPU cannot go on: its device model broke the protocol, or it was
/// removed. Whoever owns the connection drops it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VgpuError {
    /// A sequence number went back.
    #[error("load {seq} on {engine} follows load {last}; numbers must grow")]
    Sequence {
        /// The engine.
        engine: &'static str,
        /// The number.
        seq: u64,
        /// The number before.
        last: u64,
    },
    /// An engine that does not exist.
    #[error("engine {0}, allowed: 0 to 3")]
    Engine(u8),
    /// It does not take its events.
    #[error("the device model leaves {0} events waiting")]
    NotDraining(usize),
    /// It was removed.
    #[error("the vGPU was removed")]
    Removed,
}
