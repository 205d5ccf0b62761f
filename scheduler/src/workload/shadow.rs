//! The shadow ring and register page.

use std::sync::Arc;

use gen8::Engine;
use guest_memory::PAGE_SIZE;

use super::image::Ring;
use super::site::read_dwords;
use super::{PrepareError, Source};
use crate::dma::{HostPage, HostPages, OutOfPages};
use crate::windows::{Key, Pin, What, entry};

/// The shadow ring and register page of one vGPU on one engine. It has one
/// workload at a time there, so one set serves all its contexts; it is used
/// anew only when the last workload is through.
#[derive(Default)]
pub struct Shadow {
    registers: Option<Arc<HostPage>>,
    /// By page of the ring; pages appear when first used.
    ring: Vec<Option<Arc<HostPage>>>,
    /// A batch has run that nobody looked at: MI_SET_PREDICATE in it may turn
    /// commands of a later ring into no-ops.
    pub(super) unaudited: bool,
}

impl Shadow {
    pub(super) fn registers(
        &mut self,
        pages: &Arc<HostPages>,
    ) -> Result<Arc<HostPage>, OutOfPages> {
        if let Some(page) = &self.registers {
            return Ok(Arc::clone(page));
        }
        let page = Arc::new(pages.allocate()?);
        self.registers = Some(Arc::clone(&page));
        Ok(page)
    }

    fn ring_page(
        &mut self,
        index: usize,
        pages: &Arc<HostPages>,
    ) -> Result<Arc<HostPage>, OutOfPages> {
        if self.ring.len() <= index {
            // Bounded by the largest ring, 512 pages.
            self.ring.resize(index + 1, None);
        }
        if let Some(Some(page)) = self.ring.get(index) {
            return Ok(Arc::clone(page));
        }
        let page = Arc::new(pages.allocate()?);
        if let Some(slot) = self.ring.get_mut(index) {
            *slot = Some(Arc::clone(&page));
        }
        Ok(page)
    }
}

/// Copies the dwords from head to tail, around the end of the ring.
pub fn read_ring(source: &Source<'_>, ring: &Ring, words: &mut [u32]) -> Result<(), PrepareError> {
    let mut offset = ring.head;
    let mut rest = words;
    while !rest.is_empty() {
        let in_page = offset & 0xfff;
        let n = usize::try_from((0x1000 - in_page) / 4)
            .unwrap_or(0)
            .min(rest.len());
        let (these, later) = rest.split_at_mut(n);
        let address = ring.start.wrapping_add(offset & !0xfff);
        read_dwords(source, address | in_page, these)?;
        rest = later;
        offset += (0x1000 - in_page).min(u32::try_from(n * 4).unwrap_or(0));
        if offset >= ring.size {
            offset = 0;
        }
    }
    Ok(())
}

/// Puts the audited dwords into the shadow ring at the same offsets.
pub fn write_ring(
    source: &Source<'_>,
    shadow: &mut Shadow,
    engine: Engine,
    ring: &Ring,
    words: &[u32],
) -> Result<(Pin, Vec<Arc<HostPage>>), PrepareError> {
    let scratch = source.windows.scratch_entry();
    let mut entries = vec![scratch; usize::try_from(ring.size / 4096).unwrap_or(0)];
    let mut used = Vec::new();
    let mut offset = usize::try_from(ring.head).unwrap_or(0);
    let size = usize::try_from(ring.size).unwrap_or(0);
    let mut rest = words;
    while !rest.is_empty() {
        let in_page = offset % PAGE_SIZE;
        let n = ((PAGE_SIZE - in_page) / 4).min(rest.len());
        let page = shadow.ring_page(offset / PAGE_SIZE, source.pages)?;
        let bytes: Vec<u8> = rest[..n].iter().flat_map(|w| w.to_le_bytes()).collect();
        page.write(in_page, &bytes);
        if let Some(e) = entries.get_mut(offset / PAGE_SIZE) {
            *e = entry(page.bus());
        }
        used.push(page);
        rest = &rest[n..];
        offset += n * 4;
        if offset >= size {
            offset = 0;
        }
    }
    let key = Key {
        vgpu: source.vgpu,
        what: What::Ring { engine },
    };
    Ok((source.windows.pin(key, &entries)?, used))
}
