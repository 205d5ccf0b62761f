//! A software Gen8 or Gen9 GPU behind registers, GTT, DMA and interrupts.
//!
//! [`SoftGpu`] implements [`gpu_bus::Gpu`]; a driver uses it as it uses
//! hardware. Four engines run at once, a thread each. README.md says what
//! is modelled and what is not.

#![forbid(unsafe_code)]

mod atomic;
mod bits;
mod blit;
mod clock;
mod context;
mod core;
mod counters;
mod engine;
mod execlist;
mod fetch;
mod ggtt;
mod interrupt;
mod journal;
mod math;
mod memory;
mod mi;
mod mmio;
mod observer;
mod pace;
mod pattern;
mod pipe_control;
mod position;
mod ppgtt;
mod raster;
mod registers;
mod stream;
mod surface;
#[cfg(test)]
mod test_memory;
mod unit;
mod write_log;

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use gen8::{Engine, Platform, ring};
use gpu_bus::{BAR0_SIZE, Dma, GGTT_BASE, Gpu, InterruptLine, Journal};

pub use counters::{BusCounters, Counters, EngineCounters};
pub use observer::{Access, Observer, Why};
pub use write_log::WriteLog;

use crate::bits::{hi, join, lo};
use crate::core::Core;
use crate::counters::count;
use crate::registers::REGISTER_BYTES;

/// What can be chosen about a GPU.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// What the GPU is.
    pub platform: &'static Platform,
    /// Nanoseconds each register read takes (0: as fast as it can). The
    /// caller spins, as a CPU stalls on an uncached read.
    pub register_read_cost_ns: u32,
    /// Nanoseconds each register write takes.
    pub register_write_cost_ns: u32,
    /// Nanoseconds each command takes an engine (0: as fast as it can). The
    /// engine's thread sleeps what it was faster, so an engine's time is not
    /// the CPU's.
    pub command_cost_ns: u32,
    /// Nanoseconds that drawing 1 KiB takes the blitter, likewise.
    pub blit_cost_ns_per_kib: u32,
    /// Where to note every page written. For tests only.
    pub write_log: Option<Arc<WriteLog>>,
    /// Who is told of every access to memory. For tests only.
    pub observer: Option<Arc<dyn Observer>>,
    /// Where to note how far each engine is, for a GPU that goes on where
    /// this one died.
    pub journal: Option<Arc<dyn Journal>>,
}

/// The GPU. Its engines stop when it is dropped.
pub struct SoftGpu {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SoftGpu {
    /// A GPU after power-on, its engines idle. `dma` is memory by bus
    /// address; `irq` is where its interrupt message goes.
    ///
    /// # Panics
    /// When the operating system gives no more threads.
    #[must_use]
    pub fn new(config: Config, dma: Arc<dyn Dma>, irq: Arc<dyn InterruptLine>) -> Arc<Self> {
        let core = Arc::new(Core::new(config, dma, irq));
        let threads = Engine::ALL
            .into_iter()
            .map(|e| {
                let core = core.clone();
                thread::Builder::new()
                    .name(format!("softgpu-{}", e.sysfs_name()))
                    .spawn(move || engine::run(&core, e))
                    .unwrap_or_else(|e| panic!("no thread for an engine: {e}"))
            })
            .collect();
        Arc::new(Self {
            core,
            threads: Mutex::new(threads),
        })
    }

    /// Stops the engines and waits for them. Registers still answer after
    /// that, but nothing runs any more.
    pub fn shutdown(&self) {
        for u in &self.core.units {
            u.request_shutdown();
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for t in threads {
            // An engine that drops the last reference cannot wait for itself.
            if t.thread().id() != thread::current().id() && t.join().is_err() {
                log::error!("an engine's thread panicked");
            }
        }
    }

    /// Everything counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut bus = self.core.bus.snapshot();
        bus.interrupts = self.core.interrupts.sent.load(Relaxed);
        let mut c = Counters {
            bus,
            ..Counters::default()
        };
        for (to, from) in c.engines.iter_mut().zip(&self.core.units) {
            *to = from.counters.snapshot();
        }
        c
    }

    /// Changes what a register read and a register write cost, in
    /// nanoseconds.
    pub fn set_register_cost(&self, read_ns: u32, write_ns: u32) {
        self.core.read_cost_ns.store(read_ns, Relaxed);
        self.core.write_cost_ns.store(write_ns, Relaxed);
    }

    fn read(&self, offset: u32) -> u32 {
        if offset >= GGTT_BASE {
            count(&self.core.bus.ggtt_reads);
            let e = self.core.ggtt.entry((offset - GGTT_BASE) / 8);
            return if offset & 4 != 0 { hi(e) } else { lo(e) };
        }
        count(&self.core.bus.mmio_reads);
        spend(self.core.read_cost_ns.load(Relaxed));
        if offset < REGISTER_BYTES {
            self.core.read_register(offset)
        } else {
            0
        }
    }

    fn write(&self, offset: u32, value: u32) {
        count(&self.core.bus.mmio_writes);
        spend(self.core.write_cost_ns.load(Relaxed));
        if offset < REGISTER_BYTES {
            self.core.write_register(offset, value);
        }
    }
}

impl fmt::Debug for SoftGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftGpu")
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Drop for SoftGpu {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Keeps the caller for `ns` nanoseconds.
fn spend(ns: u32) {
    if ns == 0 {
        return;
    }
    let start = Instant::now();
    while start.elapsed().as_nanos() < u128::from(ns) {
        std::hint::spin_loop();
    }
}

/// Whether an access of `size` bytes at `offset` is one of BAR0.
const fn claimed(offset: u32, size: u32) -> bool {
    offset.is_multiple_of(size) && offset <= BAR0_SIZE - size
}

impl Gpu for SoftGpu {
    fn read32(&self, offset: u32) -> u32 {
        if !claimed(offset, 4) {
            return u32::MAX;
        }
        self.read(offset)
    }

    fn write32(&self, offset: u32, value: u32) {
        if !claimed(offset, 4) {
            return;
        }
        if offset >= GGTT_BASE {
            count(&self.core.bus.ggtt_writes);
            let index = (offset - GGTT_BASE) / 8;
            self.core.ggtt.set_half(index, offset & 4 != 0, value);
            return;
        }
        self.write(offset, value);
    }

    fn read64(&self, offset: u32) -> u64 {
        if !claimed(offset, 8) {
            return u64::MAX;
        }
        if offset >= GGTT_BASE {
            count(&self.core.bus.ggtt_reads);
            return self.core.ggtt.entry((offset - GGTT_BASE) / 8);
        }
        if let Some((_, ring::TIMESTAMP)) = Engine::from_mmio(offset) {
            // Both halves of one moment.
            self.read(offset);
            return self.core.timestamp();
        }
        let low = self.read(offset);
        let high = if offset + 4 < REGISTER_BYTES {
            self.core.read_register(offset + 4)
        } else {
            0
        };
        join(low, high)
    }

    fn write64(&self, offset: u32, value: u64) {
        if !claimed(offset, 8) {
            return;
        }
        if offset >= GGTT_BASE {
            count(&self.core.bus.ggtt_writes);
            self.core.ggtt.set_entry((offset - GGTT_BASE) / 8, value);
            return;
        }
        self.write(offset, lo(value));
        if offset + 4 < REGISTER_BYTES {
            self.core.write_register(offset + 4, hi(value));
        }
    }
}
