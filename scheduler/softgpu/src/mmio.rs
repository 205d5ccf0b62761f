//! Registers with behaviour, as the bus and as commands reach them.

use std::sync::atomic::Ordering::Relaxed;

use gen8::{Engine, EngineSet, ring};

use crate::context::context_timestamp;
use crate::core::Core;

/// RING_INSTDONE: everything idle.
const ALL_DONE: u32 = u32::MAX;
/// RING_INSTDONE bit 0: the ring itself.
const RING_DONE: u32 = 1 << 0;

impl Core {
    /// A 32-bit register; 4-byte aligned offset in the register space.
    pub(crate) fn read_register(&self, offset: u32) -> u32 {
        if let Some(v) = self.interrupts.read(offset) {
            return v;
        }
        if offset == ring::GDRST {
            // The bits clear when the engines have been reset.
            let pending = self.units.iter().any(|u| u.reset_pending());
            return if pending { self.gdrst.load(Relaxed) } else { 0 };
        }
        match Engine::from_mmio(offset) {
            Some((e, o)) => self.read_ring(e, o),
            None => self.registers.get(offset),
        }
    }

    fn read_ring(&self, e: Engine, offset: u32) -> u32 {
        let unit = self.unit(e);
        let stored = self.ring(e, offset);
        match offset {
            ring::TIMESTAMP => self.timestamp_half(false),
            ring::TIMESTAMP_UDW => self.timestamp_half(true),
            ring::CTX_TIMESTAMP => context_timestamp(self, e),
            ring::EXECLIST_STATUS_LO => unit.execlist_status().0,
            ring::EXECLIST_STATUS_HI => unit.execlist_status().1,
            ring::MI_MODE => {
                let idle = if unit.quiet() { ring::MI_MODE_IDLE } else { 0 };
                (stored & !ring::MI_MODE_IDLE) | idle
            }
            ring::RESET_CTL => {
                let asked = stored & ring::RESET_CTL_REQUEST != 0;
                let ready = if asked && unit.quiet() {
                    ring::RESET_CTL_READY
                } else {
                    0
                };
                (stored & !ring::RESET_CTL_READY) | ready
            }
            ring::INSTDONE => {
                if unit.quiet() {
                    ALL_DONE
                } else {
                    ALL_DONE & !RING_DONE
                }
            }
            ring::ELSP => 0,
            _ => stored,
        }
    }

    /// A register write from the bus; same offsets.
    pub(crate) fn write_register(&self, offset: u32, value: u32) {
        if self.interrupts.write(offset, value) {
            return;
        }
        match offset {
            ring::GDRST => return self.reset(value),
            ring::GFX_FLSH_CNTL => self.flush_tlbs(),
            _ => {}
        }
        let Some((e, o)) = Engine::from_mmio(offset) else {
            self.registers.store(offset, value);
            return;
        };
        match o {
            ring::ELSP => self.unit(e).submit(self, value),
            ring::MI_MODE => {
                self.registers.store(offset, value);
                self.unit(e).hold_changed(self, false);
            }
            ring::RESET_CTL => {
                self.registers.store(offset, value);
                // The driver polls for READY within 700 us, which a busy
                // host may not schedule the engine in: wait here instead.
                self.unit(e).hold_changed(self, true);
            }
            ring::CSB_PTR => {
                // Against an event being written.
                let _guard = self.unit(e).lock();
                self.registers.store(offset, value);
            }
            ring::EIR => self.registers.update(offset, |v| v & !value),
            // Read-only.
            ring::ESR
            | ring::INSTDONE
            | ring::TIMESTAMP
            | ring::TIMESTAMP_UDW
            | ring::EXECLIST_STATUS_LO
            | ring::EXECLIST_STATUS_HI => {}
            _ => self.registers.store(offset, value),
        }
    }

    /// Resets what the domains in `value` name, before it returns.
    fn reset(&self, value: u32) {
        self.gdrst.store(value, Relaxed);
        let engines = EngineSet::from_gdrst(value);
        for e in engines.iter() {
            self.unit(e).request_reset();
        }
        for e in engines.iter() {
            self.unit(e).await_reset();
        }
    }

    /// A register write by a command. `false`: it was not allowed and did
    /// nothing.
    ///
    /// Commands do not submit, hold or reset engines and do not move the
    /// ring they are in: such writes are dropped, whoever asks.
    pub(crate) fn command_write(
        &self,
        engine: Engine,
        privileged: bool,
        offset: u32,
        value: u32,
    ) -> bool {
        if !privileged && !self.user_writable(engine, offset) {
            return false;
        }
        if offset == ring::GDRST {
            return false;
        }
        let value = match Engine::from_mmio(offset) {
            Some((_, o)) => match o {
                ring::ELSP
                | ring::RESET_CTL
                | ring::MODE
                | ring::CSB_PTR
                | ring::HWS_PGA
                | ring::HEAD
                | ring::TAIL
                | ring::START
                | ring::CTL => return false,
                // Its other bits belong to contexts' workarounds.
                ring::MI_MODE => value & !(ring::MI_MODE_STOP_RING << 16),
                _ => value,
            },
            None => value,
        };
        self.write_register(offset, value);
        true
    }

    /// The hardware's list, and what the driver added to it.
    fn user_writable(&self, engine: Engine, offset: u32) -> bool {
        self.platform.rules.user_writable(engine, offset)
            || (offset != 0
                && (0..ring::FORCE_TO_NONPRIV_SLOTS).any(|i| {
                    let slot = self.ring(engine, ring::FORCE_TO_NONPRIV + i * 4);
                    slot & 0x03ff_fffc == offset
                }))
    }
}
