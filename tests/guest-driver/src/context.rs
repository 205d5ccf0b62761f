//! A context: image, ring, page tables, and buffers to work in
//! (Linux `gt/intel_lrc.c:lrc_alloc`, `init_common_regs`).

use gen8::pte::{self, Level};
use gen8::{Engine, csb::Descriptor, lrc, ring};
use guest_memory::{GuestMemory, PAGE_SIZE};

use crate::{Batch, DriverError, Frames, Gpu, Platform};

const RING_PAGES: u32 = 4;
const RING_BYTES: u32 = RING_PAGES * 4096;
const PAGE: u64 = PAGE_SIZE as u64;
/// Where the slots start in the context's address space.
const BASE: u64 = 0x12_3450_0000;
/// Pages of a slot: one for commands, the rest for data.
const SLOT_PAGES: u64 = 1 + DATA_BYTES / PAGE;
/// Bytes of data of a slot.
pub const DATA_BYTES: u64 = 64 << 10;
/// Requests of one context that may be under way.
pub const SLOTS: usize = 2;

/// Buffers for one request.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Guest-physical address of the batch.
    pub batch: u64,
    /// Its address in the context.
    pub batch_va: u64,
    /// Guest-physical address of the data.
    pub data: u64,
    /// Its address in the context.
    pub data_va: u64,
}

/// A context on one engine.
#[derive(Debug)]
pub struct Context {
    /// The engine.
    pub engine: Engine,
    /// The id in the descriptor's upper dword.
    pub id: u32,
    /// Buffers.
    pub slots: [Slot; SLOTS],
    /// Number of the last request written to the ring.
    pub seqno: u32,
    descriptor: Descriptor,
    root: u64,
    registers: u64,
    ring: u64,
    tail: u32,
    timeline: u64,
    timeline_ggtt: u32,
    moves: Option<Moves>,
}

/// What it takes to bind a context's buffers elsewhere.
#[derive(Debug)]
struct Moves {
    /// Frames for each slot, in turn with those it has.
    spare: [u64; SLOTS],
    /// A table for the slots' entries, in turn with the one they are in.
    table: u64,
    count: u64,
}

impl Context {
    /// Builds a context on `engine`.
    ///
    /// # Errors
    /// When guest memory runs out.
    pub fn new<P: Platform>(
        gpu: &mut Gpu<P>,
        frames: &mut Frames,
        engine: Engine,
        id: u32,
    ) -> Result<Self, DriverError> {
        let pages = gpu.part().image(engine).pages;
        let memory = gpu.platform().memory();
        let image = frames.take(memory, pages.into())?;
        let ring = frames.take(memory, RING_PAGES.into())?;
        let timeline = frames.take(memory, 1)?;
        let root = frames.take(memory, 1)?;
        let mut slots = [Slot {
            batch: 0,
            batch_va: 0,
            data: 0,
            data_va: 0,
        }; SLOTS];
        let mut va = BASE;
        for slot in &mut slots {
            let batch = frames.take(memory, SLOT_PAGES)?;
            *slot = Slot {
                batch,
                batch_va: va,
                data: batch + PAGE,
                data_va: va + PAGE,
            };
            for page in 0..SLOT_PAGES {
                map(memory, frames, root, va + page * PAGE, batch + page * PAGE)?;
            }
            // A hole between slots, so that an overrun faults.
            va += (SLOT_PAGES + 3) * PAGE;
        }
        let lrca = gpu.map_global(image, pages);
        let ring_ggtt = gpu.map_global(ring, RING_PAGES);
        let timeline_ggtt = gpu.map_global(timeline, 1);
        gpu.announce_page_table(root);

        let registers = image + u64::from(lrc::REGISTER_PAGE) * PAGE;
        let memory = gpu.platform().memory();
        let base = engine.mmio_base();
        let inhibit = lrc::RESTORE_INHIBIT | lrc::INHIBIT_SYNC_SWITCH;
        let b = root.to_le_bytes();
        let values = [
            (
                lrc::CONTEXT_CONTROL,
                ring::CONTEXT_CONTROL,
                inhibit << 16 | inhibit,
            ),
            (lrc::RING_HEAD, ring::HEAD, 0),
            (lrc::RING_TAIL, ring::TAIL, 0),
            (lrc::RING_START, ring::START, ring_ggtt),
            (lrc::RING_CTL, ring::CTL, (RING_PAGES - 1) << 12 | 1),
            (
                lrc::PDP0_UDW,
                ring::PDP0_LO + 4,
                u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
            ),
            (
                lrc::PDP0_LDW,
                ring::PDP0_LO,
                u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            ),
        ];
        for (dword, register, value) in values {
            let at = registers + dword as u64 * 4;
            memory.write_u32(at - 4, base + register)?;
            memory.write_u32(at, value)?;
        }
        // Valid, 48-bit, LLC-coherent, privileged ring.
        let flags = 1 | 3 << 3 | 1 << 5 | 1 << 8;
        let descriptor = Descriptor(u64::from(id) << 32 | u64::from(lrca) | flags);
        Ok(Self {
            engine,
            id,
            slots,
            seqno: 0,
            descriptor,
            root,
            registers,
            ring,
            tail: 0,
            timeline,
            timeline_ggtt,
            moves: None,
        })
    }

    /// Lets [`Context::bind_anew`] be called.
    ///
    /// # Errors
    /// When guest memory runs out.
    pub fn allow_moves(
        &mut self,
        memory: &dyn GuestMemory,
        frames: &mut Frames,
    ) -> Result<(), DriverError> {
        let mut spare = [0; SLOTS];
        for first in &mut spare {
            *first = frames.take(memory, SLOT_PAGES)?;
        }
        self.moves = Some(Moves {
            spare,
            table: frames.take(memory, 1)?,
            count: 0,
        });
        Ok(())
    }

    /// Puts a slot's buffers into other frames, at the same addresses, as
    /// i915 does when it binds another object there. Nothing that uses the
    /// slot may be under way. When nothing of the context is (`idle`), now and
    /// then their table is another page too, and what it was is used for
    /// something else: after it was replaced, or, as i915 does, after it was
    /// taken out and before another is put in. Does nothing unless moves are
    /// allowed.
    ///
    /// # Errors
    /// When guest memory fails.
    pub fn bind_anew(
        &mut self,
        memory: &dyn GuestMemory,
        slot: usize,
        idle: bool,
    ) -> Result<(), DriverError> {
        /// Bindings between two moves of the table.
        const TABLE_EVERY: u64 = 5;
        /// What kernels have in their memory: an address in its upper half.
        const SOMETHING_ELSE: u64 = 0xffff_8880_0000_0008;
        let Some(moves) = &mut self.moves else {
            return Ok(());
        };
        moves.count += 1;
        let buffers = &mut self.slots[slot];
        if idle && moves.count % TABLE_EVERY == 0 {
            let at = entry_address(memory, self.root, buffers.batch_va, Level::Pd)?;
            let old = memory.read_u64(at)? & pte::ADDRESS;
            let mut entries = [0; PAGE_SIZE];
            memory.read(old, &mut entries)?;
            let out_first = (moves.count / TABLE_EVERY).is_multiple_of(2);
            if out_first {
                memory.write_u64(at, 0)?;
                // A page given back is cleared for whoever gets it.
                for i in (0..PAGE).step_by(8) {
                    memory.write_u64(old + i, 0)?;
                }
            }
            for (i, entry) in (0..).step_by(8).zip(entries.as_chunks::<8>().0) {
                memory.write(moves.table + i, entry)?;
            }
            memory.write_u64(at, moves.table | pte::PRESENT | pte::WRITABLE)?;
            if !out_first {
                for i in (0..PAGE).step_by(8) {
                    memory.write_u64(old + i, SOMETHING_ELSE + i)?;
                }
            }
            moves.table = old;
        }
        let first = std::mem::replace(&mut moves.spare[slot], buffers.batch);
        buffers.batch = first;
        buffers.data = first + PAGE;
        for page in 0..SLOT_PAGES {
            let va = buffers.batch_va + page * PAGE;
            let at = entry_address(memory, self.root, va, Level::Pt)?;
            let frame = first + page * PAGE;
            memory.write_u64(at, frame | pte::PRESENT | pte::WRITABLE)?;
        }
        Ok(())
    }

    /// Where the table is now that names its buffers.
    ///
    /// # Errors
    /// When guest memory fails.
    pub fn table(&self, memory: &dyn GuestMemory) -> Result<u64, DriverError> {
        let at = entry_address(memory, self.root, self.slots[0].batch_va, Level::Pd)?;
        Ok(memory.read_u64(at)? & pte::ADDRESS)
    }

    /// Maps `pages` pages from guest-physical `gpa` at the per-process address
    /// `va`.
    ///
    /// # Errors
    /// When guest memory runs out.
    pub fn map(
        &self,
        memory: &dyn GuestMemory,
        frames: &mut Frames,
        va: u64,
        gpa: u64,
        pages: u64,
    ) -> Result<(), DriverError> {
        (0..pages).try_for_each(|page| {
            let (va, gpa) = (va + page * PAGE, gpa + page * PAGE);
            map(memory, frames, self.root, va, gpa)
        })
    }

    /// Writes a request that runs the batch at `batch_va` to the ring; its
    /// number.
    ///
    /// # Errors
    /// When guest memory fails.
    pub fn add_request(
        &mut self,
        memory: &dyn GuestMemory,
        batch_va: u64,
    ) -> Result<u32, DriverError> {
        self.seqno += 1;
        let mut commands = Batch::new();
        commands.start(batch_va);
        if self.engine == Engine::Rcs {
            commands.pipe_control_write(self.timeline_ggtt, self.seqno);
        } else {
            commands.flush_write(self.timeline_ggtt, self.seqno);
        }
        commands.interrupt();
        let mut dwords = commands.finish();
        // No command crosses the end of the ring: what is left there becomes
        // MI_NOOP (Linux `gt/intel_ring.c:intel_ring_begin`).
        let left = (RING_BYTES - self.tail) / 4;
        if u32::try_from(dwords.len()).is_ok_and(|n| n > left) {
            dwords.splice(0..0, (0..left).map(|_| 0));
        }
        for dword in dwords {
            memory.write_u32(self.ring + u64::from(self.tail), dword)?;
            self.tail = (self.tail + 4) % RING_BYTES;
        }
        Ok(self.seqno)
    }

    /// Stores the ring's tail in the image and returns the descriptor to
    /// load (Linux `execlists_update_context`).
    ///
    /// # Errors
    /// When guest memory fails.
    pub fn publish(&self, memory: &dyn GuestMemory) -> Result<Descriptor, DriverError> {
        memory.write_u32(self.registers + lrc::RING_TAIL as u64 * 4, self.tail)?;
        Ok(self.descriptor)
    }

    /// After the first run the image holds state worth restoring.
    ///
    /// # Errors
    /// When guest memory fails.
    pub fn completed(&self, memory: &dyn GuestMemory) -> Result<u32, DriverError> {
        Ok(memory.read_u32(self.timeline)?)
    }
}

/// Where the entry of `va` at a level lies, all tables above being there.
fn entry_address(
    memory: &dyn GuestMemory,
    root: u64,
    va: u64,
    wanted: Level,
) -> Result<u64, DriverError> {
    let mut table = root;
    let mut level = Level::Pml4;
    loop {
        let at = table + level.index(va) as u64 * 8;
        match level.below() {
            Some(below) if level != wanted => {
                table = memory.read_u64(at)? & pte::ADDRESS;
                level = below;
            }
            _ => return Ok(at),
        }
    }
}

/// Maps one page, making tables as needed.
fn map(
    memory: &dyn GuestMemory,
    frames: &mut Frames,
    root: u64,
    va: u64,
    gpa: u64,
) -> Result<(), DriverError> {
    let mut table = root;
    let mut level = Level::Pml4;
    loop {
        let at = table + level.index(va) as u64 * 8;
        let Some(below) = level.below() else {
            return Ok(memory.write_u64(at, gpa | pte::PRESENT | pte::WRITABLE)?);
        };
        let entry = memory.read_u64(at)?;
        table = if entry & pte::PRESENT != 0 {
            entry & pte::ADDRESS
        } else {
            let new = frames.take(memory, 1)?;
            memory.write_u64(at, new | pte::PRESENT | pte::WRITABLE)?;
            new
        };
        level = below;
    }
}
