//! An event channel as doorbell.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use vgpu_ring::BellChannel;
use xen_glue::{DomId, EventChannel, EventChannelError, EvtchnDevice, Hypervisor, Port};

use crate::GrantAreaError;

/// A port on a handle of its own, so that whoever waits for the one waits for
/// the other.
#[derive(Debug)]
pub(crate) struct PortBell(EventChannel);

impl PortBell {
    /// A port that `domid` may bind to.
    pub(crate) fn offer(xen: &dyn Hypervisor, domid: DomId) -> Result<Arc<Self>, GrantAreaError> {
        let events = xen.open_event_channels()?;
        Ok(Arc::new(Self(EventChannel::bind_unbound(events, domid)?)))
    }

    /// Bound to the `port` that `domid` offers.
    pub(crate) fn bind(
        xen: &dyn Hypervisor,
        domid: DomId,
        port: Port,
    ) -> Result<Arc<Self>, GrantAreaError> {
        let events = xen.open_event_channels()?;
        let channel = EventChannel::bind_interdomain(events, domid, port)?;
        let bell = Self(channel);
        // Xen raises a port that was just bound, in case one was rung before.
        // Whoever waits looks first.
        bell.take();
        Ok(Arc::new(bell))
    }

    /// A port that another process of this domain holds, behind `node`.
    pub(crate) fn lent(node: OwnedFd, port: Port) -> Arc<Self> {
        let events = Arc::new(EvtchnDevice::from(node));
        let bell = Self(EventChannel::lent(events, port));
        // One before us may have died between an event and the leave for the
        // next.
        report(bell.0.unmask());
        Arc::new(bell)
    }

    pub(crate) fn port(&self) -> Port {
        self.0.port()
    }
}

/// It happens when the node overflowed, which one port cannot make it, and
/// when the port is closed.
fn report(result: Result<(), EventChannelError>) {
    if let Err(e) = result {
        log::debug!("{e}");
    }
}

impl BellChannel for PortBell {
    fn ring(&self) {
        report(self.0.notify());
    }

    fn take(&self) {
        // There is one event at most: the next is queued after this unmask,
        // and wakes the next wait.
        match self.0.events().wait(Some(Duration::ZERO)) {
            Ok(Some(_)) => report(self.0.unmask()),
            Ok(None) => {}
            Err(e) => report(Err(e)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.events().poll_fd()
    }
}
