//! A guest's vGPU as its migration sees it.

use std::time::Duration;

use guest_memory::Gfn;
use vgpu_migrate::stream::Section;

/// What became of the work at the GPU when the guest was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Elements that ran to their end.
    pub ended: usize,
    /// Elements that are run again at the target.
    pub cancelled: usize,
}

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
    fn save(&self) -> anyhow::Result<Vec<Section<'static>>>;

    /// Pages that may have been written behind Xen's back since the last
    /// call: by work that ran, by vgpud, by the device model. Sorted, each
    /// once.
    ///
    /// # Errors
    /// When they are not known.
    fn written(&self) -> anyhow::Result<Vec<Gfn>>;

    /// Tells Xen that these pages were written.
    ///
    /// # Errors
    /// When Xen refuses.
    fn name(&self, gfns: &[Gfn]) -> anyhow::Result<()>;
}
