//! Finding the device and bringing it up, in i915's order: PVINFO, reset,
//! status pages, execlists, interrupts (Linux `i915_driver.c:i915_driver_probe`,
//! `gt/intel_execlists_submission.c:enable_execlists`).

use gen8::{Engine, irq, pte, ring};
use guest_memory::PAGE_SIZE;

use crate::{DriverError, Frames, Platform};

/// Why the device cannot be driven.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Another device, or none, stands in the slot.
    #[error("vendor and device are {found:#010x}, no device that can be emulated")]
    NotOurs {
        /// Config dword 0.
        found: u32,
    },
    /// PVINFO is not there.
    #[error("PVINFO magic is {found:#x}")]
    NoPvinfo {
        /// What stands there.
        found: u64,
    },
    /// PVINFO lacks what i915 insists on.
    #[error("PVINFO capabilities are {found:#x}, bits 2 and 3 are needed")]
    Capabilities {
        /// The capability dword.
        found: u32,
    },
    /// A register did not take the value it must take.
    #[error("{name} reads {found:#x} after {what}")]
    Register {
        /// The register.
        name: &'static str,
        /// What was done before.
        what: &'static str,
        /// What it reads.
        found: u32,
    },
    /// The device has no MSI capability.
    #[error("no MSI capability")]
    NoMsi,
}

/// PVINFO's place in BAR0 and its magic (Linux `i915_pvinfo.h`).
const PVINFO: u64 = 0x7_8000;
const PVINFO_MAGIC: u64 = 0x4776_5447_7654_4776;
const PVINFO_CAPS: u64 = PVINFO + 0x10;
/// `VGT_CAPS_FULL_PPGTT | VGT_CAPS_HWSP_EMULATION`.
const CAPS_NEEDED: u32 = 1 << 2 | 1 << 3;
const G2V_NOTIFY: u64 = PVINFO + 0x818;
const PDP0: u64 = PVINFO + 0x838;
const DISPLAY_READY: u64 = PVINFO + 0x804;
/// `VGT_G2V_PPGTT_L4_PAGE_TABLE_CREATE`.
const L4_CREATE: u32 = 4;
/// Polls of a register that must follow at once, before giving up.
const POLLS: u32 = 100_000;

/// The device's registers and global page table.
pub struct Gpu<P> {
    platform: P,
    part: &'static gen8::Platform,
    bar0: u64,
    next_ggtt_page: u32,
    status_pages: [u64; Engine::COUNT],
    exits: u64,
}

impl<P: Platform> Gpu<P> {
    /// Brings the device up. Firmware has placed its BARs already.
    ///
    /// # Errors
    /// [`ProbeError`] in a [`DriverError`].
    pub fn probe(mut platform: P, frames: &mut Frames) -> Result<Self, DriverError> {
        let found = platform.config_read(0, 4);
        let ours = |p: &&&gen8::Platform| found == u32::from(p.device) << 16 | 0x8086;
        let Some(part) = gen8::platform::PLATFORMS.iter().find(ours) else {
            return Err(ProbeError::NotOurs { found }.into());
        };
        let command = platform.config_read(4, 2);
        platform.config_write(4, 2, command | 0x6);
        let low = platform.config_read(0x10, 4) & !0xf;
        let high = platform.config_read(0x14, 4);
        let bar0 = u64::from(high) << 32 | u64::from(low);
        let mut gpu = Self {
            platform,
            part,
            bar0,
            // Page 0 stays unused so that address 0 is never valid.
            next_ggtt_page: 1,
            status_pages: [0; Engine::COUNT],
            exits: 0,
        };
        gpu.check_pvinfo()?;
        gpu.reset(1)?;
        gpu.enable_msi()?;
        for engine in Engine::ALL {
            gpu.start_engine(engine, frames)?;
        }
        gpu.enable_interrupts();
        gpu.write(DISPLAY_READY, 1);
        Ok(gpu)
    }

    /// The same device on another platform.
    pub(crate) fn moved<Q>(self, platform: Q) -> Gpu<Q> {
        let Self {
            platform: _,
            part,
            bar0,
            next_ggtt_page,
            status_pages,
            exits,
        } = self;
        Gpu {
            platform,
            part,
            bar0,
            next_ggtt_page,
            status_pages,
            exits,
        }
    }

    /// The registers and tables of a device that is not brought up, BAR0 at
    /// 0: for who stands in the device's place.
    pub const fn unprobed(platform: P, part: &'static gen8::Platform) -> Self {
        Self {
            platform,
            part,
            bar0: 0,
            next_ggtt_page: 1,
            status_pages: [0; Engine::COUNT],
            exits: 0,
        }
    }

    fn check_pvinfo(&mut self) -> Result<(), ProbeError> {
        self.exits += 1;
        let found = self.platform.mmio_read(self.bar0 + PVINFO, 8);
        if found != PVINFO_MAGIC {
            return Err(ProbeError::NoPvinfo { found });
        }
        let found = self.read(PVINFO_CAPS);
        if found & CAPS_NEEDED != CAPS_NEEDED {
            return Err(ProbeError::Capabilities { found });
        }
        Ok(())
    }

    /// Resets the domains of GDRST (bit 0 all) and waits for the end.
    ///
    /// # Errors
    /// [`ProbeError::Register`] when the device does not finish.
    pub fn reset(&mut self, domains: u32) -> Result<(), ProbeError> {
        for engine in Engine::ALL {
            let ctl = engine.mmio_base() + ring::RESET_CTL;
            self.write(ctl.into(), masked(ring::RESET_CTL_REQUEST));
            self.poll(ctl, "RESET_CTL", "a reset request", |v| {
                v & ring::RESET_CTL_READY != 0
            })?;
        }
        self.write(ring::GDRST.into(), domains);
        self.poll(ring::GDRST, "GDRST", "a reset", |v| v & domains == 0)?;
        for engine in Engine::ALL {
            let ctl = engine.mmio_base() + ring::RESET_CTL;
            self.write(ctl.into(), ring::RESET_CTL_REQUEST << 16);
        }
        Ok(())
    }

    fn poll(
        &mut self,
        register: u32,
        name: &'static str,
        what: &'static str,
        done: impl Fn(u32) -> bool,
    ) -> Result<(), ProbeError> {
        let mut found = 0;
        for _ in 0..POLLS {
            found = self.read(register.into());
            if done(found) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        Err(ProbeError::Register { name, what, found })
    }

    fn enable_msi(&mut self) -> Result<(), ProbeError> {
        let mut at = self.platform.config_read(0x34, 1);
        for _ in 0..48 {
            if at < 0x40 {
                break;
            }
            let here = u16::try_from(at & 0xfc).unwrap_or(0);
            let header = self.platform.config_read(here, 2);
            if header & 0xff == 5 {
                let control = self.platform.config_read(here + 2, 2);
                let wide = control & 0x80 != 0;
                self.platform.config_write(here + 4, 4, 0xfee0_0000);
                if wide {
                    self.platform.config_write(here + 8, 4, 0);
                }
                self.platform
                    .config_write(here + if wide { 12 } else { 8 }, 2, 0x41);
                self.platform.config_write(here + 2, 2, control | 1);
                return Ok(());
            }
            at = header >> 8;
        }
        Err(ProbeError::NoMsi)
    }

    fn start_engine(&mut self, engine: Engine, frames: &mut Frames) -> Result<(), DriverError> {
        let base = engine.mmio_base();
        let page = frames.take(self.platform.memory(), 1)?;
        self.status_pages[engine.index()] = page;
        let address = self.map_global(page, 1);
        self.write(
            (base + ring::MI_MODE).into(),
            masked(ring::MI_MODE_STOP_RING),
        );
        self.poll(base + ring::MI_MODE, "MI_MODE", "STOP_RING", |v| {
            v & ring::MI_MODE_IDLE != 0
        })?;
        self.write((base + ring::HWSTAM).into(), u32::MAX);
        self.write((base + ring::MODE).into(), masked(ring::MODE_RUN_LIST));
        self.write((base + ring::MI_MODE).into(), ring::MI_MODE_STOP_RING << 16);
        self.write((base + ring::HWS_PGA).into(), address);
        self.write((base + ring::CSB_PTR).into(), 0xffff_0505);
        let status = page + u64::from(gen8::csb::HWSP_WRITE_POINTER);
        self.platform.memory().write_u32(status, 5)?;
        let found = self.read((base + ring::ESR).into());
        if found != 0 {
            let what = "enabling execlists";
            return Err(ProbeError::Register {
                name: "ESR",
                what,
                found,
            }
            .into());
        }
        // The bits stand where the engine's half stands in its bank
        // (Linux `gt/intel_execlists_submission.c:logical_ring_default_irqs`).
        let wanted = u32::from(irq::USER | irq::CONTEXT_SWITCH) << engine.irq_bank().1;
        self.write((base + ring::IMR).into(), !wanted);
        Ok(())
    }

    fn enable_interrupts(&mut self) {
        for bank in 0..4 {
            let at = bank * irq::GT_BANK_STRIDE;
            self.write((irq::GT_IMR0 + at).into(), 0);
            self.write((irq::GT_IER0 + at).into(), u32::MAX);
        }
        self.write(irq::MASTER.into(), irq::MASTER_ENABLE);
    }

    /// Acknowledges the interrupts pending and says which of each engine's
    /// 16 bits were set (Linux `i915_irq.c:gen8_irq_handler`).
    pub fn take_interrupts(&mut self) -> [u16; Engine::COUNT] {
        self.write(irq::MASTER.into(), 0);
        let master = self.read(irq::MASTER.into());
        let mut bits = [0; Engine::COUNT];
        for bank in 0..4 {
            let engines = Engine::ALL.into_iter().filter(|e| e.irq_bank().0 == bank);
            if !engines.clone().any(|e| master & e.master_bit() != 0) {
                continue;
            }
            let register = irq::GT_IIR0 + bank * irq::GT_BANK_STRIDE;
            let iir = self.read(register.into());
            self.write(register.into(), iir);
            for e in engines {
                let half = (iir >> e.irq_bank().1).to_le_bytes();
                bits[e.index()] = u16::from_le_bytes([half[0], half[1]]);
            }
        }
        self.write(irq::MASTER.into(), irq::MASTER_ENABLE);
        bits
    }

    /// Maps guest pages into the global table; their GGTT address.
    pub fn map_global(&mut self, gpa: u64, pages: u32) -> u32 {
        let first = self.next_ggtt_page;
        self.next_ggtt_page += pages;
        for i in 0..pages {
            let entry = (gpa + u64::from(i) * PAGE_SIZE as u64) | pte::PRESENT;
            let at = self.bar0 + (8 << 20) + u64::from(first + i) * 8;
            self.exits += 1;
            self.platform.mmio_write(at, 8, entry);
        }
        self.write(ring::GFX_FLSH_CNTL.into(), 1);
        first << 12
    }

    /// Announces a page table by its root's guest-physical address
    /// (Linux `gt/gen8_ppgtt.c:gen8_ppgtt_notify_vgt`).
    pub fn announce_page_table(&mut self, root: u64) {
        let b = root.to_le_bytes();
        self.write(PDP0, u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        self.write(PDP0 + 4, u32::from_le_bytes([b[4], b[5], b[6], b[7]]));
        self.write(G2V_NOTIFY, L4_CREATE);
    }

    /// The guest-physical address of an engine's status page.
    #[must_use]
    pub const fn status_page(&self, engine: Engine) -> u64 {
        self.status_pages[engine.index()]
    }

    /// Reads a register.
    pub fn read(&mut self, offset: u64) -> u32 {
        self.exits += 1;
        let b = self.platform.mmio_read(self.bar0 + offset, 4).to_le_bytes();
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    /// Writes a register.
    pub fn write(&mut self, offset: u64, value: u32) {
        self.exits += 1;
        self.platform
            .mmio_write(self.bar0 + offset, 4, value.into());
    }

    /// What the device is.
    #[must_use]
    pub const fn part(&self) -> &'static gen8::Platform {
        self.part
    }

    /// The platform.
    pub fn platform(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Number of accesses to BAR0 so far.
    #[must_use]
    pub const fn exits(&self) -> u64 {
        self.exits
    }
}

/// A value for a masked register that sets `bits`.
const fn masked(bits: u32) -> u32 {
    bits << 16 | bits
}
