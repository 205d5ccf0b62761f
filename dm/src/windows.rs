//! The device's windows in the guest's address space.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vgpu_device::{Bar, BarSink};
use xen_glue::{DeviceModelError, IoreqServer};

use crate::table::{MovingTable, TableState};

/// Bytes of registers in BAR0; the page table follows.
const REGISTERS: u64 = 8 << 20;

/// Windows as MMIO ranges of the ioreq server, and the page table's RAM in
/// the upper half of BAR0. An access to RAM never becomes a request, so an
/// access to the table is trapped only while the RAM is not there.
pub(crate) struct Windows {
    server: Arc<IoreqServer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What Xen has, for BAR0, BAR2, and the page table when it has a range of
    /// its own: it refuses a range that overlaps another, and what was refused
    /// must not be unmapped.
    mapped: [Option<RangeInclusive<u64>>; 3],
    table: Option<MovingTable>,
    /// The table is no RAM while the vGPU is saved.
    out: bool,
}

/// The place of the page table's own range.
const TABLE: usize = 2;

fn slot(bar: Bar) -> usize {
    match bar {
        Bar::Registers => 0,
        Bar::Aperture => 1,
    }
}

impl Windows {
    pub(crate) fn new(server: Arc<IoreqServer>, table: Option<MovingTable>) -> Self {
        let mapped = Default::default();
        Self {
            server,
            state: Mutex::new(State {
                mapped,
                table,
                out: false,
            }),
        }
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

    /// Traps accesses to the page table, which goes to its parking place and
    /// stays there. Nothing is changed when that cannot be.
    ///
    /// # Errors
    /// Xen refuses.
    pub(crate) fn take_table_out(&self) -> Result<(), TableStays> {
        let state = &mut *self.lock();
        let Some(table) = &mut state.table else {
            return Ok(());
        };
        let registers = state.mapped[slot(Bar::Registers)].as_ref();
        let upper = registers.map(|r| r.start().saturating_add(REGISTERS));
        // RAM goes before a range, so this takes effect as the table moves.
        let upper = upper.filter(|at| table.is_at(at >> 12));
        if let Some(at) = upper {
            self.server
                .map_mmio(&(at..=at.saturating_add(REGISTERS - 1)))?;
            state.mapped[TABLE] = Some(at..=at.saturating_add(REGISTERS - 1));
        }
        if table.park() {
            state.out = true;
            return Ok(());
        }
        if let Some(range) = state.mapped[TABLE].take() {
            self.server.unmap_mmio(&range)?;
        }
        Err(TableStays::Refused)
    }

    /// The page table is RAM again, at the parking place `gfn`: moves it to
    /// where BAR0 is.
    pub(crate) fn take_table_in(&self, gfn: u64) {
        let state = &mut *self.lock();
        state.out = false;
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
        if table.move_to(at >> 12)
            && let Some(range) = state.mapped[TABLE].take()
        {
            self.unmap_range(&range, Bar::Registers);
        }
    }

    fn unmap_range(&self, range: &RangeInclusive<u64>, bar: Bar) {
        match self.server.unmap_mmio(range) {
            Ok(()) => log::debug!("{bar} {range:x?} unmapped"),
            Err(e) => log::debug!("{bar}: {e}"),
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
        // The device maps only what does not wrap, and nothing empty.
        let range = base..=base.saturating_add(trapped - 1);
        match self.server.map_mmio(&range) {
            Ok(()) => {
                log::debug!("{bar} {range:x?} mapped");
                state.mapped[slot(bar)] = Some(range);
            }
            Err(e) => log::debug!("{bar}: {e}"),
        }
    }

    /// The table stays where it is: Linux switches BAR0 off and on again for
    /// each BAR whose size it asks (Linux `drivers/pci/probe.c:__pci_read_base`)
    /// and when the device sleeps, and each move is of 2048 frames.
    fn unmap(&self, bar: Bar, _base: u64, _len: u64) {
        let state = &mut *self.lock();
        if let Some(range) = state.mapped[slot(bar)].take() {
            self.unmap_range(&range, bar);
        }
        if bar == Bar::Registers
            && let Some(range) = state.mapped[TABLE].take()
        {
            self.unmap_range(&range, bar);
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
