//! What the engines and the bus side share.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use gen8::{Engine, Platform, csb, irq, ring};
use gpu_bus::{Dma, DmaFault, InterruptLine, Journal};

use crate::Config;
use crate::bits::{hi, lo};
use crate::clock::Clock;
use crate::counters::BusCells;
use crate::execlist::Event;
use crate::ggtt::Ggtt;
use crate::interrupt::Interrupts;
use crate::observer::{Access, Observer, Why};
use crate::registers::Registers;
use crate::unit::Unit;
use crate::write_log::WriteLog;

/// Who reaches memory, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) engine: Engine,
    pub(crate) why: Why,
    pub(crate) global: bool,
    pub(crate) address: u64,
}

pub(crate) struct Core {
    pub(crate) platform: &'static Platform,
    dma: Arc<dyn Dma>,
    log: Option<Arc<WriteLog>>,
    observer: Option<Arc<dyn Observer>>,
    pub(crate) journal: Option<Arc<dyn Journal>>,
    pub(crate) registers: Registers,
    pub(crate) ggtt: Ggtt,
    pub(crate) interrupts: Interrupts,
    pub(crate) clock: Clock,
    pub(crate) bus: BusCells,
    pub(crate) units: [Unit; Engine::COUNT],
    /// Held during a read-modify-write in memory, so that engines' atomic
    /// operations are atomic towards each other.
    pub(crate) atomics: Mutex<()>,
    pub(crate) read_cost_ns: AtomicU32,
    pub(crate) write_cost_ns: AtomicU32,
    pub(crate) command_cost_ns: u32,
    pub(crate) blit_cost_ns_per_kib: u32,
    /// Value last written to GDRST.
    pub(crate) gdrst: AtomicU32,
}

impl Core {
    pub(crate) fn new(config: Config, dma: Arc<dyn Dma>, line: Arc<dyn InterruptLine>) -> Self {
        Self {
            platform: config.platform,
            dma,
            log: config.write_log,
            observer: config.observer,
            journal: config.journal,
            registers: Registers::new(config.platform.rules),
            ggtt: Ggtt::new(),
            interrupts: Interrupts::new(line),
            clock: Clock::new(config.platform.timestamp),
            bus: BusCells::default(),
            units: Engine::ALL.map(Unit::new),
            atomics: Mutex::new(()),
            read_cost_ns: AtomicU32::new(config.register_read_cost_ns),
            write_cost_ns: AtomicU32::new(config.register_write_cost_ns),
            command_cost_ns: config.command_cost_ns,
            blit_cost_ns_per_kib: config.blit_cost_ns_per_kib,
            gdrst: AtomicU32::new(0),
        }
    }

    pub(crate) fn unit(&self, engine: Engine) -> &Unit {
        &self.units[engine.index()]
    }

    pub(crate) fn dma_read(&self, by: Reach, bus: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.dma.read(bus, buf)?;
        self.observe(by, false, bus, buf.len());
        Ok(())
    }

    pub(crate) fn dma_write(&self, by: Reach, bus: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.dma.write(bus, data)?;
        if let Some(log) = &self.log {
            log.record(bus, data.len());
        }
        self.observe(by, true, bus, data.len());
        Ok(())
    }

    fn observe(&self, by: Reach, write: bool, bus: u64, len: usize) {
        if let Some(observer) = &self.observer {
            let Reach {
                engine,
                why,
                global,
                address,
            } = by;
            observer.reached(&Access {
                engine,
                why,
                global,
                write,
                address,
                bus,
                len,
                header: self.ring(engine, ring::IPEHR),
            });
        }
    }

    /// A register of `engine`'s block.
    pub(crate) fn ring(&self, engine: Engine, offset: u32) -> u32 {
        self.registers.get(engine.mmio_base() + offset)
    }

    pub(crate) fn set_ring(&self, engine: Engine, offset: u32, value: u32) {
        self.registers.set(engine.mmio_base() + offset, value);
    }

    /// An engine signals `events` (bits of its half of an interrupt bank).
    pub(crate) fn signal(&self, engine: Engine, events: u16) {
        self.interrupts
            .signal(engine, events, self.ring(engine, ring::IMR));
    }

    /// Writes a context status event: entry, then write pointer, then
    /// interrupt. The caller holds the engine's lock.
    pub(crate) fn emit(&self, engine: Engine, event: Event) {
        let old = self.ring(engine, ring::CSB_PTR) & 7;
        let next = if old + 1 < csb::ENTRIES { old + 1 } else { 0 };
        self.set_ring(engine, ring::CSB_MIRROR + 8 * next, event.status);
        self.set_ring(engine, ring::CSB_MIRROR + 8 * next + 4, event.context);
        let page = self.ring(engine, ring::HWS_PGA) & !0xfff;
        if let Some(bus) = self.ggtt.translate(page) {
            let mut entry = [0; 8];
            entry[..4].copy_from_slice(&event.status.to_le_bytes());
            entry[4..].copy_from_slice(&event.context.to_le_bytes());
            let at = bus + u64::from(csb::HWSP_BUFFER + 8 * next);
            let pointer = bus + u64::from(csb::HWSP_WRITE_POINTER);
            let by = Reach {
                engine,
                why: Why::Status,
                global: true,
                address: page.into(),
            };
            let written = self
                .dma_write(by, at, &entry)
                .and_then(|()| self.dma_write(by, pointer, &next.to_le_bytes()));
            if let Err(e) = written {
                log::debug!("{engine:?}: status event lost: {e}");
            }
        } else {
            log::debug!("{engine:?}: no status page at {page:#x}");
        }
        self.registers
            .update(engine.mmio_base() + ring::CSB_PTR, |v| (v & !7) | next);
        self.signal(engine, irq::CONTEXT_SWITCH);
    }

    /// The 64-bit timestamp, which all engines share.
    pub(crate) fn timestamp(&self) -> u64 {
        self.clock.ticks()
    }

    pub(crate) fn timestamp_half(&self, high: bool) -> u32 {
        let t = self.timestamp();
        if high { hi(t) } else { lo(t) }
    }

    /// Forgets every engine's cached translations, at its next command.
    pub(crate) fn flush_tlbs(&self) {
        for u in &self.units {
            u.request_flush();
        }
    }
}
