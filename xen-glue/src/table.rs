//! A guest's global page table as RAM of the guest.
//!
//! i915 writes the table through the upper half of BAR0, all 2^20 entries of
//! it when it starts in a guest. So that half is guest RAM, which no access
//! traps, and this process has it mapped. The mapping is of machine frames:
//! it stays good wherever in the guest the RAM is moved.

use std::sync::atomic::Ordering;

use guest_memory::PAGE_SIZE;

use crate::{Access, DomId, DomainMemory, Extent, HypercallError, Mapping, Privcmd, PrivcmdError};

/// Frames of the table: 8 MiB, 2^20 entries.
pub const TABLE_FRAMES: u32 = 2048;

/// Where the table lies while BAR0 has no address, 0xfd00_0000. From
/// 0xfc10_0000 to 0xfe00_0000 hvmloader allocates, a few pages from either
/// end, and its e820 map reserves all from 0xfc00_0000 to 4 GiB (Xen
/// `tools/firmware/hvmloader/config.h`, `util.c:mem_alloc`,
/// `util.c:mem_hole_alloc`, `e820.c:build_e820_table`), so no guest puts RAM
/// or a BAR there.
pub const PARKING_GFN: u64 = 0xf_d000;

/// Why a table cannot be RAM of the guest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table's frames are not all there.
    #[error("frame {gfn:#x} of {domid} cannot be mapped: {errno}")]
    Missing {
        /// The domain.
        domid: DomId,
        /// The first such frame.
        gfn: u64,
        /// Why.
        errno: nix::errno::Errno,
    },
    /// Xen gave too few. Those were given back.
    #[error(
        "Xen gave {domid} {got} of {frames} frames{}",
        limit.as_ref().map(|e| format!(", its limit could not be raised: {e}")).unwrap_or_default()
    )]
    TooFew {
        /// The domain.
        domid: DomId,
        /// How many there were.
        got: u32,
        /// Of how many.
        frames: u32,
        /// Why the domain may have no more, when it may not.
        limit: Option<HypercallError>,
    },
    /// Xen did not take all of them back.
    #[error("{domid} gave {got} of {TABLE_FRAMES} frames back")]
    Stays {
        /// The domain.
        domid: DomId,
        /// How many it gave.
        got: u32,
    },
    /// A hypercall.
    #[error(transparent)]
    Hypercall(#[from] HypercallError),
    /// Mapping.
    #[error(transparent)]
    Privcmd(#[from] PrivcmdError),
}

/// The table's frames, mapped. Dropping it unmaps them; the guest keeps them.
#[derive(Debug)]
pub struct TableFrames {
    mapping: Mapping,
}

impl TableFrames {
    /// Gives the domain a table at [`PARKING_GFN`], all zero, and maps it. One
    /// that lies there already, left by a vGPU that came to nothing, is used.
    ///
    /// # Errors
    /// [`TableError`]; the domain has no frame more than before then.
    pub fn create(
        memory: &dyn DomainMemory,
        privcmd: &dyn Privcmd,
        domid: DomId,
    ) -> Result<Self, TableError> {
        let probe = privcmd.map_foreign(domid, &[PARKING_GFN], Access::ReadOnly)?;
        let there = probe.errors.iter().all(Option::is_none);
        drop(probe);
        if !there {
            let extent = Extent {
                first_gfn: PARKING_GFN,
                frames: TABLE_FRAMES,
            };
            give_frames(memory, domid, extent)?;
        }
        let table = Self::open(privcmd, domid, PARKING_GFN)?;
        for index in 0..TABLE_FRAMES * ENTRIES_PER_FRAME {
            table.store(index, 0);
        }
        Ok(table)
    }

    /// Maps the table that lies at `gfn`.
    ///
    /// # Errors
    /// [`TableError::Missing`], or [`TableError::Privcmd`].
    pub fn open(privcmd: &dyn Privcmd, domid: DomId, gfn: u64) -> Result<Self, TableError> {
        let gfns: Vec<u64> = (gfn..gfn.saturating_add(u64::from(TABLE_FRAMES))).collect();
        let map = privcmd.map_foreign(domid, &gfns, Access::ReadWrite)?;
        let mut errors = gfns.iter().zip(&map.errors);
        if let Some((gfn, errno)) = errors.find_map(|(gfn, e)| Some((*gfn, (*e)?))) {
            return Err(TableError::Missing { domid, gfn, errno });
        }
        Ok(Self {
            mapping: map.mapping,
        })
    }

    /// Takes the table's frames, which lie at [`PARKING_GFN`] and are mapped
    /// nowhere, from the domain again, and sets its limit back.
    ///
    /// # Errors
    /// [`TableError::Stays`] or [`TableError::Hypercall`].
    pub fn remove(memory: &dyn DomainMemory, domid: DomId) -> Result<(), TableError> {
        let all = Extent {
            first_gfn: PARKING_GFN,
            frames: TABLE_FRAMES,
        };
        let got = memory.withdraw(domid, all)?;
        if got != TABLE_FRAMES {
            return Err(TableError::Stays { domid, got });
        }
        let raised = memory.maximum_reservation(domid)?;
        // No limit stays none.
        if raised < u64::from(u32::MAX) {
            let before = raised.saturating_sub(u64::from(TABLE_FRAMES));
            memory.set_maximum_reservation(domid, before)?;
        }
        Ok(())
    }

    /// Entry `index`; 0 past the end.
    #[must_use]
    pub fn load(&self, index: u32) -> u64 {
        let entry = offset(index).and_then(|at| self.mapping.atomic_u64(at));
        entry.map_or(0, |e| e.load(Ordering::Acquire))
    }

    /// Sets entry `index`; nothing past the end.
    pub fn store(&self, index: u32, entry: u64) {
        if let Some(e) = offset(index).and_then(|at| self.mapping.atomic_u64(at)) {
            e.store(entry, Ordering::Release);
        }
    }
}

// A page holds 512 entries of 8 bytes.
const ENTRIES_PER_FRAME: u32 = 512;
const _: () = assert!(PAGE_SIZE == 512 * 8);

fn offset(index: u32) -> Option<usize> {
    usize::try_from(index).ok()?.checked_mul(8)
}

/// Gives the domain frames, over what it was built with.
///
/// # Errors
/// [`TableError::TooFew`] or [`TableError::Hypercall`]; the domain has no frame
/// more than before then.
pub fn give_frames(
    memory: &dyn DomainMemory,
    domid: DomId,
    extent: Extent,
) -> Result<(), TableError> {
    let Extent { first_gfn, frames } = extent;
    // Raised first, whether there is room or not: libxl's slack is meant for
    // the pages hvmloader adds.
    let before = memory.maximum_reservation(domid)?;
    let raised = before.saturating_add(u64::from(frames));
    // Xen keeps it in 32 bits, all ones for no limit.
    let limit = if raised < u64::from(u32::MAX) {
        memory.set_maximum_reservation(domid, raised).err()
    } else {
        None
    };
    let got = memory.populate(domid, extent)?;
    if got == frames {
        return Ok(());
    }
    let part = Extent {
        first_gfn,
        frames: got,
    };
    memory.withdraw(domid, part)?;
    if limit.is_none() && raised < u64::from(u32::MAX) {
        memory.set_maximum_reservation(domid, before)?;
    }
    Err(TableError::TooFew {
        domid,
        got,
        frames,
        limit,
    })
}
