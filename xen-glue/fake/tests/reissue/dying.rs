//! A device model that is killed while it makes frames RAM, at each of its
//! operations, and what its successor makes of the instruction that a vCPU had
//! begun a moment before.

use std::sync::mpsc::channel;

use xen_glue::Errno;

use super::*;

/// More than any end of protection takes.
const NEVER: u64 = 100;

/// Has a device model killed at its `step`th operation of `end`. Says whether
/// it came to that.
fn killed_at(step: u64, instruction: Instruction, end: fn(&DeviceModelOfOne)) -> bool {
    let dm = DeviceModelOfOne::new();
    let (tell, hear) = channel();
    let (domain, page) = (dm.domain.clone(), Arc::clone(&dm.page));
    // The last moment at which an instruction finds a protected frame.
    dm.privcmd.before_ram(move || {
        tell.send(start(&domain, instruction)).unwrap();
        while page.state(0) == Ok(IoreqState::None) {
            std::thread::yield_now();
        }
    });
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
