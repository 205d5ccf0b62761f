//! The bytes of configuration space and which of their bits a guest may
//! change.

use super::CONFIG_BYTES;

/// Bytes, and the bits of each that writes change.
pub(super) struct Space {
    bytes: [u8; CONFIG_BYTES],
    writable: [u8; CONFIG_BYTES],
}

impl Default for Space {
    fn default() -> Self {
        Self {
            bytes: [0; CONFIG_BYTES],
            writable: [0; CONFIG_BYTES],
        }
    }
}

impl Space {
    /// Sets bytes when the device is made.
    pub(super) fn fixed(&mut self, offset: usize, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
    }

    /// Lets writes change the bits of `mask` in `len` bytes.
    pub(super) fn writable(&mut self, offset: usize, len: usize, mask: &[u8]) {
        let to = self.writable.iter_mut().skip(offset).take(len);
        for (to, from) in to.zip(mask) {
            *to = *from;
        }
    }

    /// `size` bytes from `offset`, little-endian; past the end all ones.
    pub(super) fn read(&self, offset: u8, size: usize) -> u64 {
        let mut value = [0; 8];
        let from = usize::from(offset);
        for (i, to) in value.iter_mut().take(size).enumerate() {
            *to = self.bytes.get(from + i).copied().unwrap_or(0xff);
        }
        u64::from_le_bytes(value)
    }

    /// Writes the writable bits of `size` bytes from `offset`.
    pub(super) fn write(&mut self, offset: u8, size: usize, value: u64) {
        let from = usize::from(offset);
        let targets = self.bytes.iter_mut().zip(&self.writable).skip(from);
        for ((to, mask), byte) in targets.zip(value.to_le_bytes()).take(size.min(8)) {
            *to = *to & !mask | byte & mask;
        }
    }

    pub(super) fn u16(&self, offset: usize) -> u16 {
        let b = &self.bytes;
        u16::from_le_bytes([b[offset], b[offset + 1]])
    }

    pub(super) fn set_u16(&mut self, offset: usize, value: u16) {
        self.fixed(offset, &value.to_le_bytes());
    }

    pub(super) fn u64(&self, offset: usize) -> u64 {
        let mut value = [0; 8];
        value.copy_from_slice(&self.bytes[offset..offset + 8]);
        u64::from_le_bytes(value)
    }

    pub(super) fn bytes(&self) -> &[u8; CONFIG_BYTES] {
        &self.bytes
    }

    /// Takes over the writable bits of a saved space.
    pub(super) fn restore(&mut self, saved: &[u8; CONFIG_BYTES]) {
        for ((to, mask), from) in self.bytes.iter_mut().zip(&self.writable).zip(saved) {
            *to = *to & !mask | from & mask;
        }
    }
}
