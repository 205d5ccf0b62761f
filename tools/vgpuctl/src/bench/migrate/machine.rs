//! The guest's graphics memory and what writes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use guest_memory::{Gfn, GuestMemory, MemoryError, PAGE_SIZE};
use softgpu::WriteLog;

use super::pattern::{Fill, Pattern};

/// A guest with graphics memory and a GPU.
pub trait Machine: Send {
    /// Graphics memory: page 0 is frame [`Machine::first`].
    fn memory(&self) -> Arc<dyn GuestMemory>;

    /// The frame of page 0.
    fn first(&self) -> u64;

    /// Makes the contexts that `pattern` needs.
    ///
    /// # Errors
    /// When the guest's driver cannot.
    fn prepare(&mut self, pattern: Pattern) -> anyhow::Result<()>;

    /// Does what is drawn, all of it.
    ///
    /// # Errors
    /// When the guest's driver cannot.
    fn draw(&mut self, fills: &[Fill]) -> anyhow::Result<()>;

    /// The pages that the GPU wrote since this was asked last.
    fn written(&mut self) -> Vec<u64>;
}

/// A machine whose GPU only fills pages, and notes that as softgpu does. Its
/// pages hold one colour each and are made when they are read.
pub struct Emulated {
    pages: Arc<Pages>,
    log: WriteLog,
}

struct Pages(Vec<AtomicU32>);

/// What a page holds before anything is drawn: every eighth is zero.
pub const fn first_colour(page: u32) -> u32 {
    if page.is_multiple_of(8) {
        0
    } else {
        page.wrapping_mul(0x9e37_79b9) | 1
    }
}

impl Emulated {
    /// Of `pages` pages.
    pub fn new(pages: u32) -> Self {
        let colours = (0..pages).map(|page| AtomicU32::new(first_colour(page)));
        Self {
            pages: Arc::new(Pages(colours.collect())),
            log: WriteLog::new(),
        }
    }
}

impl Machine for Emulated {
    fn memory(&self) -> Arc<dyn GuestMemory> {
        Arc::clone(&self.pages) as _
    }

    fn first(&self) -> u64 {
        0
    }

    fn prepare(&mut self, _pattern: Pattern) -> anyhow::Result<()> {
        Ok(())
    }

    fn draw(&mut self, fills: &[Fill]) -> anyhow::Result<()> {
        for fill in fills {
            let (first, count) = fill.pages;
            let range = usize::try_from(first)?..usize::try_from(first + count)?;
            for page in self.pages.0.get(range).unwrap_or_default() {
                page.store(fill.colour, Ordering::Relaxed);
            }
            self.log.record(first << 12, usize::try_from(count << 12)?);
        }
        Ok(())
    }

    fn written(&mut self) -> Vec<u64> {
        self.log.take().into_iter().map(|at| at >> 12).collect()
    }
}

impl GuestMemory for Pages {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let gfn = Gfn::containing(gpa);
        let page = usize::try_from(gfn.0).ok().and_then(|at| self.0.get(at));
        // Whole pages are all that a migration reads.
        let whole = gpa.is_multiple_of(4096) && buf.len() == PAGE_SIZE;
        let page = page.filter(|_| whole).ok_or(MemoryError::Unmapped(gfn))?;
        let colour = page.load(Ordering::Relaxed).to_le_bytes();
        buf.as_chunks_mut().0.fill(colour);
        Ok(())
    }

    fn write(&self, gpa: u64, _data: &[u8]) -> Result<(), MemoryError> {
        Err(MemoryError::Unmapped(Gfn::containing(gpa)))
    }
}
