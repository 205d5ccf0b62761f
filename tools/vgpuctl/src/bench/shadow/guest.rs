//! A guest that writes its tables, and a hypervisor that traps.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fake_xen::{Domain, DomainConfig, FakeXen};
use guest_memory::{Gfn, GuestMemory};
use vgpu_sched::dma::{DmaSpace, GuestMap, HostPages, MapLimits};
use vgpu_sched::ppgtt::{
    Costs, Order, ShadowConfig, ShadowError, ShadowTables, TableCounts, TableLimits,
};

use xen_glue::{ForeignMemory, ForeignMemoryConfig, Hypervisor};

use super::number;
use super::patterns::{ENTRIES, Pattern, Turn};

/// Page tables of the guest: 64 MiB of its graphics memory.
pub const LEAVES: u64 = 32;
/// With what leads to them.
pub const TABLES: u64 = LEAVES + 3;

const ROOT: u64 = 1;
const FIRST_LEAF: u64 = 4;
/// Frames entries name.
const FIRST_DATA: u64 = 512;
const DATA: u64 = 512;

/// What a round cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bill {
    pub writes: u64,
    pub traps: u64,
    pub compares: u64,
    pub changes: u64,
    /// Measured, in submissions.
    pub submitting_ns: f64,
    /// Measured, in what was told of writes and answered.
    pub hearing_ns: f64,
}

impl Bill {
    /// All of it in nanoseconds. `counted`: with the usual cost of a
    /// comparison instead of measured time.
    pub fn ns(&self, costs: Costs, counted: bool) -> f64 {
        let modelled = number(self.traps) * f64::from(costs.trap_ns)
            + number(self.changes) * f64::from(costs.protect_ns);
        if counted {
            return modelled + number(self.compares) * f64::from(costs.compare_ns);
        }
        modelled + self.submitting_ns + self.hearing_ns
    }
}

/// The guest, with its shadow.
pub struct Guest {
    /// Mapped as vgpud maps it on Xen, from a simulated hypervisor.
    memory: Arc<ForeignMemory>,
    /// Kept while its memory is mapped.
    _domain: (FakeXen, Domain),
    tables: Arc<ShadowTables>,
    /// Announced, and told at once.
    changes: Arc<AtomicU64>,
    protected: HashSet<u64>,
    pattern: Pattern,
    submission: u64,
    hearing: Duration,
}

impl Guest {
    pub fn new(config: ShadowConfig, pattern: Pattern) -> anyhow::Result<Self> {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig {
            frames: usize::try_from(FIRST_DATA + DATA)?,
            ..DomainConfig::default()
        })?;
        let cache = ForeignMemoryConfig::default();
        let memory = ForeignMemory::new(xen.open_privcmd()?, domain.id(), cache);
        let memory = Arc::new(memory);
        let dma = Arc::new(DmaSpace::new());
        let shared = Arc::clone(&memory) as _;
        let map = Arc::new(GuestMap::new(
            Arc::clone(&dma),
            shared,
            MapLimits::default(),
        ));
        let pages = HostPages::new(dma, 1024);
        let tables = ShadowTables::followed(map, pages, TableLimits::default(), config);
        let changes = Arc::new(AtomicU64::new(1));
        let now = Arc::clone(&changes);
        tables.count_changes(Box::new(move || now.load(Ordering::Relaxed)));
        tables.offer(true);
        let mut guest = Self {
            memory,
            _domain: (xen, domain),
            tables,
            changes,
            protected: HashSet::new(),
            pattern,
            submission: 0,
            hearing: Duration::ZERO,
        };
        guest.write(ROOT, 0, (ROOT + 1) << 12 | 3);
        guest.write(ROOT + 1, 0, (ROOT + 2) << 12 | 3);
        for leaf in 0..LEAVES {
            guest.write(ROOT + 2, leaf, (FIRST_LEAF + leaf) << 12 | 3);
            for entry in 0..ENTRIES {
                guest.write(FIRST_LEAF + leaf, entry, FIRST_DATA << 12 | 3);
            }
        }
        Ok(guest)
    }

    /// A vCPU's store, and what a device model does when it traps. What vgpud
    /// orders then is done before the next store; in truth a few more trap.
    fn write(&mut self, table: u64, index: u64, entry: u64) {
        let gpa = table * 4096 + index * 8;
        // Inside the memory made above.
        let _ = self.memory.write_u64(gpa, entry);
        if self.protected.contains(&table) {
            let start = Instant::now();
            self.changes.fetch_add(1, Ordering::Relaxed);
            self.tables.wrote(gpa, 8, 0);
            self.hearing += start.elapsed();
            self.obey();
        }
    }

    /// What is written to a table's entry: never what was there before.
    fn entry(&self, index: u64) -> u64 {
        let shift = self.submission.wrapping_mul(0x9e37_79b9) >> 16;
        (FIRST_DATA + (shift + index) % DATA) << 12 | 3
    }

    /// Takes a table out or puts it back; how many entries were written.
    fn turn(&mut self, turn: Turn) -> u64 {
        let pd = ROOT + 2;
        match turn {
            Turn::Out(leaf) => {
                self.write(pd, leaf, 0);
                for index in 0..ENTRIES {
                    self.write(FIRST_LEAF + leaf, index, 0);
                }
            }
            Turn::Back(leaf) => {
                for index in 0..ENTRIES {
                    self.write(FIRST_LEAF + leaf, index, self.entry(index));
                }
                self.write(pd, leaf, (FIRST_LEAF + leaf) << 12 | 3);
            }
        }
        ENTRIES + 1
    }

    /// Carries out what vgpud asks for.
    fn obey(&mut self) {
        let start = Instant::now();
        loop {
            let orders = self.tables.orders();
            if orders.is_empty() {
                break;
            }
            for order in orders {
                match order {
                    Order::Protect { gfn, serial } => {
                        self.protected.insert(gfn.0);
                        self.tables.protected(gfn, serial);
                    }
                    Order::Unprotect { gfn } => {
                        self.protected.remove(&gfn.0);
                        self.tables.unprotected();
                    }
                }
            }
        }
        self.hearing += start.elapsed();
    }

    /// A round of submissions, with what is written before each.
    pub fn run(&mut self, submissions: u32) -> Result<Bill, ShadowError> {
        let before = self.tables.counts();
        self.hearing = Duration::ZERO;
        let mut submitting = Duration::ZERO;
        let mut writes = 0;
        for _ in 0..submissions {
            if let Some((leaf, first, count)) = self.pattern.before(self.submission) {
                writes += count;
                for index in first..first + count {
                    self.write(FIRST_LEAF + leaf, index, self.entry(index));
                }
            }
            if let Some(turn) = self.pattern.turn(self.submission) {
                writes += self.turn(turn);
            }
            self.submission += 1;
            self.obey();
            let start = Instant::now();
            let pin = self.tables.pin(Gfn(ROOT))?;
            submitting += start.elapsed();
            drop(pin);
            self.obey();
        }
        let TableCounts {
            traps,
            compared,
            protects,
            unprotects,
            ..
        } = self.tables.counts();
        Ok(Bill {
            writes,
            traps: traps - before.traps,
            compares: compared - before.compared,
            changes: protects + unprotects - before.protects - before.unprotects,
            submitting_ns: submitting.as_secs_f64() * 1e9,
            hearing_ns: self.hearing.as_secs_f64() * 1e9,
        })
    }
}
