//! Who looks at what happens to a guest's memory behind its back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_memory::{GuestMemory, MemoryError};

/// Counts the accesses of vgpud and of the GPU to a guest's memory. Those of
/// the guest itself and of its device model do not go this way.
#[derive(Debug, Default)]
pub struct Witness {
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Witness {
    /// Reads and writes so far.
    #[must_use]
    pub fn seen(&self) -> (u64, u64) {
        (
            self.reads.load(Ordering::SeqCst),
            self.writes.load(Ordering::SeqCst),
        )
    }

    /// The same memory, under this witness's eyes.
    pub(crate) fn watch(self: &Arc<Self>, memory: Arc<dyn GuestMemory>) -> Arc<dyn GuestMemory> {
        Arc::new(Watched {
            memory,
            witness: Arc::clone(self),
        })
    }
}

struct Watched {
    memory: Arc<dyn GuestMemory>,
    witness: Arc<Witness>,
}

impl GuestMemory for Watched {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.witness.reads.fetch_add(1, Ordering::SeqCst);
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.witness.writes.fetch_add(1, Ordering::SeqCst);
        self.memory.write(gpa, data)
    }

    fn mapped_bytes(&self) -> u64 {
        self.memory.mapped_bytes()
    }

    fn invalidate(&self) {
        self.memory.invalidate();
    }
}
