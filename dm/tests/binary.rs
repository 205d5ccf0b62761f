//! The binary against a vgpud that starts it, on a host without the domain.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use vgpu_control::{Connection, FromDm, StartDm, ToDm};
use vgpu_ring::{AreaConfig, Bells, SharedArea};

fn start() -> (Child, Connection) {
    let (ours, theirs) = Connection::pair().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_vgpu-dm"))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, ours)
}

fn message(mode: &str) -> ToDm {
    ToDm::Start(StartDm {
        // Xen gives no domain this number.
        domid: 0x7fef,
        gpu: "bdw".into(),
        slot: 16,
        aperture_mib: 256,
        mode: mode.to_owned(),
        ggtt_gfn: None,
        confine: None,
        restored: false,
        recover: None,
        anew: false,
        replay: false,
        count_registers: false,
        msi: true,
    })
}

/// What it says to a first message with the descriptors of an area, and how
/// it ends.
fn answer(message: &ToDm, with_area: bool) -> (FromDm, ExitStatus) {
    let (mut child, control) = start();
    let area = SharedArea::create(AreaConfig::default()).unwrap();
    let bells = Bells::new().unwrap();
    let fds: [BorrowedFd<'_>; 3] = [area.as_fd(), bells.submit.as_fd(), bells.complete.as_fd()];
    let count = if with_area { 3 } else { 1 };
    control.send(message, &fds[..count]).unwrap();
    let (answer, _) = control.recv().unwrap();
    (answer, child.wait().unwrap())
}

fn reason(message: &ToDm, with_area: bool) -> String {
    let (answer, status) = answer(message, with_area);
    assert!(!status.success());
    match answer {
        FromDm::Failed(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn why_it_cannot_start_is_said_in_one_line() {
    // No Xen here, or no such domain.
    let attach = reason(&message("1024x768"), true);
    assert!(!attach.is_empty() && !attach.contains('\n'), "{attach}");
    let mode = reason(&message("1x1"), true);
    assert!(mode.starts_with("mode is 1x1, allowed: 800x600"), "{mode}");
    let fds = reason(&message("1024x768"), false);
    assert_eq!(fds, "first message has 1 descriptors, allowed: 3");
    let stop = reason(&ToDm::Stop, false);
    assert_eq!(stop, "first message is Stop, allowed: start");
}

#[test]
fn it_ends_when_nobody_starts_it() {
    let (mut child, control) = start();
    drop(control);
    assert!(!child.wait().unwrap().success());
}
