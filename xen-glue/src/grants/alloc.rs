//! `/dev/xen/gntalloc`: pages of ours that another domain may map.
//!
//! Facts: Linux drivers/xen/gntalloc.c. A page that the other domain still
//! maps when we let go of it is freed later, by the kernel.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nix::errno::Errno;
use xen_sys::ioctl;

use super::{GrantError, GrantRef, UnmapNotify, file_offset, ioctl_buffer, open};
use crate::{Access, DomId, Mapping};

type Alloc = xen_sys::ioctl_gntalloc_alloc_gref;

nix::ioctl_readwrite_bad!(alloc_gref, ioctl::GNTALLOC_ALLOC_GREF, Alloc);
nix::ioctl_write_ptr_bad!(
    dealloc_gref,
    ioctl::GNTALLOC_DEALLOC_GREF,
    xen_sys::ioctl_gntalloc_dealloc_gref
);
nix::ioctl_write_ptr_bad!(
    set_unmap_notify,
    ioctl::GNTALLOC_SET_UNMAP_NOTIFY,
    xen_sys::ioctl_gntalloc_unmap_notify
);

const PATH: &str = "/dev/xen/gntalloc";

/// Grants pages to other domains.
#[derive(Clone, Debug)]
pub struct GrantAllocator {
    node: Arc<File>,
}

/// Zeroed pages of ours that another domain may map, until dropped.
#[derive(Debug)]
pub struct GrantedPages {
    // Before `grant`, so that it is unmapped before the grant ends.
    mapping: Mapping,
    grant: Grant,
    refs: Vec<GrantRef>,
}

#[derive(Debug)]
struct Grant {
    node: Arc<File>,
    domid: DomId,
    index: u64,
    count: u32,
}

impl GrantAllocator {
    /// Opens the node.
    ///
    /// # Errors
    /// [`GrantError::Open`].
    pub fn open() -> Result<Self, GrantError> {
        Ok(Self {
            node: Arc::new(open(PATH)?),
        })
    }

    /// Allocates pages and lets `domid` map them for reading and writing.
    ///
    /// # Errors
    /// [`GrantError::Call`]: ENOSPC above the kernel's limit (1024 in all).
    pub fn grant(&self, domid: DomId, pages: usize) -> Result<GrantedPages, GrantError> {
        const OP: &str = "grant";
        let failed = |errno| GrantError::Call {
            op: OP,
            domid,
            pages,
            errno,
        };
        let count = u32::try_from(pages).map_err(|_| failed(Errno::E2BIG))?;
        if count == 0 {
            return Err(failed(Errno::EINVAL));
        }
        let refs_at = offset_of!(Alloc, gref_ids);
        let mut buffer = ioctl_buffer(refs_at, size_of::<u32>(), pages).map_err(failed)?;
        // The struct as declared has room for one reference behind it.
        buffer.resize(buffer.len().max(size_of::<Alloc>() / 8), 0);
        let arg: *mut Alloc = buffer.as_mut_ptr().cast();
        let head = Alloc {
            domid: domid.0,
            // GNTALLOC_FLAG_WRITABLE is 1 in a 16-bit field.
            flags: 1,
            count,
            index: 0,
            gref_ids: [0],
        };
        // SAFETY: the buffer is aligned, and at least as long as the struct.
        unsafe { arg.write(head) };
        // SAFETY: the buffer has room for `count` references behind the head.
        unsafe { alloc_gref(self.node.as_raw_fd(), arg) }.map_err(failed)?;
        // SAFETY: as for the write; the kernel filled it in.
        let head = unsafe { arg.read() };
        let grant = Grant {
            node: Arc::clone(&self.node),
            domid,
            index: head.index,
            count,
        };
        let bytes = buffer.iter().flat_map(|q| q.to_ne_bytes()).skip(refs_at);
        let bytes: Vec<u8> = bytes.take(pages * 4).collect();
        let refs = bytes
            .chunks_exact(4)
            .map(|b| GrantRef(u32::from_ne_bytes([b[0], b[1], b[2], b[3]])))
            .collect();
        let offset = file_offset(head.index).map_err(failed)?;
        let mapping = Mapping::shared(&*self.node, offset, pages, Access::ReadWrite);
        let mapping = mapping.map_err(|source| GrantError::Mapping {
            op: OP,
            domid,
            source,
        })?;
        Ok(GrantedPages {
            mapping,
            grant,
            refs,
        })
    }
}

impl GrantedPages {
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

    /// Sets what happens when this process ends.
    ///
    /// # Errors
    /// [`GrantError::Call`]: EINVAL for a port that is not bound.
    pub fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantError> {
        let arg = xen_sys::ioctl_gntalloc_unmap_notify {
            index: notify.index(self.grant.index),
            action: notify.action(),
            event_channel_port: notify.port(),
        };
        // SAFETY: the kernel reads the struct the number's size describes.
        let done = unsafe { set_unmap_notify(self.grant.node.as_raw_fd(), &raw const arg) };
        done.map(drop).map_err(|errno| GrantError::Call {
            op: "unmap_notify of a grant",
            domid: self.grant.domid,
            pages: self.refs.len(),
            errno,
        })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let arg = xen_sys::ioctl_gntalloc_dealloc_gref {
            index: self.index,
            count: self.count,
        };
        // SAFETY: the kernel reads the struct the number's size describes.
        if let Err(errno) = unsafe { dealloc_gref(self.node.as_raw_fd(), &raw const arg) } {
            log::warn!("ending a grant to {}: {errno}", self.domid);
        }
    }
}
