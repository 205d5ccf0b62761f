//! The memfd behind a shared area, its mapping, and other memory in its place.
#![expect(
    unsafe_code,
    reason = "the one module that maps memory shared with another process"
)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use crate::Words;

/// A size that cannot change: without it the peer could shrink the file and
/// our next access would be a SIGBUS.
const FIXED_SIZE: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// A new memfd of `bytes` zeroes whose size is sealed.
pub(crate) fn create(bytes: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(
        c"vgpu-ring",
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?;
    let size = i64::try_from(bytes).map_err(|_| nix::errno::Errno::EFBIG)?;
    ftruncate(&fd, size)?;
    fcntl(
        &fd,
        FcntlArg::F_ADD_SEALS(FIXED_SIZE | SealFlag::F_SEAL_SEAL),
    )?;
    Ok(fd)
}

/// The size of `fd` in bytes, or `None` when it is not sealed.
pub(crate) fn sealed_size(fd: &OwnedFd) -> io::Result<Option<u64>> {
    let Ok(seals) = fcntl(fd, FcntlArg::F_GET_SEALS) else {
        // Not a file that can be sealed.
        return Ok(None);
    };
    if !SealFlag::from_bits_retain(seals).contains(FIXED_SIZE) {
        return Ok(None);
    }
    Ok(u64::try_from(fstat(fd)?.st_size).ok())
}

/// Memory of 64-bit words that others change at any time.
pub trait WordMemory: Send + Sync + 'static {
    /// All of it.
    fn words(&self) -> &[AtomicU64];
}

/// The words of a shared area. A handle: clones reach the same memory, which
/// is given back with the last of them.
#[derive(Clone)]
pub struct AreaWords {
    start: NonNull<AtomicU64>,
    words: usize,
    /// What `start` points into.
    _memory: Arc<dyn WordMemory>,
}

// SAFETY: What it points to is reached only through atomics, belongs to no
// thread, and lives as long as `_memory`, which is Send and Sync.
unsafe impl Send for AreaWords {}
// SAFETY: As above; AtomicU64 is Sync.
unsafe impl Sync for AreaWords {}

impl AreaWords {
    /// The words of `memory`.
    #[must_use]
    pub fn of(memory: Arc<dyn WordMemory>) -> Self {
        let words = memory.words();
        // The pointer is good as long as a shared borrow of what the Arc owns
        // could be, which is as long as the Arc.
        Self {
            start: NonNull::from(words).cast(),
            words: words.len(),
            _memory: memory,
        }
    }

    /// Maps the first `words` words of `fd`, which is at least that long, and
    /// stays so: its size is sealed, or it is a file as in [`Self::of_file`].
    pub(crate) fn map(fd: &OwnedFd, words: usize) -> io::Result<Self> {
        let bytes = words
            .checked_mul(8)
            .and_then(NonZeroUsize::new)
            .ok_or(nix::errno::Errno::EINVAL)?;
        // SAFETY: A new mapping where the kernel finds room touches no memory
        // of ours.
        let start = unsafe {
            mmap(
                None,
                bytes,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                fd.as_fd(),
                0,
            )
        }?;
        Ok(Self::of(Arc::new(Mapping {
            start: start.cast(),
            words,
        })))
    }

    /// Maps a file as `words` words, zeroes where it was shorter. For memory
    /// that outlives its process: the file is the caller's alone, and nobody
    /// makes it shorter meanwhile.
    ///
    /// # Errors
    /// When it is longer, or what the system says.
    pub fn of_file(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(8).and_then(|b| u64::try_from(b).ok());
        let bytes = bytes.ok_or(nix::errno::Errno::EFBIG)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > bytes {
            let what = format!("it is no file of at most {bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        file.set_len(bytes)?;
        Self::map(&OwnedFd::from(file.try_clone()?), words)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: `_memory` holds `words` aligned words at `start` and lives as
        // long as self; the peer may change any word at any time, which is what
        // an atomic allows.
        let words = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) };
        &words[index]
    }
}

struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: The mapping is plain shared memory, reached only through atomics,
// and belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: As above; AtomicU64 is Sync.
unsafe impl Sync for Mapping {}

impl WordMemory for Mapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: The mapping holds `words` aligned words and lives as long as
        // self. What is mapped gets no shorter (`AreaWords::map`), so every page
        // of it exists.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Words for AreaWords {
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.word(index).load(order)
    }

    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.word(index).store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start: NonNull<c_void> = self.start.cast();
        // SAFETY: This is the mapping `map` made, and no handle is left that
        // could reach it. A failure leaves it mapped, which harms nobody.
        let _ = unsafe { munmap(start, self.words * 8) };
    }
}
