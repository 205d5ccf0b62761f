//! The bus addresses the GPU can reach.
//!
//! The GPU names 39 bits of bus address, cut here into chunks of 2 MiB. A
//! chunk is a 2 MiB piece of one guest's memory or pages of vgpud's own.
//! What a chunk stands for changes only through this module, so an address
//! that no table of ours holds reaches nothing.

mod guest_map;
mod host_pages;

pub use guest_map::{GuestMap, MapLimits};
pub use host_pages::{HostPage, HostPages, OutOfPages};

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use gpu_bus::{BUS_ADDRESS_BITS, Dma, DmaFault};
use guest_memory::{GuestMemory, VecMemory};

use crate::sync::{lock, read, write};

/// Bytes of a chunk, as a shift: what one entry of a page directory maps.
pub const CHUNK_SHIFT: u32 = 21;
/// Bytes of a chunk.
pub const CHUNK_SIZE: u64 = 1 << CHUNK_SHIFT;
/// Number of chunks in the bus address space.
pub const CHUNKS: u32 = 1 << (BUS_ADDRESS_BITS - CHUNK_SHIFT);

/// Chunks of a leaf of the chunk table: leaves appear when first used.
const LEAF: usize = 512;

#[derive(Default)]
enum Chunk {
    #[default]
    Empty,
    Guest {
        memory: Arc<dyn GuestMemory>,
        base: u64,
    },
    Own(Arc<VecMemory>),
}

type Leaf = Box<[RwLock<Chunk>]>;

/// Which chunks may be handed out.
struct Free {
    /// The lowest chunk never used.
    next: u32,
    /// Chunks given back, oldest first: an address rests as long as
    /// possible before it means something else.
    returned: VecDeque<u32>,
    /// Chunks given up for good.
    retired: usize,
}

/// The GPU's view of memory.
pub struct DmaSpace {
    leaves: Box<[OnceLock<Leaf>]>,
    free: Mutex<Free>,
}

impl Default for DmaSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl DmaSpace {
    /// A space in which nothing is mapped.
    #[must_use]
    pub fn new() -> Self {
        let leaves = usize::try_from(CHUNKS).unwrap_or(0) / LEAF;
        Self {
            leaves: (0..leaves).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(Free {
                // Chunk 0 stays empty: an all-zero entry reaches nothing.
                next: 1,
                returned: VecDeque::new(),
                retired: 0,
            }),
        }
    }

    fn chunk(&self, number: u64) -> Option<&RwLock<Chunk>> {
        let number = usize::try_from(number).ok()?;
        self.leaves.get(number / LEAF)?.get()?.get(number % LEAF)
    }

    /// Maps `chunk` at a free place; `None` when there is none.
    fn insert(&self, chunk: Chunk) -> Option<u32> {
        let number = {
            let mut free = lock(&self.free);
            match free.returned.pop_front() {
                Some(n) => n,
                None if free.next < CHUNKS => {
                    free.next += 1;
                    free.next - 1
                }
                None => return None,
            }
        };
        let at = usize::try_from(number).ok()?;
        let leaf = self
            .leaves
            .get(at / LEAF)?
            .get_or_init(|| (0..LEAF).map(|_| RwLock::new(Chunk::Empty)).collect());
        *write(leaf.get(at % LEAF)?) = chunk;
        Some(number)
    }

    /// Maps 2 MiB of a guest from guest-physical `base`.
    fn insert_guest(&self, memory: Arc<dyn GuestMemory>, base: u64) -> Option<u32> {
        self.insert(Chunk::Guest { memory, base })
    }

    /// Maps 2 MiB of this process.
    fn insert_own(&self, memory: Arc<VecMemory>) -> Option<u32> {
        self.insert(Chunk::Own(memory))
    }

    /// Unmaps a chunk. On return no access to it is under way and none can
    /// start; whoever calls this knows that no table names it any more.
    fn remove(&self, number: u32) {
        if let Some(chunk) = self.chunk(number.into()) {
            *write(chunk) = Chunk::Empty;
            lock(&self.free).returned.push_back(number);
        }
    }

    /// Unmaps a chunk as [`Self::remove`] does, and never hands its place out
    /// again: a table still names it.
    fn retire(&self, number: u32) {
        if let Some(chunk) = self.chunk(number.into()) {
            *write(chunk) = Chunk::Empty;
            lock(&self.free).retired += 1;
        }
    }

    /// The guest-physical address behind a bus address; `None` where no guest's
    /// memory is.
    #[must_use]
    pub fn guest_address(&self, address: u64) -> Option<u64> {
        let chunk = self.chunk(address >> CHUNK_SHIFT)?;
        match &*read(chunk) {
            Chunk::Guest { base, .. } => base.checked_add(address & (CHUNK_SIZE - 1)),
            Chunk::Empty | Chunk::Own(_) => None,
        }
    }

    /// Chunks mapped now.
    #[must_use]
    pub fn mapped_chunks(&self) -> usize {
        let free = lock(&self.free);
        usize::try_from(free.next - 1).unwrap_or(0) - free.returned.len() - free.retired
    }

    /// Splits an access at chunk boundaries. The chunk's lock is held while
    /// `f` runs, which is what lets [`Self::remove`] promise an end.
    fn visit(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut f: impl FnMut(&dyn GuestMemory, u64, std::ops::Range<usize>) -> bool,
    ) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < len {
            let at = u64::try_from(done)
                .ok()
                .and_then(|d| address.checked_add(d))
                .ok_or(DmaFault { address, write })?;
            let fault = DmaFault { address: at, write };
            let offset = at & (CHUNK_SIZE - 1);
            let n = usize::try_from(CHUNK_SIZE - offset)
                .map_err(|_| fault)?
                .min(len - done);
            let chunk = self.chunk(at >> CHUNK_SHIFT).ok_or(fault)?;
            let ok = match &*read(chunk) {
                Chunk::Empty => false,
                Chunk::Guest { memory, base } => match base.checked_add(offset) {
                    Some(gpa) => f(memory.as_ref(), gpa, done..done + n),
                    None => false,
                },
                Chunk::Own(memory) => f(memory.as_ref(), offset, done..done + n),
            };
            if !ok {
                return Err(fault);
            }
            done += n;
        }
        Ok(())
    }
}

/// The bus address of a chunk's first byte.
fn chunk_address(number: u32) -> u64 {
    u64::from(number) << CHUNK_SHIFT
}

impl Dma for DmaSpace {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.visit(address, buf.len(), false, |memory, at, range| {
            memory.read(at, &mut buf[range]).is_ok()
        })
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.visit(address, data.len(), true, |memory, at, range| {
            memory.write(at, &data[range]).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl DmaSpace {
        /// Whether a chunk is mapped there.
        pub fn mapped(&self, address: u64) -> bool {
            self.chunk(address >> CHUNK_SHIFT)
                .is_some_and(|c| !matches!(&*read(c), Chunk::Empty))
        }
    }

    #[test]
    fn what_is_not_mapped_faults_at_its_first_byte() {
        let dma = DmaSpace::new();
        let mut b = [0; 8];
        for address in [0, CHUNK_SIZE, (1 << BUS_ADDRESS_BITS) - 4, u64::MAX - 3] {
            let f = dma.read(address, &mut b).unwrap_err();
            assert_eq!((f.address, f.write), (address, false));
        }
    }

    #[test]
    fn an_access_may_cross_into_the_next_chunk_or_fault_there() {
        let dma = DmaSpace::new();
        let a = dma.insert_own(Arc::new(VecMemory::new(512))).unwrap();
        let at = chunk_address(a) + CHUNK_SIZE - 4;
        let next = chunk_address(a) + CHUNK_SIZE;
        assert_eq!(dma.write(at, &[1; 8]).unwrap_err().address, next);
        let b = dma.insert_own(Arc::new(VecMemory::new(512))).unwrap();
        assert_eq!(b, a + 1);
        dma.write(at, &[2; 8]).unwrap();
        let mut back = [0; 8];
        dma.read(at, &mut back).unwrap();
        assert_eq!(back, [2; 8]);
    }

    #[test]
    fn a_removed_chunk_rests_before_it_is_reused() {
        let dma = DmaSpace::new();
        let own = || Arc::new(VecMemory::new(1));
        let a = dma.insert_own(own()).unwrap();
        let b = dma.insert_own(own()).unwrap();
        dma.remove(a);
        dma.remove(b);
        assert_eq!(dma.mapped_chunks(), 0);
        assert!(dma.read(chunk_address(a), &mut [0]).is_err());
        assert_eq!(dma.insert_own(own()), Some(a));
    }
}
