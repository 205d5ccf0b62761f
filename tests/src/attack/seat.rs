//! A vGPU whose device model is the test itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use gen8::{Engine, pte};
use vgpu_ring::{Event, Request};
use vgpu_sched::events::{EventSink, Full};
use vgpu_sched::ggtt::GuestGgtt;
use vgpu_sched::scheduler::{Handle, Scheduler};
use vgpu_sched::vgpu::{VgpuConfig, VgpuError};

use super::memory::Memory;
use crate::layout::WINDOW_PAGES;

/// Entries that are there one by one; those above are made up.
const ENTRIES: usize = 4096;

/// A global table, which may show something else each time it is looked at.
pub(crate) struct Table {
    entries: Vec<AtomicU64>,
    /// What entries above are made of; 0: they are absent.
    wild: AtomicU64,
    /// The lowest bits of a look's number in which it shows another frame.
    fickle: AtomicU64,
    looks: AtomicU64,
}

impl Table {
    /// The lowest frames, one to one.
    fn new() -> Self {
        let entry = |page: usize| {
            let page = u64::try_from(page).unwrap_or(0);
            let mapped = page < WINDOW_PAGES.into();
            AtomicU64::new(if mapped { page << 12 | pte::PRESENT } else { 0 })
        };
        Self {
            entries: (0..ENTRIES).map(entry).collect(),
            wild: AtomicU64::new(0),
            fickle: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        }
    }

    pub fn store(&self, page: usize, entry: u64) {
        if let Some(e) = self.entries.get(page) {
            e.store(entry, SeqCst);
        }
    }

    /// Fills what lies above with entries made of `seed`; 0: with nothing.
    pub fn fill_above(&self, seed: u64) {
        self.wild.store(seed, SeqCst);
    }

    /// Has one look in a power of two show another frame; 0: none.
    pub fn set_fickle(&self, mask: u64) {
        self.fickle.store(mask, SeqCst);
    }
}

impl GuestGgtt for Table {
    fn load(&self, index: u32) -> u64 {
        let stored = usize::try_from(index)
            .ok()
            .and_then(|i| self.entries.get(i));
        let entry = stored.map_or_else(
            || {
                let wild = self.wild.load(SeqCst);
                let made = u64::from(index).wrapping_mul(wild);
                if wild == 0 {
                    0
                } else {
                    made & 0x7ff_f000 | made >> 63
                }
            },
            |e| e.load(SeqCst),
        );
        let fickle = self.fickle.load(SeqCst);
        if fickle != 0 && self.looks.fetch_add(1, SeqCst) & fickle == 0 {
            return entry ^ 0x3000;
        }
        entry
    }
}

struct Sink {
    sender: Sender<Event>,
    closed: Arc<AtomicBool>,
}

impl EventSink for Sink {
    fn push(&mut self, event: Event) -> Result<(), Full> {
        if self.closed.load(SeqCst) {
            return Err(Full);
        }
        // Nobody listens to a vGPU that goes.
        let _ = self.sender.send(event);
        Ok(())
    }
}

/// A vGPU, its memory, and what comes back from it.
pub(crate) struct Seat {
    pub memory: Arc<Memory>,
    pub table: Arc<Table>,
    pub handle: Handle,
    events: Receiver<Event>,
    /// Whether events find no room.
    closed: Arc<AtomicBool>,
    seq: u64,
}

impl Seat {
    /// A vGPU with `pages` pages of memory.
    ///
    /// # Panics
    /// When the scheduler has no place for it.
    pub fn new(scheduler: &Scheduler, config: VgpuConfig, pages: usize) -> Self {
        let memory = Arc::new(Memory::new(config.id, pages));
        let table = Arc::new(Table::new());
        let (sender, events) = channel();
        let closed = Arc::new(AtomicBool::new(false));
        let sink = Sink {
            sender,
            closed: Arc::clone(&closed),
        };
        let handle = scheduler
            .add_vgpu(config, memory.clone(), table.clone(), Box::new(sink))
            .unwrap();
        Self {
            memory,
            table,
            handle,
            events,
            closed,
            seq: 0,
        }
    }

    /// Loads an execlist.
    ///
    /// # Errors
    /// When vgpud is to drop the vGPU.
    pub fn submit(&mut self, engine: Engine, desc: [u64; 2]) -> Result<(), VgpuError> {
        self.seq += 1;
        self.handle.handle(Request::Submit {
            engine: u8::try_from(engine.index()).unwrap_or(u8::MAX),
            seq: self.seq,
            desc,
        })
    }

    /// What came back, if anything did.
    pub fn event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// What comes back within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Event> {
        self.events.recv_timeout(limit).ok()
    }

    /// Leaves events where they are, or takes them again.
    pub fn close(&self, closed: bool) {
        self.closed.store(closed, SeqCst);
        if !closed {
            self.handle.flush_events();
        }
    }
}
