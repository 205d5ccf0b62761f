//! privcmd handles.

use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use xen_glue::{
    Access, DomId, ForeignMap, MAX_DM_OP_BUF, MAX_DM_OP_BUFS, Mapping, Privcmd, PrivcmdError,
    Resource,
};
use xen_sys::layout::IOREQ_SERVER_FRAME_IOREQ;

use crate::dm_op;
use crate::domain::DomainState;
use crate::host::{Host, lock};

/// A handle, like an open `/dev/xen/privcmd`.
pub struct FakePrivcmd {
    host: Arc<Host>,
    caller: DomId,
    restricted: Mutex<Option<DomId>>,
}

impl FakePrivcmd {
    pub(crate) fn new(host: Arc<Host>, caller: DomId) -> Self {
        Self {
            host,
            caller,
            restricted: Mutex::default(),
        }
    }

    fn domain(&self, domid: DomId) -> Result<Arc<DomainState>, Errno> {
        if lock(&self.restricted).is_some_and(|only| only != domid) {
            return Err(Errno::EPERM);
        }
        self.host.domain(domid).ok_or(Errno::ESRCH)
    }

    fn try_resource(&self, domid: DomId, r: Resource) -> Result<Mapping, Errno> {
        let domain = self.domain(domid)?;
        if r.kind != xen_sys::XENMEM_resource_ioreq_server || r.count != 1 {
            return Err(Errno::EINVAL);
        }
        let id = u16::try_from(r.id).map_err(|_| Errno::ENOENT)?;
        let server = lock(&domain.servers).get(id, self.caller)?;
        match r.frame {
            // The buffered page, which no server here has.
            0 => Err(Errno::ENOENT),
            IOREQ_SERVER_FRAME_IOREQ => server.map_page(),
            _ => Err(Errno::EINVAL),
        }
    }
}

fn failed(op: String, domid: DomId) -> impl FnOnce(Errno) -> PrivcmdError {
    move |errno| PrivcmdError::Call { op, domid, errno }
}

impl Privcmd for FakePrivcmd {
    fn dm_op(&self, domid: DomId, bufs: &mut [&mut [u8]]) -> Result<(), PrivcmdError> {
        // The checks of Linux drivers/xen/privcmd.c:privcmd_ioctl_dm_op.
        let run = |bufs: &mut [&mut [u8]]| {
            let domain = self.domain(domid)?;
            if bufs.len() > MAX_DM_OP_BUFS || bufs.iter().any(|b| b.len() > MAX_DM_OP_BUF) {
                return Err(Errno::E2BIG);
            }
            let Some((op, rest)) = bufs.split_first_mut() else {
                return Ok(());
            };
            dm_op::run(&self.host, &domain, self.caller, op, rest)
        };
        let number = bufs.first().and_then(|b| b.first()).copied().unwrap_or(0);
        run(bufs).map_err(failed(format!("dm_op {number}"), domid))
    }

    fn map_foreign(
        &self,
        domid: DomId,
        gfns: &[u64],
        access: Access,
    ) -> Result<ForeignMap, PrivcmdError> {
        let op = format!("map_foreign of {} frames", gfns.len());
        let domain = self.domain(domid).map_err(failed(op, domid))?;
        let mapped = domain.memory.map_foreign(gfns, access);
        domain.crash_if_exhausted();
        mapped.map_err(|source| PrivcmdError::Mapping { domid, source })
    }

    fn map_resource(&self, domid: DomId, resource: Resource) -> Result<Mapping, PrivcmdError> {
        self.try_resource(domid, resource)
            .map_err(failed(format!("map_resource {resource:?}"), domid))
    }

    fn restrict(&self, domid: DomId) -> Result<(), PrivcmdError> {
        let mut restricted = lock(&self.restricted);
        if restricted.is_some_and(|only| only != domid) {
            return Err(failed("restrict".into(), domid)(Errno::EINVAL));
        }
        *restricted = Some(domid);
        Ok(())
    }
}
