//! What vgpud's memory holds for one vGPU.

use gen8::Engine;
use guest_memory::PAGE_SIZE;

use super::{LaneSlot, Vgpu};
use crate::sync::lock;
use crate::workload::Shadow;

/// What vgpud holds for one vGPU, in KiB. Each part has a limit: tables and
/// windows those of [`VgpuConfig`](super::VgpuConfig), rings and register
/// pages the largest ring of each engine, mappings the foreign memory's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryView {
    /// Shadow tables, with the copies they are compared with.
    pub tables_kib: usize,
    /// Shadow rings and register pages.
    pub rings_kib: usize,
    /// What is remembered of its windows.
    pub windows_kib: usize,
    /// What is remembered of its batches.
    pub scans_kib: usize,
    /// What is there for every vGPU: lanes, counters, register files.
    pub fixed_kib: usize,
    /// All of these.
    pub total_kib: usize,
    /// The guest's own memory, mapped here: address space, no memory.
    pub mapped_kib: u64,
}

/// A shadow table: the page the GPU walks, the copy, and of half of them at
/// most half a page of children and what finds it.
const TABLE_BYTES: usize = 2 * PAGE_SIZE + PAGE_SIZE / 2;
/// A window: its name in three maps and a set, its place in two.
const WINDOW_BYTES: usize = 320;
/// Buckets of the waits and the register file of an engine.
const LANE_BYTES: usize = 6 << 10;

const fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

impl Vgpu {
    /// What is held for it now.
    pub(super) fn memory(&self) -> MemoryView {
        let pages = |lane: &LaneSlot| lock(&lane.shadows).iter().map(Shadow::pages).sum::<usize>();
        let rings: usize = self.lanes.iter().map(pages).sum();
        let tables_kib = kib(self.tables.counts().tables * TABLE_BYTES);
        let rings_kib = kib(rings * PAGE_SIZE);
        let windows = self.shared.windows.share(self.id()).windows;
        let windows_kib = kib(windows * WINDOW_BYTES);
        let scans_kib = kib(self.scanner.bytes());
        let fixed_kib = kib(size_of::<Self>() + Engine::COUNT * LANE_BYTES);
        MemoryView {
            tables_kib,
            rings_kib,
            windows_kib,
            scans_kib,
            fixed_kib,
            total_kib: tables_kib + rings_kib + windows_kib + scans_kib + fixed_kib,
            mapped_kib: self.map.mapped_bytes() / 1024,
        }
    }
}
