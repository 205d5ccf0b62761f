//! PCI configuration space: identity, BARs, MSI and power capabilities.
//!
//! Offsets and bits are PCI 3.0's; device-specific registers are those
//! from Broadwell on (Linux `include/drm/i915_drm.h`, `gt/intel_ggtt.c:gen8_gmch_probe`).

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::kept::place;
use crate::seams::{Bar, BarSink, InterruptSink};

mod space;

use space::Space;

/// Bytes of configuration space; there is no extended space under Xen's HVM
/// machine.
pub const CONFIG_BYTES: usize = 256;
/// Bytes of BAR0.
pub const BAR0_BYTES: u64 = 16 << 20;

const COMMAND: usize = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_INTX_OFF: u16 = 1 << 10;
const STATUS: usize = 0x06;
const STATUS_INTERRUPT: u16 = 1 << 3;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const BAR0: usize = 0x10;
const BAR2: usize = 0x18;
const MSI: usize = 0x90;
const MSI_CONTROL: usize = MSI + 2;
const MSI_ENABLE: u16 = 1 << 0;
/// 64-bit addresses: a PVHVM Linux puts bits 31:8 of the pirq into the high
/// dword (Linux `arch/x86/pci/xen.c:xen_msi_compose_msg`), and writes that
/// dword only when the capability has one.
const MSI_64BIT: u16 = 1 << 7;
const MSI_ADDRESS: usize = MSI + 4;
const MSI_DATA: usize = MSI + 12;
const POWER: usize = 0xd0;
const POWER_CONTROL: usize = POWER + 4;
/// D3hot to D0 keeps the device's state.
const POWER_NO_SOFT_RESET: u16 = 1 << 3;

/// The part's saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciV1 {
    /// The 256 bytes of configuration space.
    pub config: Vec<u8>,
}

/// A saved PCI part that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("saved PCI configuration is {0} bytes, allowed: 256")]
pub struct BadPciState(usize);

const WINDOWS: [Bar; 2] = [Bar::Registers, Bar::Aperture];

/// Where a window answers, if it does.
type Window = Option<u64>;

/// Configuration space and what follows from it.
pub(crate) struct Pci {
    space: Space,
    aperture_bytes: u64,
    /// What the sink was last told, for BAR0 and BAR2.
    windows: [Window; 2],
    /// The device has something to interrupt for.
    pending: bool,
    /// Something may have changed since it was last kept.
    touched: bool,
    /// What was last made of that: an MSI is sent on the rise.
    msi_line: bool,
    intx_line: bool,
}

impl Pci {
    pub(crate) fn new(config: &Config) -> Self {
        let aperture_bytes = u64::from(config.aperture_bytes());
        let mut s = Space::default();
        s.fixed(0x00, &0x8086_u16.to_le_bytes());
        s.fixed(0x02, &config.gpu.device.to_le_bytes());
        s.writable(COMMAND, 2, &[0x06, 0x04]);
        s.fixed(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        // Display controller, neither VGA nor 3D: QEMU's VGA stays the boot
        // display.
        s.fixed(0x08, &[config.gpu.revision, 0, 0x80, 0x03]);
        // Cache line size: anything may be stored.
        s.writable(0x0c, 1, &[0xff]);
        let mask = |bytes: u64| (!(bytes - 1)).to_le_bytes();
        s.fixed(BAR0, &[0x04]);
        s.writable(BAR0, 8, &mask(BAR0_BYTES));
        s.fixed(BAR2, &[0x0c]);
        s.writable(BAR2, 8, &mask(aperture_bytes));
        s.fixed(0x2c, &0x8086_u16.to_le_bytes());
        s.fixed(0x2e, &config.gpu.device.to_le_bytes());
        let first = if config.msi { MSI } else { POWER };
        s.fixed(0x34, &[first.to_le_bytes()[0]]);
        // Interrupt line is the firmware's scratch byte; pin is INTA.
        s.writable(0x3c, 1, &[0xff]);
        s.fixed(0x3d, &[1]);
        // GMCH control: no stolen memory, 8 MiB of global page table.
        s.fixed(0x50, &0x00c0_u16.to_le_bytes());
        if config.msi {
            s.fixed(MSI, &[0x05, POWER.to_le_bytes()[0]]);
            s.fixed(MSI_CONTROL, &MSI_64BIT.to_le_bytes());
            s.writable(MSI_CONTROL, 2, &MSI_ENABLE.to_le_bytes());
            s.writable(
                MSI_ADDRESS,
                8,
                &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            );
            s.writable(MSI_DATA, 2, &[0xff, 0xff]);
        }
        // Power management 1.2, D3hot, no PME.
        s.fixed(POWER, &[0x01, 0, 0x03, 0]);
        s.fixed(POWER_CONTROL, &POWER_NO_SOFT_RESET.to_le_bytes());
        s.writable(POWER_CONTROL, 1, &[0x03]);
        Self {
            space: s,
            aperture_bytes,
            windows: [None; 2],
            pending: false,
            touched: true,
            msi_line: false,
            intx_line: false,
        }
    }

    pub(crate) fn read(&self, offset: u8, size: usize) -> u64 {
        self.space.read(offset, size)
    }

    /// Writes `size` bytes, then tells the sinks what changed.
    pub(crate) fn write(
        &mut self,
        offset: u8,
        size: usize,
        value: u64,
        bars: &dyn BarSink,
        interrupts: &dyn InterruptSink,
    ) {
        self.touched = true;
        let state = self.space.u16(POWER_CONTROL) & 3;
        let bases = WINDOWS.map(|bar| self.base(bar));
        self.space.write(offset, size, value);
        // Only D0 and D3hot exist; a write of another state is dropped.
        if matches!(self.space.u16(POWER_CONTROL) & 3, 1 | 2) {
            let control = self.space.u16(POWER_CONTROL) & !3 | state;
            self.space.set_u16(POWER_CONTROL, control);
        }
        self.update_windows(bars);
        for (bar, before) in WINDOWS.into_iter().zip(bases) {
            if self.windows[index(bar)].is_none() && self.base(bar) != before {
                bars.moved(bar);
            }
        }
        self.update_lines(interrupts);
    }

    /// Whether the device has something to interrupt for.
    pub(crate) fn set_pending(&mut self, pending: bool, interrupts: &dyn InterruptSink) {
        self.pending = pending;
        self.update_lines(interrupts);
    }

    /// Where `bar` answers, and over how many bytes.
    pub(crate) fn window(&self, bar: Bar) -> Option<(u64, u64)> {
        self.windows[index(bar)].map(|base| (base, self.bytes(bar)))
    }

    fn bytes(&self, bar: Bar) -> u64 {
        match bar {
            Bar::Registers => BAR0_BYTES,
            Bar::Aperture => self.aperture_bytes,
        }
    }

    fn awake(&self) -> bool {
        self.space.u16(POWER_CONTROL) & 3 == 0
    }

    /// The address in `bar`, answering or not.
    fn base(&self, bar: Bar) -> u64 {
        let offset = match bar {
            Bar::Registers => BAR0,
            Bar::Aperture => BAR2,
        };
        self.space.u64(offset) & !0xf
    }

    fn wanted(&self, bar: Bar) -> Window {
        let decoding = self.space.u16(COMMAND) & COMMAND_MEMORY != 0 && self.awake();
        let base = self.base(bar);
        // 0 is an unassigned BAR, and one that wraps cannot answer.
        let fits = base != 0 && base.checked_add(self.bytes(bar)).is_some();
        (decoding && fits).then_some(base)
    }

    fn update_windows(&mut self, bars: &dyn BarSink) {
        for bar in WINDOWS {
            let (is, wanted) = (self.windows[index(bar)], self.wanted(bar));
            if is == wanted {
                continue;
            }
            self.windows[index(bar)] = wanted;
            if let Some(base) = is {
                bars.unmap(bar, base, self.bytes(bar));
            }
            if let Some(base) = wanted {
                bars.map(bar, base, self.bytes(bar));
            }
        }
    }

    fn update_lines(&mut self, interrupts: &dyn InterruptSink) {
        let msi = self.space.u16(MSI_CONTROL) & MSI_ENABLE != 0;
        let command = self.space.u16(COMMAND);
        let line = self.pending && msi && command & COMMAND_MASTER != 0 && self.awake();
        if line && !self.msi_line {
            let address = self.space.u64(MSI_ADDRESS);
            interrupts.msi(address, u32::from(self.space.u16(MSI_DATA)));
        }
        self.msi_line = line;
        let status = self.space.u16(STATUS) & !STATUS_INTERRUPT;
        let asserted = if self.pending { STATUS_INTERRUPT } else { 0 };
        self.space.set_u16(STATUS, status | asserted);
        let line = self.pending && !msi && command & COMMAND_INTX_OFF == 0 && self.awake();
        if line != self.intx_line {
            self.intx_line = line;
            interrupts.intx(line);
        }
    }

    /// Puts what a successor needs, if it may have changed. Lines follow from
    /// the interrupt part.
    pub(crate) fn keep(&mut self, put: &mut impl FnMut(usize, u64)) {
        if std::mem::take(&mut self.touched) {
            let (words, _) = self.space.bytes().as_chunks::<8>();
            for (n, word) in words.iter().enumerate() {
                put(place::PCI + n, u64::from_le_bytes(*word));
            }
        }
    }

    /// What that put.
    pub(crate) fn kept(get: impl Fn(usize) -> u64) -> PciV1 {
        let words = (0..CONFIG_BYTES / 8).map(|n| get(place::PCI + n));
        PciV1 {
            config: words.flat_map(u64::to_le_bytes).collect(),
        }
    }

    /// Sets the level of the line that a former device may have left at any,
    /// and of which nothing is known.
    pub(crate) fn assert_line(&mut self, interrupts: &dyn InterruptSink) {
        interrupts.intx(self.intx_line);
    }

    pub(crate) fn save(&self) -> PciV1 {
        let Self {
            space,
            // The configuration gives it.
            aperture_bytes: _,
            // Follow from the bytes and the interrupt part.
            windows: _,
            pending: _,
            touched: _,
            msi_line: _,
            intx_line: _,
        } = self;
        PciV1 {
            config: space.bytes().to_vec(),
        }
    }

    /// The part as saved. Its windows are mapped; its interrupt line is low
    /// until [`Pci::set_pending`].
    pub(crate) fn restore(
        config: &Config,
        state: &PciV1,
        bars: &dyn BarSink,
    ) -> Result<Self, BadPciState> {
        let PciV1 { config: bytes } = state;
        let mut pci = Self::new(config);
        let bytes: &[u8; CONFIG_BYTES] = bytes
            .as_slice()
            .try_into()
            .map_err(|_| BadPciState(bytes.len()))?;
        pci.space.restore(bytes);
        pci.update_windows(bars);
        Ok(pci)
    }
}

const fn index(bar: Bar) -> usize {
    match bar {
        Bar::Registers => 0,
        Bar::Aperture => 1,
    }
}

#[cfg(test)]
mod tests;
