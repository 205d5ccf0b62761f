//! What the GPU counts about itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gen8::Engine;

/// Accesses from the bus, since the GPU was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusCounters {
    /// Reads of registers.
    pub mmio_reads: u64,
    /// Writes of registers.
    pub mmio_writes: u64,
    /// Reads of global page-table entries.
    pub ggtt_reads: u64,
    /// Writes of global page-table entries.
    pub ggtt_writes: u64,
    /// Interrupt messages sent.
    pub interrupts: u64,
}

/// What one engine did, since the GPU was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Commands executed; polls of one wait count once.
    pub commands: u64,
    /// Batches started.
    pub batches: u64,
    /// Contexts loaded.
    pub contexts: u64,
    /// Lite restores.
    pub lite_restores: u64,
    /// Times a running context was replaced.
    pub preemptions: u64,
    /// Times the engine ran out of work.
    pub idles: u64,
    /// Run-list loads that replaced one still waiting, or named no valid
    /// context.
    pub lost_loads: u64,
    /// Times the engine stopped on an error.
    pub errors: u64,
    /// Writes dropped because the page was read-only.
    pub read_only_writes: u64,
    /// Commands and register writes turned into no-ops for want of privilege.
    pub unprivileged: u64,
    /// Resets.
    pub resets: u64,
    /// Nanoseconds with a context loaded.
    pub busy_ns: u64,
}

/// A snapshot of every counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// From the bus.
    pub bus: BusCounters,
    /// By [`Engine::index`].
    pub engines: [EngineCounters; Engine::COUNT],
}

macro_rules! cells {
    ($cells:ident => $snapshot:ident { $($field:ident),* $(,)? }) => {
        #[derive(Debug, Default)]
        pub(crate) struct $cells { $(pub(crate) $field: AtomicU64),* }

        impl $cells {
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($field: self.$field.load(Relaxed)),* }
            }
        }
    };
}

cells!(BusCells => BusCounters {
    mmio_reads, mmio_writes, ggtt_reads, ggtt_writes, interrupts,
});

cells!(EngineCells => EngineCounters {
    commands, batches, contexts, lite_restores, preemptions, idles, lost_loads, errors,
    read_only_writes, unprivileged, resets, busy_ns,
});

/// Adds one.
pub(crate) fn count(cell: &AtomicU64) {
    cell.fetch_add(1, Relaxed);
}
