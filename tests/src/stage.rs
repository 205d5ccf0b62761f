//! The hostile guest: how it gets at its device, and how it recovers, which
//! must always work.

use std::collections::BTreeSet;
use std::time::Duration;

use gen8::{Engine, irq, pte, ring};
use guest_driver::Batch;
use guest_memory::{Gfn, GuestMemory, PAGE_SIZE};
use rustix::time::{ClockId, clock_gettime};
use sim_host::SimGuest;

use crate::bytes::{high, low};
use crate::layout::{DATA_VA, Place, Request, WINDOW_PAGES, write_context};

/// After looking for this long for what must come, something is stuck for
/// good. It bounds a failing test, not a passing one, and is this thread's own
/// processor time: a machine that has none for it stops the clock as well.
const STUCK: Duration = Duration::from_secs(60);
/// Where the global page table starts in BAR0.
pub(crate) const TABLE: u64 = 8 << 20;
/// Where firmware leaves the power state (PCI power management, D0 to D3).
const POWER_CONTROL: u8 = 0xd4;
const COMMAND: u8 = 4;
const PAGE: u64 = PAGE_SIZE as u64;
/// A frame to build rows of page-table entries in.
const SCRATCH: u64 = 32 * PAGE;

/// Waits until `done`.
///
/// # Panics
/// When it does not come true for a minute of looking.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let looked = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime));
    let start = looked().unwrap_or_default();
    while !done() {
        let spent = looked().unwrap_or_default().saturating_sub(start);
        assert!(spent < STUCK, "stuck waiting for {what}");
        std::thread::yield_now();
    }
}

/// A guest that holds its device in its own hands.
pub struct Stage<'a> {
    guest: &'a SimGuest,
    /// Base of the registers, as last read.
    pub bar0: u64,
    /// Base of the aperture, as last read.
    pub bar2: u64,
    homes: (u64, u64),
    /// Frames given back to Xen.
    pub(crate) ballooned: BTreeSet<u64>,
    number: u32,
}

impl<'a> Stage<'a> {
    /// Brings the device up as a driver does.
    #[must_use]
    pub fn new(guest: &'a SimGuest) -> Self {
        let mut stage = Self {
            guest,
            bar0: 0,
            bar2: 0,
            homes: (0, 0),
            ballooned: BTreeSet::new(),
            number: 0,
        };
        stage.find_bars();
        stage.homes = (stage.bar0, stage.bar2);
        stage.start();
        stage
    }

    /// The guest.
    #[must_use]
    pub fn guest(&self) -> &'a SimGuest {
        self.guest
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &'a dyn GuestMemory {
        self.guest.vcpu()
    }

    /// Reads configuration space. A stopped domain reads all ones.
    #[must_use]
    pub fn config_read(&self, register: u8, size: u32) -> u32 {
        let vcpu = self.guest.vcpu();
        let value = vcpu.pci_config_read(SimGuest::sbdf(), register, size);
        value.unwrap_or(u32::MAX)
    }

    /// Writes configuration space.
    pub fn config_write(&self, register: u8, size: u32, value: u32) {
        let vcpu = self.guest.vcpu();
        // A stopped domain is found at the end.
        let _ = vcpu.pci_config_write(SimGuest::sbdf(), register, size, value);
    }

    /// Reads at an address.
    #[must_use]
    pub fn read(&self, address: u64, size: u32) -> u64 {
        let value = self.guest.vcpu().mmio_read(address, size);
        value.unwrap_or(u64::MAX)
    }

    /// Writes at an address.
    pub fn write(&self, address: u64, size: u32, value: u64) {
        // A stopped domain is found at the end.
        let _ = self.guest.vcpu().mmio_write(address, size, value);
    }

    /// Reads a register.
    #[must_use]
    pub fn get(&self, register: u32) -> u32 {
        low(self.read(self.bar0.wrapping_add(register.into()), 4))
    }

    /// Writes a register.
    pub fn set(&self, register: u32, value: u32) {
        self.write(self.bar0.wrapping_add(register.into()), 4, value.into());
    }

    /// Writes an entry of the global page table.
    pub fn set_entry(&self, page: u32, entry: u64) {
        let at = TABLE + u64::from(page) * 8;
        self.write(self.bar0.wrapping_add(at), 8, entry);
    }

    /// Looks where the BARs are now.
    pub fn find_bars(&mut self) {
        let bar = |r| {
            let base = u64::from(self.config_read(r, 4) & !0xf);
            base | u64::from(self.config_read(r + 4, 4)) << 32
        };
        let (bar0, bar2) = (bar(0x10), bar(0x18));
        (self.bar0, self.bar2) = (bar0, bar2);
    }

    /// Moves the BARs, as far as the device takes it.
    pub fn move_bars(&mut self, bar0: u64, bar2: u64) {
        for (register, base) in [(0x10, bar0), (0x18, bar2)] {
            self.config_write(register, 4, low(base));
            self.config_write(register + 4, 4, high(base));
        }
        self.find_bars();
    }

    /// Resets these domains of GDRST and waits for the end, as i915 does.
    pub fn reset(&self, domains: u32) {
        let request = ring::RESET_CTL_REQUEST;
        for engine in Engine::ALL {
            let ctl = engine.mmio_base() + ring::RESET_CTL;
            self.set(ctl, request << 16 | request);
            wait_until("RESET_CTL", || self.get(ctl) & ring::RESET_CTL_READY != 0);
        }
        self.set(ring::GDRST, domains);
        wait_until("GDRST", || self.get(ring::GDRST) & domains == 0);
        for engine in Engine::ALL {
            self.set(engine.mmio_base() + ring::RESET_CTL, request << 16);
        }
    }

    /// Maps the lowest frames one to one and starts the engines.
    fn start(&mut self) {
        let memory = self.memory();
        for first in (0..WINDOW_PAGES).step_by(PAGE_SIZE / 8) {
            let row: Vec<u8> = (first..)
                .take(PAGE_SIZE / 8)
                .flat_map(|page| ((u64::from(page) * PAGE) | pte::PRESENT).to_le_bytes())
                .collect();
            let to = self.bar0 + TABLE + u64::from(first) * 8;
            memory.write(SCRATCH, &row).unwrap();
            let vcpu = self.guest.vcpu();
            vcpu.rep_movs(SCRATCH, to, 8, 512, false).unwrap();
        }
        for engine in Engine::ALL {
            let base = engine.mmio_base();
            let index = u32::try_from(engine.index()).unwrap_or(0);
            self.set(base + ring::MI_MODE, ring::MI_MODE_STOP_RING << 16);
            let run_list = ring::MODE_RUN_LIST;
            self.set(base + ring::MODE, run_list << 16 | run_list);
            self.set(base + ring::HWS_PGA, (16 + index) << 12);
            self.set(base + ring::CSB_PTR, 0xffff_0505);
            self.set(base + ring::IMR, 0);
        }
        for bank in 0..4 {
            self.set(irq::GT_IMR0 + bank * irq::GT_BANK_STRIDE, 0);
            self.set(irq::GT_IER0 + bank * irq::GT_BANK_STRIDE, u32::MAX);
        }
        self.set(irq::MASTER, irq::MASTER_ENABLE);
    }

    /// Puts everything back to where a driver can start again: power,
    /// BARs, memory, a full reset.
    ///
    /// # Panics
    /// When the device does not come back.
    pub fn recover(&mut self) {
        self.config_write(POWER_CONTROL, 2, 0);
        self.config_write(COMMAND, 2, 0);
        let (bar0, bar2) = self.homes;
        self.move_bars(bar0, bar2);
        assert_eq!((self.bar0, self.bar2), self.homes, "the BARs moved back");
        self.config_write(COMMAND, 2, 6);
        let gone: Vec<Gfn> = std::mem::take(&mut self.ballooned)
            .into_iter()
            .map(Gfn)
            .collect();
        let vcpu = self.guest.vcpu();
        vcpu.populate(&gone).unwrap().unwrap();
        self.reset(1);
        self.start();
    }

    /// Loads the execlist port.
    pub fn load(&self, engine: Engine, first: u64, second: u64) {
        let port = engine.mmio_base() + ring::ELSP;
        for descriptor in [second, first] {
            self.set(port, high(descriptor));
            self.set(port, low(descriptor));
        }
    }

    /// Makes a new context `n` for `engine`, writes a request that runs
    /// `batch` in it, and loads it; the request's number.
    pub fn submit(&mut self, n: usize, engine: Engine, batch: &[u32]) -> u32 {
        let memory = self.memory();
        let descriptor = write_context(memory, n, engine).unwrap();
        self.number += 1;
        let request = Request {
            context: n,
            engine,
            batch,
            number: self.number,
        };
        request.write(memory).unwrap();
        self.load(engine, descriptor.0, 0);
        self.number
    }

    /// The number of the last request that context `n` finished.
    #[must_use]
    pub fn finished(&self, n: usize) -> u32 {
        let at = Place::of(n).sequence();
        self.memory().read_u32(at).unwrap_or(0)
    }

    /// Runs a request on `engine` and checks what it did.
    ///
    /// # Panics
    /// When it does not finish or stored something else.
    pub fn good_request(&mut self, engine: Engine) {
        let n = engine.index();
        let value = 0x600d_0000 | self.number;
        let mut batch = Batch::new();
        batch.store_u32(DATA_VA + 8, value).end();
        let number = self.submit(n, engine, &batch.finish());
        wait_until("a good request", || self.finished(n) == number);
        // Its number is written before the context is saved; only then may the
        // context be made anew.
        let running = engine.mmio_base() + ring::EXECLIST_STATUS_HI;
        wait_until("its context's end", || self.get(running) == 0);
        let at = Place::of(n).data() + 8;
        assert_eq!(self.memory().read_u32(at).unwrap(), value);
    }

    /// Runs a request on every engine.
    ///
    /// # Panics
    /// As [`Stage::good_request`].
    pub fn good_requests(&mut self) {
        for engine in Engine::ALL {
            self.good_request(engine);
        }
    }
}
