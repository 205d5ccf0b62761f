//! Either side ends: the other learns of it, and nothing is left.

use std::thread;
use std::time::Duration;

use grant_area::Lifeline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vgpu_ring::{Doorbell, Event, PipeError, PipeLimits, Request, Wake};

use crate::world::{DOM0, World};

const MOST: PipeLimits = PipeLimits {
    text: 1 << 20,
    attached: 0,
};

/// Whether it says the end, however often it speaks.
fn ended(lifeline: &Lifeline) -> bool {
    lifeline.ended()
}

fn readable(lifeline: &Lifeline) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(lifeline.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn an_area_works_over_grants() {
    let world = World::new();
    let device = world.device();
    let text = device.offer.to_string();
    let daemon = world.daemon(&text.parse().unwrap());
    assert!(device.area.life().peer_there());
    assert!(daemon.area.life().peer_there());

    let mut near = device.area.device_end(device.area.bells().unwrap());
    let mut far = daemon.area.daemon_end(daemon.area.bells().unwrap());
    near.ggtt.store(5, 77);
    near.changes.store(3);
    near.requests.push(Request::Ping { token: 1 }).unwrap();
    assert_eq!(far.requests.wait(None), Ok(Wake::Message));
    assert_eq!(far.requests.pop(), Ok(Some(Request::Ping { token: 1 })));
    assert_eq!((far.ggtt.load(5), far.changes.load()), (77, 3));
    // A sleeper is woken from the other domain.
    let sleeper = thread::spawn(move || {
        while near.events.wait(None).unwrap() != Wake::Message {}
        near.events.pop().unwrap()
    });
    far.events.push(Event::Pong { token: 1 }).unwrap();
    assert_eq!(sleeper.join().unwrap(), Some(Event::Pong { token: 1 }));
}

#[test]
fn a_device_model_that_ends_is_noticed_and_leaves_nothing() {
    let world = World::new();
    let empty = world.left();
    let device = world.device();
    let daemon = world.daemon(&device.offer);
    let lifeline = daemon.area.lifeline();
    let mut control = daemon.control.end().unwrap();
    let waits = thread::spawn(move || control.recv(MOST, None));
    assert!(!ended(&lifeline));

    drop(device);
    assert!(ended(&lifeline));
    assert_eq!(waits.join().unwrap(), Err(PipeError::Closed));
    // dom0 still maps the pages, so they are not free, and can be read.
    assert!(world.left()[0] > 0);
    let end = daemon.area.daemon_end(daemon.area.bells().unwrap());
    assert_eq!(end.ggtt.load(0), 0);
    end.events.doorbell().ring();
    drop((end, lifeline, daemon));
    assert_eq!(world.left(), empty);
}

#[test]
fn a_daemon_that_ends_is_noticed_and_another_can_come() {
    let world = World::new();
    let empty = world.left();
    let device = world.device();
    let before = world.left();
    let lifeline = device.area.lifeline();
    assert!(!ended(&lifeline));
    for coming in 1..4 {
        let daemon = world.daemon(&device.offer);
        assert!(device.area.life().peer_there());
        // Told by an event: whoever waits looks.
        assert!(readable(&lifeline));
        assert_eq!((daemon.area.coming(), lifeline.comings()), (coming, coming));
        assert!(!readable(&lifeline));
        assert!(!ended(&lifeline));
        let mut control = device.control.end().unwrap();
        let waits = thread::spawn(move || control.recv(MOST, None));
        drop(daemon);
        assert!(ended(&lifeline));
        assert_eq!(waits.join().unwrap(), Err(PipeError::Closed));
        assert_eq!(world.left(), before);
    }
    drop((device, lifeline));
    assert_eq!(world.left(), empty);
}

#[test]
fn a_destroyed_stub_domain_leaves_nothing_when_dom0_lets_go() {
    let world = World::new();
    let device = world.device();
    let daemon = world.daemon(&device.offer);
    let mut control = daemon.control.end().unwrap();
    world.domain.destroy();
    // Nobody was left to say it.
    assert!(!ended(&daemon.area.lifeline()));
    let moment = Some(Duration::from_millis(1));
    assert_eq!(control.recv(MOST, moment), Err(PipeError::TimedOut));
    let [granted, mapped, ports, _] = world.left();
    assert_eq!((granted, ports), (mapped, 0));
    drop((daemon, control));
    assert_eq!(world.left(), [0; 4]);
    // What is left of it in this process does no harm.
    drop(device);
    assert_eq!(world.xen.grants_mapped_by(DOM0), 0);
}

#[test]
fn the_bytes_of_one_that_ended_go_to_its_successor() {
    let world = World::new();
    let first = world.device();
    let old = world.daemon(&first.offer);
    let end = first.area.device_end(first.area.bells().unwrap());
    end.ggtt.store(9, 5);
    end.kept.store(1, 2);
    drop((first, end));
    let second = world.device();
    let new = world.daemon(&second.offer);
    old.area.copy_to(&new.area).unwrap();
    drop(old);
    let end = second.area.resumed_device_end(second.area.bells().unwrap());
    assert_eq!((end.ggtt.load(9), end.kept.load(1)), (5, 2));
}
