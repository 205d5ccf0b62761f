//! The device's windows in the guest's address space.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vgpu_device::{Bar, BarSink};
use xen_glue::IoreqServer;

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
    /// What Xen has, for BAR0 and BAR2: it refuses a range that overlaps
    /// another, and what was refused must not be unmapped.
    mapped: [Option<RangeInclusive<u64>>; 2],
    table: Option<MovingTable>,
}

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
            state: Mutex::new(State { mapped, table }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the page table is.
    pub(crate) fn table(&self) -> TableState {
        let table = &self.lock().table;
        table
            .as_ref()
            .map_or(TableState::Trapped, MovingTable::state)
    }
}

impl BarSink for Windows {
    fn map(&self, bar: Bar, base: u64, len: u64) {
        let state = &mut *self.lock();
        let mut trapped = len;
        if bar == Bar::Registers
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
            match self.server.unmap_mmio(&range) {
                Ok(()) => log::debug!("{bar} {range:x?} unmapped"),
                Err(e) => log::debug!("{bar}: {e}"),
            }
        }
    }

    fn moved(&self, bar: Bar) {
        if bar == Bar::Registers
            && let Some(table) = &mut self.lock().table
        {
            table.park();
        }
    }
}
