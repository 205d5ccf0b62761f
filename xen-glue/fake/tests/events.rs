//! Event channels: masking, pending, and the descriptor.

use std::sync::Arc;
use std::time::Duration;

use fake_xen::FakeXen;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xen_glue::{DomId, EventChannel, EventChannels, Hypervisor, Port};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// Two handles, one in dom0 and one in domain 5, and a port between them.
fn pair() -> (Arc<dyn EventChannels>, Port, Arc<dyn EventChannels>, Port) {
    let xen = FakeXen::new();
    let near = xen.open_event_channels().unwrap();
    let far = xen.seen_from(DomId(5)).open_event_channels().unwrap();
    let offered = near.bind_unbound(DomId(5)).unwrap();
    let bound = far.bind_interdomain(DomId(0), offered).unwrap();
    // Xen raises the new port once, in case an event was lost.
    assert_eq!(far.wait(NOW).unwrap(), Some(bound));
    far.unmask(bound).unwrap();
    (near, offered, far, bound)
}

#[test]
fn an_event_comes_once_until_unmasked() {
    let (near, offered, far, bound) = pair();
    near.notify(offered).unwrap();
    near.notify(offered).unwrap();
    assert_eq!(far.wait(None).unwrap(), Some(bound));
    assert_eq!(far.wait(NOW).unwrap(), None);
    // While masked it is remembered, once.
    near.notify(offered).unwrap();
    near.notify(offered).unwrap();
    assert_eq!(far.wait(NOW).unwrap(), None);
    far.unmask(bound).unwrap();
    assert_eq!(far.wait(NOW).unwrap(), Some(bound));
    far.unmask(bound).unwrap();
    assert_eq!(far.wait(NOW).unwrap(), None);
    far.notify(bound).unwrap();
    assert_eq!(near.wait(None).unwrap(), Some(offered));
}

#[test]
fn only_the_domain_it_is_for_may_bind_and_only_once() {
    let xen = FakeXen::new();
    let near = xen.open_event_channels().unwrap();
    let offered = near.bind_unbound(DomId(5)).unwrap();
    let stranger = xen.seen_from(DomId(6)).open_event_channels().unwrap();
    assert!(stranger.bind_interdomain(DomId(0), offered).is_err());
    let far = xen.seen_from(DomId(5)).open_event_channels().unwrap();
    let bound = EventChannel::bind_interdomain(far.clone(), DomId(0), offered).unwrap();
    assert!(far.bind_interdomain(DomId(0), offered).is_err());
    let port = bound.port();
    drop(bound);
    assert!(far.notify(port).is_err());
    assert!(far.unbind(port).is_err());
    far.bind_interdomain(DomId(0), offered).unwrap();
}

#[test]
fn a_closed_handle_leaves_the_other_end_without_a_peer() {
    let (near, offered, far, _bound) = pair();
    drop(far);
    near.notify(offered).unwrap();
    near.unbind(offered).unwrap();
    assert!(near.notify(offered).is_err());
}

#[test]
fn the_descriptor_is_readable_while_an_event_is_queued() {
    let (near, offered, far, bound) = pair();
    let readable = || {
        let mut fds = [PollFd::new(far.poll_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    };
    assert!(!readable());
    near.notify(offered).unwrap();
    assert!(readable());
    assert_eq!(far.wait(NOW).unwrap(), Some(bound));
    assert!(!readable());
}
