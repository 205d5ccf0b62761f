//! A device model that is killed while it makes frames RAM, at each of its
//! operations, and what its successor makes of the instruction that a vCPU had
//! begun a moment before.

use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use xen_glue::Errno;

use super::*;

/// More than any end of protection takes.
const NEVER: u64 = 100;

/// Starts an instruction when it is called, and comes back when there is a request
/// of it.
fn beginning(
    dm: &DeviceModelOfOne,
    instruction: Instruction,
) -> (
    impl FnOnce() + Send + 'static,
    Receiver<JoinHandle<Outcome>>,
) {
    let (tell, hear) = channel();
    let (domain, page) = (dm.domain.clone(), Arc::clone(&dm.page));
    let begin = move || {
        tell.send(start(&domain, instruction)).unwrap();
        while page.state(0) == Ok(IoreqState::None) {
            std::thread::yield_now();
        }
    };
    (begin, hear)
}

/// Has a device model killed at its `step`th operation of `end`. Says whether
/// it came to that.
fn killed_at(step: u64, instruction: Instruction, end: fn(&DeviceModelOfOne)) -> bool {
    let dm = DeviceModelOfOne::new();
    let (begin, hear) = beginning(&dm, instruction);
    // The last moment at which an instruction finds a protected frame.
    dm.privcmd.before_ram(begin);
    dm.privcmd.dies_after(step);
    let ended = catch_unwind(AssertUnwindSafe(|| end(&dm)));
    let killed = ended.is_err_and(|e| e.is::<Killed>());
    let next = dm.successor();
    let ram = next.domain.ram();
    let is_memory = |gfn: u64| ram.read(gfn << 12, &mut [0]).is_ok();
    next.server.protect_again(&next.page, is_memory);
    let vcpu = hear.try_recv();
    let vcpu = vcpu.unwrap_or_else(|_| start(&next.domain, instruction));
    let (done, read) = next.serve(vcpu, |_| {});
    assert_eq!((done, read), (Ok(()), Ok(0x1234)), "killed at step {step}");
    // It ends what its predecessor had protected as one that finds a claim does.
    if let Err(e) = next.server.claim_write_protection() {
        assert_eq!(e.errno, Errno::EBUSY);
    }
    assert_eq!(next.server.end_claim(&next.page, is_memory), Ok(true));
    assert_eq!(next.domain.frame(Gfn(AT >> 12)), FrameKind::Ram);
    killed
}

fn killed_at_each_step(steps: usize, end: fn(&DeviceModelOfOne)) {
    for instruction in SAFE.into_iter().chain(UNSAFE) {
        let killed = (0..NEVER).take_while(|step| killed_at(*step, instruction, end));
        assert_eq!(killed.count(), steps);
    }
}

#[test]
fn one_that_lets_go_of_frames_may_die_at_any_step() {
    // It enables the server, makes two frames RAM and protects one of them.
    killed_at_each_step(4, |dm| {
        let frames = BTreeSet::from([AT >> 12, 0x77]);
        let left = dm.server.let_go(&dm.page, &frames).unwrap();
        assert_eq!(left, BTreeSet::from([AT >> 12]));
    });
}

#[test]
fn one_that_ends_its_claim_may_die_at_any_step() {
    // It enables the server, ends the claim, claims again and protects.
    killed_at_each_step(4, |dm| {
        let ram = dm.domain.ram();
        let is_memory = |gfn: u64| ram.read(gfn << 12, &mut [0]).is_ok();
        assert_eq!(dm.server.end_claim(&dm.page, is_memory), Ok(false));
    });
}

#[test]
fn one_that_protects_a_frame_may_die_then() {
    let before = (AT >> 12) - 1;
    for instruction in CROSSING {
        let dm = DeviceModelOfOne::new();
        let (begin, hear) = beginning(&dm, instruction);
        // The last moment at which it finds RAM.
        dm.privcmd.before_protected(begin);
        assert_eq!(dm.server.protect(&dm.page, before), Ok(false));
        assert_eq!(dm.domain.frame(Gfn(before)), FrameKind::WriteProtected);
        let next = dm.successor();
        next.server.protect_again(&next.page, |_| true);
        assert_eq!(next.domain.frame(Gfn(before)), FrameKind::Ram);
        let (done, read) = next.serve(hear.recv().unwrap(), |_| {});
        assert_eq!((done, read), (Ok(()), Ok(0x1234)));
    }
}
