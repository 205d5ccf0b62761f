//! `/dev/xen/gntalloc`: pages of ours that another domain may map.
//!
//! Facts: Linux drivers/xen/gntalloc.c. A page that the other domain still
//! maps when we let go of it is freed later, by the kernel.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use xen_sys::ioctl;

use super::{
    GrantError, GrantHold, GrantPages, GrantRef, GrantedPages, UnmapNotify, file_offset, open,
    page_count,
};
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

// The struct as qwords: domid, flags and count; the index; then references,
// two a qword.
const _: () = assert!(offset_of!(Alloc, flags) == 2);
const _: () = assert!(offset_of!(Alloc, count) == 4);
const _: () = assert!(offset_of!(Alloc, index) == 8);
const _: () = assert!(offset_of!(Alloc, gref_ids) == 16);

/// The request, with room for the answer.
fn encode(domid: DomId, count: u32) -> Vec<u64> {
    let mut buffer = vec![0; 2 + count.div_ceil(2) as usize];
    let flags = u64::from(xen_sys::GNTALLOC_FLAG_WRITABLE);
    buffer[0] = u64::from(count) << 32 | flags << 16 | u64::from(domid.0);
    buffer
}

/// The answer: an index and the references.
fn decode(buffer: &[u64], pages: usize) -> (u64, Vec<GrantRef>) {
    let dwords = buffer.iter().skip(2).flat_map(|q| {
        let [a, b, c, d, e, f, g, h] = q.to_le_bytes();
        [[a, b, c, d], [e, f, g, h]]
    });
    let refs = dwords.take(pages).map(|d| GrantRef(u32::from_le_bytes(d)));
    (buffer.get(1).copied().unwrap_or(0), refs.collect())
}

const PATH: &str = "/dev/xen/gntalloc";

/// Grants pages to other domains.
#[derive(Clone, Debug)]
pub struct GrantAllocator {
    node: Arc<File>,
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

    /// Pages that another process of this domain granted and holds on to, by
    /// what [`GrantedPages::lend`] gave there. They are not given back here.
    ///
    /// # Errors
    /// [`GrantError::Mapping`].
    pub fn lent(node: &OwnedFd, index: u64, pages: usize) -> Result<GrantedPages, GrantError> {
        const OP: &str = "map granted pages";
        let domid = DomId(0);
        let failed = |errno| GrantError::Call {
            op: OP,
            domid,
            pages,
            errno,
        };
        page_count(pages).map_err(failed)?;
        let offset = file_offset(index).map_err(failed)?;
        let mapping = Mapping::shared(node, offset, pages, Access::ReadWrite);
        let mapping = mapping.map_err(|source| GrantError::Mapping {
            op: OP,
            domid,
            source,
        })?;
        Ok(GrantedPages::new(mapping, Box::new(Lent), Vec::new()))
    }
}

/// Pages of another process.
#[derive(Debug)]
struct Lent;

impl GrantHold for Lent {
    fn set_unmap_notify(&self, _notify: UnmapNotify) -> Result<(), GrantError> {
        // The holder's end counts, which has it set.
        Ok(())
    }
}

impl GrantPages for GrantAllocator {
    fn grant(&self, domid: DomId, pages: usize) -> Result<GrantedPages, GrantError> {
        const OP: &str = "grant";
        let failed = |errno| GrantError::Call {
            op: OP,
            domid,
            pages,
            errno,
        };
        let mut buffer = encode(domid, page_count(pages).map_err(failed)?);
        let arg: *mut Alloc = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer is aligned for the struct, and has room for as
        // many references as its count says.
        unsafe { alloc_gref(self.node.as_raw_fd(), arg) }.map_err(failed)?;
        let (index, refs) = decode(&buffer, pages);
        let grant = Grant {
            node: Arc::clone(&self.node),
            domid,
            index,
            count: page_count(pages).map_err(failed)?,
        };
        let offset = file_offset(index).map_err(failed)?;
        let mapping = Mapping::shared(&*self.node, offset, pages, Access::ReadWrite);
        let mapping = mapping.map_err(|source| GrantError::Mapping {
            op: OP,
            domid,
            source,
        })?;
        Ok(GrantedPages::new(mapping, Box::new(grant), refs))
    }
}

impl GrantHold for Grant {
    fn lend(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.node.as_fd(), self.index))
    }

    fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantError> {
        let arg = xen_sys::ioctl_gntalloc_unmap_notify {
            index: notify.index(self.index),
            action: notify.action(),
            event_channel_port: notify.port(),
        };
        // SAFETY: the kernel reads the struct the number's size describes.
        let done = unsafe { set_unmap_notify(self.node.as_raw_fd(), &raw const arg) };
        done.map(drop).map_err(|errno| GrantError::Call {
            op: "unmap_notify of a grant",
            domid: self.domid,
            pages: usize::try_from(self.count).unwrap_or(0),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_structs_layout() {
        assert_eq!(encode(DomId(5), 3), [0x3_0001_0005, 0, 0, 0]);
        let answer = [0x3_0001_0005, 0x7000, 0x0b_0000_000a, 0x0c];
        let (index, refs) = decode(&answer, 3);
        assert_eq!(index, 0x7000);
        assert_eq!(refs, [GrantRef(10), GrantRef(11), GrantRef(12)]);
    }

    #[test]
    fn lent_pages_are_the_holders() {
        use nix::sys::memfd::{MFdFlags, memfd_create};
        // In the node's place, what has the same mmap.
        let node = memfd_create(c"node", MFdFlags::empty()).unwrap();
        File::from(node.try_clone().unwrap()).set_len(8192).unwrap();
        let held = Mapping::shared(&node, 4096, 1, Access::ReadWrite).unwrap();
        held.write(8, b"kept").unwrap();
        let lent = GrantAllocator::lent(&node, 4096, 1).unwrap();
        let mut bytes = [0; 4];
        lent.mapping().read(8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        assert!(lent.refs().is_empty() && lent.lend().is_none());
        assert!(GrantAllocator::lent(&node, u64::MAX, 1).is_err());
    }

    #[test]
    fn no_page_and_too_many_are_refused() {
        use nix::errno::Errno;
        assert_eq!(page_count(0), Err(Errno::EINVAL));
        assert_eq!(page_count(4096), Ok(4096));
        assert_eq!(page_count(4097), Err(Errno::E2BIG));
    }
}
