//! A vGPU is saved: what libxl's steps come to, and what they leave behind
//! when one of them fails.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use guest_memory::Gfn;
use vgpu_control::{Connection, FromDm, State, ToDm};

use super::{Fixture, Qemu};
use crate::daemon::guest::Guest;
use crate::daemon::migration::Migrant;

const LIMIT: Duration = Duration::from_secs(1);

/// What a fake device model says to a step of a save.
pub fn answer(role: &str, connection: &Connection, step: &ToDm, fds: Vec<OwnedFd>) {
    let refuses = match role {
        "refuses-to-record" => matches!(step, ToDm::Record(true)),
        "does-not-hold-still" => matches!(step, ToDm::HoldStill { .. }),
        _ => false,
    };
    if role == "dies-while-saving" && matches!(step, ToDm::Save) {
        std::process::exit(3);
    }
    let answer = match step {
        _ if refuses => FromDm::Refused("it will not".into()),
        ToDm::Written { .. } if role == "wrote-everything" => {
            FromDm::Written(vec![(0x77, u64::MAX)])
        }
        ToDm::Written { most } if role == "wrote-nothing-often" => {
            FromDm::Written(vec![(7, 0); *most])
        }
        ToDm::Written { most } => FromDm::Written(vec![(7, 2)][..(*most).min(1)].to_vec()),
        ToDm::Save => {
            let mut file = File::from(fds.into_iter().next().unwrap());
            let blanks = if role == "says-too-much" { 17 << 20 } else { 0 };
            let bytes = [b"{\"device\":1}".to_vec(), vec![b' '; blanks]].concat();
            file.write_all(&bytes).unwrap();
            FromDm::Saved
        }
        _ => FromDm::Done,
    };
    connection.send(&answer, &[]).unwrap();
}

/// A daemon whose device models have a role, and its one guest.
fn guest(role: &str) -> (Fixture, Qemu, Arc<Guest>) {
    let f = Fixture::new(role, role);
    let qemu = f.attached();
    let guest = f.daemon.as_ref().unwrap().guest(9).unwrap();
    (f, qemu, guest)
}

fn reason<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn a_vgpu_is_saved_step_by_step() {
    let (f, _qemu, guest) = guest("saves");
    assert_eq!(reason(guest.save()), "domain 9: the vGPU is not stopped");
    guest.begin_save().unwrap();
    guest.begin_save().unwrap();
    assert_eq!(guest.take_written().unwrap(), [(Gfn(7), 2)]);
    guest.suspend(LIMIT).unwrap();
    assert_eq!(f.note(), "stopped");
    assert_eq!(
        reason(guest.suspend(LIMIT)),
        "domain 9: the vGPU is stopped already"
    );
    let saved = guest.save().unwrap();
    assert_eq!(saved.device, b"{\"device\":1}");
    assert_eq!(saved.host.gpu, "bdw");
    let mut entries = 0;
    saved.table.unpack(|index, entry| {
        assert_eq!(entry, if index == 7 { 0x1234_5001 } else { 0 });
        entries += 1;
    });
    assert_eq!(entries, 1 << 20);
    // `xl save -c`: it goes on, and may be saved again.
    guest.end_save().unwrap();
    assert_eq!(f.note(), "goes on");
    guest.end_save().unwrap();
    guest.begin_save().unwrap();
    guest.suspend(LIMIT).unwrap();
    assert_eq!(f.note(), "stopped");
}

#[test]
fn what_a_device_model_says_it_wrote_has_bounds() {
    let look = |role| {
        let (f, _qemu, guest) = guest(role);
        guest.begin_save().unwrap();
        (Migrant::written(&*guest), f)
    };
    // One that has something to tell each time.
    let frames = look("writes").0.unwrap();
    assert_eq!(frames.iter().collect::<Vec<_>>(), [Gfn(7), Gfn(8)]);
    assert_eq!(
        reason(look("wrote-everything").0),
        "domain 9: 18446744073709551615 frames from 0x77 on are said to be written, \
         allowed: 1048576 in all"
    );
    let nothing = reason(look("wrote-nothing-often").0);
    assert!(nothing.contains("0 frames from 0x7 on"), "{nothing}");
}

#[test]
fn work_that_does_not_yield_is_named() {
    let (f, _qemu, guest) = guest("saves-no-more");
    guest.begin_save().unwrap();
    assert_eq!(
        reason(guest.suspend(Duration::ZERO)),
        "context 0x4000 has run on rcs0 for 7 ms and does not yield"
    );
    assert_eq!(f.note(), "stopped");
    // It was not stopped, so nothing is to go on.
    guest.end_save().unwrap();
    guest.begin_save().unwrap();
    guest.suspend(LIMIT).unwrap();
    assert_eq!(f.note(), "stopped");
}

#[test]
fn a_device_model_that_does_not_do_its_part_fails_the_step() {
    let (_f, _qemu, first) = guest("refuses-to-record");
    assert_eq!(
        reason(first.begin_save()),
        "the vGPU cannot be saved: it will not"
    );
    let (f, _qemu, second) = guest("does-not-hold-still");
    second.begin_save().unwrap();
    assert_eq!(reason(second.suspend(LIMIT)), "it will not");
    assert_eq!(f.note(), "stopped");
    assert_eq!(f.note(), "goes on");
    second.end_save().unwrap();
    let (_f, _qemu, third) = guest("says-too-much");
    third.begin_save().unwrap();
    third.suspend(LIMIT).unwrap();
    assert_eq!(
        reason(third.save()),
        "the device's state is longer than 16777216 bytes"
    );
}

#[test]
fn a_guest_can_be_looked_at_while_its_device_model_takes_its_time() {
    let (_f, _qemu, guest) = guest("takes-its-time");
    let seen = guest.with_vgpu(|_| Ok((guest.entry().state, guest.sample().state)));
    assert_eq!(seen.unwrap(), (State::Running, State::Running));
}

#[test]
fn an_answer_that_comes_late_is_not_the_next_questions() {
    let (_f, _qemu, guest) = guest("answers-late");
    for on in [true, false].into_iter().cycle().take(50) {
        // Given up before it is answered, mostly.
        let _ = guest.dm().step(&ToDm::Record(on), Duration::from_micros(1));
        assert!(guest.dm().tree().unwrap().is_object());
    }
}

#[test]
fn a_save_does_not_outlive_its_device_model() {
    let (f, _qemu, guest) = guest("dies-while-saving");
    guest.begin_save().unwrap();
    guest.suspend(LIMIT).unwrap();
    let dead = reason(guest.save());
    assert!(dead.starts_with("the device model: "), "{dead}");
    assert_eq!(f.note(), "stopped");
    // Another takes its place, and the guest goes on; the save does not.
    let mut notes = [f.note(), f.note()];
    notes.sort_unstable();
    assert_eq!(notes, ["Ping { token: 99 } 0x12345001", "goes on"]);
    let lost = "domain 9: its device model was replaced during the save";
    assert_eq!(reason(guest.suspend(LIMIT)), lost);
    assert_eq!(reason(guest.take_written()), lost);
    assert_eq!(reason(guest.save()), "domain 9: the vGPU is not stopped");
    guest.end_save().unwrap();
    guest.begin_save().unwrap();
    guest.suspend(LIMIT).unwrap();
    assert_eq!(f.note(), "stopped");
}
