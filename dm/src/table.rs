//! The guest's global page table: RAM of the guest that follows BAR0, or the
//! table in the area shared with vgpud.

use std::fmt;

use serde::Serialize;
use vgpu_device::GgttTable;
use xen_glue::{DeviceModel, DeviceModelError, Extent, TABLE_FRAMES, TableFrames};

/// RAM of the guest. The device uses it for what is trapped all the same.
pub(crate) struct InRam(pub(crate) TableFrames);

impl GgttTable for InRam {
    fn load(&self, index: u32) -> u64 {
        self.0.load(index)
    }

    fn store(&self, index: u32, entry: u64) {
        self.0.store(index, entry);
    }
}

/// The table in the shared area, every access trapped.
pub(crate) struct InSharedArea(pub(crate) vgpu_ring::GgttTable);

impl GgttTable for InSharedArea {
    fn load(&self, index: u32) -> u64 {
        self.0.load(index)
    }

    fn store(&self, index: u32, entry: u64) {
        self.0.store(index, entry);
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

/// The table's frames in the guest, and where they lie.
pub(crate) struct MovingTable {
    dm: DeviceModel,
    /// Where they belong while BAR0 has no address.
    parking: u64,
    at: u64,
    moves: u64,
    refused: u64,
}

impl MovingTable {
    /// The table that lies at `parking`.
    pub(crate) fn new(dm: DeviceModel, parking: u64) -> Self {
        Self {
            dm,
            parking,
            at: parking,
            moves: 0,
            refused: 0,
        }
    }

    pub(crate) fn state(&self) -> TableState {
        TableState::Ram {
            gfn: self.at,
            moves: self.moves,
            refused: self.refused,
        }
    }

    /// Moves the table away from where BAR0 was.
    pub(crate) fn park(&mut self) {
        self.move_to(self.parking);
    }

    /// Moves the table to `gfn`; says whether it is there. RAM of the guest
    /// that was there is gone: a guest that puts BAR0 over its own memory
    /// loses it.
    pub(crate) fn move_to(&mut self, gfn: u64) -> bool {
        if self.at == gfn {
            return true;
        }
        match self.relocate(self.at, gfn, TABLE_FRAMES) {
            Ok(()) => {
                self.at = gfn;
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
