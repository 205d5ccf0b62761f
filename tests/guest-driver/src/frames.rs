//! The driver's share of guest memory: pages handed out from a range.

use guest_memory::{GuestMemory, MemoryError, PAGE_SIZE};

use crate::DriverError;

/// Hands out guest frames, lowest first, each once.
#[derive(Debug)]
pub struct Frames {
    next: u64,
    end: u64,
}

impl Frames {
    /// The frames from `first` up to `end`, which is not included.
    #[must_use]
    pub const fn new(first: u64, end: u64) -> Self {
        Self { next: first, end }
    }

    /// The guest-physical address of `pages` zeroed, contiguous pages.
    ///
    /// # Errors
    /// [`DriverError::NoMemory`], or what the memory says.
    pub fn take(&mut self, memory: &dyn GuestMemory, pages: u64) -> Result<u64, DriverError> {
        let left = self.end.saturating_sub(self.next);
        if pages > left {
            return Err(DriverError::NoMemory {
                wanted: pages,
                left,
            });
        }
        let first = self.next;
        self.next += pages;
        let address = first * PAGE_SIZE as u64;
        for page in 0..pages {
            zero(memory, address + page * PAGE_SIZE as u64)?;
        }
        Ok(address)
    }
}

fn zero(memory: &dyn GuestMemory, address: u64) -> Result<(), MemoryError> {
    memory.write(address, &[0; PAGE_SIZE])
}
