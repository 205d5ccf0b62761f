//! What each vGPU cost on each engine.

use std::sync::atomic::{AtomicU64, Ordering};

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
        }

        /// [`Counters`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The values now.
            #[must_use]
            pub fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.get(),)* }
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
    /// Nanoseconds on the engine.
    busy_ns,
    /// Switches of the engine to this vGPU.
    switches,
    /// Registers read in these switches.
    switch_reads,
    /// Registers written in these switches.
    switch_writes,
    /// Nanoseconds in these switches.
    switch_ns,
    /// Entries of the physical global table written.
    ptes_written,
    /// Bytes copied from and to the guest.
    bytes_copied,
    /// Privileged commands audited.
    commands,
    /// Interrupts passed on.
    interrupts,
}
