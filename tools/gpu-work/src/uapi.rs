//! i915 as user space sees it: the few calls the work needs.
//!
//! Structures and numbers are those of Linux `include/uapi/drm/i915_drm.h`,
//! which promises to keep them; names are the same without their prefix.
#![expect(unsafe_code, reason = "a driver's calls take addresses")]

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use gen8::Engine;
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater, opcode};

/// DRM_IOCTL_BASE and DRM_COMMAND_BASE of `include/uapi/drm/drm.h`.
const GROUP: u8 = b'd';
const DRIVER: u8 = 0x40;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("i915 {call}: {errno} (error {})", .errno.raw_os_error())]
pub struct CallError {
    /// The call, without its prefix.
    pub call: &'static str,
    /// What the kernel said.
    pub errno: Errno,
}

#[repr(C)]
#[derive(Default)]
struct GemCreate {
    size: u64,
    handle: u32,
    pad: u32,
}

/// `drm_i915_gem_pread` and `drm_i915_gem_pwrite` are alike.
#[repr(C)]
#[derive(Default)]
struct GemTransfer {
    handle: u32,
    pad: u32,
    offset: u64,
    size: u64,
    data_ptr: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct ExecObject2 {
    handle: u32,
    relocation_count: u32,
    relocs_ptr: u64,
    alignment: u64,
    offset: u64,
    flags: u64,
    pad_to_size: u64,
    rsvd2: u64,
}

#[repr(C)]
#[derive(Default)]
struct Execbuffer2 {
    buffers_ptr: u64,
    buffer_count: u32,
    batch_start_offset: u32,
    batch_len: u32,
    dr1: u32,
    dr4: u32,
    num_cliprects: u32,
    cliprects_ptr: u64,
    flags: u64,
    context: u64,
    rsvd2: u64,
}

#[repr(C)]
#[derive(Default)]
struct GemWait {
    handle: u32,
    flags: u32,
    timeout_ns: i64,
}

#[repr(C)]
#[derive(Default)]
struct ContextCreate {
    context: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct ResetStats {
    context: u32,
    flags: u32,
    reset_count: u32,
    batch_active: u32,
    batch_pending: u32,
    pad: u32,
}

const GEM_CREATE: Opcode = opcode::read_write::<GemCreate>(GROUP, DRIVER + 0x1b);
const GEM_PREAD: Opcode = opcode::write::<GemTransfer>(GROUP, DRIVER + 0x1c);
const GEM_PWRITE: Opcode = opcode::write::<GemTransfer>(GROUP, DRIVER + 0x1d);
const GEM_EXECBUFFER2: Opcode = opcode::write::<Execbuffer2>(GROUP, DRIVER + 0x29);
const GEM_WAIT: Opcode = opcode::read_write::<GemWait>(GROUP, DRIVER + 0x2c);
const CONTEXT_CREATE: Opcode = opcode::read_write::<ContextCreate>(GROUP, DRIVER + 0x2d);
const GET_RESET_STATS: Opcode = opcode::read_write::<ResetStats>(GROUP, DRIVER + 0x32);

/// EXEC_OBJECT_WRITE, EXEC_OBJECT_PINNED.
const OBJECT_WRITE: u64 = 1 << 2;
const OBJECT_PINNED: u64 = 1 << 4;
/// I915_EXEC_NO_RELOC.
const EXEC_NO_RELOC: u64 = 1 << 11;

/// I915_EXEC_RENDER and its neighbours.
const fn exec_ring(engine: Engine) -> u64 {
    match engine {
        Engine::Rcs => 1,
        Engine::Vcs => 2,
        Engine::Bcs => 3,
        Engine::Vecs => 4,
    }
}

/// A buffer object at a fixed address of its context's.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    handle: u32,
    /// Its graphics address.
    pub address: u64,
}

/// A context.
#[derive(Clone, Copy, Debug)]
pub struct Context(u32);

/// How often the GPU was reset under a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resets {
    /// Resets of the GPU since the driver was loaded; only root is told.
    pub gpu: u32,
    /// Requests of the context that were running then.
    pub active: u32,
    /// Requests of the context that were waiting then.
    pub pending: u32,
}

/// The device.
pub struct I915(File);

impl I915 {
    /// Opens a device node.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        File::options().read(true).write(true).open(path).map(Self)
    }

    /// Makes one call, again as long as a signal interrupts it.
    ///
    /// # Safety
    /// `OPCODE` has to be the number of a call that takes a `T`, and addresses
    /// in `argument` have to be of memory that the call may use as it does.
    unsafe fn call<const OPCODE: Opcode, T>(
        &self,
        call: &'static str,
        argument: &mut T,
    ) -> Result<(), CallError> {
        loop {
            // SAFETY: the caller promises that OPCODE takes a T.
            let updater = unsafe { Updater::<OPCODE, T>::new(argument) };
            // SAFETY: the kernel touches the T, which is borrowed for as long
            // as the call lasts, and what the caller answers for.
            match unsafe { ioctl::ioctl(&self.0, updater) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                other => return other.map_err(|errno| CallError { call, errno }),
            }
        }
    }

    /// Makes an object of `size` bytes, all zero, for use at `address`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(&self, size: u64, address: u64) -> Result<Object, CallError> {
        let mut create = GemCreate {
            size,
            ..GemCreate::default()
        };
        // SAFETY: there is no address in it.
        unsafe { self.call::<GEM_CREATE, _>("GEM_CREATE", &mut create) }?;
        Ok(Object {
            handle: create.handle,
            address,
        })
    }

    /// Waits until the GPU is through with `object`, then copies from its
    /// start, little-endian.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self, object: Object, to: &mut [u8]) -> Result<(), CallError> {
        let mut transfer = GemTransfer {
            handle: object.handle,
            size: length(to),
            data_ptr: address(to.as_mut_ptr().cast_const()),
            ..GemTransfer::default()
        };
        // SAFETY: the kernel writes `size` bytes at `data_ptr`, which are
        // those of `to`, borrowed for us alone.
        unsafe { self.call::<GEM_PREAD, _>("GEM_PREAD", &mut transfer) }
    }

    /// Waits until the GPU is through with `object`, then copies to its start.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, object: Object, from: &[u8]) -> Result<(), CallError> {
        let mut transfer = GemTransfer {
            handle: object.handle,
            size: length(from),
            data_ptr: address(from.as_ptr()),
            ..GemTransfer::default()
        };
        // SAFETY: the kernel reads `size` bytes at `data_ptr`, which are those
        // of `from`.
        unsafe { self.call::<GEM_PWRITE, _>("GEM_PWRITE", &mut transfer) }
    }

    /// Makes a context with page tables of its own.
    ///
    /// # Errors
    /// The kernel's.
    pub fn context(&self) -> Result<Context, CallError> {
        let mut create = ContextCreate::default();
        // SAFETY: there is no address in it.
        unsafe { self.call::<CONTEXT_CREATE, _>("GEM_CONTEXT_CREATE", &mut create) }?;
        Ok(Context(create.context))
    }

    /// Queues a request: the commands at the start of the last of `objects`,
    /// which may write the first.
    ///
    /// # Errors
    /// The kernel's.
    pub fn execute(
        &self,
        context: Context,
        engine: Engine,
        objects: &[Object],
    ) -> Result<(), CallError> {
        let mut list: Vec<ExecObject2> = objects
            .iter()
            .enumerate()
            .map(|(i, o)| ExecObject2 {
                handle: o.handle,
                offset: o.address,
                flags: OBJECT_PINNED | if i == 0 { OBJECT_WRITE } else { 0 },
                ..ExecObject2::default()
            })
            .collect();
        let mut execute = Execbuffer2 {
            buffers_ptr: address(list.as_mut_ptr().cast_const().cast()),
            buffer_count: u32::try_from(list.len()).unwrap_or(u32::MAX),
            flags: exec_ring(engine) | EXEC_NO_RELOC,
            context: u64::from(context.0),
            ..Execbuffer2::default()
        };
        // SAFETY: `buffers_ptr` is that of `list`, ours alone, which has
        // `buffer_count` entries and lives until after the call. Entries name
        // no relocations.
        unsafe { self.call::<GEM_EXECBUFFER2, _>("GEM_EXECBUFFER2", &mut execute) }
    }

    /// Waits until the GPU is through with `object`; false when it is not by
    /// then.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, object: Object, limit: Duration) -> Result<bool, CallError> {
        let mut wait = GemWait {
            handle: object.handle,
            timeout_ns: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
            ..GemWait::default()
        };
        // SAFETY: there is no address in it.
        match unsafe { self.call::<GEM_WAIT, _>("GEM_WAIT", &mut wait) } {
            Ok(()) => Ok(true),
            Err(e) if e.errno == Errno::TIME => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// How often the GPU was reset.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resets(&self, context: Context) -> Result<Resets, CallError> {
        let mut stats = ResetStats {
            context: context.0,
            ..ResetStats::default()
        };
        // SAFETY: there is no address in it.
        unsafe { self.call::<GET_RESET_STATS, _>("GET_RESET_STATS", &mut stats) }?;
        Ok(Resets {
            gpu: stats.reset_count,
            active: stats.batch_active,
            pending: stats.batch_pending,
        })
    }
}

/// usize has at most 64 bits on every target of Linux.
fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// As the kernel's structures hold it; the memory is the kernel's to use from
/// then on.
fn address(memory: *const u8) -> u64 {
    u64::try_from(memory.expose_provenance()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_that_the_numbers_encode() {
        // Direction, size, group and number, as Linux `asm-generic/ioctl.h`
        // packs them: 0xc010_645b is read and write, 16 bytes, 'd', 0x5b.
        assert_eq!(GEM_CREATE, 0xc010_645b);
        assert_eq!(GEM_PREAD, 0x4020_645c);
        assert_eq!(GEM_PWRITE, 0x4020_645d);
        assert_eq!(GEM_EXECBUFFER2, 0x4040_6469);
        assert_eq!(GEM_WAIT, 0xc010_646c);
        assert_eq!(CONTEXT_CREATE, 0xc008_646d);
        assert_eq!(GET_RESET_STATS, 0xc018_6472);
        assert_eq!(size_of::<ExecObject2>(), 56);
    }
}
