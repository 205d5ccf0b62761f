//! Shared pages between domains: granting our own, mapping others'.

#![expect(unsafe_code, reason = "ioctls on the grant nodes")]

mod alloc;
mod map;

pub use alloc::{GrantAllocator, GrantedPages};
pub use map::{GrantMapper, GrantMapping};

use std::fs::{File, OpenOptions};

use nix::errno::Errno;

use crate::{DomId, MappingError, Port};

/// A grant reference, in the name space of the domain that granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantRef(pub u32);

/// Why a grant call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A node could not be opened.
    #[error("open {path}: {errno}")]
    Open {
        /// The node.
        path: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A call was refused.
    #[error("{op} of {pages} pages with {domid}: {errno}")]
    Call {
        /// The call.
        op: &'static str,
        /// The other domain.
        domid: DomId,
        /// Pages.
        pages: usize,
        /// What came back.
        errno: Errno,
    },
    /// The pages could not be mapped here.
    #[error("{op} with {domid}: {source}")]
    Mapping {
        /// The call.
        op: &'static str,
        /// The other domain.
        domid: DomId,
        /// Why.
        source: MappingError,
    },
}

/// What happens, on both sides, when a shared page goes away because its
/// user ended. One per page; the last call counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnmapNotify {
    /// Clear this byte, counted from the first page.
    pub clear_byte: Option<usize>,
    /// Signal this local port.
    pub send_event: Option<Port>,
}

impl UnmapNotify {
    fn action(self) -> u32 {
        let mut action = 0;
        if self.clear_byte.is_some() {
            action |= xen_sys::UNMAP_NOTIFY_CLEAR_BYTE;
        }
        if self.send_event.is_some() {
            action |= xen_sys::UNMAP_NOTIFY_SEND_EVENT;
        }
        action
    }

    /// Where the byte is, in the node's offsets.
    fn index(self, base: u64) -> u64 {
        let byte = self.clear_byte.unwrap_or(0);
        base.saturating_add(u64::try_from(byte).unwrap_or(u64::MAX))
    }

    fn port(self) -> u32 {
        self.send_event.map_or(0, |port| port.0)
    }
}

fn open(path: &'static str) -> Result<File, GrantError> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|e| GrantError::Open {
        path,
        errno: Errno::from_raw(e.raw_os_error().unwrap_or(0)),
    })
}

/// A node's offset as mmap takes it.
fn file_offset(index: u64) -> Result<i64, Errno> {
    i64::try_from(index).map_err(|_| Errno::EOVERFLOW)
}

/// Memory for an ioctl struct with a variable array behind a fixed part: 8
/// byte aligned, as the kernel's structs want, and all zero.
fn ioctl_buffer(fixed: usize, item: usize, count: usize) -> Result<Vec<u64>, Errno> {
    let bytes = item.checked_mul(count).and_then(|n| n.checked_add(fixed));
    let bytes = bytes.filter(|n| *n <= 1 << 20).ok_or(Errno::E2BIG)?;
    Ok(vec![0; bytes.div_ceil(8)])
}
