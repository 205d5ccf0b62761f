//! A request of a vCPU as an access to the device.

use vgpu_device::{Bar, Device};
use xen_glue::{IoHandler, IoKind, Sbdf};

/// What a read gives where nothing answers.
const ALL_ONES: u64 = u64::MAX;

/// The device behind one PCI function.
pub(crate) struct Access<'a> {
    pub(crate) device: &'a Device,
    pub(crate) function: Sbdf,
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
        let (bar, offset) = self.device.locate(addr)?;
        let end = offset.checked_add(u64::try_from(len).ok()?)?;
        let registers = bar == Bar::Registers && offset < TABLE;
        (!registers && end <= self.device.window_bytes(bar)).then_some((bar, offset))
    }
}

impl IoHandler for Access<'_> {
    fn read(&mut self, kind: IoKind, addr: u64, size: u32) -> u64 {
        match kind {
            IoKind::Copy => match self.device.locate(addr) {
                Some((bar, offset)) => self.device.read(bar, offset, bytes(size)),
                None => ALL_ONES,
            },
            IoKind::PciConfig => match self.register(addr) {
                Some(register) => self.device.config_read(register, bytes(size)),
                None => ALL_ONES,
            },
            _ => ALL_ONES,
        }
    }

    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64) {
        match kind {
            IoKind::Copy => {
                if let Some((bar, offset)) = self.device.locate(addr) {
                    self.device.write(bar, offset, bytes(size), value);
                }
            }
            IoKind::PciConfig => {
                if let Some(register) = self.register(addr) {
                    self.device.config_write(register, bytes(size), value);
                }
            }
            _ => {}
        }
    }

    fn is_memory(&self, addr: u64, len: usize) -> bool {
        self.block(addr, len).is_some()
    }

    fn read_run(&mut self, addr: u64, size: u32, buf: &mut [u8]) {
        if let Some((bar, offset)) = self.block(addr, buf.len()) {
            return self.device.read_block(bar, offset, buf);
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
            return self.device.write_block(bar, offset, data);
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
