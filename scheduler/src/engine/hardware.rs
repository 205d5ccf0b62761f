//! The registers of one engine, driven as i915 drives them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gen8::csb::{self, Descriptor};
use gen8::{Engine, irq, ring};

use crate::dma::HostPage;
use crate::registers::Registers;
use crate::switch::{RegisterFile, SwitchCost, Switcher};
use crate::sync::lock;
use crate::windows::{NoRoom, Pin, Windows};

/// The engine did not do what a reset asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} reset: {step} not reached, register {offset:#x} reads {value:#x}")]
pub struct ResetFailed {
    /// sysfs name.
    pub engine: &'static str,
    /// What was waited for.
    pub step: &'static str,
    /// BAR0 offset.
    pub offset: u32,
    /// What it read last.
    pub value: u32,
}

/// How long a step of a reset may take. i915 gives 700 us and 2 ms; a GPU
/// emulated on a busy host needs more, and longer costs nothing when it is
/// quick (Linux `gt/intel_reset.c:gen8_engine_reset_prepare`, `gen6_hw_domain_reset`).
const RESET_PATIENCE: Duration = Duration::from_secs(2);

/// The entry before entry 0: where the write pointer stands after reset.
const CSB_RESET: u32 = csb::ENTRIES - 1;

/// What the error registers said.
pub struct EngineError {
    pub eir: u32,
    pub ipehr: u32,
}

/// One engine's registers and its status page.
pub struct Hardware {
    engine: Engine,
    gpu: Arc<Registers>,
    /// Guards what engines share: the reset register.
    shared: Arc<Mutex<()>>,
    // The window goes before the page.
    status_pin: Pin,
    status: HostPage,
    /// The status buffer entry read last.
    read_at: AtomicU32,
}

impl Hardware {
    /// Resets the engine and makes it ready to run lists.
    ///
    /// # Errors
    /// [`NoRoom`] for the status page, or the reset failed.
    pub fn bring_up(
        engine: Engine,
        gpu: Arc<Registers>,
        windows: &Arc<Windows>,
        status: HostPage,
        shared: Arc<Mutex<()>>,
    ) -> Result<Self, BringUpError> {
        let status_pin = windows.pin_own(0, std::slice::from_ref(&status))?;
        let hardware = Self {
            engine,
            gpu,
            shared,
            status_pin,
            status,
            read_at: AtomicU32::new(CSB_RESET),
        };
        hardware.hold()?;
        hardware.reset_held()?;
        Ok(hardware)
    }

    /// Which engine.
    #[must_use]
    pub const fn engine(&self) -> Engine {
        self.engine
    }

    const fn at(&self, offset: u32) -> u32 {
        self.engine.mmio_base() + offset
    }

    fn wait(
        &self,
        step: &'static str,
        offset: u32,
        met: impl Fn(u32) -> bool,
    ) -> Result<(), ResetFailed> {
        let start = Instant::now();
        loop {
            let value = self.gpu.read32(offset);
            if met(value) {
                return Ok(());
            }
            if start.elapsed() > RESET_PATIENCE {
                return Err(ResetFailed {
                    engine: self.engine.sysfs_name(),
                    step,
                    offset,
                    value,
                });
            }
            std::thread::yield_now();
        }
    }

    /// Makes the engine hold still. It goes on after [`Self::go_on`].
    ///
    /// # Errors
    /// [`ResetFailed`]: it does not.
    pub fn hold(&self) -> Result<(), ResetFailed> {
        // Linux gt/intel_reset.c:gen8_engine_reset_prepare.
        let control = self.at(ring::RESET_CTL);
        let request = ring::RESET_CTL_REQUEST;
        self.gpu.write32(control, request << 16 | request);
        self.wait("ready for reset", control, |v| {
            v & ring::RESET_CTL_READY != 0
        })
    }

    /// Withdraws the wish for a reset.
    pub fn go_on(&self) {
        let control = self.at(ring::RESET_CTL);
        self.gpu.write32(control, ring::RESET_CTL_REQUEST << 16);
    }

    /// Resets this engine alone, which holds still, and sets it up again. On
    /// success nothing that ran on it can reach memory any more.
    ///
    /// # Errors
    /// [`ResetFailed`].
    pub fn reset_held(&self) -> Result<(), ResetFailed> {
        {
            // Linux gt/intel_reset.c:gen8_reset_engines: reset its domain,
            // withdraw the request.
            let _one_at_a_time = lock(&self.shared);
            let domain = self.engine.reset_domain();
            self.gpu.write32(ring::GDRST, domain);
            self.wait("reset done", ring::GDRST, |v| v & domain == 0)?;
            self.go_on();
            self.gpu.write32(ring::FAULT, 0);
        }
        self.set_up();
        Ok(())
    }

    /// As Linux gt/intel_execlists_submission.c: enable_execlists,
    /// reset_csb_pointers, enable_error_interrupt.
    fn set_up(&self) {
        let w = |offset, value| self.gpu.write32(self.at(offset), value);
        w(ring::HWSTAM, u32::MAX);
        w(ring::MODE, ring::MODE_RUN_LIST << 16 | ring::MODE_RUN_LIST);
        w(ring::MI_MODE, ring::MI_MODE_STOP_RING << 16);
        w(ring::HWS_PGA, self.status_pin.address());
        let _ = self.gpu.read32(self.at(ring::HWS_PGA));
        w(ring::EMR, u32::MAX);
        w(ring::EIR, u32::MAX);
        w(
            ring::EMR,
            !(ring::ERROR_INSTRUCTION | ring::ERROR_PAGE_TABLE),
        );
        // The write pointer stands at the last entry, in the register and in
        // the status page.
        w(ring::CSB_PTR, 0xffff_0000 | CSB_RESET << 8 | CSB_RESET);
        let pointer = usize::try_from(csb::HWSP_WRITE_POINTER).unwrap_or(0);
        self.status.write(pointer, &CSB_RESET.to_le_bytes());
        self.read_at.store(CSB_RESET, Ordering::Relaxed);
        let wanted =
            irq::USER | irq::ERROR | irq::FLUSH_NOTIFY | irq::CONTEXT_SWITCH | irq::WAIT_SEMAPHORE;
        // Bits stand where the engine's half of its bank has them
        // (Linux gt/intel_execlists_submission.c:logical_ring_default_irqs).
        let (_, shift) = self.engine.irq_bank();
        w(ring::IMR, !(u32::from(wanted) << shift));
        let _ = self.acknowledge();
    }

    /// Takes the engine's pending interrupts: reads and clears its half of
    /// the identity register.
    #[must_use]
    pub fn acknowledge(&self) -> u16 {
        let (bank, shift) = self.engine.irq_bank();
        let register = irq::GT_IIR0 + bank * irq::GT_BANK_STRIDE;
        let pending = self.gpu.read32(register) & (0xffff << shift);
        if pending != 0 {
            self.gpu.write32(register, pending);
        }
        let b = (pending >> shift).to_le_bytes();
        u16::from_le_bytes([b[0], b[1]])
    }

    /// Loads a list of one or two elements (Linux
    /// `gt/intel_execlists_submission.c:execlists_submit_ports`).
    pub fn load(&self, first: Descriptor, second: Option<Descriptor>) {
        let port = self.at(ring::ELSP);
        // The second goes first, and the last of the four writes loads.
        for descriptor in [second.unwrap_or_default(), first] {
            let b = descriptor.0.to_le_bytes();
            let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
            let low = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            self.gpu.write32(port, high);
            self.gpu.write32(port, low);
        }
    }

    /// Whether status events came since they were last read.
    #[must_use]
    pub fn has_events(&self) -> bool {
        let pointer = usize::try_from(csb::HWSP_WRITE_POINTER).unwrap_or(0);
        self.status.read_u32(pointer) != self.read_at.load(Ordering::Relaxed)
    }

    /// The status events since the last call: status and context id.
    pub fn events(&self) -> Vec<(u32, u32)> {
        let at = |o: u32| self.status.read_u32(usize::try_from(o).unwrap_or(0));
        let write = at(csb::HWSP_WRITE_POINTER);
        let mut read = self.read_at.load(Ordering::Relaxed);
        let mut events = Vec::new();
        if write >= csb::ENTRIES {
            return events;
        }
        while read != write {
            read = (read + 1) % csb::ENTRIES;
            let entry = csb::HWSP_BUFFER + read * 8;
            events.push((at(entry), at(entry + 4)));
        }
        self.read_at.store(read, Ordering::Relaxed);
        events
    }

    /// The error registers.
    #[must_use]
    pub fn error(&self) -> EngineError {
        EngineError {
            eir: self.gpu.read32(self.at(ring::EIR)),
            ipehr: self.gpu.read32(self.at(ring::IPEHR)),
        }
    }

    /// [`Switcher::switch`] on this engine.
    pub fn switch(
        &self,
        switcher: &mut Switcher,
        outgoing: Option<&mut RegisterFile>,
        incoming: &mut RegisterFile,
    ) -> SwitchCost {
        switcher.switch(&self.gpu, outgoing, incoming)
    }

    /// [`Switcher::resume`] on this engine.
    pub fn resume(&self, switcher: &mut Switcher, file: &mut RegisterFile) -> SwitchCost {
        switcher.resume(&self.gpu, file)
    }

    /// [`Switcher::collect`] on this engine.
    pub fn collect(&self, switcher: &mut Switcher, file: &mut RegisterFile) {
        switcher.collect(&self.gpu, file);
    }

    /// [`Switcher::clear_context`] on this engine.
    pub fn clear_context(&self, switcher: &mut Switcher, file: &mut RegisterFile) -> SwitchCost {
        switcher.clear_context(&self.gpu, file)
    }
}

/// An engine could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum BringUpError {
    /// No window for its status page.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// It did not reset.
    #[error(transparent)]
    Reset(#[from] ResetFailed),
}
