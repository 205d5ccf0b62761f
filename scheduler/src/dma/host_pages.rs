//! Pages of vgpud's own that the GPU can reach: shadow tables, shadow
//! rings, shadow register pages, status pages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use guest_memory::{GuestMemory, PAGE_SIZE, VecMemory};

use super::{DmaSpace, chunk_address};
use crate::sync::lock;

/// Pages of a chunk.
const PAGES: u16 = 512;

/// No page is left within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vgpud's own GPU pages are used up: {limit} pages allowed")]
pub struct OutOfPages {
    /// The limit, in pages.
    pub limit: usize,
}

struct OwnChunk {
    memory: Arc<VecMemory>,
    free: Vec<u16>,
}

impl OwnChunk {
    fn whole(&self) -> bool {
        self.free.len() == usize::from(PAGES)
    }
}

struct Inner {
    chunks: BTreeMap<u32, OwnChunk>,
    /// Chunks with a free page.
    open: BTreeSet<u32>,
    /// Chunks of which every page is free.
    whole: usize,
    used: usize,
}

/// The allocator of vgpud's own pages.
pub struct HostPages {
    dma: Arc<DmaSpace>,
    limit: usize,
    inner: Mutex<Inner>,
}

impl HostPages {
    /// An allocator of at most `limit` pages.
    #[must_use]
    pub fn new(dma: Arc<DmaSpace>, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            dma,
            limit,
            inner: Mutex::new(Inner {
                chunks: BTreeMap::new(),
                open: BTreeSet::new(),
                whole: 0,
                used: 0,
            }),
        })
    }

    /// A zeroed page.
    ///
    /// # Errors
    /// [`OutOfPages`] at the limit, or when the bus is full.
    pub fn allocate(self: &Arc<Self>) -> Result<HostPage, OutOfPages> {
        let full = OutOfPages { limit: self.limit };
        let mut inner = lock(&self.inner);
        if inner.used >= self.limit {
            return Err(full);
        }
        let number = match inner.open.first() {
            Some(&number) => number,
            None => {
                let memory = Arc::new(VecMemory::new(PAGES.into()));
                let number = self.dma.insert_own(Arc::clone(&memory)).ok_or(full)?;
                let free = (0..PAGES).rev().collect();
                inner.chunks.insert(number, OwnChunk { memory, free });
                inner.open.insert(number);
                inner.whole += 1;
                number
            }
        };
        let chunk = inner.chunks.get_mut(&number).ok_or(full)?;
        let was_whole = chunk.whole();
        let index = chunk.free.pop().ok_or(full)?;
        let is_full = chunk.free.is_empty();
        let memory = Arc::clone(&chunk.memory);
        inner.whole -= usize::from(was_whole);
        if is_full {
            inner.open.remove(&number);
        }
        inner.used += 1;
        drop(inner);
        let page = HostPage {
            pages: Arc::clone(self),
            memory,
            chunk: number,
            index,
        };
        page.write(0, &[0; PAGE_SIZE]);
        Ok(page)
    }

    /// `count` zeroed pages, anywhere.
    ///
    /// # Errors
    /// As [`Self::allocate`]; then none is taken.
    pub fn allocate_many(self: &Arc<Self>, count: usize) -> Result<Vec<HostPage>, OutOfPages> {
        (0..count).map(|_| self.allocate()).collect()
    }

    /// Pages in use.
    #[must_use]
    pub fn used(&self) -> usize {
        lock(&self.inner).used
    }

    fn free(&self, number: u32, index: u16) {
        let mut inner = lock(&self.inner);
        inner.used -= 1;
        let Some(chunk) = inner.chunks.get_mut(&number) else {
            return;
        };
        chunk.free.push(index);
        let whole = chunk.whole();
        inner.open.insert(number);
        inner.whole += usize::from(whole);
        // One wholly free chunk is kept, so that a page more or less does
        // not allocate 2 MiB each time.
        if whole && inner.whole > 1 {
            inner.chunks.remove(&number);
            inner.open.remove(&number);
            inner.whole -= 1;
            self.dma.remove(number);
        }
    }
}

/// A page of vgpud's own; returned when dropped. Whoever drops it knows that
/// the GPU no longer uses it.
pub struct HostPage {
    pages: Arc<HostPages>,
    memory: Arc<VecMemory>,
    chunk: u32,
    index: u16,
}

impl HostPage {
    fn offset(&self) -> u64 {
        u64::from(self.index) * 4096
    }

    /// Where the GPU sees it.
    #[must_use]
    pub fn bus(&self) -> u64 {
        chunk_address(self.chunk) + self.offset()
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= PAGE_SIZE),
            "access of {len} bytes at {at:#x} leaves the page"
        );
    }

    /// Copies from the page.
    ///
    /// # Panics
    /// When the range leaves the page.
    pub fn read(&self, at: usize, buf: &mut [u8]) {
        self.check(at, buf.len());
        // In range, so it cannot fail.
        let at = u64::try_from(at).unwrap_or(0);
        let _ = self.memory.read(self.offset() + at, buf);
    }

    /// Copies to the page.
    ///
    /// # Panics
    /// When the range leaves the page.
    pub fn write(&self, at: usize, data: &[u8]) {
        self.check(at, data.len());
        let at = u64::try_from(at).unwrap_or(0);
        let _ = self.memory.write(self.offset() + at, data);
    }

    /// Reads the dword at byte `at`.
    ///
    /// # Panics
    /// When it leaves the page.
    #[must_use]
    pub fn read_u32(&self, at: usize) -> u32 {
        let mut b = [0; 4];
        self.read(at, &mut b);
        u32::from_le_bytes(b)
    }

    /// Writes the qword at byte `at`, in one store when aligned.
    ///
    /// # Panics
    /// When it leaves the page.
    pub fn write_u64(&self, at: usize, value: u64) {
        self.write(at, &value.to_le_bytes());
    }
}

impl Drop for HostPage {
    fn drop(&mut self) {
        self.pages.free(self.chunk, self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_bus::Dma;

    #[test]
    fn a_page_is_where_it_says_and_zeroed_again() {
        let dma = Arc::new(DmaSpace::new());
        let pages = HostPages::new(Arc::clone(&dma), 600);
        let page = pages.allocate().unwrap();
        let bus = page.bus();
        page.write_u64(8, 7);
        let mut b = [0; 8];
        dma.read(bus + 8, &mut b).unwrap();
        assert_eq!(u64::from_le_bytes(b), 7);
        drop(page);
        let again = pages.allocate().unwrap();
        assert_eq!(again.bus(), bus);
        assert_eq!(again.read_u32(8), 0);
    }

    #[test]
    fn the_limit_holds_and_empty_chunks_go() {
        let dma = Arc::new(DmaSpace::new());
        let pages = HostPages::new(Arc::clone(&dma), 1500);
        let held = pages.allocate_many(1500).unwrap();
        assert_eq!(dma.mapped_chunks(), 3);
        assert_eq!(pages.allocate().err(), Some(OutOfPages { limit: 1500 }));
        drop(held);
        assert_eq!((pages.used(), dma.mapped_chunks()), (0, 1));
        assert!(pages.allocate_many(1501).is_err());
        assert_eq!(pages.used(), 0);
    }
}
