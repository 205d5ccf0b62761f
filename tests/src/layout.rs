//! Where the hostile guest keeps its things, and how they look when they are
//! right. The global table maps the lowest frames one to one, so a frame's
//! global address is its physical one.

use gen8::csb::Descriptor;
use gen8::{Engine, lrc, pte, ring};
use guest_driver::Batch;
use guest_memory::{GuestMemory, MemoryError, PAGE_SIZE};

use crate::bytes::{high, low};

/// Contexts there is room for; context `n` belongs to engine `n % 4`.
pub const CONTEXTS: usize = 8;
/// Pages the global table maps.
pub const WINDOW_PAGES: u32 = 512;
/// Where a context sees its batch.
pub const BATCH_VA: u64 = 0x4000_0000;
/// Where a context sees its three pages of data.
pub const DATA_VA: u64 = BATCH_VA + PAGE;

const PAGE: u64 = PAGE_SIZE as u64;
const FIRST_FRAME: u64 = 64;
const FRAMES: u64 = 32;
const RING_PAGES: u32 = 4;

/// Guest-physical addresses of one context's things.
#[derive(Clone, Copy, Debug)]
pub struct Place(u64);

impl Place {
    /// The place of context `n`, of which there are [`CONTEXTS`].
    #[must_use]
    pub fn of(n: usize) -> Self {
        let n = u64::try_from(n % CONTEXTS).unwrap_or(0);
        Self((FIRST_FRAME + n * FRAMES) * PAGE)
    }

    /// The image.
    #[must_use]
    pub const fn image(self) -> u64 {
        self.0
    }

    /// The image's register page.
    #[must_use]
    pub const fn registers(self) -> u64 {
        self.0 + lrc::REGISTER_PAGE as u64 * PAGE
    }

    /// The ring, of four pages.
    #[must_use]
    pub const fn ring(self) -> u64 {
        self.0 + 20 * PAGE
    }

    /// The page tables, root first.
    #[must_use]
    pub const fn tables(self) -> [u64; 4] {
        let root = self.0 + 24 * PAGE;
        [root, root + PAGE, root + 2 * PAGE, root + 3 * PAGE]
    }

    /// The batch.
    #[must_use]
    pub const fn batch(self) -> u64 {
        self.0 + 28 * PAGE
    }

    /// Three pages of data.
    #[must_use]
    pub const fn data(self) -> u64 {
        self.0 + 29 * PAGE
    }

    /// Where requests leave their number.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.data() + 2 * PAGE
    }

    /// A descriptor of it.
    #[must_use]
    pub fn descriptor(self, id: u32) -> u64 {
        u64::from(id) << 37 | u64::from(low(self.image())) | 1 | 3 << 3 | 1 << 5 | 1 << 8
    }
}

/// Writes image and page tables of a context that has not run yet; its
/// descriptor, with a fixed id of its own.
///
/// # Errors
/// When a frame is not there.
pub fn write_context(
    memory: &dyn GuestMemory,
    n: usize,
    engine: Engine,
) -> Result<Descriptor, MemoryError> {
    let place = Place::of(n);
    for page in 0..FRAMES {
        memory.write(place.image() + page * PAGE, &[0; PAGE_SIZE])?;
    }
    let [root, pdp, pd, pt] = place.tables();
    let flags = pte::PRESENT | pte::WRITABLE;
    memory.write_u64(root, pdp | flags)?;
    memory.write_u64(pdp + 8, pd | flags)?;
    memory.write_u64(pd, pt | flags)?;
    for page in 0..4 {
        memory.write_u64(pt + page * 8, (place.batch() + page * PAGE) | flags)?;
    }
    let inhibit = lrc::RESTORE_INHIBIT | lrc::INHIBIT_SYNC_SWITCH;
    let base = engine.mmio_base();
    for (dword, register, value) in [
        (
            lrc::CONTEXT_CONTROL,
            ring::CONTEXT_CONTROL,
            inhibit << 16 | inhibit,
        ),
        (lrc::RING_HEAD, ring::HEAD, 0),
        (lrc::RING_TAIL, ring::TAIL, 0),
        (lrc::RING_START, ring::START, low(place.ring())),
        (lrc::RING_CTL, ring::CTL, (RING_PAGES - 1) << 12 | 1),
        (lrc::PDP0_UDW, ring::PDP0_LO + 4, high(root)),
        (lrc::PDP0_LDW, ring::PDP0_LO, low(root)),
    ] {
        set_register(memory, place, dword - 1, base + register)?;
        set_register(memory, place, dword, value)?;
    }
    let id = u32::try_from(n).unwrap_or(0) + 1;
    Ok(Descriptor(place.descriptor(id)))
}

/// Sets one dword of a context's register page.
pub(crate) fn set_register(
    memory: &dyn GuestMemory,
    place: Place,
    dword: usize,
    value: u32,
) -> Result<(), MemoryError> {
    let at = u64::try_from(dword).unwrap_or(0) * 4;
    memory.write_u32(place.registers() + at, value)
}

/// Commands for a context, and the number they leave when they are done.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The context.
    pub context: usize,
    /// Where it runs.
    pub engine: Engine,
    /// The batch.
    pub batch: &'a [u32],
    /// The number.
    pub number: u32,
}

impl Request<'_> {
    /// Writes the batch, the ring from its start, and the tail.
    ///
    /// # Errors
    /// When a frame is not there.
    pub fn write(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        let place = Place::of(self.context);
        write_dwords(memory, place.batch(), self.batch)?;
        let mut commands = Batch::new();
        commands.start(BATCH_VA);
        let sequence = low(place.sequence());
        if self.engine == Engine::Rcs {
            commands.pipe_control_write(sequence, self.number);
        } else {
            commands.flush_write(sequence, self.number);
        }
        commands.interrupt();
        let commands = commands.finish();
        write_dwords(memory, place.ring(), &commands)?;
        let tail = u32::try_from(commands.len() * 4).unwrap_or(0);
        set_register(memory, place, lrc::RING_TAIL, tail)
    }
}

/// Writes dwords one after the other.
pub(crate) fn write_dwords(
    memory: &dyn GuestMemory,
    at: u64,
    dwords: &[u32],
) -> Result<(), MemoryError> {
    let bytes: Vec<u8> = dwords.iter().flat_map(|d| d.to_le_bytes()).collect();
    memory.write(at, &bytes)
}
