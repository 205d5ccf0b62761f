//! What is done at once: one request of a vCPU, with all the accesses it
//! makes, or one event.

use std::sync::MutexGuard;

use vgpu_ring::{Event, Request};

use crate::core::{Core, Seams};
use crate::device::{Device, count};
use crate::kept::{Answer, Doer, note_answer};
use crate::seams::Bar;

/// Where the global page table starts in BAR0
/// (Linux `gt/intel_ggtt.c:ggtt_probe_common`).
const GGTT_BASE: u64 = 8 << 20;

/// Accesses that count together, at [`Transaction::finish`]. From the first
/// that needs more than the guest's memory, nobody else's do meanwhile.
pub struct Transaction<'a> {
    device: &'a Device,
    core: Option<MutexGuard<'a, Core>>,
    doer: Doer,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(device: &'a Device, doer: Doer) -> Self {
        Self {
            device,
            core: None,
            doer,
        }
    }

    fn core(&mut self) -> (&mut Core, &'a Seams) {
        let device = self.device;
        let core = self.core.get_or_insert_with(|| {
            let mut core = device.lock();
            core.keeper.begin(self.doer);
            core
        });
        (core, &device.seams)
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> &'a Device {
        self.device
    }

    /// Ends it: what it did counts, a vCPU that it was for has this answer,
    /// and what follows from it leaves the device.
    pub fn finish(self, answer: Option<Answer>) {
        let Seams { kept, .. } = &self.device.seams;
        match (self.core, self.doer, answer) {
            (Some(mut core), doer, answer) => core.finish(&self.device.seams, doer, answer),
            (None, Doer::Vcpu(vcpu), Some(answer)) => note_answer(&**kept, vcpu, answer),
            (None, _, _) => {}
        }
    }

    /// See [`Device::config_read`].
    pub fn config_read(&mut self, offset: u8, size: usize) -> u64 {
        count(&self.device.counters.config);
        self.core().0.pci.read(offset, size)
    }

    /// See [`Device::config_write`].
    pub fn config_write(&mut self, offset: u8, size: usize, value: u64) {
        count(&self.device.counters.config);
        let device = self.device;
        let (core, seams) = self.core();
        // The guest finds windows elsewhere before that is committed.
        core.keeper.note_doing(&*seams.kept);
        let (bars, interrupts) = (&*seams.bars, &*seams.interrupts);
        core.pci.write(offset, size, value, bars, interrupts);
        device.note_windows(core);
    }

    /// See [`Device::read`].
    pub fn read(&mut self, bar: Bar, offset: u64, size: usize) -> u64 {
        let size = size.min(8);
        if bar == Bar::Registers && offset < GGTT_BASE {
            count(&self.device.counters.mmio_reads);
            // Below 8 MiB.
            let offset = u32::try_from(offset).unwrap_or(0);
            let (core, seams) = self.core();
            return core.read_mmio(seams, offset, size);
        }
        let mut bytes = [0; 8];
        self.read_block(bar, offset, &mut bytes[..size]);
        u64::from_le_bytes(bytes)
    }

    /// See [`Device::write`].
    pub fn write(&mut self, bar: Bar, offset: u64, size: usize, value: u64) {
        let size = size.min(8);
        if bar == Bar::Registers && offset < GGTT_BASE {
            count(&self.device.counters.mmio_writes);
            let offset = u32::try_from(offset).unwrap_or(0);
            let (core, seams) = self.core();
            core.write_mmio(seams, offset, size, value);
            return;
        }
        self.write_block(bar, offset, &value.to_le_bytes()[..size]);
    }

    /// See [`Device::read_block`].
    pub fn read_block(&mut self, bar: Bar, offset: u64, buf: &mut [u8]) {
        let seams = &self.device.seams;
        match bar {
            Bar::Aperture => self.device.aperture.read(seams, offset, buf),
            Bar::Registers if offset < GGTT_BASE => {
                for (at, part) in (offset..).step_by(4).zip(buf.chunks_mut(4)) {
                    let value = self.read(bar, at, part.len()).to_le_bytes();
                    part.copy_from_slice(&value[..part.len()]);
                }
            }
            Bar::Registers => {
                count(&self.device.counters.ggtt_reads);
                for (at, byte) in (offset - GGTT_BASE..).zip(buf) {
                    let entry = u32::try_from(at / 8).map_or(0, |i| seams.ggtt.load(i));
                    let in_entry = usize::try_from(at % 8).unwrap_or(0);
                    *byte = entry.to_le_bytes()[in_entry];
                }
            }
        }
    }

    /// See [`Device::write_block`].
    pub fn write_block(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        match bar {
            Bar::Aperture => self.device.aperture.write(&self.device.seams, offset, data),
            Bar::Registers if offset < GGTT_BASE => {
                for (at, part) in (offset..).step_by(4).zip(data.chunks(4)) {
                    let mut value = [0; 8];
                    value[..part.len()].copy_from_slice(part);
                    self.write(bar, at, part.len(), u64::from_le_bytes(value));
                }
            }
            Bar::Registers => {
                count(&self.device.counters.ggtt_writes);
                self.write_entries(offset - GGTT_BASE, data);
            }
        }
    }

    /// Writes bytes of page-table entries. Whole entries need no lock; parts
    /// are merged under it, so that two halves written at once both count.
    fn write_entries(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut data = data;
        while !data.is_empty() {
            let Ok(index) = u32::try_from(at / 8) else {
                return;
            };
            let in_entry = usize::try_from(at % 8).unwrap_or(0);
            let (now, rest) = data.split_at(data.len().min(8 - in_entry));
            if let Ok(whole) = now.try_into() {
                let table = &self.device.seams.ggtt;
                table.store(index, u64::from_le_bytes(whole));
            } else {
                let (_, seams) = self.core();
                let mut entry = seams.ggtt.load(index).to_le_bytes();
                entry[in_entry..in_entry + now.len()].copy_from_slice(now);
                seams.ggtt.store(index, u64::from_le_bytes(entry));
            }
            at = (at / 8 + 1) * 8;
            data = rest;
        }
    }

    /// See [`Device::memory_changed`].
    pub fn memory_changed(&mut self) {
        self.core().0.send(Request::InvalidateMemory);
    }

    /// See [`Device::handle_event`].
    pub(crate) fn handle_event(&mut self, event: Event) {
        let (core, seams) = self.core();
        core.handle_event(seams, event);
        core.settle(seams);
    }
}
