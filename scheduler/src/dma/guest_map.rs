//! One guest's memory: where it lies on the GPU's bus, and the way the CPU
//! reaches it.

use std::sync::{Arc, Mutex, RwLock};

use fxhash::FxHashMap;
use guest_memory::{Gfn, GuestMemory, MemoryError, PAGE_SHIFT, WrittenPages};

use super::{CHUNK_SHIFT, DmaSpace, chunk_address};
use crate::sync::{lock, read, write};

/// What one guest may take of the bus address space.
#[derive(Clone, Copy, Debug)]
pub struct MapLimits {
    /// 2 MiB chunks.
    pub chunks: usize,
}

impl Default for MapLimits {
    fn default() -> Self {
        // 64 GiB of guest memory; the bus has room for 512 GiB.
        Self { chunks: 32768 }
    }
}

/// log2 of the frames in a chunk.
const PIECE_SHIFT: u32 = CHUNK_SHIFT - PAGE_SHIFT;

/// A piece of guest memory that is on the bus, for as long as the map is not
/// closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    /// Frame number >> [`PIECE_SHIFT`].
    piece: u64,
    /// The chunk's address.
    bus: u64,
}

/// One guest's memory. All access to it goes through here, so that closing
/// the map ends it.
pub struct GuestMap {
    dma: Arc<DmaSpace>,
    memory: RwLock<Option<Arc<dyn GuestMemory>>>,
    /// Guest-physical address >> [`CHUNK_SHIFT`] to chunk.
    chunks: Mutex<FxHashMap<u64, u32>>,
    limits: MapLimits,
    written: WrittenPages,
}

impl GuestMap {
    /// A map of `memory` with nothing on the bus yet.
    #[must_use]
    pub fn new(dma: Arc<DmaSpace>, memory: Arc<dyn GuestMemory>, limits: MapLimits) -> Self {
        Self {
            dma,
            memory: RwLock::new(Some(memory)),
            chunks: Mutex::default(),
            limits,
            written: WrittenPages::default(),
        }
    }

    /// The bus address of the 2 MiB piece of guest memory that holds
    /// `gfn`, which is put on the bus when it is not there yet.
    ///
    /// `None` when the guest has no such frame, when it has used up its
    /// share of the bus, or when the map is closed. A frame missing inside a
    /// piece that is there has an address, and the GPU faults on it.
    #[must_use]
    pub fn chunk(&self, gfn: Gfn) -> Option<u64> {
        let gpa = gfn.address()?;
        let piece = gpa >> CHUNK_SHIFT;
        if let Some(&number) = lock(&self.chunks).get(&piece) {
            return Some(chunk_address(number));
        }
        // Only memory that answers gets a chunk: a guest can name frames it
        // does not have, and chunks are finite. The read may map foreign
        // memory, so it runs without the table's lock.
        let guard = read(&self.memory);
        let memory = guard.as_ref()?;
        memory.read(gpa, &mut [0; 4]).ok()?;
        let mut chunks = lock(&self.chunks);
        if let Some(&number) = chunks.get(&piece) {
            return Some(chunk_address(number));
        }
        if chunks.len() >= self.limits.chunks {
            return None;
        }
        let number = self
            .dma
            .insert_guest(Arc::clone(memory), piece << CHUNK_SHIFT)?;
        chunks.insert(piece, number);
        Some(chunk_address(number))
    }

    /// The bus address of a frame; `None` as for [`Self::chunk`].
    #[must_use]
    pub fn bus(&self, gfn: Gfn) -> Option<u64> {
        self.bus_near(gfn, &mut None)
    }

    /// As [`Self::bus`], for one of many frames that are often close together:
    /// `near` holds what the last one found.
    pub(crate) fn bus_near(&self, gfn: Gfn, near: &mut Option<Near>) -> Option<u64> {
        let (piece, in_piece) = (gfn.0 >> PIECE_SHIFT, gfn.0 & ((1 << PIECE_SHIFT) - 1));
        let found = match *near {
            Some(found) if found.piece == piece => found,
            _ => *near.insert(Near {
                piece,
                bus: self.chunk(gfn)?,
            }),
        };
        Some(found.bus + (in_piece << PAGE_SHIFT))
    }

    /// Copies guest memory.
    ///
    /// # Errors
    /// See [`MemoryError`]; a closed map has no memory.
    pub fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        match read(&self.memory).as_ref() {
            Some(memory) => memory.read(gpa, buf),
            None => Err(MemoryError::Unmapped(Gfn::containing(gpa))),
        }
    }

    /// Copies to guest memory.
    ///
    /// # Errors
    /// See [`MemoryError`]; a closed map has no memory.
    pub fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        match read(&self.memory).as_ref() {
            Some(memory) => {
                memory.write(gpa, data)?;
                self.written.note(gpa, data.len());
                Ok(())
            }
            None => Err(MemoryError::Unmapped(Gfn::containing(gpa))),
        }
    }

    /// The pages that this process wrote. What the GPU writes is not among
    /// them.
    pub const fn written(&self) -> &WrittenPages {
        &self.written
    }

    /// Forgets how frames were mapped: some may have left the guest, and
    /// others come in their place. The GPU reaches them by the same addresses.
    pub fn invalidate(&self) {
        if let Some(memory) = read(&self.memory).as_ref() {
            memory.invalidate();
        }
    }

    /// Bytes of the guest's memory that are mapped in this process.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        read(&self.memory).as_ref().map_or(0, |m| m.mapped_bytes())
    }

    /// Chunks on the bus now.
    #[must_use]
    pub fn chunks(&self) -> usize {
        lock(&self.chunks).len()
    }

    /// Takes everything off the bus and lets go of the guest's memory. The
    /// engines must be idle of this guest. On return no reference to the
    /// memory is held here or on the bus.
    pub fn close(&self) {
        self.end(DmaSpace::remove);
    }

    /// As [`Self::close`], when an engine that does not reset may still go by
    /// this guest's tables: no bus address of the guest ever means anything
    /// else again.
    pub fn abandon(&self) {
        self.end(DmaSpace::retire);
    }

    fn end(&self, unmap: impl Fn(&DmaSpace, u32)) {
        // Taken first and held, so that no chunk is added behind our back.
        let mut memory = write(&self.memory);
        for (_, number) in lock(&self.chunks).drain() {
            unmap(&self.dma, number);
        }
        *memory = None;
    }
}

impl Drop for GuestMap {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_bus::Dma;
    use guest_memory::VecMemory;

    fn map(pages: usize, chunks: usize) -> (Arc<DmaSpace>, GuestMap, Arc<VecMemory>) {
        let dma = Arc::new(DmaSpace::new());
        let memory = Arc::new(VecMemory::new(pages));
        let shared: Arc<dyn GuestMemory> = Arc::clone(&memory) as _;
        let map = GuestMap::new(Arc::clone(&dma), shared, MapLimits { chunks });
        (dma, map, memory)
    }

    #[test]
    fn the_gpu_and_the_guest_see_the_same_byte() {
        let (dma, map, memory) = map(1025, 9);
        let bus = map.bus(Gfn(700)).unwrap();
        dma.write(bus + 5, &[42]).unwrap();
        let mut b = [0];
        memory.read(700 * 4096 + 5, &mut b).unwrap();
        assert_eq!(b, [42]);
        assert_eq!(map.bus(Gfn(701)), Some(bus + 4096));
        assert_eq!(map.chunks(), 1);
        assert_eq!(dma.guest_address(bus + 5), Some(700 * 4096 + 5));
        assert_eq!(dma.guest_address(0), None);
    }

    #[test]
    fn frames_the_guest_lacks_cost_no_bus_space() {
        let (dma, map, _memory) = map(1025, 9);
        assert_eq!(map.bus(Gfn(4096)), None);
        assert_eq!(map.bus(Gfn(u64::MAX)), None);
        assert_eq!(dma.mapped_chunks(), 0);
        // Inside a piece that exists, the GPU faults.
        let last = map.bus(Gfn(1024)).unwrap();
        assert!(dma.read(last + 4096, &mut [0]).is_err());
    }

    #[test]
    fn a_guest_takes_no_more_than_its_share() {
        let (_dma, map, _memory) = map(1025, 1);
        assert!(map.bus(Gfn(0)).is_some());
        assert_eq!(map.bus(Gfn(512)), None);
    }

    /// Memory that shows its page until told to look anew.
    struct Stale {
        now: VecMemory,
        seen: Mutex<Option<[u8; 4]>>,
    }

    impl GuestMemory for Stale {
        fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
            let mut fresh = [0; 4];
            self.now.read(gpa, &mut fresh)?;
            buf.copy_from_slice(lock(&self.seen).get_or_insert(fresh));
            Ok(())
        }

        fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
            self.now.write(gpa, data)
        }

        fn invalidate(&self) {
            *lock(&self.seen) = None;
        }
    }

    #[test]
    fn frames_that_changed_are_seen_after_an_invalidation() {
        let dma = Arc::new(DmaSpace::new());
        let memory = Arc::new(Stale {
            now: VecMemory::new(1),
            seen: Mutex::default(),
        });
        let map = GuestMap::new(Arc::clone(&dma), memory, MapLimits { chunks: 1 });
        let bus = map.bus(Gfn(0)).unwrap();
        map.write(0, &[1, 2, 3, 4]).unwrap();
        let mut b = [9; 4];
        dma.read(bus, &mut b).unwrap();
        assert_eq!(b, [0; 4]);
        map.invalidate();
        dma.read(bus, &mut b).unwrap();
        assert_eq!(b, [1, 2, 3, 4]);
    }

    #[test]
    fn closing_lets_go_of_the_memory() {
        let (dma, map, memory) = map(1025, 9);
        let bus = map.bus(Gfn(1)).unwrap();
        let weak = Arc::downgrade(&memory);
        drop(memory);
        assert!(weak.upgrade().is_some());
        map.close();
        assert!(weak.upgrade().is_none());
        assert!(dma.read(bus, &mut [0]).is_err());
        assert_eq!(map.bus(Gfn(1)), None);
        assert!(map.write(0, &[0]).is_err());
    }

    #[test]
    fn what_a_lost_engine_may_reach_is_never_another_guest() {
        let dma = Arc::new(DmaSpace::new());
        let guest = || {
            let memory = Arc::new(VecMemory::new(1));
            GuestMap::new(Arc::clone(&dma), memory, MapLimits { chunks: 1 })
        };
        let lost = guest();
        let bus = lost.bus(Gfn(0)).unwrap();
        lost.abandon();
        drop(lost);
        assert!(dma.read(bus, &mut [0]).is_err());
        let next = guest();
        assert_ne!(next.bus(Gfn(0)), Some(bus));
        assert!(dma.read(bus, &mut [0]).is_err());
    }
}
