//! A request of a vCPU as an access to the device.

use guest_memory::Gfn;
use vgpu_device::{Bar, Transaction};
use xen_glue::{IoHandler, IoKind, Sbdf};

use crate::protection::Protection;

/// What a read gives where nothing answers.
const ALL_ONES: u64 = u64::MAX;

/// The device behind one PCI function, and the guest's protected frames: a
/// write that is to no window can only be to one of those, or to a window or
/// frame that was one a moment ago.
pub(crate) struct Access<'a> {
    pub(crate) transaction: Transaction<'a>,
    pub(crate) function: Sbdf,
    pub(crate) protection: &'a Protection,
    /// Since the vCPU's write to a protected frame before this, if this is one
    /// too; in nanoseconds.
    pub(crate) since_ns: u32,
}

/// An access's size, as the device takes it.
fn bytes(size: u32) -> usize {
    // 1 to 8 fits any usize.
    usize::try_from(size.clamp(1, 8)).unwrap_or(8)
}

impl Access<'_> {
    /// The register of a configuration cycle that is ours.
    fn register(&self, addr: u64) -> Option<u8> {
        let function = addr.checked_shr(32)?;
        if function != u64::from(self.function.bits()) {
            return None;
        }
        u8::try_from(addr & 0xffff_ffff).ok()
    }

    /// The window that holds all of a run, unless it is one of registers:
    /// those are accessed one by one.
    fn block(&self, addr: u64, len: usize) -> Option<(Bar, u64)> {
        /// Where the page table starts in BAR0.
        const TABLE: u64 = 8 << 20;
        let (bar, offset) = self.transaction.device().locate(addr)?;
        let end = offset.checked_add(u64::try_from(len).ok()?)?;
        let registers = bar == Bar::Registers && offset < TABLE;
        (!registers && end <= self.transaction.device().window_bytes(bar)).then_some((bar, offset))
    }
}

impl Access<'_> {
    /// Writes to memory that is in no window, inside a page.
    fn write_memory(&self, addr: u64, data: &[u8]) {
        let done = self.protection.write_in_page(addr, data, self.since_ns);
        if let Err(e) = done {
            log::trace!("write of a vCPU: {e}");
        }
    }

    /// Whether a run is in no window and inside a page.
    fn is_outside(&self, addr: u64, len: usize) -> bool {
        let end = u64::try_from(len).ok().and_then(|l| addr.checked_add(l));
        let Some(last) = end.and_then(|end| end.checked_sub(1)) else {
            return false;
        };
        Gfn::containing(addr) == Gfn::containing(last)
            && self.transaction.device().locate(addr).is_none()
            && self.transaction.device().locate(last).is_none()
    }
}

impl IoHandler for Access<'_> {
    fn read(&mut self, kind: IoKind, addr: u64, size: u32) -> u64 {
        match kind {
            IoKind::Copy => match self.transaction.device().locate(addr) {
                Some((bar, offset)) => self.transaction.read(bar, offset, bytes(size)),
                None => ALL_ONES,
            },
            IoKind::PciConfig => match self.register(addr) {
                Some(register) => self.transaction.config_read(register, bytes(size)),
                None => ALL_ONES,
            },
            _ => ALL_ONES,
        }
    }

    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64) {
        match kind {
            IoKind::Copy => {
                if let Some((bar, offset)) = self.transaction.device().locate(addr) {
                    self.transaction.write(bar, offset, bytes(size), value);
                } else if self.is_outside(addr, bytes(size)) {
                    self.write_memory(addr, &value.to_le_bytes()[..bytes(size)]);
                }
            }
            IoKind::PciConfig => {
                if let Some(register) = self.register(addr) {
                    self.transaction.config_write(register, bytes(size), value);
                }
            }
            _ => {}
        }
    }

    fn is_memory(&self, addr: u64, len: usize) -> bool {
        self.block(addr, len).is_some() || self.is_outside(addr, len)
    }

    fn read_run(&mut self, addr: u64, size: u32, buf: &mut [u8]) {
        if let Some((bar, offset)) = self.block(addr, buf.len()) {
            return self.transaction.read_block(bar, offset, buf);
        }
        let mut at = addr;
        for item in buf.chunks_mut(bytes(size)) {
            let value = self.read(IoKind::Copy, at, size).to_le_bytes();
            item.copy_from_slice(&value[..item.len()]);
            at = at.wrapping_add(u64::from(size));
        }
    }

    fn write_run(&mut self, addr: u64, size: u32, data: &[u8]) {
        if let Some((bar, offset)) = self.block(addr, data.len()) {
            return self.transaction.write_block(bar, offset, data);
        }
        if self.is_outside(addr, data.len()) {
            return self.write_memory(addr, data);
        }
        let mut at = addr;
        for item in data.chunks(bytes(size)) {
            let mut value = [0; 8];
            value[..item.len()].copy_from_slice(item);
            self.write(IoKind::Copy, at, size, u64::from_le_bytes(value));
            at = at.wrapping_add(u64::from(size));
        }
    }
}
