//! What a GPU looks like from the bus: registers, DMA, interrupts.
//!
//! vgpud drives every GPU through [`Gpu`] and nothing else. The software GPU
//! implements it, and so will a back end for a PCI device.

#![forbid(unsafe_code)]

mod journal;

pub use journal::{Journal, Place};

/// A GPU's BAR0: registers below [`GGTT_BASE`], global page-table entries
/// from there.
///
/// Offsets are bytes into BAR0, which is [`BAR0_SIZE`] long. An access past
/// its end, or at an offset that is not a multiple of its size, reads all
/// ones and writes nothing, as an unclaimed access does on the real bus.
pub trait Gpu: Send + Sync {
    /// Reads a 32-bit register.
    fn read32(&self, offset: u32) -> u32;
    /// Writes a 32-bit register.
    fn write32(&self, offset: u32, value: u32);
    /// Reads 64 bits: a page-table entry, or two adjacent registers.
    fn read64(&self, offset: u32) -> u64;
    /// Writes 64 bits: a page-table entry, or two adjacent registers.
    fn write64(&self, offset: u32, value: u64);
}

/// Bytes of BAR0 (Linux `gt/intel_ggtt.c:ggtt_probe_common`: the GTT is the upper half).
pub const BAR0_SIZE: u32 = 16 << 20;

/// Where the global page table starts in BAR0.
pub const GGTT_BASE: u32 = 8 << 20;

/// Entries of the global page table: 8 MiB of 8-byte entries map 4 GiB.
pub const GGTT_ENTRIES: u32 = 1 << 20;

/// The BAR0 offset of global page-table entry `index`.
///
/// # Panics
/// When `index` is not below [`GGTT_ENTRIES`].
#[must_use]
pub const fn ggtt_entry(index: u32) -> u32 {
    assert!(index < GGTT_ENTRIES, "GGTT index out of range");
    GGTT_BASE + index * 8
}

/// The bus addresses a GPU of this generation can name: 39 bits
/// (Linux `gt/intel_ggtt.c:gen8_gmch_probe`, `DMA_BIT_MASK(39)`).
pub const BUS_ADDRESS_BITS: u32 = 39;

/// A DMA access that reached no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA {} at bus address {address:#x} reaches no memory", if *.write { "write" } else { "read" })]
pub struct DmaFault {
    /// The first bus address that failed.
    pub address: u64,
    /// Whether the access was a write.
    pub write: bool,
}

/// Memory as the GPU reaches it, by bus address.
///
/// A naturally aligned access of 4 or 8 bytes is one load or store. Writes
/// are visible to the CPU in the order the GPU made them. Must not call back
/// into the GPU.
pub trait Dma: Send + Sync {
    /// Copies memory at `address` into `buf`.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte is unreachable.
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault>;

    /// Copies `data` to memory at `address`.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte is unreachable.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault>;
}

/// Where the GPU's message-signalled interrupt goes. Called on a GPU thread or
/// within a register write (the one that enables what is pending); must not
/// block and must not call back into the GPU.
pub trait InterruptLine: Send + Sync {
    /// The GPU sent its interrupt message.
    fn raise(&self);
}
