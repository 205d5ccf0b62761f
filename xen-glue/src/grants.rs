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

/// Most pages in one call; the nodes allow more, nothing here needs them.
const MOST_PAGES: usize = 4096;

/// The number of pages of a call, if it is one the nodes take.
fn page_count(pages: usize) -> Result<u32, Errno> {
    match pages {
        0 => Err(Errno::EINVAL),
        1..=MOST_PAGES => u32::try_from(pages).map_err(|_| Errno::E2BIG),
        _ => Err(Errno::E2BIG),
    }
}
