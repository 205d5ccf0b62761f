//! Shared pages between domains: granting our own, mapping others'.

#![expect(unsafe_code, reason = "ioctls on the grant nodes")]

mod alloc;
mod map;

pub use alloc::GrantAllocator;
pub use map::GrantMapper;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::{Access, DomId, Mapping, MappingError, Port};

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

/// Lets other domains map pages of ours: `/dev/xen/gntalloc`, or something
/// that obeys the same rules.
pub trait GrantPages: Send + Sync {
    /// Allocates `pages` pages of zeroes and lets `domid` map them for reading
    /// and writing.
    ///
    /// # Errors
    /// [`GrantError::Call`]: ENOSPC above the node's limit, which is 1024
    /// pages in all unless its module was told otherwise.
    fn grant(&self, domid: DomId, pages: usize) -> Result<GrantedPages, GrantError>;
}

/// Maps pages of other domains: `/dev/xen/gntdev`, or something that obeys the
/// same rules.
pub trait MapGrants: Send + Sync {
    /// Maps pages `domid` granted, in the order of `refs`, all or none. The
    /// pages stay while they are mapped, whatever becomes of the domain; a
    /// domain that was destroyed is only gone when nobody maps its pages.
    ///
    /// # Errors
    /// [`GrantError::Call`] and [`GrantError::Mapping`]: EINVAL for a
    /// reference that was not granted to us.
    fn map(
        &self,
        domid: DomId,
        refs: &[GrantRef],
        access: Access,
    ) -> Result<GrantMapping, GrantError>;
}

/// What shared pages hold on to at the node, given back on drop, which is
/// after they were unmapped here.
pub trait GrantHold: fmt::Debug + Send + Sync {
    /// Sets what happens then, however it comes about.
    ///
    /// # Errors
    /// [`GrantError::Call`]: EINVAL for a port that is not bound.
    fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantError>;

    /// The node and the offset in it at which another process of this domain
    /// maps the same pages; none where there is no node.
    fn lend(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }
}

/// Zeroed pages of ours that another domain may map, until dropped. What it
/// still maps then is freed later, and cannot be mapped once more.
#[derive(Debug)]
pub struct GrantedPages {
    // Before `hold`, so that it is unmapped before the grant ends.
    mapping: Mapping,
    hold: Box<dyn GrantHold>,
    refs: Vec<GrantRef>,
}

impl GrantedPages {
    /// From an implementation of [`GrantPages`]: the pages, what is given back
    /// after they are unmapped, and their references.
    #[must_use]
    pub fn new(mapping: Mapping, hold: Box<dyn GrantHold>, refs: Vec<GrantRef>) -> Self {
        Self {
            mapping,
            hold,
            refs,
        }
    }

    /// The pages, here.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The references the other domain maps them by, one a page.
    #[must_use]
    pub fn refs(&self) -> &[GrantRef] {
        &self.refs
    }

    /// Sets what happens when this process ends or these are dropped.
    ///
    /// # Errors
    /// [`GrantError::Call`]: EINVAL for a port that is not bound.
    pub fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantError> {
        self.hold.set_unmap_notify(notify)
    }

    /// The node and the offset for [`GrantAllocator::lent`] in another process
    /// of this domain.
    #[must_use]
    pub fn lend(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.hold.lend()
    }
}

/// Another domain's pages, one after the other, until dropped.
#[derive(Debug)]
pub struct GrantMapping {
    // Before `hold`, which may be given back only after munmap.
    mapping: Mapping,
    hold: Box<dyn GrantHold>,
}

impl GrantMapping {
    /// From an implementation of [`MapGrants`]: the pages, and what is given
    /// back after they are unmapped.
    #[must_use]
    pub fn new(mapping: Mapping, hold: Box<dyn GrantHold>) -> Self {
        Self { mapping, hold }
    }

    /// The pages, here.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Sets what happens when this process ends or this is dropped.
    ///
    /// # Errors
    /// [`GrantError::Call`]: EINVAL for a port that is not bound.
    pub fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantError> {
        self.hold.set_unmap_notify(notify)
    }
}

/// What happens, on both sides, when a shared page goes away because its
/// user ended. On a granting domain's side there is one per page, on a mapping
/// one's one per mapping; the last call counts.
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
