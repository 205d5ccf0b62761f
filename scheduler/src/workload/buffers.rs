//! Pages for copies of batches, kept from one workload to the next: a driver
//! names the same few batches with every submission, so the pages stay where
//! they are and so do their windows.

use std::sync::Arc;

use super::Source;
use crate::dma::{HostPage, OutOfPages};
use crate::windows::{Key, NoRoom, Pin, Windows, entry};

/// Pages kept for later. i915's batches are a page each, two at most to a
/// context.
const KEPT: usize = 16;

/// Pages that hold the copy of one batch, and the name of their window.
pub struct Buffer {
    windows: Arc<Windows>,
    key: Key,
    pub pages: Vec<HostPage>,
    entries: Vec<u64>,
}

impl Buffer {
    fn new(source: &Source<'_>, pages: usize) -> Result<Self, OutOfPages> {
        let pages = source.pages.allocate_many(pages)?;
        Ok(Self {
            windows: Arc::clone(source.windows),
            key: source.windows.own_key(source.vgpu),
            entries: pages.iter().map(|p| entry(p.bus())).collect(),
            pages,
        })
    }

    /// Shows it to the GPU.
    pub fn pin(&self) -> Result<Pin, NoRoom> {
        self.windows.pin(self.key, &self.entries)
    }
}

impl Drop for Buffer {
    /// Its window goes before its pages.
    fn drop(&mut self) {
        self.windows.forget(self.key);
    }
}

/// The buffers of one shadow. One that no workload holds is free.
#[derive(Default)]
pub struct Buffers(Vec<Arc<Buffer>>);

impl Buffers {
    /// Pages they have.
    pub fn pages(&self) -> usize {
        self.0.iter().map(|b| b.pages.len()).sum()
    }

    /// A free one of so many pages.
    pub fn take(&mut self, source: &Source<'_>, pages: usize) -> Result<Arc<Buffer>, OutOfPages> {
        let mut all = self.0.iter_mut();
        let free = all.position(|b| b.pages.len() == pages && Arc::get_mut(b).is_some());
        if let Some(free) = free.and_then(|at| self.0.get(at)) {
            return Ok(Arc::clone(free));
        }
        let new = Arc::new(Buffer::new(source, pages)?);
        if pages <= KEPT {
            // Others go for it that are not in use.
            while self.pages() + pages > KEPT {
                let free = self.0.iter_mut().position(|b| Arc::get_mut(b).is_some());
                let Some(free) = free else {
                    return Ok(new);
                };
                self.0.swap_remove(free);
            }
            self.0.push(Arc::clone(&new));
        }
        Ok(new)
    }
}
