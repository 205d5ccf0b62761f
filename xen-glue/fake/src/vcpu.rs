//! The guest's side: a vCPU whose accesses behave as on Xen.
//!
//! Instructions that find RAM are executed; any other is emulated as by Xen
//! (`emulate`). Accesses are split at page edges and, for devices, into
//! descending powers of two of at most 8 bytes; repetitions are cut at a page of
//! the device and at one of RAM.

mod emulate;
mod request;
mod string;

pub(crate) use emulate::VcpuIo;
pub use request::RawIoreq;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use guest_memory::{Gfn, GuestMemory, MemoryError, for_each_page};
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
    fn run<T>(&self, f: impl FnOnce(&mut VcpuIo) -> Result<T, Stopped>) -> Result<T, Stopped> {
        let slot = usize::try_from(self.number).ok();
        let busy = slot.and_then(|n| self.domain.busy.get(n));
        // Domain::vcpu checked the number.
        let mut one = busy.map(lock);
        let mut none = VcpuIo::default();
        let stopped = || self.domain.stopped().is_some();
        let inside = self.domain.gate.enter(stopped);
        let on_cpu = self.domain.cpus.enter(stopped);
        if let Some(why) = self.domain.stopped() {
            return Err(why);
        }
        let result = f(one.as_deref_mut().unwrap_or(&mut none));
        self.domain.crash_if_exhausted();
        drop(on_cpu);
        drop(inside);
        result
    }

    /// Loads `size` bytes, 1 to 8, at any alignment, from RAM or a device.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn mmio_read(&self, gpa: u64, size: u32) -> Result<u64, Stopped> {
        let (mut bytes, size) = low_bytes(0, size);
        self.load_bytes(gpa, &mut bytes[..size])?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stores the low `size` bytes, 1 to 8, at any alignment.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn mmio_write(&self, gpa: u64, size: u32, value: u64) -> Result<(), Stopped> {
        let (bytes, size) = low_bytes(value, size);
        self.store_bytes(gpa, &bytes[..size])
    }

    /// Loads any number of bytes, by vector instructions of 64.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn load_bytes(&self, gpa: u64, buf: &mut [u8]) -> Result<(), Stopped> {
        let mut at = gpa;
        for part in buf.chunks_mut(emulate::ACCESS_BYTES) {
            self.run(|io| self.load(io, at, part))?;
            at = at.wrapping_add(length(part.len()));
        }
        Ok(())
    }

    /// Stores any number of bytes, by vector instructions of 64.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn store_bytes(&self, gpa: u64, data: &[u8]) -> Result<(), Stopped> {
        let mut at = gpa;
        for part in data.chunks(emulate::ACCESS_BYTES) {
            self.run(|io| self.store(io, at, part))?;
            at = at.wrapping_add(length(part.len()));
        }
        Ok(())
    }

    fn load(&self, io: &mut VcpuIo, gpa: u64, buf: &mut [u8]) -> Result<(), Stopped> {
        let Err(fault) = self.read_directly(gpa, buf) else {
            return Ok(());
        };
        let len = buf.len();
        let bytes = self.emulate(io, Some((fault, false)), |emulator| {
            let mut bytes = vec![0; len];
            emulator.read(gpa, &mut bytes)?;
            Ok(bytes)
        })?;
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    fn store(&self, io: &mut VcpuIo, gpa: u64, data: &[u8]) -> Result<(), Stopped> {
        match self.write_directly(gpa, data) {
            Ok(()) => Ok(()),
            Err(fault) => self.emulate(io, Some((fault, true)), |e| e.write(gpa, data)),
        }
    }

    /// `lock xadd`: adds to `size` bytes, 1, 2, 4 or 8, and gives what was
    /// there.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn fetch_add(&self, gpa: u64, size: u32, value: u64) -> Result<u64, Stopped> {
        self.modify(gpa, size, &|old| old.wrapping_add(value))
    }

    /// `xchg` with `size` bytes, 1, 2, 4 or 8; gives what was there.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn exchange(&self, gpa: u64, size: u32, value: u64) -> Result<u64, Stopped> {
        self.modify(gpa, size, &|_| value)
    }

    fn modify(&self, gpa: u64, size: u32, change: &dyn Fn(u64) -> u64) -> Result<u64, Stopped> {
        let (_, n) = low_bytes(0, size);
        self.run(|io| match self.modify_directly(gpa, n, change) {
            Ok(old) => Ok(old),
            Err(fault) => self.emulate(io, Some((fault, true)), |e| e.modify(gpa, size, change)),
        })
    }

    /// `lock cmpxchg` on `size` bytes, 1, 2, 4 or 8; gives what was there, which
    /// is `expected` if `new` is there now.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn compare_exchange(
        &self,
        gpa: u64,
        size: u32,
        expected: u64,
        new: u64,
    ) -> Result<u64, Stopped> {
        let (_, n) = low_bytes(0, size);
        let change = |now| if now == expected { new } else { now };
        self.run(|io| match self.modify_directly(gpa, n, &change) {
            Ok(old) => Ok(old),
            Err(fault) => self.emulate(io, Some((fault, true)), |e| {
                e.exchange_if(gpa, size, expected, new)
            }),
        })
    }

    /// An access to a port or configuration space.
    fn port(&self, raw: RawIoreq) -> Result<u64, Stopped> {
        self.run(|io| self.emulate(io, None, |e| e.request(raw)))
            .map(|(_, data)| data)
    }

    /// Reads `size` bytes, 1, 2 or 4, from an I/O port. Ports 0xcfc to 0xcff
    /// reach configuration space as 0xcf8 says.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn pio_read(&self, port: u16, size: u32) -> Result<u64, Stopped> {
        self.port(RawIoreq::pio(u64::from(port), size, true, 0))
    }

    /// Writes `size` bytes, 1, 2 or 4, to an I/O port.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn pio_write(&self, port: u16, size: u32, value: u32) -> Result<(), Stopped> {
        if port == 0xcf8 && size == 4 {
            self.domain.cf8.store(value, Ordering::Relaxed);
        }
        let value = u64::from(value);
        self.port(RawIoreq::pio(u64::from(port), size, false, value))
            .map(drop)
    }

    /// Reads configuration space: `size` bytes, 1, 2 or 4, at a register.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn pci_config_read(&self, sbdf: Sbdf, register: u8, size: u32) -> Result<u32, Stopped> {
        let value = self.port(RawIoreq::pci(sbdf.bits(), register, size, true, 0))?;
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
        let value = u64::from(value);
        self.port(RawIoreq::pci(sbdf.bits(), register, size, false, value))
            .map(drop)
    }

    /// Gives frames back to Xen, as a balloon driver does, and has every
    /// device model drop its mappings before it returns.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn decrease_reservation(&self, gfns: &[Gfn]) -> Result<Result<(), Errno>, Stopped> {
        self.run(|_| {
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
        self.run(|_| {
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
            let touch = self.run(|_| Ok(self.domain.memory.read(gfn, offset, part)));
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
            let touch = self.run(|_| Ok(self.domain.memory.write(gfn, offset, part)));
            let done = match touch {
                Ok(Touch::Done) => return Ok(()),
                Ok(Touch::Mmio) => return Err(MemoryError::Unmapped(gfn)),
                Ok(Touch::Trap) => self.store_bytes(at, part),
                Err(why) => Err(why),
            };
            done.map_err(|why| stopped(gfn, &why))
        })
    }
}

fn stopped(gfn: Gfn, why: &Stopped) -> MemoryError {
    MemoryError::Host {
        gfn,
        reason: why.to_string(),
    }
}
