//! A shared mapping this process owns, and the only ways to touch it.

#![expect(
    unsafe_code,
    reason = "memory shared with another domain is reached by raw pointer"
)]

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use guest_memory::PAGE_SIZE;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store ends the process.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    fn prot(self) -> ProtFlags {
        match self {
            Self::ReadOnly => ProtFlags::PROT_READ,
            Self::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        }
    }
}

/// Why a mapping could not be made or reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// mmap refused.
    #[error("mmap of {pages} pages: {errno}")]
    Mmap {
        /// Pages asked for.
        pages: usize,
        /// What the kernel said.
        errno: Errno,
    },
    /// The access lies outside the mapping, or the store is to a read-only
    /// one.
    #[error(
        "access of {len} bytes at offset {offset:#x} of a mapping of {size:#x} bytes ({access:?})"
    )]
    Access {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// Bytes in the mapping.
        size: usize,
        /// What the mapping allows.
        access: Access,
    },
}

/// Pages shared with someone else, unmapped on drop.
///
/// The other side may change any byte at any time, so there is no way to
/// get a slice: every access is an atomic load or store. Pages that the
/// maker reported as failed must not be touched (the process would get
/// SIGBUS); [`crate::ForeignMemory`] keeps count of those.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the mapping is owned, and all access goes through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a plain reference to the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `pages` pages of `fd` from byte `offset`, shared.
    ///
    /// # Errors
    /// [`MappingError::Mmap`].
    pub fn shared(
        fd: impl AsFd,
        offset: i64,
        pages: usize,
        access: Access,
    ) -> Result<Self, MappingError> {
        let length = byte_length(pages)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                None,
                length,
                access.prot(),
                MapFlags::MAP_SHARED,
                fd,
                offset,
            )
        }
        .map_err(|errno| MappingError::Mmap { pages, errno })?;
        Ok(Self {
            base: base.cast(),
            len: length.get(),
            access,
        })
    }

    /// Reserves address space for `pages` pages. Nothing in it may be
    /// touched until [`Mapping::place`] put something there.
    ///
    /// # Errors
    /// [`MappingError::Mmap`].
    pub fn reserve(pages: usize, access: Access) -> Result<Self, MappingError> {
        let length = byte_length(pages)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(
                None,
                length,
                ProtFlags::PROT_NONE,
                MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE,
            )
        }
        .map_err(|errno| MappingError::Mmap { pages, errno })?;
        Ok(Self {
            base: base.cast(),
            len: length.get(),
            access,
        })
    }

    /// Replaces the pages `first..first + pages` of this mapping by those
    /// of `fd` from byte `offset`.
    ///
    /// # Errors
    /// [`MappingError::Access`] when they are not all in the mapping, else
    /// [`MappingError::Mmap`].
    pub fn place(
        &mut self,
        first: usize,
        fd: impl AsFd,
        offset: i64,
        pages: usize,
    ) -> Result<(), MappingError> {
        let start = first.saturating_mul(PAGE_SIZE);
        let length = byte_length(pages)?;
        self.check(start, length.get(), self.access)?;
        let at = NonZeroUsize::new(self.base.as_ptr().addr() + start);
        // SAFETY: the range was just checked to lie inside this mapping,
        // which nobody else can be using while it is borrowed mutably.
        unsafe {
            mmap(
                at,
                length,
                self.access.prot(),
                MapFlags::MAP_SHARED | MapFlags::MAP_FIXED,
                fd,
                offset,
            )
        }
        .map_err(|errno| MappingError::Mmap { pages, errno })?;
        Ok(())
    }

    /// Bytes in the mapping.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for an ioctl that fills the mapping.
    pub(crate) fn address(&self) -> u64 {
        // usize is 64 bits on every host Xen's privcmd ABI here covers.
        self.base.as_ptr().addr() as u64
    }

    fn check(&self, offset: usize, len: usize, wanted: Access) -> Result<(), MappingError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if inside && (wanted == Access::ReadOnly || self.access == Access::ReadWrite) {
            return Ok(());
        }
        Err(MappingError::Access {
            offset,
            len,
            size: self.len,
            access: self.access,
        })
    }

    /// Copies from the mapping. A naturally aligned 2, 4 or 8 byte access is
    /// one load; in longer ones each aligned qword is.
    ///
    /// # Errors
    /// [`MappingError::Access`] when the range is not inside the mapping.
    pub fn read(&self, offset: usize, buf: &mut [u8]) -> Result<(), MappingError> {
        self.check(offset, buf.len(), Access::ReadOnly)?;
        let (head, middle) = to_qwords(offset, buf.len());
        let (head, rest) = buf.split_at_mut(head);
        let (middle, tail) = rest.split_at_mut(middle);
        let mut at = self.read_small(offset, head);
        for qword in middle.chunks_exact_mut(8) {
            qword.copy_from_slice(&self.word(at).load(Ordering::Acquire).to_le_bytes());
            at += 8;
        }
        self.read_small(at, tail);
        Ok(())
    }

    /// Reads what has no whole aligned qword; gives the offset behind it.
    fn read_small(&self, offset: usize, buf: &mut [u8]) -> usize {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let step = small_step(at, rest.len());
            let (head, tail) = rest.split_at_mut(step);
            match step {
                4 => head.copy_from_slice(&self.dword(at).load(Ordering::Acquire).to_le_bytes()),
                2 => head.copy_from_slice(&self.half(at).load(Ordering::Acquire).to_le_bytes()),
                _ => head[0] = self.byte(at).load(Ordering::Acquire),
            }
            at += step;
            rest = tail;
        }
        at
    }

    /// Copies to the mapping, in ascending order, with stores as wide as
    /// [`Mapping::read`]'s loads.
    ///
    /// # Errors
    /// [`MappingError::Access`] when the range is not inside the mapping or
    /// the mapping is read-only.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), MappingError> {
        self.check(offset, data.len(), Access::ReadWrite)?;
        let (head, middle) = to_qwords(offset, data.len());
        let (head, rest) = data.split_at(head);
        let (middle, tail) = rest.split_at(middle);
        let mut at = self.write_small(offset, head);
        for qword in middle.chunks_exact(8) {
            let mut value = [0; 8];
            value.copy_from_slice(qword);
            self.word(at)
                .store(u64::from_le_bytes(value), Ordering::Release);
            at += 8;
        }
        self.write_small(at, tail);
        Ok(())
    }

    /// Writes what has no whole aligned qword; gives the offset behind it.
    fn write_small(&self, offset: usize, data: &[u8]) -> usize {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let step = small_step(at, rest.len());
            let (head, tail) = rest.split_at(step);
            match *head {
                [a, b, c, d] => self
                    .dword(at)
                    .store(u32::from_le_bytes([a, b, c, d]), Ordering::Release),
                [a, b] => self
                    .half(at)
                    .store(u16::from_le_bytes([a, b]), Ordering::Release),
                [a, ..] => self.byte(at).store(a, Ordering::Release),
                [] => break,
            }
            at += step;
            rest = tail;
        }
        at
    }

    /// The byte at `offset`, or `None` outside a writable mapping.
    #[must_use]
    pub fn atomic_u8(&self, offset: usize) -> Option<&AtomicU8> {
        self.check(offset, 1, Access::ReadWrite).ok()?;
        Some(self.byte(offset))
    }

    /// The dword at `offset`, or `None` outside a writable mapping or when
    /// not aligned.
    #[must_use]
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        self.check(offset, 4, Access::ReadWrite).ok()?;
        offset.is_multiple_of(4).then(|| self.dword(offset))
    }

    /// The qword at `offset`, or `None` outside a writable mapping or when
    /// not aligned.
    #[must_use]
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        self.check(offset, 8, Access::ReadWrite).ok()?;
        offset.is_multiple_of(8).then(|| self.word(offset))
    }

    /// All of it as qwords, or `None` when it is read-only. For mappings of
    /// which every page is there, as those of grants are.
    #[must_use]
    pub fn qwords(&self) -> Option<&[AtomicU64]> {
        if self.access == Access::ReadOnly {
            return None;
        }
        // SAFETY: the mapping is `len` bytes from a page's start, a multiple of
        // 8, and lives as long as `self`; only atomics touch it.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) })
    }

    // The four below: callers have checked that `at` is in the mapping and
    // aligned for the type.

    fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: `at` is in the mapping, which lives as long as `self`.
        let p = unsafe { self.base.as_ptr().add(at) };
        // SAFETY: valid for `self`'s lifetime; only atomics touch it.
        unsafe { AtomicU8::from_ptr(p) }
    }

    fn half(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `at` is in the mapping, which lives as long as `self`.
        let p = unsafe { self.base.as_ptr().add(at) };
        // SAFETY: as in `byte`, and aligned.
        unsafe { AtomicU16::from_ptr(p.cast()) }
    }

    fn dword(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is in the mapping, which lives as long as `self`.
        let p = unsafe { self.base.as_ptr().add(at) };
        // SAFETY: as in `byte`, and aligned.
        unsafe { AtomicU32::from_ptr(p.cast()) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is in the mapping, which lives as long as `self`.
        let p = unsafe { self.base.as_ptr().add(at) };
        // SAFETY: as in `byte`, and aligned.
        unsafe { AtomicU64::from_ptr(p.cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own, and no reference into it
        // outlives `self`.
        if let Err(errno) = unsafe { munmap(self.base.cast(), self.len) } {
            log::error!("munmap of {:#x} bytes: {errno}", self.len);
        }
    }
}

fn byte_length(pages: usize) -> Result<NonZeroUsize, MappingError> {
    pages
        .checked_mul(PAGE_SIZE)
        .and_then(NonZeroUsize::new)
        .ok_or(MappingError::Mmap {
            pages,
            errno: Errno::EINVAL,
        })
}

/// How many of `len` bytes from `at` come before the first aligned qword,
/// and how many are whole aligned qwords after those.
fn to_qwords(at: usize, len: usize) -> (usize, usize) {
    let head = (at.wrapping_neg() % 8).min(len);
    (head, (len - head) / 8 * 8)
}

/// The widest naturally aligned access below a qword, at most `left` bytes.
fn small_step(at: usize, left: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|&n| left >= n && at.is_multiple_of(n))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_small_parts_around_qwords() {
        assert_eq!(to_qwords(0, 8), (0, 8));
        assert_eq!(to_qwords(4, 4), (4, 0));
        assert_eq!(to_qwords(4, 13), (4, 8));
        assert_eq!(to_qwords(7, 1), (1, 0));
        assert_eq!(to_qwords(3, 2), (2, 0));
        assert_eq!(
            (small_step(4, 4), small_step(6, 4), small_step(5, 4)),
            (4, 2, 1)
        );
    }

    #[test]
    fn accesses_outside_and_stores_to_read_only_are_errors() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mapping = Mapping::shared(&file, 0, 1, Access::ReadOnly).unwrap();
        let mut magic = [0; 4];
        mapping.read(0, &mut magic).unwrap();
        assert_eq!(&magic, b"\x7fELF");
        assert!(mapping.write(0, &magic).is_err());
        assert!(mapping.read(PAGE_SIZE - 3, &mut magic).is_err());
        assert!(mapping.read(usize::MAX, &mut magic).is_err());
        assert!(mapping.atomic_u32(0).is_none());
        assert!(Mapping::reserve(0, Access::ReadOnly).is_err());
    }
}
