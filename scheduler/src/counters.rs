//! What each vGPU cost on each engine.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::{Histogram, percentile};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one vGPU on one engine.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Count,)*
            /// From ready to the engine, of each element that got there.
            pub waits: Histogram,
        }

        /// [`Counters`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
            /// Half of all elements waited this long at most, in nanoseconds.
            pub wait_ns_p50: u64,
            /// 99 of 100 elements waited this long at most, in nanoseconds.
            pub wait_ns_p99: u64,
        }

        impl Counters {
            /// The values now.
            #[must_use]
            pub fn values(&self) -> CounterValues {
                let waits = self.waits.buckets();
                CounterValues {
                    $($name: self.$name.get(),)*
                    wait_ns_p50: percentile(&waits, 50).unwrap_or(0),
                    wait_ns_p99: percentile(&waits, 99).unwrap_or(0),
                }
            }
        }
    };
}

counters! {
    /// Elements run to their end.
    completed,
    /// Execlist loads received.
    loads,
    /// Elements refused before they ran.
    refused,
    /// Elements that failed on the GPU or were reset.
    failed,
    /// Nanoseconds on the engine, of elements that left it.
    busy_ns,
    /// Elements that ran on past the vGPU's slice while others waited.
    overruns,
    /// Times it was ready and had to wait because of its cap alone.
    throttled,
    /// Switches of the engine to this vGPU by register accesses.
    switches,
    /// Switches of the engine to this vGPU by commands from the second slot.
    handovers,
    /// Registers read in switches.
    switch_reads,
    /// Registers written in switches.
    switch_writes,
    /// Reads that these switches and handovers would have needed besides if
    /// they saved, restored and read back the whole list.
    switch_reads_saved,
    /// Writes, likewise.
    switch_writes_saved,
    /// Nanoseconds in switches.
    switch_ns,
    /// Entries of the physical global table written.
    ptes_written,
    /// Of these, entries that an idle engine waited for. The others were
    /// written while it ran something else.
    ptes_late,
    /// Bytes copied from and to the guest.
    bytes_copied,
    /// Privileged commands audited.
    commands,
    /// Commands of batches without privilege scanned.
    user_commands,
    /// Bytes of these that had not changed since a scan before.
    unchanged_bytes,
    /// Scans that a limit ended.
    scans_cut,
    /// Interrupts passed on.
    interrupts,
}

/// What an engine did, for whomever.
#[derive(Debug, Default)]
pub struct EngineCounters {
    /// Nanoseconds of elements that left it.
    pub busy_ns: Count,
    /// Switches between vGPUs by register accesses.
    pub switches: Count,
    /// Switches between vGPUs by commands from the second slot.
    pub handovers: Count,
    /// Nanoseconds in switches.
    pub switch_ns: Count,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn values_tell_how_long_was_waited() {
        let counters = Counters::default();
        assert_eq!(counters.values(), CounterValues::default());
        counters.overruns.add(2);
        for us in 1..=100 {
            counters.waits.record(Duration::from_micros(us));
        }
        let values = counters.values();
        assert_eq!(values.overruns, 2);
        // Within a sixteenth.
        assert!(
            (50_000..=53_125).contains(&values.wait_ns_p50),
            "{values:?}"
        );
        assert!(
            (99_000..=105_187).contains(&values.wait_ns_p99),
            "{values:?}"
        );
    }
}
