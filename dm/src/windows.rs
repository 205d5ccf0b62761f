//! The device's windows in the guest's address space.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use vgpu_device::kept::server_word;
use vgpu_device::{Bar, BarSink, Kept};
use xen_glue::{DeviceModelError, IoreqServer};

use crate::table::{MovingTable, TableState};

/// Bytes of registers in BAR0; the page table follows.
const REGISTERS: u64 = 8 << 20;

/// Windows as MMIO ranges of the ioreq server, and the page table's RAM in
/// the upper half of BAR0. An access to RAM never becomes a request, so an
/// access to the table is trapped only while the RAM is not there.
pub(crate) struct Windows {
    server: Arc<IoreqServer>,
    kept: Arc<dyn Kept>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What Xen has, for BAR0, BAR2, and the page table when it has a range of
    /// its own: it refuses a range that overlaps another, and what was refused
    /// must not be unmapped.
    mapped: [Option<RangeInclusive<u64>>; 3],
    /// What it may have of a former device model.
    left: [Option<RangeInclusive<u64>>; 3],
    table: Option<MovingTable>,
    /// The table is no RAM while the vGPU is saved.
    out: bool,
}

/// The place of the page table's own range.
const TABLE: usize = 2;

/// Where it is kept that the page table is out, if it is.
const OUT: usize = server_word(5);

/// Where it is kept whether Xen has a range: 0 it has not, 1 it may have. Its
/// ends follow.
const fn kept_range(slot: usize) -> usize {
    server_word(8 + 3 * slot)
}

fn slot(bar: Bar) -> usize {
    match bar {
        Bar::Registers => 0,
        Bar::Aperture => 1,
    }
}

impl Windows {
    pub(crate) fn new(
        server: Arc<IoreqServer>,
        table: Option<MovingTable>,
        kept: Arc<dyn Kept>,
    ) -> Self {
        kept.store(OUT, 0);
        let state = State {
            table,
            ..State::default()
        };
        Self {
            server,
            kept,
            state: Mutex::new(state),
        }
    }

    /// The windows of a former device model. What Xen has of them becomes
    /// ours when the device maps it again; [`Windows::settle`] ends the rest.
    pub(crate) fn left(
        server: Arc<IoreqServer>,
        table: Option<MovingTable>,
        kept: Arc<dyn Kept>,
    ) -> Self {
        let range = |slot| {
            let at = kept_range(slot);
            let [there, start, end] = [at, at + 1, at + 2].map(|word| kept.load(word));
            (there != 0).then_some(start..=end)
        };
        let state = State {
            mapped: Default::default(),
            left: [0, 1, 2].map(range),
            table,
            out: kept.load(OUT) != 0,
        };
        Self {
            server,
            kept,
            state: Mutex::new(state),
        }
    }

    /// The device has mapped what it has. What it has not is nobody's.
    pub(crate) fn settle(&self) {
        let state = &mut *self.lock();
        if state.out {
            state.mapped[TABLE] = state.left[TABLE].take();
            if let Some(range) = &state.mapped[TABLE] {
                // It may be another server now, which has nothing yet.
                let _ = self.server.map_mmio(range);
            }
        }
        for (slot, range) in std::mem::take(&mut state.left).into_iter().enumerate() {
            if let Some(range) = range {
                let _ = self.unmap_in(&range);
                if state.mapped[slot].is_none() {
                    self.kept.store(kept_range(slot), 0);
                }
            }
        }
    }

    /// Has Xen send accesses to a range here.
    fn map_range(
        &self,
        state: &mut State,
        slot: usize,
        range: RangeInclusive<u64>,
    ) -> Result<(), DeviceModelError> {
        let left = state.left[slot].take();
        if let Some(other) = left.as_ref().filter(|left| **left != range) {
            // Of an access that is done again.
            let _ = self.unmap_in(other);
        }
        let at = kept_range(slot);
        self.kept.store(at + 1, *range.start());
        self.kept.store(at + 2, *range.end());
        self.kept.store(at, 1);
        self.kept.about_to();
        match self.server.map_mmio(&range) {
            Ok(()) => {}
            Err(e) if e.errno == Errno::EEXIST && left.as_ref() == Some(&range) => {}
            Err(e) => {
                self.kept.store(at, 0);
                return Err(e);
            }
        }
        state.mapped[slot] = Some(range);
        Ok(())
    }

    fn unmap_in(&self, range: &RangeInclusive<u64>) -> Result<(), DeviceModelError> {
        self.kept.about_to();
        self.server.unmap_mmio(range)
    }

    /// Ends that, if it is so.
    fn unmap_slot(&self, state: &mut State, slot: usize, bar: Bar) {
        let Some(range) = state.mapped[slot].take() else {
            return;
        };
        match self.unmap_in(&range) {
            Ok(()) => log::debug!("{bar} {range:x?} unmapped"),
            Err(e) => log::debug!("{bar}: {e}"),
        }
        self.kept.store(kept_range(slot), 0);
    }

    fn set_out(&self, state: &mut State, out: bool) {
        state.out = out;
        self.kept.store(OUT, u64::from(out));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the page table is.
    pub(crate) fn table(&self) -> TableState {
        let state = self.lock();
        let table = state.table.as_ref().filter(|_| !state.out);
        table.map_or(TableState::Trapped, MovingTable::state)
    }

    /// Whether the page table is no RAM while the vGPU is saved.
    pub(crate) fn is_out(&self) -> bool {
        self.lock().out
    }

    /// Traps accesses to the page table, which goes to its parking place and
    /// stays there. Nothing is changed when that cannot be.
    ///
    /// # Errors
    /// Xen refuses.
    pub(crate) fn take_table_out(&self) -> Result<(), TableStays> {
        let state = &mut *self.lock();
        let registers = state.mapped[slot(Bar::Registers)].as_ref();
        let upper = registers.map(|r| r.start().saturating_add(REGISTERS));
        let Some(table) = &state.table else {
            return Ok(());
        };
        // RAM goes before a range, so this takes effect as the table moves.
        if let Some(at) = upper.filter(|at| table.is_at(at >> 12)) {
            self.map_range(state, TABLE, at..=at.saturating_add(REGISTERS - 1))?;
        }
        if state.table.as_mut().is_none_or(MovingTable::park) {
            self.set_out(state, true);
            return Ok(());
        }
        self.unmap_slot(state, TABLE, Bar::Registers);
        Err(TableStays::Refused)
    }

    /// The page table is RAM again, at the parking place `gfn`: moves it to
    /// where BAR0 is.
    pub(crate) fn take_table_in(&self, gfn: u64) {
        let state = &mut *self.lock();
        self.set_out(state, false);
        let Some(table) = &mut state.table else {
            return;
        };
        table.renew(gfn);
        let Some(registers) = &state.mapped[slot(Bar::Registers)] else {
            return;
        };
        let at = registers.start().saturating_add(REGISTERS);
        // If it cannot be, it stays trapped here; the next address is tried
        // anew. If it can, a range under it is never asked.
        if table.move_to(at >> 12) {
            self.unmap_slot(state, TABLE, Bar::Registers);
        }
    }
}

/// Why a page table stays where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableStays {
    /// Its accesses cannot be trapped.
    #[error(transparent)]
    Range(#[from] DeviceModelError),
    /// It cannot be moved.
    #[error("Xen does not move the guest's page table to its parking place")]
    Refused,
}

impl BarSink for Windows {
    fn map(&self, bar: Bar, base: u64, len: u64) {
        let state = &mut *self.lock();
        let mut trapped = len;
        if bar == Bar::Registers
            && !state.out
            && let Some(table) = &mut state.table
            && table.move_to(base.saturating_add(REGISTERS) >> 12)
        {
            trapped = REGISTERS;
        }
        let upper = base.saturating_add(REGISTERS);
        if bar == Bar::Registers
            && let Some(left) = &state.left[TABLE]
            && *left.start() == upper
        {
            // A former device model took the table out from under BAR0.
            trapped = REGISTERS;
        }
        // The device maps only what does not wrap, and nothing empty.
        let range = base..=base.saturating_add(trapped - 1);
        match self.map_range(state, slot(bar), range.clone()) {
            Ok(()) => log::debug!("{bar} {range:x?} mapped"),
            Err(e) => log::debug!("{bar}: {e}"),
        }
    }

    /// The table stays where it is: Linux switches BAR0 off and on again for
    /// each BAR whose size it asks (Linux `drivers/pci/probe.c:__pci_read_base`)
    /// and when the device sleeps, and each move is of 2048 frames.
    fn unmap(&self, bar: Bar, _base: u64, _len: u64) {
        let state = &mut *self.lock();
        self.unmap_slot(state, slot(bar), bar);
        if bar == Bar::Registers {
            self.unmap_slot(state, TABLE, bar);
        }
    }

    fn moved(&self, bar: Bar) {
        let state = &mut *self.lock();
        if bar == Bar::Registers
            && !state.out
            && let Some(table) = &mut state.table
        {
            table.park();
        }
    }
}
