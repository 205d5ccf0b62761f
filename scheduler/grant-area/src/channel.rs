//! An event channel as doorbell.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use vgpu_ring::BellChannel;
use xen_glue::{
    DomId, EventChannel, EventChannelError, EventChannels, EvtchnDevice, Hypervisor, Port,
};

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
        Self::lent_on(Arc::new(EvtchnDevice::from(node)), port)
    }

    fn lent_on(events: Arc<dyn EventChannels>, port: Port) -> Arc<Self> {
        let bell = Self(EventChannel::lent(events, port));
        // One before us may have died with an event in the queue, or between an
        // event and the leave for the next.
        bell.drain();
        report(bell.0.unmask());
        Arc::new(bell)
    }

    /// Takes all events; says whether there was one.
    fn drain(&self) -> bool {
        let mut any = false;
        loop {
            match self.0.events().wait(Some(Duration::ZERO)) {
                Ok(Some(_)) => any = true,
                Ok(None) => return any,
                Err(e) => {
                    report(Err(e));
                    return any;
                }
            }
        }
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
        // The next is queued after this unmask, and wakes the next wait: only
        // an event that finds the queue empty wakes anybody
        // (Linux drivers/xen/evtchn.c:evtchn_interrupt). There may be two, when
        // one came while a lent port was unmasked.
        if self.drain() {
            report(self.0.unmask());
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.events().poll_fd()
    }
}

#[cfg(test)]
mod tests {
    use fake_xen::{Domain, DomainConfig, FakeXen};
    use vgpu_ring::{Doorbell, EventBell};

    use super::*;

    /// The handle that the first process holds its port on, and vgpud's end.
    fn world() -> (Domain, Arc<dyn EventChannels>, EventChannel, Arc<PortBell>) {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let stub = xen.seen_from(domain.id());
        let events: Arc<dyn EventChannels> = stub.open_event_channels().unwrap();
        let held = EventChannel::bind_unbound(Arc::clone(&events), DomId(0)).unwrap();
        let vgpud = PortBell::bind(&xen, domain.id(), held.port()).unwrap();
        (domain, events, held, vgpud)
    }

    fn rung(bell: &EventBell) -> bool {
        bell.wait(Some(Duration::ZERO))
    }

    #[test]
    fn what_rang_for_a_predecessor_makes_a_successor_miss_no_ring() {
        let (_domain, events, held, vgpud) = world();
        let dead = PortBell::lent_on(Arc::clone(&events), held.port());
        vgpud.ring();
        drop(dead);
        let bell = PortBell::lent_on(events, held.port());
        let bell = EventBell::from_domain(bell).unwrap();
        for _ in 0..3 {
            vgpud.ring();
            assert!(rung(&bell));
            assert!(!rung(&bell));
        }
    }

    #[test]
    fn two_events_in_the_queue_are_taken_at_once() {
        let (_domain, events, held, vgpud) = world();
        let bell = PortBell::lent_on(Arc::clone(&events), held.port());
        let bell = EventBell::from_domain(bell).unwrap();
        vgpud.ring();
        // As one of a successor's just before it would be.
        events.unmask(held.port()).unwrap();
        vgpud.ring();
        for _ in 0..3 {
            assert!(rung(&bell));
            assert!(!rung(&bell));
            vgpud.ring();
        }
        assert!(rung(&bell));
    }
}
