//! The guest's side: a vCPU whose accesses behave as on Xen.
//!
//! Shapes of requests: Xen arch/x86/hvm/emulate.c. Accesses are split at
//! page edges and, for devices, into descending powers of two of at most 8
//! bytes; repetitions are cut at a page of the device and at one of RAM.

mod request;
mod string;

pub use request::RawIoreq;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use guest_memory::{Gfn, GuestMemory, MemoryError, PAGE_SIZE, for_each_page};
use nix::errno::Errno;
use xen_glue::{DomId, Sbdf};

use crate::domain::{DomainState, Stopped};
use crate::host::lock;
use crate::interrupts::Interrupt;
use crate::memory::Touch;

/// What a read gives where nothing answers.
const ALL_ONES: u64 = u64::MAX;

/// One virtual CPU. It does one thing at a time: calls from several threads
/// wait for each other, but [`Vcpu::wait_interrupt`] waits aside.
pub struct Vcpu {
    domain: Arc<DomainState>,
    number: u32,
}

/// The low `size` bytes of a value, 1 to 8.
fn low_bytes(value: u64, size: u32) -> ([u8; 8], usize) {
    let size = usize::try_from(size.clamp(1, 8)).unwrap_or(8);
    (value.to_le_bytes(), size)
}

/// The bytes of a page from `offset` on that one access may take: the
/// largest power of two that is left, 8 at most.
fn chunk(left: usize) -> usize {
    [8, 4, 2].into_iter().find(|&n| left >= n).unwrap_or(1)
}

/// A size of at most 8 as requests carry it.
fn size_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(0)
}

impl Vcpu {
    pub(crate) fn new(domain: Arc<DomainState>, number: u32) -> Self {
        Self { domain, number }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its domain.
    #[must_use]
    pub fn domid(&self) -> DomId {
        self.domain.id
    }

    /// Runs a piece of guest code: not while the domain is suspended, and
    /// not two at once.
    fn run<T>(&self, f: impl FnOnce() -> Result<T, Stopped>) -> Result<T, Stopped> {
        let slot = usize::try_from(self.number).ok();
        let busy = slot.and_then(|n| self.domain.busy.get(n));
        // Domain::vcpu checked the number.
        let _one = busy.map(lock);
        let inside = self.domain.gate.enter(|| self.domain.stopped().is_some());
        if let Some(why) = self.domain.stopped() {
            return Err(why);
        }
        let result = f();
        drop(inside);
        result
    }

    /// Loads `size` bytes, 1 to 8, at any alignment, from RAM or a device.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn mmio_read(&self, gpa: u64, size: u32) -> Result<u64, Stopped> {
        let (mut bytes, size) = low_bytes(0, size);
        self.run(|| self.load(gpa, &mut bytes[..size]))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stores the low `size` bytes, 1 to 8, at any alignment.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn mmio_write(&self, gpa: u64, size: u32, value: u64) -> Result<(), Stopped> {
        let (bytes, size) = low_bytes(value, size);
        self.run(|| self.store(gpa, &bytes[..size]))
    }

    /// Loads any number of bytes, as wide vector instructions do.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn load_bytes(&self, gpa: u64, buf: &mut [u8]) -> Result<(), Stopped> {
        self.run(|| self.load(gpa, buf))
    }

    /// Stores any number of bytes.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn store_bytes(&self, gpa: u64, data: &[u8]) -> Result<(), Stopped> {
        self.run(|| self.store(gpa, data))
    }

    fn load(&self, gpa: u64, buf: &mut [u8]) -> Result<(), Stopped> {
        let mut at = gpa;
        let mut rest = buf;
        while !rest.is_empty() {
            let (gfn, offset) = place(at);
            let in_page = (PAGE_SIZE - offset).min(rest.len());
            let (part, tail) = rest.split_at_mut(in_page);
            if let Touch::Mmio = self.domain.memory.read(gfn, offset, part) {
                let mut gpa = at;
                let mut left = part;
                while !left.is_empty() {
                    let n = chunk(left.len());
                    let (item, more) = left.split_at_mut(n);
                    let value = self.device_read(gpa, size_u32(n))?.to_le_bytes();
                    item.copy_from_slice(&value[..n]);
                    gpa = gpa.wrapping_add(length(n));
                    left = more;
                }
            }
            at = at.wrapping_add(length(in_page));
            rest = tail;
        }
        Ok(())
    }

    fn store(&self, gpa: u64, data: &[u8]) -> Result<(), Stopped> {
        let mut at = gpa;
        let mut rest = data;
        while !rest.is_empty() {
            let (gfn, offset) = place(at);
            let in_page = (PAGE_SIZE - offset).min(rest.len());
            let (part, tail) = rest.split_at(in_page);
            self.store_in_page(at, gfn, offset, part)?;
            at = at.wrapping_add(length(in_page));
            rest = tail;
        }
        Ok(())
    }

    fn store_in_page(&self, gpa: u64, gfn: Gfn, offset: usize, part: &[u8]) -> Result<(), Stopped> {
        let trapped = match self.domain.memory.write(gfn, offset, part) {
            Touch::Done => return Ok(()),
            Touch::Trap => true,
            Touch::Mmio => false,
        };
        let mut at = gpa;
        let mut left = part;
        while !left.is_empty() {
            let n = chunk(left.len());
            let (item, more) = left.split_at(n);
            let mut value = [0; 8];
            value[..n].copy_from_slice(item);
            let value = u64::from_le_bytes(value);
            if trapped {
                self.protected_write(at, size_u32(n), value)?;
            } else {
                self.device_write(at, size_u32(n), value)?;
            }
            at = at.wrapping_add(length(n));
            left = more;
        }
        Ok(())
    }

    /// A write to a protected frame goes to the server that claimed the
    /// type. Without one the type is just going away, and Xen lets the
    /// instruction run again.
    fn protected_write(&self, gpa: u64, size: u32, value: u64) -> Result<(), Stopped> {
        loop {
            let server = lock(&self.domain.servers).protection();
            if let Some(server) = server {
                let raw = RawIoreq::mmio(gpa, size, false, value);
                self.ask(&server, &raw)?;
                return Ok(());
            }
            let (gfn, offset) = place(gpa);
            let (bytes, n) = low_bytes(value, size);
            if let Touch::Done = self.domain.memory.write(gfn, offset, &bytes[..n]) {
                return Ok(());
            }
            if let Some(why) = self.domain.stopped() {
                return Err(why);
            }
            std::thread::yield_now();
        }
    }

    fn device_read(&self, gpa: u64, size: u32) -> Result<u64, Stopped> {
        let raw = RawIoreq::mmio(gpa, size, true, 0);
        Ok(self.to_range(&raw)?.unwrap_or(ALL_ONES))
    }

    fn device_write(&self, gpa: u64, size: u32, value: u64) -> Result<(), Stopped> {
        let raw = RawIoreq::mmio(gpa, size, false, value);
        self.to_range(&raw).map(drop)
    }

    /// Reads `size` bytes, 1, 2 or 4, from an I/O port. Ports 0xcfc to 0xcff
    /// reach configuration space as 0xcf8 says.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn pio_read(&self, port: u16, size: u32) -> Result<u64, Stopped> {
        let raw = RawIoreq::pio(u64::from(port), size, true, 0);
        self.run(|| Ok(self.to_range(&raw)?.unwrap_or(ALL_ONES)))
    }

    /// Writes `size` bytes, 1, 2 or 4, to an I/O port.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn pio_write(&self, port: u16, size: u32, value: u32) -> Result<(), Stopped> {
        if port == 0xcf8 && size == 4 {
            self.domain.cf8.store(value, Ordering::Relaxed);
        }
        let raw = RawIoreq::pio(u64::from(port), size, false, u64::from(value));
        self.run(|| self.to_range(&raw).map(drop))
    }

    /// Reads configuration space: `size` bytes, 1, 2 or 4, at a register.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn pci_config_read(&self, sbdf: Sbdf, register: u8, size: u32) -> Result<u32, Stopped> {
        let raw = RawIoreq::pci(sbdf.bits(), register, size, true, 0);
        let value = self.run(|| Ok(self.to_range(&raw)?.unwrap_or(ALL_ONES)))?;
        let (bytes, n) = low_bytes(value, size.min(4));
        let mut low = [0; 4];
        low[..n].copy_from_slice(&bytes[..n]);
        Ok(u32::from_le_bytes(low))
    }

    /// Writes configuration space.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn pci_config_write(
        &self,
        sbdf: Sbdf,
        register: u8,
        size: u32,
        value: u32,
    ) -> Result<(), Stopped> {
        let raw = RawIoreq::pci(sbdf.bits(), register, size, false, u64::from(value));
        self.run(|| self.to_range(&raw).map(drop))
    }

    /// Gives frames back to Xen, as a balloon driver does, and has every
    /// device model drop its mappings before it returns.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn decrease_reservation(&self, gfns: &[Gfn]) -> Result<Result<(), Errno>, Stopped> {
        self.run(|| {
            let done = gfns.iter().try_for_each(|g| self.domain.memory.remove(g.0));
            let pending = &self.domain.mapcache_invalidate;
            pending.store(true, Ordering::Release);
            self.invalidate_if_due()?;
            Ok(done)
        })
    }

    /// Gets frames from Xen, which read as zero.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn populate(&self, gfns: &[Gfn]) -> Result<Result<(), Errno>, Stopped> {
        let memory = &self.domain.memory;
        self.run(|| {
            let done = gfns.iter().try_for_each(|g| memory.populate(g.0));
            self.invalidate_if_due()?;
            Ok(done)
        })
    }

    /// What Xen does before a hypercall returns
    /// (arch/x86/hvm/hypercall.c:hvm_hypercall) and after a request, when
    /// frames left the domain.
    fn invalidate_if_due(&self) -> Result<(), Stopped> {
        let pending = &self.domain.mapcache_invalidate;
        if pending.swap(false, Ordering::AcqRel) {
            self.broadcast_invalidate()?;
        }
        Ok(())
    }

    /// Takes the next interrupt, waiting for at most `timeout` (for ever
    /// when none). `None` when the time was up or the domain runs no more.
    #[must_use]
    pub fn wait_interrupt(&self, timeout: Option<Duration>) -> Option<Interrupt> {
        self.domain.interrupts.wait(timeout)
    }
}

/// Frame and offset of an address.
fn place(gpa: u64) -> (Gfn, usize) {
    // Less than a page.
    let offset = usize::try_from(gpa % 4096).unwrap_or(0);
    (Gfn::containing(gpa), offset)
}

/// A length inside a page as an address takes it.
fn length(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// The vCPU's view of RAM. Writes to protected frames reach the device
/// model; an access to a device is an error.
impl GuestMemory for Vcpu {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        for_each_page(gpa, buf.len(), |gfn, offset, range| {
            let part = &mut buf[range];
            let touch = self.run(|| Ok(self.domain.memory.read(gfn, offset, part)));
            match touch {
                Ok(Touch::Done) => Ok(()),
                Ok(_) => Err(MemoryError::Unmapped(gfn)),
                Err(why) => Err(stopped(gfn, &why)),
            }
        })
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        for_each_page(gpa, data.len(), |gfn, offset, range| {
            let at = gpa.wrapping_add(length(range.start));
            let part = &data[range];
            let done = self.run(|| match self.domain.memory.write(gfn, offset, part) {
                Touch::Done => Ok(true),
                Touch::Trap => self.store_in_page(at, gfn, offset, part).map(|()| true),
                Touch::Mmio => Ok(false),
            });
            match done {
                Ok(true) => Ok(()),
                Ok(false) => Err(MemoryError::Unmapped(gfn)),
                Err(why) => Err(stopped(gfn, &why)),
            }
        })
    }
}

fn stopped(gfn: Gfn, why: &Stopped) -> MemoryError {
    MemoryError::Host {
        gfn,
        reason: why.to_string(),
    }
}
