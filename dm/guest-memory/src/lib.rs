//! Guest memory as the device model and the scheduler see it.
//!
//! Everything a guest can change is copied once and the copy is used; no
//! reference into guest memory exists anywhere. [`GuestMemory`] is the one
//! seam: on Xen it is backed by foreign mappings, in tests by [`VecMemory`].

#![forbid(unsafe_code)]

use std::fmt;

mod vec_memory;
mod written;

pub use vec_memory::VecMemory;
pub use written::{Recorder, WrittenPages};

/// Bytes in a page, of the CPU and of the GPU's 4 KiB entries alike.
pub const PAGE_SIZE: usize = 4096;

/// [`PAGE_SIZE`] as a shift.
pub const PAGE_SHIFT: u32 = 12;

/// A guest frame number: a guest-physical address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gfn(pub u64);

impl Gfn {
    /// The frame that holds the guest-physical address `gpa`.
    #[must_use]
    pub const fn containing(gpa: u64) -> Self {
        Self(gpa >> PAGE_SHIFT)
    }

    /// The guest-physical address of the frame's first byte, or `None` when
    /// the frame number is too large to have one.
    #[must_use]
    pub const fn address(self) -> Option<u64> {
        if self.0 >> (64 - PAGE_SHIFT) != 0 {
            return None;
        }
        Some(self.0 << PAGE_SHIFT)
    }
}

impl fmt::Display for Gfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gfn {:#x}", self.0)
    }
}

/// Why an access to guest memory did not happen, or stopped part-way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The guest has no memory at this frame.
    #[error("{0} is not guest memory")]
    Unmapped(Gfn),
    /// The access runs past the end of the 64-bit address space.
    #[error("access of {len} bytes at {gpa:#x} wraps around")]
    Wraps {
        /// First guest-physical address of the access.
        gpa: u64,
        /// Length of the access in bytes.
        len: usize,
    },
    /// The host could not map the frame.
    #[error("cannot map {gfn}: {reason}")]
    Host {
        /// The frame.
        gfn: Gfn,
        /// What the host said.
        reason: String,
    },
}

/// One guest's memory, addressed by guest-physical address.
///
/// Accesses may have any alignment and cross pages. A naturally aligned
/// access of 4 or 8 bytes is done as one load or store of that size, so a
/// sequence number or a page-table entry is never seen torn. When an access
/// that crosses pages fails, the pages before the failing one have been
/// read or written. Writes are visible to the guest in program order.
pub trait GuestMemory: Send + Sync {
    /// Copies guest memory at `gpa` into `buf`.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `data` to guest memory at `gpa`.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError>;

    /// Copies pieces of guest memory to `buf`, one behind the other: of
    /// `piece` bytes each but the last, the first at `gpa`, each `stride`
    /// bytes after the one before: the row of a tile. Several in one page
    /// cost little more than one.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn read_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        buf: &mut [u8],
    ) -> Result<(), MemoryError> {
        for_each_piece(gpa, piece, stride, buf.len(), |at, range| {
            self.read(at, &mut buf[range])
        })
    }

    /// Copies `data` to pieces of guest memory, like
    /// [`GuestMemory::read_pieces`].
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn write_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        for_each_piece(gpa, piece, stride, data.len(), |at, range| {
            self.write(at, &data[range])
        })
    }

    /// Forgets every cached mapping: frames may have left the guest.
    fn invalidate(&self) {}

    /// Bytes of address space that cached mappings take.
    fn mapped_bytes(&self) -> u64 {
        0
    }

    /// Reads a little-endian dword at `gpa`.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn read_u32(&self, gpa: u64) -> Result<u32, MemoryError> {
        let mut b = [0; 4];
        self.read(gpa, &mut b)?;
        Ok(u32::from_le_bytes(b))
    }

    /// Reads a little-endian qword at `gpa`.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn read_u64(&self, gpa: u64) -> Result<u64, MemoryError> {
        let mut b = [0; 8];
        self.read(gpa, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    /// Writes a little-endian dword at `gpa`.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn write_u32(&self, gpa: u64, value: u32) -> Result<(), MemoryError> {
        self.write(gpa, &value.to_le_bytes())
    }

    /// Writes a little-endian qword at `gpa`.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn write_u64(&self, gpa: u64, value: u64) -> Result<(), MemoryError> {
        self.write(gpa, &value.to_le_bytes())
    }
}

/// Calls `f` with the address of each piece of [`GuestMemory::read_pieces`]
/// and the range of the caller's buffer, in order. A piece of 0 bytes counts
/// as 1; addresses wrap, and then are no memory.
///
/// # Errors
/// What `f` returns.
pub fn for_each_piece(
    gpa: u64,
    piece: usize,
    stride: usize,
    len: usize,
    mut f: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    let piece = piece.max(1);
    let stride = u64::try_from(stride).unwrap_or(0);
    let mut at = gpa;
    for start in (0..len).step_by(piece) {
        f(at, start..start + piece.min(len - start))?;
        at = at.wrapping_add(stride);
    }
    Ok(())
}

/// Splits `[gpa, gpa + len)` at page boundaries and calls `f` with the frame,
/// the offset in it, and the range of the caller's buffer, in order.
///
/// # Errors
/// [`MemoryError::Wraps`] when the range does; else what `f` returns.
pub fn for_each_page(
    gpa: u64,
    len: usize,
    mut f: impl FnMut(Gfn, usize, std::ops::Range<usize>) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    if len == 0 {
        return Ok(());
    }
    let last = u64::try_from(len - 1).ok().and_then(|l| gpa.checked_add(l));
    if last.is_none() {
        return Err(MemoryError::Wraps { gpa, len });
    }
    let mut done = 0;
    let mut gfn = Gfn::containing(gpa);
    // Masked to less than a page, so it fits any usize.
    let mut offset = usize::try_from(gpa & 0xfff).unwrap_or(0);
    while done < len {
        let n = (PAGE_SIZE - offset).min(len - done);
        f(gfn, offset, done..done + n)?;
        done += n;
        offset = 0;
        gfn = Gfn(gfn.0 + 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_at_pages() {
        let mut parts = Vec::new();
        for_each_page(0x1ffe, 0x1004, |g, o, r| {
            parts.push((g.0, o, r));
            Ok(())
        })
        .unwrap();
        assert_eq!(
            parts,
            [(1, 0xffe, 0..2), (2, 0, 2..0x1002), (3, 0, 0x1002..0x1004)]
        );
    }

    #[test]
    fn a_range_may_end_at_the_top_but_not_wrap() {
        assert!(for_each_page(u64::MAX, 1, |_, _, _| Ok(())).is_ok());
        assert_eq!(
            for_each_page(u64::MAX, 2, |_, _, _| Ok(())),
            Err(MemoryError::Wraps {
                gpa: u64::MAX,
                len: 2
            })
        );
    }

    #[test]
    fn pieces_are_a_stride_apart() {
        let memory = VecMemory::new(1);
        memory.write_pieces(0x10, 4, 0x100, b"abcdefghij").unwrap();
        let mut whole = [0; 5];
        memory.read(0x110, &mut whole).unwrap();
        assert_eq!(&whole, b"efgh\0");
        memory.read(0x210, &mut whole).unwrap();
        assert_eq!(&whole, b"ij\0\0\0");
        let mut back = [0; 10];
        memory.read_pieces(0x10, 4, 0x100, &mut back).unwrap();
        assert_eq!(&back, b"abcdefghij");
        assert!(memory.read_pieces(0, 0, 0x1000, &mut back).is_err());
    }

    #[test]
    fn a_frame_without_an_address_has_none() {
        assert_eq!(Gfn(1 << 52).address(), None);
        assert_eq!(Gfn(5).address(), Some(0x5000));
    }
}
