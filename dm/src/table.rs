//! The guest's global page table: RAM of the guest that follows BAR0, or the
//! table in the area shared with vgpud.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use serde::Serialize;
use vgpu_device::kept::server_word;
use vgpu_device::{GGTT_ENTRIES, GgttTable, Kept};
use xen_glue::{DeviceModel, DeviceModelError, Extent, TABLE_FRAMES, TableFrames};

/// Where entries are.
enum Place {
    /// In the shared area, where vgpud finds them; accesses are trapped.
    Shared,
    /// RAM of the guest. The device uses it for what is trapped all the same.
    Ram(TableFrames),
    /// In both, the same, so that vgpud may read either: it is about to change
    /// over. Accesses are trapped. Says whether RAM is where they go.
    Both(TableFrames, Towards),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Towards {
    Shared,
    Ram,
}

/// The guest's page table, wherever it is.
pub(crate) struct GuestTable {
    shared: vgpu_ring::GgttTable,
    place: RwLock<Place>,
}

impl GuestTable {
    /// The table in `frames`, or else in the shared area.
    pub(crate) fn new(shared: vgpu_ring::GgttTable, frames: Option<TableFrames>) -> Self {
        Self {
            shared,
            place: RwLock::new(frames.map_or(Place::Shared, Place::Ram)),
        }
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Place> {
        self.place.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts into the shared area what is in RAM. Nothing reaches the RAM but
    /// through this process any more. Stores go to both from now on.
    pub(crate) fn leave_ram(&self) {
        let mut place = self.lock();
        *place = match std::mem::replace(&mut *place, Place::Shared) {
            Place::Ram(frames) => {
                for index in 0..GGTT_ENTRIES {
                    self.shared.store(index, frames.load(index));
                }
                Place::Both(frames, Towards::Shared)
            }
            Place::Both(frames, _) => Place::Both(frames, Towards::Shared),
            Place::Shared => Place::Shared,
        };
    }

    /// Puts into `frames` what is in the shared area, likewise.
    pub(crate) fn enter_ram(&self, frames: TableFrames) {
        let mut place = self.lock();
        for index in 0..GGTT_ENTRIES {
            frames.store(index, self.shared.load(index));
        }
        *place = Place::Both(frames, Towards::Ram);
    }

    /// vgpud has changed over. Lets go of what is not read any more; says
    /// whether the table is RAM.
    pub(crate) fn settle(&self) -> bool {
        let mut place = self.lock();
        *place = match std::mem::replace(&mut *place, Place::Shared) {
            Place::Both(frames, Towards::Ram) => Place::Ram(frames),
            Place::Both(_, Towards::Shared) => Place::Shared,
            settled => settled,
        };
        matches!(*place, Place::Ram(_))
    }
}

impl GgttTable for GuestTable {
    fn load(&self, index: u32) -> u64 {
        match &*self.place.read().unwrap_or_else(PoisonError::into_inner) {
            Place::Ram(frames) => frames.load(index),
            Place::Shared | Place::Both(..) => self.shared.load(index),
        }
    }

    fn store(&self, index: u32, entry: u64) {
        match &*self.place.read().unwrap_or_else(PoisonError::into_inner) {
            Place::Ram(frames) => frames.store(index, entry),
            Place::Shared => self.shared.store(index, entry),
            Place::Both(frames, _) => {
                self.shared.store(index, entry);
                frames.store(index, entry);
            }
        }
    }
}

/// Where a guest's page table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum TableState {
    /// In the area shared with vgpud; accesses are trapped.
    Trapped,
    /// Guest RAM, which accesses reach directly.
    Ram {
        /// Its first frame now.
        gfn: u64,
        /// How often it was moved.
        moves: u64,
        /// How often Xen refused to move it. Until BAR0 is mapped anew,
        /// accesses are trapped then.
        refused: u64,
    },
}

impl fmt::Display for TableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trapped => f.write_str("trapped"),
            Self::Ram { gfn, .. } => write!(f, "in RAM, from frame {gfn:#x}"),
        }
    }
}

/// Where it is kept that there is a table, where it is parked, where it is,
/// and where it is going, if it is: frames, and 1 in the first.
const KEPT: [usize; 4] = [
    server_word(1),
    server_word(2),
    server_word(3),
    server_word(4),
];

/// The table's frames in the guest, and where they lie.
pub(crate) struct MovingTable {
    dm: DeviceModel,
    kept: Arc<dyn Kept>,
    /// Where they belong while BAR0 has no address.
    parking: u64,
    at: u64,
    moves: u64,
    refused: u64,
}

impl MovingTable {
    /// The table that lies at `parking`.
    pub(crate) fn new(dm: DeviceModel, parking: u64, kept: Arc<dyn Kept>) -> Self {
        let mut table = Self {
            dm,
            kept,
            parking,
            at: parking,
            moves: 0,
            refused: 0,
        };
        table.renew(parking);
        table
    }

    /// The table of a former device model, if it had one; brought to where it
    /// was going.
    pub(crate) fn left(dm: DeviceModel, kept: Arc<dyn Kept>) -> Option<Self> {
        let [there, parking, at, to] = KEPT.map(|word| kept.load(word));
        if there == 0 {
            return None;
        }
        let mut table = Self {
            dm,
            kept,
            parking,
            at,
            moves: 0,
            refused: 0,
        };
        if to != 0 && to != at {
            table.kept.about_to();
            // Those that are there already are refused.
            for i in (0..TABLE_FRAMES).map(u64::from) {
                if let Err(e) = table.relocate(at.wrapping_add(i), to.wrapping_add(i), 1) {
                    log::trace!("{e}");
                }
            }
            table.arrive(to);
        }
        Some(table)
    }

    fn arrive(&mut self, at: u64) {
        self.at = at;
        self.kept.store(KEPT[2], at);
        self.kept.store(KEPT[3], 0);
    }

    /// Where it is.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn state(&self) -> TableState {
        TableState::Ram {
            gfn: self.at,
            moves: self.moves,
            refused: self.refused,
        }
    }

    /// Moves the table away from where BAR0 was; says whether it is there.
    pub(crate) fn park(&mut self) -> bool {
        self.move_to(self.parking)
    }

    /// Whether the table is at `gfn`.
    pub(crate) fn is_at(&self, gfn: u64) -> bool {
        self.at == gfn
    }

    /// The table at its parking place is another one from now on.
    pub(crate) fn renew(&mut self, parking: u64) {
        self.parking = parking;
        self.kept.store(KEPT[1], parking);
        self.arrive(parking);
        self.kept.store(KEPT[0], 1);
    }

    /// Moves the table to `gfn`; says whether it is there. RAM of the guest
    /// that was there is gone: a guest that puts BAR0 over its own memory
    /// loses it.
    pub(crate) fn move_to(&mut self, gfn: u64) -> bool {
        if self.at == gfn {
            return true;
        }
        self.kept.store(KEPT[3], gfn);
        self.kept.about_to();
        match self.relocate(self.at, gfn, TABLE_FRAMES) {
            Ok(()) => {
                self.arrive(gfn);
                self.moves += 1;
                true
            }
            Err(e) => {
                // What can go wrong without the guest's doing happens the
                // first time; the guest can do it again and again.
                let level = match self.refused {
                    0 => log::Level::Warn,
                    _ => log::Level::Debug,
                };
                log::log!(level, "the page table stays at frame {:#x}: {e}", self.at);
                self.refused += 1;
                self.bring_back(gfn);
                self.kept.store(KEPT[3], 0);
                false
            }
        }
    }

    /// Brings back the frames that moved to `gfn` before one that could not.
    fn bring_back(&self, gfn: u64) {
        for i in (0..TABLE_FRAMES).map(u64::from) {
            let (from, to) = (gfn.wrapping_add(i), self.at.wrapping_add(i));
            if self.relocate(from, to, 1).is_err() {
                return;
            }
        }
    }

    fn relocate(&self, from: u64, to: u64, frames: u32) -> Result<(), DeviceModelError> {
        let extent = Extent {
            first_gfn: from,
            frames,
        };
        self.dm.relocate_memory(extent, to)
    }
}
