//! The device's surroundings on Xen.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vgpu_device::kept::note_handed;
use vgpu_device::{Full, GpuPort, InterruptSink, Kept};
use vgpu_ring::{AreaWords, EventBell, Producer, PushError, Request, TableChanges};
use xen_glue::DeviceModel;

/// Interrupts by device-model operations.
pub(crate) struct Interrupts {
    pub(crate) dm: DeviceModel,
    /// PCI slot on bus 0.
    pub(crate) slot: u8,
    /// Operations Xen refused. A guest can cause that by what it programs.
    pub(crate) refused: AtomicU64,
    pub(crate) kept: Arc<dyn Kept>,
}

impl Interrupts {
    fn note(&self, result: Result<(), xen_glue::DeviceModelError>) {
        if let Err(e) = result {
            self.refused.fetch_add(1, Relaxed);
            log::debug!("{e}");
        }
    }
}

impl InterruptSink for Interrupts {
    fn msi(&self, address: u64, data: u32) {
        self.kept.about_to();
        self.note(self.dm.inject_msi(address, data));
    }

    fn intx(&self, level: bool) {
        self.kept.about_to();
        // Line 0 is INTA.
        self.note(self.dm.set_pci_intx_level(self.slot, 0, level));
    }
}

/// Answers kept for a ring that is full. vgpud leaves no more than 64 orders
/// unanswered; what is beyond that was not ordered.
const MOST_OWED: usize = 128;

/// The submit ring.
pub(crate) struct SubmitRing(Mutex<Submit>);

struct Submit {
    ring: Producer<Request, AreaWords, EventBell>,
    kept: Arc<dyn Kept>,
    /// Where vgpud sees the number of changes.
    published: TableChanges,
    /// That number; what is published is never read back.
    changes: u64,
    /// Changes that were not told, and vgpud does not know that yet.
    missed: u64,
    /// What must be told, whenever there is room.
    owed: VecDeque<Request>,
}

impl Submit {
    fn push(&mut self, request: Request) -> Result<(), Full> {
        self.push_noting(request, |_| {})
    }

    fn push_noting(&mut self, request: Request, note: impl FnOnce(u64)) -> Result<(), Full> {
        self.kept.about_to();
        match self.ring.push_noting(request, note) {
            Ok(()) => Ok(()),
            Err(PushError::Full) => Err(Full),
            Err(PushError::Broken(e)) => {
                // vgpud is gone or mad; the guest sees a GPU that hangs.
                log::debug!("submit {e}");
                Err(Full)
            }
        }
    }

    /// Sends what had no room. Nothing overtakes it.
    fn settle(&mut self) -> Result<(), Full> {
        if self.missed > 0 {
            self.push(Request::WritesMissed { count: self.missed })?;
            self.missed = 0;
        }
        while let Some(&request) = self.owed.front() {
            self.push(request)?;
            self.owed.pop_front();
        }
        Ok(())
    }
}

impl SubmitRing {
    pub(crate) fn new(
        ring: Producer<Request, AreaWords, EventBell>,
        published: TableChanges,
        kept: Arc<dyn Kept>,
    ) -> Self {
        Self(Mutex::new(Submit {
            ring,
            kept,
            // What a former device model published, if there was one.
            changes: published.load(),
            published,
            missed: 0,
            owed: VecDeque::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Submit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a protected frame is about to change, or the protection of
    /// some. From here until it is told, vgpud relies on none. Followed by one
    /// message that is counted, sent or owed, or one [`Self::tell`].
    pub(crate) fn announce(&self) {
        let mut submit = self.lock();
        submit.kept.about_to();
        submit.changes = submit.changes.wrapping_add(1);
        submit.published.store(submit.changes);
    }

    /// Says that no frame is protected, in the name of a former device model:
    /// what that one announced and did not come to tell counts as told.
    pub(crate) fn take_over(&self) {
        let changes = self.lock().changes;
        self.owe(Request::Recovered {
            changes,
            offered: false,
        });
    }

    /// Tells of a write. Without room vgpud hears that it missed something,
    /// before anything else.
    pub(crate) fn tell(&self, request: Request) {
        let mut submit = self.lock();
        if submit.settle().is_err() || submit.push(request).is_err() {
            submit.missed = submit.missed.saturating_add(1);
        }
    }

    /// Says something now or later.
    pub(crate) fn owe(&self, request: Request) {
        let mut submit = self.lock();
        if submit.settle().is_ok() && submit.push(request).is_ok() {
            return;
        }
        if submit.owed.len() < MOST_OWED {
            submit.owed.push_back(request);
        }
    }

    /// Offers again what had no room; says whether nothing is left.
    pub(crate) fn settle(&self) -> bool {
        self.lock().settle().is_ok()
    }
}

impl GpuPort for SubmitRing {
    fn send(&self, request: Request) -> Result<(), Full> {
        let mut submit = self.lock();
        submit.settle()?;
        submit.push(request)
    }

    fn hand_over(&self, request: Request, count: u64) -> Result<(), Full> {
        let submit = &mut *self.lock();
        submit.settle()?;
        let kept = Arc::clone(&submit.kept);
        submit.push_noting(request, |in_ring| {
            note_handed(&*kept, in_ring, count);
            kept.about_to();
        })
    }
}
