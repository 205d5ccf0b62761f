//! The guest's own global page table.

use gen8::pte;
use guest_memory::{Gfn, MemoryError};

/// The guest's global page table, which its device model writes.
///
/// Entries are guest-physical: the address bits name a frame of that guest.
pub trait GuestGgtt: Send + Sync {
    /// Entry `index`, below 2^20, in one load. What is past the end is 0.
    fn load(&self, index: u32) -> u64;
}

/// Why a page of the guest's table cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMapped {
    /// The entry is not present.
    #[error(
        "graphics address {address:#x} is not mapped in the guest's global table (entry {entry:#x})"
    )]
    Absent {
        /// Page-aligned graphics address.
        address: u32,
        /// The entry.
        entry: u64,
    },
    /// The entry names a frame the guest does not have.
    #[error("graphics address {address:#x} maps {gfn}, which is not guest memory")]
    NoMemory {
        /// Page-aligned graphics address.
        address: u32,
        /// The frame.
        gfn: Gfn,
    },
    /// The entry names a frame that the host cannot map now: it is paged out
    /// and did not come back in time, say.
    #[error("graphics address {address:#x} maps {gfn}, which the host cannot map now")]
    Away {
        /// Page-aligned graphics address.
        address: u32,
        /// The frame.
        gfn: Gfn,
    },
    /// The range passes the end of the 4 GiB table.
    #[error("{pages} pages at graphics address {address:#x} pass the end of the table")]
    PastEnd {
        /// Page-aligned graphics address.
        address: u32,
        /// Pages.
        pages: u32,
    },
}

impl NotMapped {
    /// Why frame `gfn`, which `address` maps, could not be read.
    #[must_use]
    pub const fn unread(address: u32, gfn: Gfn, error: &MemoryError) -> Self {
        match error {
            MemoryError::Host { .. } => Self::Away { address, gfn },
            MemoryError::Unmapped(_) | MemoryError::Wraps { .. } => Self::NoMemory { address, gfn },
        }
    }
}

/// The frame an entry names, when it names one. An address beyond what the
/// bus can carry names none.
#[must_use]
pub const fn frame(entry: u64) -> Option<Gfn> {
    const ABOVE_BUS: u64 = 0x000f_ff80_0000_0000;
    if entry & pte::PRESENT == 0 || entry & ABOVE_BUS != 0 {
        return None;
    }
    Some(Gfn((entry & pte::ADDRESS) >> 12))
}

/// The frame behind page `page` of the guest's table. The entry is loaded
/// once.
///
/// # Errors
/// [`NotMapped::Absent`].
pub fn translate(table: &dyn GuestGgtt, page: u32) -> Result<Gfn, NotMapped> {
    let entry = table.load(page);
    frame(entry).ok_or(NotMapped::Absent {
        address: page.wrapping_shl(12),
        entry,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_present_entry_within_the_bus_names_a_frame() {
        assert_eq!(frame(0x1234_5001), Some(Gfn(0x12345)));
        assert_eq!(frame(0x1234_5000), None);
        assert_eq!(frame(0x80_0000_0001), None);
        assert_eq!(frame(0x7f_ffff_f003), Some(Gfn(0x7ff_ffff)));
    }
}
