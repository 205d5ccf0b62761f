//! The device's entry points.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gen8::vreg::pvinfo;
use serde::Serialize;
use vgpu_ring::{Event, Request};

use crate::aperture::Aperture;
use crate::config::{Config, ConfigError};
use crate::core::{Core, Seams};
use crate::inspect::Inspection;
use crate::pci::BAR0_BYTES;
use crate::seams::Bar;
use crate::state::{DeviceV1, RestoreError};

/// Where the global page table starts in BAR0
/// (Linux `gt/intel_ggtt.c:ggtt_probe_common`).
const GGTT_BASE: u64 = 8 << 20;

/// Says that a window is not mapped.
const UNMAPPED: u64 = u64::MAX;

/// Accesses by kind since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exits {
    /// Reads of registers.
    pub mmio_reads: u64,
    /// Writes of registers.
    pub mmio_writes: u64,
    /// Reads of global page-table entries.
    pub ggtt_reads: u64,
    /// Writes of global page-table entries.
    pub ggtt_writes: u64,
    /// Reads of the aperture; a repeated one counts once.
    pub aperture_reads: u64,
    /// Writes of the aperture; a repeated one counts once.
    pub aperture_writes: u64,
    /// Configuration cycles.
    pub config: u64,
}

impl Exits {
    /// Accesses to either window, all kinds together.
    #[must_use]
    pub const fn windows(&self) -> u64 {
        self.of(Bar::Registers) + self.of(Bar::Aperture)
    }

    /// Accesses to a window.
    #[must_use]
    pub const fn of(&self, bar: Bar) -> u64 {
        match bar {
            Bar::Registers => {
                self.mmio_reads + self.mmio_writes + self.ggtt_reads + self.ggtt_writes
            }
            Bar::Aperture => self.aperture_reads + self.aperture_writes,
        }
    }
}

#[derive(Default)]
struct Counters {
    mmio_reads: AtomicU64,
    mmio_writes: AtomicU64,
    ggtt_reads: AtomicU64,
    ggtt_writes: AtomicU64,
    config: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A virtual GPU. Every method may be called from any thread; accesses take
/// effect one at a time, in the order they come.
pub struct Device {
    core: Mutex<Core>,
    seams: Seams,
    /// Bases of BAR0 and BAR2, so that an access finds its window without
    /// the lock.
    windows: [AtomicU64; 2],
    aperture: Aperture,
    counters: Counters,
}

impl Device {
    /// A device as after power-on.
    ///
    /// # Errors
    /// [`ConfigError`] names the field that no device can have.
    pub fn new(config: &Config, seams: Seams) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::with(Core::new(config), seams))
    }

    /// A device as saved. Its windows are mapped and its interrupt is raised
    /// where they were; [`Device::replay`] or [`Device::resubmit`] is left to
    /// the caller.
    ///
    /// # Errors
    /// [`RestoreError`] says which part is impossible. Windows may have been
    /// mapped by then.
    pub fn restore(state: &DeviceV1, seams: Seams) -> Result<Self, RestoreError> {
        let core = Core::restore(state, &seams)?;
        let device = Self::with(core, seams);
        let mut core = device.lock();
        core.deadline_moved = true;
        core.settle(&device.seams);
        device.note_windows(&core);
        drop(core);
        Ok(device)
    }

    fn with(core: Core, seams: Seams) -> Self {
        Self {
            aperture: Aperture::new(
                core.config.aperture_bytes().into(),
                Arc::clone(&core.fences),
            ),
            core: Mutex::new(core),
            seams,
            windows: [const { AtomicU64::new(UNMAPPED) }; 2],
            counters: Counters::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // Nothing panics with the lock held; if it did, the state is a
        // guest's to break anyway.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_windows(&self, core: &Core) {
        for (window, bar) in self.windows.iter().zip([Bar::Registers, Bar::Aperture]) {
            let base = core.pci.window(bar).map_or(UNMAPPED, |(base, _)| base);
            window.store(base, Relaxed);
        }
    }

    /// Bytes of a window.
    #[must_use]
    pub fn window_bytes(&self, bar: Bar) -> u64 {
        match bar {
            Bar::Registers => BAR0_BYTES,
            Bar::Aperture => self.aperture.bytes(),
        }
    }

    /// The window that answers at a guest-physical address, and the offset
    /// in it.
    #[must_use]
    pub fn locate(&self, gpa: u64) -> Option<(Bar, u64)> {
        [Bar::Registers, Bar::Aperture]
            .into_iter()
            .zip(&self.windows)
            .find_map(|(bar, window)| {
                let base = window.load(Relaxed);
                let offset = gpa.checked_sub(base)?;
                (base != UNMAPPED && offset < self.window_bytes(bar)).then_some((bar, offset))
            })
    }

    /// Reads `size` bytes, 1 to 8, of configuration space.
    pub fn config_read(&self, offset: u8, size: usize) -> u64 {
        count(&self.counters.config);
        self.lock().pci.read(offset, size)
    }

    /// Writes `size` bytes, 1 to 8, of configuration space.
    pub fn config_write(&self, offset: u8, size: usize, value: u64) {
        count(&self.counters.config);
        let mut core = self.lock();
        let Seams {
            bars, interrupts, ..
        } = &self.seams;
        core.pci.write(offset, size, value, &**bars, &**interrupts);
        self.note_windows(&core);
    }

    /// Reads `size` bytes, 1 to 8, at any offset of a window.
    pub fn read(&self, bar: Bar, offset: u64, size: usize) -> u64 {
        let size = size.min(8);
        if bar == Bar::Registers && offset < GGTT_BASE {
            count(&self.counters.mmio_reads);
            // Below 8 MiB.
            let offset = u32::try_from(offset).unwrap_or(0);
            return self.lock().read_mmio(&self.seams, offset, size);
        }
        let mut bytes = [0; 8];
        self.read_block(bar, offset, &mut bytes[..size]);
        u64::from_le_bytes(bytes)
    }

    /// Writes `size` bytes, 1 to 8, at any offset of a window.
    pub fn write(&self, bar: Bar, offset: u64, size: usize, value: u64) {
        let size = size.min(8);
        if bar == Bar::Registers && offset < GGTT_BASE {
            count(&self.counters.mmio_writes);
            let offset = u32::try_from(offset).unwrap_or(0);
            self.lock().write_mmio(&self.seams, offset, size, value);
            return;
        }
        self.write_block(bar, offset, &value.to_le_bytes()[..size]);
    }

    /// Reads a run of bytes of a window: what repeated string instructions
    /// on the aperture or the page table do. Registers are read a dword at a
    /// time.
    pub fn read_block(&self, bar: Bar, offset: u64, buf: &mut [u8]) {
        match bar {
            Bar::Aperture => self.aperture.read(&self.seams, offset, buf),
            Bar::Registers if offset < GGTT_BASE => {
                for (at, part) in (offset..).step_by(4).zip(buf.chunks_mut(4)) {
                    let value = self.read(bar, at, part.len()).to_le_bytes();
                    part.copy_from_slice(&value[..part.len()]);
                }
            }
            Bar::Registers => {
                count(&self.counters.ggtt_reads);
                for (at, byte) in (offset - GGTT_BASE..).zip(buf) {
                    let entry = u32::try_from(at / 8).map_or(0, |i| self.seams.ggtt.load(i));
                    let in_entry = usize::try_from(at % 8).unwrap_or(0);
                    *byte = entry.to_le_bytes()[in_entry];
                }
            }
        }
    }

    /// Writes a run of bytes of a window, like [`Device::read_block`].
    pub fn write_block(&self, bar: Bar, offset: u64, data: &[u8]) {
        match bar {
            Bar::Aperture => self.aperture.write(&self.seams, offset, data),
            Bar::Registers if offset < GGTT_BASE => {
                for (at, part) in (offset..).step_by(4).zip(data.chunks(4)) {
                    let mut value = [0; 8];
                    value[..part.len()].copy_from_slice(part);
                    self.write(bar, at, part.len(), u64::from_le_bytes(value));
                }
            }
            Bar::Registers => {
                count(&self.counters.ggtt_writes);
                self.write_entries(offset - GGTT_BASE, data);
            }
        }
    }

    /// Writes bytes of page-table entries. Whole entries need no lock; parts
    /// are merged under it, so that two halves written at once both count.
    fn write_entries(&self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut data = data;
        while !data.is_empty() {
            let Ok(index) = u32::try_from(at / 8) else {
                return;
            };
            let in_entry = usize::try_from(at % 8).unwrap_or(0);
            let (now, rest) = data.split_at(data.len().min(8 - in_entry));
            if let Ok(whole) = now.try_into() {
                self.seams.ggtt.store(index, u64::from_le_bytes(whole));
            } else {
                let _core = self.lock();
                let mut entry = self.seams.ggtt.load(index).to_le_bytes();
                entry[in_entry..in_entry + now.len()].copy_from_slice(now);
                self.seams.ggtt.store(index, u64::from_le_bytes(entry));
            }
            at = (at / 8 + 1) * 8;
            data = rest;
        }
    }

    /// The guest gave frames back: whoever maps its memory must look anew
    /// before the guest's next submission.
    pub fn memory_changed(&self) {
        let mut core = self.lock();
        core.send(&self.seams, Request::InvalidateMemory);
        core.settle(&self.seams);
    }

    /// Something vgpud says.
    pub fn handle_event(&self, event: Event) {
        let mut core = self.lock();
        core.handle_event(&self.seams, event);
        core.settle(&self.seams);
    }

    /// Does what is due: sends requests that did not fit before, and raises
    /// vertical blanks. The caller asks for the next deadline itself; the
    /// alarm is for deadlines that others cause.
    pub fn tick(&self) {
        let mut core = self.lock();
        let now = self.seams.clock.now_ns();
        core.retry(&self.seams, now);
        core.pass_blanks(now);
        core.alarm = core.deadline(&self.seams).unwrap_or(u64::MAX);
        core.deadline_moved = false;
        core.settle_interrupt(&self.seams);
    }

    /// When [`Device::tick`] is wanted next, in nanoseconds of the clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.lock().deadline(&self.seams)
    }

    /// Sends requests that did not fit before; says whether none is left.
    pub fn flush(&self) -> bool {
        let now = self.seams.clock.now_ns();
        let mut core = self.lock();
        core.retry(&self.seams, now);
        core.backlog.is_empty()
    }

    /// Tells a new vgpud what the last one knew: the registers the GPU needs
    /// and the lists in flight.
    pub fn replay(&self) {
        let mut core = self.lock();
        core.replay(&self.seams);
        core.settle(&self.seams);
    }

    /// Tells a vgpud that has taken over what the last one held of the lists
    /// in flight, and of nothing else.
    pub fn resubmit(&self) {
        let mut core = self.lock();
        core.resubmit(&self.seams);
        core.settle(&self.seams);
    }

    /// Asks vgpud for [`Event::Pong`] with `token`: it has taken every request
    /// before this one then.
    pub fn ping(&self, token: u64) {
        let mut core = self.lock();
        core.send(&self.seams, Request::Ping { token });
        core.settle(&self.seams);
    }

    /// Whether the guest's driver said that it is up.
    #[must_use]
    pub fn driver_up(&self) -> bool {
        self.lock().regs.get(pvinfo::DISPLAY_READY) & 1 != 0
    }

    /// Accesses by kind.
    #[must_use]
    pub fn exits(&self) -> Exits {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let c = &self.counters;
        let aperture = self.aperture.counts();
        Exits {
            mmio_reads: get(&c.mmio_reads),
            mmio_writes: get(&c.mmio_writes),
            ggtt_reads: get(&c.ggtt_reads),
            ggtt_writes: get(&c.ggtt_writes),
            aperture_reads: aperture.reads,
            aperture_writes: aperture.writes,
            config: get(&c.config),
        }
    }

    /// What the device looks like now, for people and tools.
    #[must_use]
    pub fn inspect(&self) -> Inspection {
        let exits = self.exits();
        let aperture = self.aperture.view();
        self.lock().inspect(&self.seams, exits, aperture)
    }

    /// The state to save.
    #[must_use]
    pub fn save(&self) -> DeviceV1 {
        self.lock().save(self.seams.clock.now_ns())
    }
}
