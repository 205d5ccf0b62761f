//! What the daemon stands on: Xen and the scheduler, or a test's stand-ins.

use std::sync::Arc;
use std::time::Duration;

use guest_memory::{Gfn, WrittenPages};
use serde_json::Value;
use vgpu_config::{Gpu, Share};
use vgpu_control::{EngineSample, LaneSample, TracePage};
use vgpu_ring::{GgttTable, Request, TableChanges};
use vgpu_sched::events::EventSink;
use vgpu_sched::kept::Uuid;
use vgpu_sched::ppgtt::Frames;
use vgpu_sched::saved::Saved;
use vgpu_sched::vgpu::{Drained, SchedulerV1, StillRuns};

use super::table::Table;

/// A vGPU as the scheduler knows it. Dropping the last handle removes it:
/// its work is stopped and its guest's memory no longer mapped when that
/// returns.
pub trait Vgpu: Send + Sync {
    /// Carries out a request from the submit ring. Requests come in order,
    /// from one thread.
    ///
    /// # Errors
    /// Why the vGPU is of no more use.
    fn request(&self, request: Request) -> Result<(), String>;

    /// Whether it can go on.
    ///
    /// # Errors
    /// Why it is of no more use.
    fn usable(&self) -> Result<(), String>;

    /// Where the device model counts changes of protected page tables, from now
    /// on. Given before the first request.
    fn count_changes(&self, changes: TableChanges);

    /// The guest's page table.
    fn table(&self) -> &Table;

    /// Stops it: what runs comes to its end, what has not begun waits.
    ///
    /// # Errors
    /// What does not end within `limit`; it goes on.
    fn suspend(&self, limit: Duration) -> Result<Drained, StillRuns>;

    /// Goes on after that.
    fn resume(&self);

    /// What to save of it, when it is stopped.
    fn save(&self) -> SchedulerV1;

    /// The guest's pages that the scheduler writes; what the GPU writes is not
    /// among them.
    fn written(&self) -> &WrittenPages;

    /// Has it recorded what work at the GPU may write, or no longer.
    fn track(&self, on: bool);

    /// Frames of the guest that work at the GPU may have written since the last
    /// call, or since [`Vgpu::track`].
    fn reached(&self) -> Frames;

    /// Tells Xen's log-dirty mode that these frames were written.
    ///
    /// # Errors
    /// When Xen refuses one that the guest has.
    fn name_pages(&self, gfns: &[Gfn]) -> anyhow::Result<()>;

    /// Changes what it gets of the GPU's time, from now on.
    fn set_share(&self, share: Share);

    /// What it did on the engines it has used, and when that was looked at,
    /// in nanoseconds of the clock of [`Platform::engines`].
    fn lanes(&self) -> (u64, Vec<LaneSample>);

    /// Its state, for people and tools.
    fn tree(&self) -> Value;
}

/// Who a guest is beyond its domain id.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The same whenever the guest runs.
    pub uuid: Option<Uuid>,
    /// For people; printable.
    pub name: Option<String>,
}

/// Where a vGPU comes from.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// It is new.
    New,
    /// It was saved.
    Saved(&'a Saved),
    /// It was another vgpud's, which is no more. Its page table is the one in
    /// the shared area until it is said to be elsewhere
    /// ([`Table::find`](super::table::Table::find)).
    Orphan,
}

/// The host.
pub trait Platform: Send + Sync {
    /// What the GPU is.
    fn gpu(&self) -> Gpu;

    /// Who the guest `domid` is, as far as Xen's toolstack tells.
    fn identify(&self, domid: u16) -> Identity;

    /// Adds a vGPU for the guest `domid` with `share` of the GPU's time. The
    /// guest's page table is RAM of the guest, or else
    /// `ggtt`. What it reports goes to `events`.
    ///
    /// # Errors
    /// When the guest's memory cannot be reached or the scheduler is full.
    fn add_vgpu(
        &self,
        domid: u16,
        share: Share,
        ggtt: GgttTable,
        origin: Origin<'_>,
        events: Box<dyn EventSink>,
    ) -> anyhow::Result<Arc<dyn Vgpu>>;

    /// Every guest of another vgpud's that there is has been added.
    fn adopted_all(&self);

    /// Cleans up behind a device model that died: answers what the vCPUs of
    /// `domid` wait for in ioreq server `server` and destroys it.
    ///
    /// # Errors
    /// When Xen refuses; the guest's vCPUs may hang then.
    fn reclaim(&self, domid: u16, server: u16) -> anyhow::Result<()>;

    /// Pauses the guest `domid`.
    ///
    /// # Errors
    /// When Xen's toolstack does not.
    fn pause(&self, domid: u16) -> anyhow::Result<()>;

    /// What the engines did so far, and when that was looked at, in
    /// nanoseconds of a clock.
    fn engines(&self) -> (u64, Vec<EngineSample>);

    /// At most `max` events of the trace from number `cursor` on.
    fn trace(&self, cursor: u64, max: usize) -> TracePage;

    /// The GPU and the scheduler, for people and tools.
    fn tree(&self) -> Value;
}
