//! The machine the driver runs on, as a guest sees it.

use std::time::Duration;

use guest_memory::GuestMemory;

/// One vCPU of a guest with the GPU's PCI function.
pub trait Platform {
    /// The guest's memory.
    fn memory(&self) -> &dyn GuestMemory;
    /// Reads `size` (1, 2, 4) bytes of the function's config space.
    fn config_read(&mut self, register: u16, size: u8) -> u32;
    /// Writes `size` (1, 2, 4) bytes of the function's config space.
    fn config_write(&mut self, register: u16, size: u8, value: u32);
    /// Reads `size` (1 to 8, a power of two) bytes at a guest-physical address.
    fn mmio_read(&mut self, address: u64, size: u8) -> u64;
    /// Writes `size` bytes at a guest-physical address.
    fn mmio_write(&mut self, address: u64, size: u8, value: u64);
    /// Waits for the function's interrupt; whether one came in time.
    fn wait_interrupt(&mut self, timeout: Duration) -> bool;
}
