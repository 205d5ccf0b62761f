//! Where the audit finds the guest's pages and puts what it made.

use std::collections::HashMap;
use std::sync::Arc;

use gpu_bus::GGTT_ENTRIES;
use guest_memory::{Gfn, PAGE_SIZE};

use super::buffers::{Buffer, Buffers};
use super::{Shadow, Source};
use crate::audit::{AuditError, Site};
use crate::ggtt::{NotMapped, translate};
use crate::windows::{Key, Pin, What, entry};

/// Windows one workload may need: each of its commands may name another
/// page, and what is pinned others cannot have.
const MAX_WINDOWS: usize = 2048;

/// Copies of batches one workload may need. Each takes a window and whole
/// pages, however short the batch is, and those are the host's; i915 has
/// three at most.
const MAX_PLACED: usize = 64;

/// A copy that the GPU runs.
pub struct Placed {
    // The window is free before the buffer is.
    pin: Pin,
    buffer: Arc<Buffer>,
}

impl Placed {
    pub const fn wrote(&self) -> u64 {
        self.pin.wrote
    }

    /// The window in which the GPU finds it.
    pub const fn pin(&self) -> &Pin {
        &self.pin
    }
}

/// The guest of one workload, as its audit sees it. It holds the windows and
/// copies that the audit asked for.
pub struct WorkloadSite<'a> {
    source: &'a Source<'a>,
    buffers: &'a mut Buffers,
    pub(super) pins: HashMap<(u32, u32), Pin>,
    pub(super) placed: Vec<Placed>,
    /// The guest's frames that the GPU is shown in windows.
    pub(super) shown: Vec<Gfn>,
    pub(super) bytes: u64,
}

impl<'a> WorkloadSite<'a> {
    /// Nothing is held yet. Copies go where `shadow` keeps room for them.
    #[must_use]
    pub fn new(source: &'a Source<'a>, shadow: &'a mut Shadow) -> Self {
        Self::with_buffers(source, &mut shadow.buffers)
    }

    pub(super) fn with_buffers(source: &'a Source<'a>, buffers: &'a mut Buffers) -> Self {
        Self {
            source,
            buffers,
            pins: HashMap::new(),
            placed: Vec::new(),
            shown: Vec::new(),
            bytes: 0,
        }
    }
}

/// Copies dwords from one page of the guest's global table.
pub fn read_dwords(source: &Source<'_>, address: u32, dwords: &mut [u32]) -> Result<(), NotMapped> {
    let gfn = translate(source.table, address >> 12)?;
    let page = address & !0xfff;
    let none = NotMapped::NoMemory { address: page, gfn };
    let gpa = gfn.address().ok_or(none)? + u64::from(address & 0xfff);
    let mut bytes = vec![0; dwords.len() * 4];
    source
        .map
        .read(gpa, &mut bytes)
        .map_err(|e| NotMapped::unread(page, gfn, &e))?;
    for (d, b) in dwords.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *d = u32::from_le_bytes(*b);
    }
    Ok(())
}

impl Site for WorkloadSite<'_> {
    fn window(&mut self, page: u32, pages: u32) -> Result<u32, AuditError> {
        if let Some(pin) = self.pins.get(&(page, pages)) {
            return Ok(pin.address());
        }
        if self.pins.len() >= MAX_WINDOWS {
            return Err(AuditError::Exhausted(format!(
                "commands name more than {MAX_WINDOWS} pages"
            )));
        }
        if page.checked_add(pages).is_none_or(|end| end > GGTT_ENTRIES) {
            let address = page.wrapping_shl(12);
            return Err(NotMapped::PastEnd { address, pages }.into());
        }
        let mut entries = Vec::new();
        for p in page..page + pages {
            let gfn = translate(self.source.table, p)?;
            let address = p.wrapping_shl(12);
            let bus = self
                .source
                .map
                .bus(gfn)
                .ok_or(NotMapped::NoMemory { address, gfn })?;
            entries.push(entry(bus));
            self.shown.push(gfn);
        }
        let key = Key {
            vgpu: self.source.vgpu,
            what: What::Guest { page, pages },
        };
        let pin = self
            .source
            .windows
            .pin(key, &entries)
            .map_err(|e| AuditError::Exhausted(e.to_string()))?;
        let address = pin.address();
        self.pins.insert((page, pages), pin);
        Ok(address)
    }

    fn fetch(&mut self, address: u32, dwords: &mut [u32]) -> Result<(), AuditError> {
        let mut rest = dwords;
        let mut at = address;
        while !rest.is_empty() {
            let n = usize::try_from((0x1000 - (at & 0xfff)) / 4)
                .unwrap_or(0)
                .clamp(1, rest.len());
            let (these, later) = rest.split_at_mut(n);
            read_dwords(self.source, at, these)?;
            self.bytes += u64::try_from(n * 4).unwrap_or(0);
            rest = later;
            let step = u32::try_from(n * 4).unwrap_or(0);
            match at.checked_add(step) {
                Some(next) => at = next,
                None if rest.is_empty() => break,
                None => return Err(NotMapped::PastEnd { address, pages: 1 }.into()),
            }
        }
        Ok(())
    }

    fn place(&mut self, batch: &[u32]) -> Result<u32, AuditError> {
        if self.placed.len() >= MAX_PLACED {
            return Err(AuditError::Exhausted(format!(
                "commands name more than {MAX_PLACED} privileged batches"
            )));
        }
        let bytes: Vec<u8> = batch.iter().flat_map(|w| w.to_le_bytes()).collect();
        let buffer = self
            .buffers
            .take(self.source, bytes.len().div_ceil(PAGE_SIZE))
            .map_err(|e| AuditError::Exhausted(e.to_string()))?;
        for (page, chunk) in buffer.pages.iter().zip(bytes.chunks(PAGE_SIZE)) {
            page.write(0, chunk);
        }
        let pin = buffer
            .pin()
            .map_err(|e| AuditError::Exhausted(e.to_string()))?;
        let address = pin.address();
        self.placed.push(Placed { pin, buffer });
        Ok(address)
    }

    fn amend(&mut self, address: u32, at: usize, value: u32) {
        let placed = self.placed.iter().find(|p| p.pin.address() == address);
        let page = placed.and_then(|p| p.buffer.pages.get(at * 4 / PAGE_SIZE));
        if let Some(page) = page {
            page.write(at * 4 % PAGE_SIZE, &value.to_le_bytes());
        }
    }
}
