//! A guest's vGPU as its migration sees it.

use std::time::Duration;

use vgpu_sched::ppgtt::Frames;
use vgpu_sched::saved::Saved;
use vgpu_sched::vgpu::Drained;

/// What a migration does with a vGPU. Each may be called again when it was
/// called before.
pub trait Migrant: Send + Sync {
    /// From now on, no write protection is in the way of Xen's log-dirty
    /// mode, the guest has no more memory than its toolstack knows of, and
    /// what is written behind Xen's back is recorded.
    ///
    /// # Errors
    /// Why it cannot be; the guest goes on as before.
    fn begin_save(&self) -> anyhow::Result<()>;

    /// As before [`Migrant::begin_save`]; the vGPU works on.
    ///
    /// # Errors
    /// Why it cannot.
    fn end_save(&self) -> anyhow::Result<()>;

    /// The guest stands still. On return nothing is written to its memory
    /// any more: work at the GPU has ended within `limit` or is to be run
    /// again.
    ///
    /// # Errors
    /// When the GPU does not let go.
    fn suspend(&self, limit: Duration) -> anyhow::Result<Drained>;

    /// The vGPU's state, after [`Migrant::suspend`].
    ///
    /// # Errors
    /// When it cannot be had.
    fn save(&self) -> anyhow::Result<Saved>;

    /// Pages that may have been written behind Xen's back since the last
    /// call: by work that ran, by vgpud, by the device model.
    ///
    /// # Errors
    /// When they are not known.
    fn written(&self) -> anyhow::Result<Frames>;

    /// How many pages work at the GPU could write in this time, while nothing
    /// is saved.
    ///
    /// # Errors
    /// When it is not known.
    fn preview(&self, time: Duration) -> anyhow::Result<u64>;

    /// Tells Xen that these pages were written.
    ///
    /// # Errors
    /// When Xen refuses.
    fn name(&self, frames: &Frames) -> anyhow::Result<()>;
}
