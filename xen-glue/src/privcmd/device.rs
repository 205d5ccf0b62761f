//! `/dev/xen/privcmd`.
//!
//! Facts: Linux drivers/xen/privcmd.c. A mapping is made in two steps: an
//! empty mapping of the node, then an ioctl that fills all of it. Holes that
//! the ioctl left are not filled by a second one (it would be possible in a
//! PV dom0, but in a PVH dom0 `mmap_batch_fn` starts again from the
//! mapping's first page); whoever wants them maps anew.

#![expect(unsafe_code, reason = "ioctls on the privcmd node")]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use xen_sys::ioctl;

use super::{ForeignMap, MAX_DM_OP_BUF, MAX_DM_OP_BUFS, Privcmd, PrivcmdError, Resource};
use crate::{Access, DomId, Mapping};

nix::ioctl_readwrite_bad!(dm_op, ioctl::PRIVCMD_DM_OP, xen_sys::privcmd_dm_op);
nix::ioctl_readwrite_bad!(
    mmapbatch_v2,
    ioctl::PRIVCMD_MMAPBATCH_V2,
    xen_sys::privcmd_mmapbatch_v2
);
nix::ioctl_readwrite_bad!(
    mmap_resource,
    ioctl::PRIVCMD_MMAP_RESOURCE,
    xen_sys::privcmd_mmap_resource
);
nix::ioctl_write_ptr_bad!(restrict, ioctl::PRIVCMD_RESTRICT, xen_sys::domid_t);

const PATH: &str = "/dev/xen/privcmd";

/// The real privcmd node.
#[derive(Debug)]
pub struct PrivcmdDevice {
    node: File,
}

impl PrivcmdDevice {
    /// Opens the node. In a domU the open blocks until xenstore is there,
    /// and the handle is restricted to the domain's `target` from the start.
    ///
    /// # Errors
    /// [`PrivcmdError::Open`].
    pub fn open() -> Result<Self, PrivcmdError> {
        let node = OpenOptions::new()
            .read(true)
            .write(true)
            .open(PATH)
            .map_err(|e| PrivcmdError::Open {
                path: PATH,
                errno: Errno::from_raw(e.raw_os_error().unwrap_or(0)),
            })?;
        Ok(Self { node })
    }

    fn reserve(&self, domid: DomId, pages: usize, access: Access) -> Result<Mapping, PrivcmdError> {
        Mapping::shared(&self.node, 0, pages, access)
            .map_err(|source| PrivcmdError::Mapping { domid, source })
    }
}

fn failed(domid: DomId, errno: Errno, op: impl Into<String>) -> PrivcmdError {
    PrivcmdError::Call {
        op: op.into(),
        domid,
        errno,
    }
}

impl Privcmd for PrivcmdDevice {
    fn dm_op(&self, domid: DomId, bufs: &mut [&mut [u8]]) -> Result<(), PrivcmdError> {
        let name = || {
            let op = bufs.first().and_then(|b| b.first()).copied();
            format!("dm_op {}", op.unwrap_or(0))
        };
        if bufs.len() > MAX_DM_OP_BUFS || bufs.iter().any(|b| b.len() > MAX_DM_OP_BUF) {
            return Err(failed(domid, Errno::E2BIG, name()));
        }
        let name = name();
        let table: Vec<_> = bufs
            .iter_mut()
            .map(|b| xen_sys::privcmd_dm_op_buf {
                uptr: b.as_mut_ptr().cast(),
                size: b.len(),
            })
            .collect();
        let mut arg = xen_sys::privcmd_dm_op {
            dom: domid.0,
            // At most MAX_DM_OP_BUFS.
            num: u16::try_from(table.len()).unwrap_or(0),
            ubufs: table.as_ptr(),
        };
        // SAFETY: `arg` names a table of buffers that are borrowed mutably
        // until after the call; the kernel pins them only while it lasts.
        let done = unsafe { dm_op(self.node.as_raw_fd(), &raw mut arg) };
        done.map(drop).map_err(|errno| failed(domid, errno, name))
    }

    fn map_foreign(
        &self,
        domid: DomId,
        gfns: &[u64],
        access: Access,
    ) -> Result<ForeignMap, PrivcmdError> {
        let name = || {
            let (first, n) = (gfns.first().copied().unwrap_or(0), gfns.len());
            format!("map_foreign of {n} frames from {first:#x}")
        };
        let Ok(num) = u32::try_from(gfns.len()) else {
            return Err(failed(domid, Errno::E2BIG, name()));
        };
        let mapping = self.reserve(domid, gfns.len(), access)?;
        let mut errors = vec![0_i32; gfns.len()];
        let mut arg = xen_sys::privcmd_mmapbatch_v2 {
            num,
            dom: domid.0,
            addr: mapping.address(),
            arr: gfns.as_ptr(),
            err: errors.as_mut_ptr(),
        };
        // SAFETY: the mapping is ours and as long as the arrays; both arrays
        // have `num` elements and live until after the call.
        match unsafe { mmapbatch_v2(self.node.as_raw_fd(), &raw mut arg) } {
            // ENOENT only says that `errors` has at least one ENOENT.
            Ok(_) | Err(Errno::ENOENT) => Ok(ForeignMap {
                mapping,
                errors: errors
                    .into_iter()
                    .map(|e| (e != 0).then(|| Errno::from_raw(e.saturating_neg())))
                    .collect(),
            }),
            Err(errno) => Err(failed(domid, errno, name())),
        }
    }

    fn map_resource(&self, domid: DomId, resource: Resource) -> Result<Mapping, PrivcmdError> {
        let pages = usize::try_from(resource.count).unwrap_or(usize::MAX);
        let mapping = self.reserve(domid, pages, Access::ReadWrite)?;
        let mut arg = xen_sys::privcmd_mmap_resource {
            dom: domid.0,
            type_: resource.kind,
            id: resource.id,
            idx: resource.frame,
            num: u64::from(resource.count),
            addr: mapping.address(),
        };
        // SAFETY: the mapping is ours and `num` pages long.
        let done = unsafe { mmap_resource(self.node.as_raw_fd(), &raw mut arg) };
        done.map_err(|errno| failed(domid, errno, format!("map_resource {resource:?}")))?;
        Ok(mapping)
    }

    fn restrict(&self, domid: DomId) -> Result<(), PrivcmdError> {
        // SAFETY: the kernel reads one domid from the pointer.
        let done = unsafe { restrict(self.node.as_raw_fd(), &raw const domid.0) };
        done.map(drop)
            .map_err(|errno| failed(domid, errno, "restrict"))
    }
}
