//! Shadows of the guests' per-process page tables.
//!
//! The GPU walks tables of ours. Each stands for one guest table page at
//! one level and keeps a private copy of the entries it was made from. At a
//! submission every table reachable from the context's root is brought up to
//! date: read once and compared with its copy, and what changed is
//! translated. Children are found from the copy, so a guest that changes a
//! table meanwhile changes nothing we decided.
//!
//! A page that the device model has write-protected need not be compared
//! while everything it announced has been told. See docs/shadow-tables.md for
//! the order of things in each mode.
//!
//! A table is freed only while no workload of its vGPU is at the GPU: until
//! then the GPU may still hold a cached way to it.

mod compare;
mod entry;
mod links;
mod lookup;
mod tables;
mod told;
mod tracking;
mod watch;
mod written;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use gen8::pte::Level;
use guest_memory::Gfn;

use crate::dma::{GuestMap, HostPages, OutOfPages};
use crate::sync::lock;
use links::Links;
use tables::{Root, Tables};
pub use told::Changes;
pub use tracking::{Costs, Ledger, ShadowMode, UnknownMode};
pub use watch::Order;
use watch::Orders;
pub use written::Frames;
use written::Reach;

/// How many tables one guest may have shadowed.
#[derive(Clone, Copy, Debug)]
pub struct TableLimits {
    /// Above this, tables out of use are freed when the GPU is idle of the
    /// guest.
    pub keep: usize,
    /// Above this, a context that needs more fails.
    pub max: usize,
}

impl Default for TableLimits {
    fn default() -> Self {
        // A table costs 8 to 10 KiB here. 4096 map 8 GiB of 4 KiB pages. A guest
        // that uses all of the 4 GiB that buffers get unless they ask for more
        // (Linux gem/i915_gem_execbuffer.c:eb_pin_flags, PIN_ZONE_4G) needs half of
        // that, and its other contexts' tables should stay beside.
        Self {
            keep: 3072,
            max: 4096,
        }
    }
}

/// How the tables of a vGPU are followed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShadowConfig {
    /// The way.
    pub mode: ShadowMode,
    /// What things cost at first.
    pub costs: Costs,
    /// The costs stay as they are; else they are measured.
    pub fixed_costs: bool,
}

/// Entries without memory that a submission looks for. Each costs an attempt
/// to map it, and a guest can have two million; the removal of its vGPU waits
/// for all of them. Those above stay unmapped and are tried the next time.
const MAX_MISSES: usize = 1024;

/// A context's tables cannot be shadowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShadowError {
    /// Too many tables.
    #[error("the guest's page tables are too many to shadow: {max} allowed")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// A table that the host cannot map now: it is paged out and did not come
    /// back in time, say.
    #[error("the page table at {gfn} cannot be read: the host cannot map it now")]
    Away {
        /// Where the guest has it.
        gfn: Gfn,
    },
    /// No memory for a shadow.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
}

/// What the tables of a vGPU cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableCounts {
    /// Tables now.
    pub tables: usize,
    /// Roots now.
    pub roots: usize,
    /// Guest table pages read and compared.
    pub compared: u64,
    /// Table pages that a submission reached and that were not compared:
    /// each of their writes had been told.
    pub spared: u64,
    /// Table pages compared though they are protected: something announced
    /// had not been told.
    pub doubted: u64,
    /// Writes told.
    pub traps: u64,
    /// Table pages that the device model was asked to protect.
    pub protects: u64,
    /// Table pages that it was asked to protect no longer.
    pub unprotects: u64,
    /// Of those, the ones that nothing led to any more.
    pub unlinked: u64,
    /// Table pages that it could not protect.
    pub refused: u64,
    /// Table pages protected now.
    pub protected: usize,
    /// Entries that had changed.
    pub translated: u64,
    /// Tables freed.
    pub freed: u64,
}

/// The shadow tables of one vGPU.
pub struct ShadowTables {
    map: Arc<GuestMap>,
    pages: Arc<HostPages>,
    limits: TableLimits,
    config: ShadowConfig,
    /// Held for long by whoever prepares something, one engine's thread after the
    /// other: none may have it twice while another waits, which the standard
    /// library's lock allows.
    inner: parking_lot::Mutex<Tables>,
    changes: RwLock<Option<Changes>>,
    /// Roots whose pins were dropped and are not yet counted. Pins are
    /// dropped on the interrupt thread, which must not wait for a guest's
    /// tables to be compared.
    dropped: Mutex<Vec<(Gfn, u64)>>,
    /// Pins. This and the next are looked at without waiting for the tables.
    pinned: AtomicUsize,
    /// Tables, when a root was last pinned.
    live: AtomicUsize,
}

impl ShadowTables {
    /// No table yet, to be followed as is usual.
    #[must_use]
    pub fn new(map: Arc<GuestMap>, pages: Arc<HostPages>, limits: TableLimits) -> Arc<Self> {
        Self::followed(map, pages, limits, ShadowConfig::default())
    }

    /// No table yet, to be followed as `config` says.
    #[must_use]
    pub fn followed(
        map: Arc<GuestMap>,
        pages: Arc<HostPages>,
        limits: TableLimits,
        config: ShadowConfig,
    ) -> Arc<Self> {
        Arc::new(Self {
            map,
            pages,
            limits,
            config,
            inner: parking_lot::Mutex::new(Tables {
                tables: Vec::new(),
                free: Vec::new(),
                by_key: HashMap::new(),
                roots: HashMap::new(),
                pass: 0,
                pins: 0,
                misses: 0,
                heard: 0,
                behind: true,
                orders: Orders::new(limits.max),
                links: Links::default(),
                costs: config.costs,
                reach: Reach::default(),
                counts: TableCounts::default(),
            }),
            changes: RwLock::new(None),
            dropped: Mutex::default(),
            pinned: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
        })
    }

    /// Locks the tables, with all dropped pins counted.
    fn tables(&self) -> parking_lot::MutexGuard<'_, Tables> {
        let mut inner = self.inner.lock();
        // At most one for each of the vGPU's workloads, and those are few.
        for (root, pin) in std::mem::take(&mut *lock(&self.dropped)) {
            inner.reach.arrive(pin);
            inner.unpin(root);
        }
        inner
    }

    /// Brings the shadow of the tables under `root` up to date and keeps it
    /// until the pin is dropped. What says that there is something to run, the
    /// ring's tail, was read before.
    ///
    /// # Errors
    /// [`ShadowError`]; the guest's other roots stay as they are.
    pub fn pin(self: &Arc<Self>, root: Gfn) -> Result<RootPin, ShadowError> {
        let mut inner = self.tables();
        if inner.pins == 0 && inner.live() > self.limits.keep {
            inner.make_room(self.limits.keep, root);
        }
        inner.pass += 1;
        inner.misses = 0;
        inner.behind = self.behind(&inner);
        let before = (inner.counts.compared, inner.counts.translated);
        let start = Instant::now();
        let synced = self.sync(&mut inner, root, Level::Pml4);
        self.live.store(inner.live(), Ordering::Relaxed);
        if inner.counts.translated == before.1 && !self.config.fixed_costs {
            let compared = inner.counts.compared - before.0;
            inner.costs.measure_compare(start.elapsed(), compared);
        }
        let id = match synced {
            Ok(id) => id,
            Err(e) => {
                if inner.pins == 0 {
                    inner.sweep();
                }
                inner.settle_links();
                return Err(e);
            }
        };
        let used = inner.pass;
        let entry = inner.roots.entry(root).or_insert(Root {
            id,
            used,
            pins: 0,
            doomed: false,
            linked: false,
        });
        entry.id = id;
        entry.used = used;
        entry.pins += 1;
        entry.doomed = false;
        inner.link_root(root);
        inner.settle_links();
        inner.tend_unlinked();
        inner.pins += 1;
        self.pinned.fetch_add(1, Ordering::Relaxed);
        let number = inner.reach.depart(root);
        let bus = inner.table(id).map_or(0, |t| t.page.bus());
        let compared = inner.counts.compared - before.0;
        Ok(RootPin {
            tables: Arc::clone(self),
            root,
            number,
            bus,
            compared,
        })
    }

    /// Whether there are more tables than are kept: some should go, which
    /// takes a moment in which no root is pinned. As of the last submission.
    #[must_use]
    pub fn crowded(&self) -> bool {
        self.live.load(Ordering::Relaxed) > self.limits.keep
    }

    /// Whether a root is kept for work.
    #[must_use]
    pub fn pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire) > 0
    }

    /// The guest no longer uses `root`.
    pub fn destroy(&self, root: Gfn) {
        let mut inner = self.tables();
        if let Some(r) = inner.roots.get_mut(&root) {
            r.doomed = true;
        }
        // Its pages are the guest's for other things, whatever is at the GPU.
        inner.unlink_root(root);
        if inner.pins == 0 {
            inner.bury();
        }
    }

    /// Frees every table, the guest being gone. Returns whether a workload
    /// was abandoned: then its engine may still walk them, and they stay.
    pub fn clear(&self) -> bool {
        let mut inner = self.tables();
        let abandoned = inner.pins > 0;
        if abandoned {
            std::mem::forget(std::mem::take(&mut inner.tables));
        }
        inner.reach.forget();
        let roots: Vec<Gfn> = inner.roots.keys().copied().collect();
        for root in roots {
            inner.drop_root(root);
        }
        inner.sweep();
        inner.links.forget();
        inner.by_key.clear();
        inner.orders.forget();
        abandoned
    }

    /// Has it recorded what work may write, or no longer. What is at the GPU
    /// now may be writing already.
    pub fn track(&self, on: bool) {
        self.tables().track(on);
    }

    /// Pages that work may have written since the last call, or since
    /// [`ShadowTables::track`]. Work that is still at the GPU may write more,
    /// and counts again the next time.
    #[must_use]
    pub fn written(&self) -> Frames {
        self.tables().written()
    }

    /// Counts for inspection.
    #[must_use]
    pub fn counts(&self) -> TableCounts {
        let inner = self.tables();
        TableCounts {
            tables: inner.live(),
            roots: inner.roots.len(),
            protected: inner.protected(),
            ..inner.counts
        }
    }
}

/// A root in use by a workload.
pub struct RootPin {
    tables: Arc<ShadowTables>,
    root: Gfn,
    number: u64,
    bus: u64,
    /// Guest table pages read for it.
    pub compared: u64,
}

impl RootPin {
    /// The bus address of the shadow root.
    #[must_use]
    pub const fn bus(&self) -> u64 {
        self.bus
    }

    /// The workload is shown these pages in the global table as well.
    pub fn shows(&self, frames: Vec<Gfn>) {
        self.tables.tables().reach.show(self.number, frames);
    }
}

impl Drop for RootPin {
    fn drop(&mut self) {
        lock(&self.tables.dropped).push((self.root, self.number));
        // Whoever sees that has it counted.
        self.tables.pinned.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
