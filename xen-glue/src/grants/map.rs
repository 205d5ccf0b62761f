//! `/dev/xen/gntdev`: other domains' pages in this process.
//!
//! Facts: Linux drivers/xen/gntdev.c. An ioctl reserves an offset for a list
//! of references, mmap at that offset maps them, and after munmap another
//! ioctl gives the offset back.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use xen_sys::ioctl;

use super::{
    GrantError, GrantHold, GrantMapping, GrantRef, MapGrants, UnmapNotify, file_offset, open,
    page_count,
};
use crate::{Access, DomId, Mapping};

type MapRefs = xen_sys::ioctl_gntdev_map_grant_ref;
type OneRef = xen_sys::ioctl_gntdev_grant_ref;

nix::ioctl_readwrite_bad!(map_grant_ref, ioctl::GNTDEV_MAP_GRANT_REF, MapRefs);
nix::ioctl_write_ptr_bad!(
    unmap_grant_ref,
    ioctl::GNTDEV_UNMAP_GRANT_REF,
    xen_sys::ioctl_gntdev_unmap_grant_ref
);
nix::ioctl_write_ptr_bad!(
    set_unmap_notify,
    ioctl::GNTDEV_SET_UNMAP_NOTIFY,
    xen_sys::ioctl_gntdev_unmap_notify
);

// The struct as qwords: the count; the index; then domid and reference each.
const _: () = assert!(offset_of!(MapRefs, index) == 8);
const _: () = assert!(offset_of!(MapRefs, refs) == 16);
const _: () = assert!(offset_of!(OneRef, ref_) == 4 && size_of::<OneRef>() == 8);

/// The request.
fn encode(domid: DomId, count: u32, refs: &[GrantRef]) -> Vec<u64> {
    let pairs = refs
        .iter()
        .map(|r| u64::from(r.0) << 32 | u64::from(domid.0));
    [u64::from(count), 0].into_iter().chain(pairs).collect()
}

const PATH: &str = "/dev/xen/gntdev";

/// Maps what other domains granted.
#[derive(Clone, Debug)]
pub struct GrantMapper {
    node: Arc<File>,
}

#[derive(Debug)]
struct Offset {
    node: Arc<File>,
    domid: DomId,
    index: u64,
    count: u32,
}

impl GrantMapper {
    /// Opens the node.
    ///
    /// # Errors
    /// [`GrantError::Open`].
    pub fn open() -> Result<Self, GrantError> {
        Ok(Self {
            node: Arc::new(open(PATH)?),
        })
    }
}

impl MapGrants for GrantMapper {
    fn map(
        &self,
        domid: DomId,
        refs: &[GrantRef],
        access: Access,
    ) -> Result<GrantMapping, GrantError> {
        const OP: &str = "map of grants";
        let failed = |errno| GrantError::Call {
            op: OP,
            domid,
            pages: refs.len(),
            errno,
        };
        let count = page_count(refs.len()).map_err(failed)?;
        let mut buffer = encode(domid, count, refs);
        let arg: *mut MapRefs = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer is aligned for the struct, and has as many
        // references behind the head as its count says.
        unsafe { map_grant_ref(self.node.as_raw_fd(), arg) }.map_err(failed)?;
        // The kernel's answer.
        let index = buffer[1];
        let offset = Offset {
            node: Arc::clone(&self.node),
            domid,
            index,
            count,
        };
        let at = file_offset(index).map_err(failed)?;
        let mapping = Mapping::shared(&*self.node, at, refs.len(), access);
        let mapping = mapping.map_err(|source| GrantError::Mapping {
            op: OP,
            domid,
            source,
        })?;
        Ok(GrantMapping::new(mapping, Box::new(offset)))
    }
}

impl GrantHold for Offset {
    fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantError> {
        let arg = xen_sys::ioctl_gntdev_unmap_notify {
            index: notify.index(self.index),
            action: notify.action(),
            event_channel_port: notify.port(),
        };
        // SAFETY: the kernel reads the struct the number's size describes.
        let done = unsafe { set_unmap_notify(self.node.as_raw_fd(), &raw const arg) };
        done.map(drop).map_err(|errno| GrantError::Call {
            op: "unmap_notify of a mapping",
            domid: self.domid,
            pages: usize::try_from(self.count).unwrap_or(0),
            errno,
        })
    }
}

impl Drop for Offset {
    fn drop(&mut self) {
        let arg = xen_sys::ioctl_gntdev_unmap_grant_ref {
            index: self.index,
            count: self.count,
            pad: 0,
        };
        // SAFETY: the kernel reads the struct the number's size describes.
        if let Err(errno) = unsafe { unmap_grant_ref(self.node.as_raw_fd(), &raw const arg) } {
            log::warn!("giving back grants of {}: {errno}", self.domid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_structs_layout() {
        assert_eq!(
            encode(DomId(3), 2, &[GrantRef(8), GrantRef(9)]),
            [2, 0, 0x8_0000_0003, 0x9_0000_0003]
        );
    }
}
