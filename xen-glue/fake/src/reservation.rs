//! How much memory a domain has, as the toolstack changes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use xen_glue::{DomId, DomainMemory, Extent, HypercallError};

use crate::domain::DomainState;
use crate::host::Host;

/// A handle, like an open `/dev/xen/privcmd` of dom0.
pub(crate) struct FakeDomainMemory {
    host: Arc<Host>,
}

impl FakeDomainMemory {
    pub(crate) fn new(host: Arc<Host>) -> Self {
        Self { host }
    }

    fn domain(&self, op: &'static str, domid: DomId) -> Result<Arc<DomainState>, HypercallError> {
        self.host.domain(domid).ok_or(HypercallError::Call {
            op,
            domid,
            errno: Errno::ESRCH,
        })
    }
}

/// How many frames of `extent` `f` succeeds on before one it does not.
fn count(extent: Extent, mut f: impl FnMut(u64) -> Result<(), Errno>) -> u32 {
    let gfns = (0..extent.frames).map(|i| extent.first_gfn.wrapping_add(u64::from(i)));
    let done = gfns.take_while(|gfn| f(*gfn).is_ok()).count();
    // At most extent.frames.
    u32::try_from(done).unwrap_or(extent.frames)
}

impl DomainMemory for FakeDomainMemory {
    fn maximum_reservation(&self, domid: DomId) -> Result<u64, HypercallError> {
        let domain = self.domain("XENMEM_maximum_reservation", domid)?;
        Ok(u64::try_from(domain.memory.most()).unwrap_or(u64::MAX))
    }

    fn set_maximum_reservation(&self, domid: DomId, frames: u64) -> Result<(), HypercallError> {
        let domain = self.domain("XEN_DOMCTL_max_mem", domid)?;
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        domain.memory.set_most(frames);
        Ok(())
    }

    fn populate(&self, domid: DomId, extent: Extent) -> Result<u32, HypercallError> {
        let domain = self.domain("XENMEM_populate_physmap", domid)?;
        Ok(count(extent, |gfn| domain.memory.populate(gfn)))
    }

    fn withdraw(&self, domid: DomId, extent: Extent) -> Result<u32, HypercallError> {
        let domain = self.domain("XENMEM_decrease_reservation", domid)?;
        domain.mapcache_invalidate.store(true, Ordering::Release);
        Ok(count(extent, |gfn| domain.memory.remove(gfn)))
    }
}
