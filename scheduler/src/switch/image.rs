//! What the silicon holds, whoever put it there.

use gen8::switched::Group;

use super::bits::Bits;
use super::digest::Digest;
use super::file::RegisterFile;
use super::layout::Layout;

/// The registers of one engine outside the context, as far as they are known.
pub struct HardwareImage {
    layout: &'static Layout,
    values: Box<[u32]>,
    digests: [Digest; Group::COUNT],
    known: Bits,
}

impl HardwareImage {
    /// Nothing is known.
    pub fn new(layout: &'static Layout) -> Self {
        Self {
            layout,
            values: layout.slots.iter().map(|_| 0).collect(),
            digests: [Digest::default(); Group::COUNT],
            known: Bits::NONE,
        }
    }

    pub fn forget(&mut self) {
        self.known = Bits::NONE;
    }

    pub fn lose(&mut self, registers: Bits) {
        self.known = self.known & !registers;
    }

    /// The register holds `value` now. Registers of the context come and go
    /// with contexts, so they are not followed.
    pub fn set(&mut self, index: usize, value: u32) {
        if !self.layout.outside.has(index) {
            return;
        }
        let old = std::mem::replace(&mut self.values[index], value);
        if value != old {
            let slot = &self.layout.slots[index];
            self.digests[slot.group].change(slot.key, old, value);
        }
        self.known.set(index);
    }

    /// One register of a group that is being brought to other values holds
    /// `value` now. The digest comes with [`HardwareImage::agree`].
    pub fn put(&mut self, index: usize, value: u32) {
        self.values[index] = value;
    }

    /// A whole group holds values of which `digest` is the digest.
    pub fn agree(&mut self, group: usize, members: Bits, digest: Digest) {
        self.digests[group] = digest;
        self.known |= members;
    }

    pub fn get(&self, index: usize) -> Option<u32> {
        self.known.has(index).then(|| self.values[index])
    }

    /// Whether a whole group holds what `file` wants.
    pub fn agrees(&self, group: usize, members: Bits, file: &RegisterFile) -> bool {
        self.known.covers(members) && self.digests[group] == file.digest(group)
    }
}
