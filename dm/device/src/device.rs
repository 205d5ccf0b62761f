//! The device's entry points.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use vgpu_ring::{Event, Request};

use crate::aperture::Aperture;
use crate::config::{Config, ConfigError};
use crate::core::{Core, Seams};
use crate::inspect::Inspection;
use crate::kept::{Doer, RecoverError};
use crate::pci::BAR0_BYTES;
use crate::seams::Bar;
use crate::state::{DeviceV1, RestoreError};
use crate::transaction::Transaction;

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
pub(crate) struct Counters {
    pub(crate) mmio_reads: AtomicU64,
    pub(crate) mmio_writes: AtomicU64,
    pub(crate) ggtt_reads: AtomicU64,
    pub(crate) ggtt_writes: AtomicU64,
    pub(crate) config: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A virtual GPU. Every method may be called from any thread; accesses take
/// effect one at a time, in the order they come.
pub struct Device {
    core: Mutex<Core>,
    pub(crate) seams: Seams,
    /// Bases of BAR0 and BAR2, so that an access finds its window without
    /// the lock.
    windows: [AtomicU64; 2],
    pub(crate) aperture: Aperture,
    pub(crate) counters: Counters,
}

impl Device {
    /// A device as after power-on.
    ///
    /// # Errors
    /// [`ConfigError`] names the field that no device can have.
    pub fn new(config: &Config, seams: Seams) -> Result<Self, ConfigError> {
        config.check()?;
        let mut core = Core::new(config, &seams);
        core.keep_all(&*seams.kept);
        Ok(Self::with(core, seams))
    }

    /// A device as saved. Its windows are mapped and its interrupt is raised
    /// where they were; [`Device::replay`] or [`Device::resubmit`] is left to
    /// the caller.
    ///
    /// # Errors
    /// [`RestoreError`] says which part is impossible. Windows may have been
    /// mapped by then.
    pub fn restore(state: &DeviceV1, seams: Seams) -> Result<Self, RestoreError> {
        let mut core = Core::restore(state, &seams)?;
        core.keep_all(&*seams.kept);
        core.deadline_moved = true;
        Ok(Self::settled(core, seams))
    }

    /// The device that a former one kept, as it was between two transactions
    /// ([`kept::doing`](crate::kept::doing) was asked before). Its windows are
    /// mapped, perhaps again, its interrupt is raised, perhaps again, and what
    /// was to be handed over is.
    ///
    /// # Errors
    /// [`RecoverError`] says which part is impossible.
    pub fn recover(config: &Config, seams: Seams) -> Result<Self, RecoverError> {
        let core = Core::recover(config, &seams)?;
        Ok(Self::settled(core, seams))
    }

    fn settled(core: Core, seams: Seams) -> Self {
        let device = Self::with(core, seams);
        let mut core = device.lock();
        core.settle(&device.seams);
        core.finish(&device.seams, Doer::Nobody, None);
        device.note_windows(&core);
        drop(core);
        device
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        // Nothing panics with the lock held; if it did, the state is a
        // guest's to break anyway.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_windows(&self, core: &Core) {
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

    /// Begins to do something for `doer`.
    pub fn begin(&self, doer: Doer) -> Transaction<'_> {
        Transaction::new(self, doer)
    }

    /// Does one thing for nobody.
    fn alone<T>(&self, act: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
        let mut transaction = self.begin(Doer::Nobody);
        let result = act(&mut transaction);
        transaction.finish(None);
        result
    }

    /// Reads `size` bytes, 1 to 8, of configuration space.
    pub fn config_read(&self, offset: u8, size: usize) -> u64 {
        self.alone(|t| t.config_read(offset, size))
    }

    /// Writes `size` bytes, 1 to 8, of configuration space.
    pub fn config_write(&self, offset: u8, size: usize, value: u64) {
        self.alone(|t| t.config_write(offset, size, value));
    }

    /// Reads `size` bytes, 1 to 8, at any offset of a window.
    pub fn read(&self, bar: Bar, offset: u64, size: usize) -> u64 {
        self.alone(|t| t.read(bar, offset, size))
    }

    /// Writes `size` bytes, 1 to 8, at any offset of a window.
    pub fn write(&self, bar: Bar, offset: u64, size: usize, value: u64) {
        self.alone(|t| t.write(bar, offset, size, value));
    }

    /// Reads a run of bytes of a window: what repeated string instructions
    /// on the aperture or the page table do. Registers are read a dword at a
    /// time.
    pub fn read_block(&self, bar: Bar, offset: u64, buf: &mut [u8]) {
        self.alone(|t| t.read_block(bar, offset, buf));
    }

    /// Writes a run of bytes of a window, like [`Device::read_block`].
    pub fn write_block(&self, bar: Bar, offset: u64, data: &[u8]) {
        self.alone(|t| t.write_block(bar, offset, data));
    }

    /// The guest gave frames back: whoever maps its memory must look anew
    /// before the guest's next submission.
    pub fn memory_changed(&self) {
        self.alone(|t| t.memory_changed());
    }

    /// Something vgpud says.
    pub fn handle_event(&self, event: Event) {
        self.alone(|t| t.handle_event(event));
    }

    /// Something vgpud says, with which so many events were `taken`.
    pub fn take_event(&self, event: Event, taken: u64) {
        let mut transaction = self.begin(Doer::Event(taken));
        transaction.handle_event(event);
        transaction.finish(None);
    }

    /// Does what is due: sends requests that did not fit before, and raises
    /// vertical blanks. The caller asks for the next deadline itself; the
    /// alarm is for deadlines that others cause.
    pub fn tick(&self) {
        let mut core = self.lock();
        let now = self.seams.clock.now_ns();
        core.pass_blanks(now);
        core.settle_interrupt(&self.seams);
        core.commit(&*self.seams.kept, Doer::Nobody, None);
        core.retry(&self.seams, now);
        core.alarm = core.deadline(&self.seams).unwrap_or(u64::MAX);
        core.deadline_moved = false;
    }

    /// When [`Device::tick`] is wanted next, in nanoseconds of the clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.lock().deadline(&self.seams)
    }

    /// Sends requests that did not fit before; says whether none is left.
    pub fn flush(&self) -> bool {
        let mut core = self.lock();
        let now = self.seams.clock.now_ns();
        core.retry(&self.seams, now);
        core.backlog.is_empty()
    }

    /// Tells a new vgpud what the last one knew: the registers the GPU needs
    /// and the lists in flight.
    pub fn replay(&self) {
        let mut core = self.lock();
        core.replay();
        core.settle(&self.seams);
        core.finish(&self.seams, Doer::Nobody, None);
    }

    /// Tells a vgpud that has taken over what the last one held of the lists
    /// in flight, and of nothing else.
    pub fn resubmit(&self) {
        let mut core = self.lock();
        core.resubmit();
        core.settle(&self.seams);
        core.finish(&self.seams, Doer::Nobody, None);
    }

    /// Asks vgpud for [`Event::Pong`] with `token`: it has taken every request
    /// before this one then.
    pub fn ping(&self, token: u64) {
        let mut core = self.lock();
        core.send(Request::Ping { token });
        core.settle(&self.seams);
        core.finish(&self.seams, Doer::Nobody, None);
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
