//! The guest's page table, as vgpud reads it.

use std::sync::{Arc, PoisonError, RwLock};

use vgpu_ring::GgttTable;
use vgpu_sched::ggtt::GuestGgtt;
use xen_glue::TableFrames;

/// A table that is RAM of the guest, or else in the shared area.
#[derive(Clone)]
pub(crate) struct Table {
    shared: GgttTable,
    frames: Arc<RwLock<Option<TableFrames>>>,
}

impl Table {
    pub(crate) fn new(shared: GgttTable, frames: Option<TableFrames>) -> Self {
        Self {
            shared,
            frames: Arc::new(RwLock::new(frames)),
        }
    }

    /// Reads `frames` from now on, or the shared area.
    pub(crate) fn set(&self, frames: Option<TableFrames>) {
        *self.frames.write().unwrap_or_else(PoisonError::into_inner) = frames;
    }

    /// Whether it is RAM.
    pub(crate) fn in_ram(&self) -> bool {
        let frames = self.frames.read().unwrap_or_else(PoisonError::into_inner);
        frames.is_some()
    }
}

impl GuestGgtt for Table {
    fn load(&self, index: u32) -> u64 {
        let frames = self.frames.read().unwrap_or_else(PoisonError::into_inner);
        match &*frames {
            Some(frames) => frames.load(index),
            None => self.shared.load(index),
        }
    }
}
