//! The shadow ring and register page.

use std::sync::Arc;

use guest_memory::PAGE_SIZE;

use super::buffers::Buffers;
use super::image::Ring;
use super::site::read_dwords;
use super::{PrepareError, Source};
use crate::dma::{HostPage, HostPages, OutOfPages};
use crate::windows::{Key, Pin, What, entry};

/// A shadow ring and register page of one vGPU on one engine. Workloads of
/// all its contexts use it in turn; it is used anew only when the last one
/// is through.
#[derive(Default)]
pub struct Shadow {
    registers: Option<Arc<HostPage>>,
    /// It only grows: another length would be another window.
    ring: Vec<Arc<HostPage>>,
    /// A batch has run that nobody looked at: MI_SET_PREDICATE in it may turn
    /// commands of a later ring into no-ops.
    pub(super) unaudited: bool,
    /// Where copies of batches go.
    pub(super) buffers: Buffers,
}

impl Shadow {
    /// What a workload from one of them may have done, one from another may
    /// find done.
    pub fn agree(shadows: &mut [Self]) {
        let unaudited = shadows.iter().any(|s| s.unaudited);
        for s in shadows {
            s.unaudited = unaudited;
        }
    }

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

    /// Own pages it holds.
    pub fn pages(&self) -> usize {
        usize::from(self.registers.is_some()) + self.ring.len() + self.buffers.pages()
    }

    /// The ring's pages, `count` at least.
    fn ring_pages(
        &mut self,
        count: usize,
        pages: &Arc<HostPages>,
    ) -> Result<Vec<Arc<HostPage>>, OutOfPages> {
        // Bounded by the largest ring, 512 pages.
        while self.ring.len() < count {
            self.ring.push(Arc::new(pages.allocate()?));
        }
        Ok(self.ring.clone())
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

/// Bytes kept free in front of the commands: for register changes that the
/// GPU makes on its way from another vGPU's workload.
const PROLOGUE_BYTES: u32 = 512;

/// How often the tail can move behind the commands. A load that names a
/// running context needs a tail the hardware has not reached, or it may take
/// it for idle (WaIdleLiteRestore; Linux `gt/gen8_engine_cs.c:
/// gen8_emit_wa_tail` keeps two MI_NOOPs for that).
const TAIL_MOVES: u32 = 16;

/// Bytes of one move: a tail is at a qword.
const MOVE_BYTES: u32 = 8;

/// The largest ring (Linux `gt/intel_ring.c:intel_engine_create_ring` with
/// the field's bits 20:12).
const MAX_RING: u32 = 512 * 4096;

/// The audited commands, where the GPU finds them.
pub struct ShadowRing {
    pub pin: Pin,
    pub pages: Vec<Arc<HostPage>>,
    /// Bytes.
    pub size: u32,
    /// Offset of the first command.
    pub head: u32,
    /// Offset behind the last one.
    pub tail: u32,
    /// What is free in front of the first command, in bytes.
    prologue: u32,
    /// How often the tail can still move.
    moves: u32,
}

impl ShadowRing {
    /// Puts commands in front of the others; returns the head to start from.
    /// `None` when there is no room.
    pub fn prologue(&self, commands: &[u32]) -> Option<u32> {
        // A head is at a qword, or where the guest's is.
        let dwords = commands.len().next_multiple_of(2);
        let bytes = u32::try_from(dwords * 4).ok()?;
        if bytes > self.prologue {
            return None;
        }
        let head = self.head - bytes;
        let padding = std::iter::repeat_n(0, dwords - commands.len());
        let words = commands.iter().copied().chain(padding);
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        // The room is in the first page.
        self.pages
            .first()?
            .write(usize::try_from(head).ok()?, &bytes);
        Some(head)
    }

    /// How often the tail can still move.
    pub const fn moves(&self) -> u32 {
        self.moves
    }

    /// Moves the tail past the next MI_NOOPs.
    pub fn move_tail(&mut self) -> Option<u32> {
        self.moves = self.moves.checked_sub(1)?;
        self.tail += MOVE_BYTES;
        Some(self.tail)
    }
}

/// Puts the audited dwords into the shadow ring. They stand in one piece
/// from its start on, wherever the guest has them: what leads back to the
/// guest's offsets is only where the head ends, and that is the guest's tail.
pub fn write_ring(
    source: &Source<'_>,
    shadow: &mut Shadow,
    ring: &Ring,
    words: &[u32],
) -> Result<ShadowRing, PrepareError> {
    let bytes = ring.pending();
    // A tail is at a qword, so the first command may not be.
    let odd = bytes & 4;
    let with_room = PROLOGUE_BYTES + odd + bytes + TAIL_MOVES * MOVE_BYTES;
    // The tail must not meet the end, which is offset 0.
    let (head, moves, needed) = if with_room < MAX_RING {
        (PROLOGUE_BYTES + odd, TAIL_MOVES, with_room + MOVE_BYTES)
    } else {
        (odd, 0, odd + bytes)
    };
    let padding = usize::try_from(moves * MOVE_BYTES).unwrap_or(0);
    let words = words.iter().copied();
    let mut data: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    data.resize(data.len() + padding, 0);
    let needed = usize::try_from(needed).unwrap_or(usize::MAX);
    let pages = shadow.ring_pages(needed.div_ceil(PAGE_SIZE), source.pages)?;
    let mut at = usize::try_from(head).unwrap_or(0);
    let mut rest = data.as_slice();
    while !rest.is_empty() {
        let in_page = at % PAGE_SIZE;
        let (these, later) = rest.split_at((PAGE_SIZE - in_page).min(rest.len()));
        if let Some(page) = pages.get(at / PAGE_SIZE) {
            page.write(in_page, these);
        }
        at += these.len();
        rest = later;
    }
    let entries: Vec<u64> = pages.iter().map(|p| entry(p.bus())).collect();
    let size = u32::try_from(pages.len() * PAGE_SIZE).unwrap_or(MAX_RING);
    let key = Key {
        vgpu: source.vgpu,
        what: What::Ring {
            page: pages.first().map_or(0, |p| p.bus()),
        },
    };
    Ok(ShadowRing {
        pin: source.windows.pin(key, &entries)?,
        pages,
        size,
        head,
        // Only what fills the largest ring to its end wraps.
        tail: (head + bytes) % size,
        prologue: if moves > 0 { PROLOGUE_BYTES } else { 0 },
        moves,
    })
}
