//! Watches a guest's processes and ends what has to end.

use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vgpu_control::Place;
use vgpu_heartbeat::{EVERY, Heartbeat};
use vgpu_ring::{Doorbell, EventBell};

use super::guest::Guest;
use super::platform::Platform;
use super::registry::Registry;

/// Starts the supervisor of `guest`, which is in `registry` until it ends.
///
/// # Errors
/// When the system has no more threads.
pub fn start(
    guest: Arc<Guest>,
    registry: Arc<Registry>,
    platform: Arc<dyn Platform>,
) -> std::io::Result<()> {
    thread::Builder::new()
        .name(format!("watch{}", guest.domid))
        .spawn(move || {
            watch(&guest, &*platform);
            guest.hang_up();
            guest.forget();
            registry.remove(guest.domid);
        })?;
    Ok(())
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Happened {
    QemuEnded,
    DmEnded,
    DmHangs(String),
    RingBroke,
    Stop,
}

/// Returns when the guest has no vGPU and no QEMU any more, or the daemon
/// stops.
fn watch(guest: &Guest, platform: &dyn Platform) {
    let domid = guest.domid;
    loop {
        let reason = match next(guest, true) {
            happened @ (Happened::QemuEnded | Happened::Stop) => {
                log::info!("domain {domid}: {happened:?}, the vGPU ends");
                let status = guest.dm().stop();
                log::debug!("domain {domid}: the device model ended: {status}");
                guest.end();
                return;
            }
            Happened::DmEnded => format!("its device model ended: {}", guest.dm().kill()),
            Happened::DmHangs(how) => format!("its device model hangs: {how}"),
            Happened::RingBroke => {
                let reason = guest.ring_failure().unwrap_or_default();
                guest.dm().stop();
                guest.fail(&reason);
                break;
            }
        };
        if let Err(e) = guest.replace_dm(&reason, platform) {
            lose(guest, platform, &format!("{reason}; {e:#}"));
            break;
        }
    }
    // A device model that stops when asked has destroyed its server. That of a stub
    // domain goes with the domain, and the number is only what the domain says.
    let dm = guest.dm();
    if let Place::Process(_) = dm.place()
        && let Err(e) = platform.reclaim(domid, dm.server())
    {
        log::warn!("domain {domid}: {e:#}");
    }
    drop(dm);
    let happened = next(guest, false);
    log::info!("domain {domid}: {happened:?}");
}

/// No device model can go on with the device.
fn lose(guest: &Guest, platform: &dyn Platform, reason: &str) {
    let mut reason = reason.to_owned();
    // Before it is paused: no vgpud to come serves a guest that stands still.
    guest.note(|record| record.failure = Some(reason.clone()));
    if guest.models.then().carry_out(guest.domid, platform) {
        reason.push_str("; the guest is paused");
    }
    guest.dm().kill();
    // First what of its area is ours: a domain is not gone while others map it.
    guest.fail(&reason);
    guest.dm().lost();
}

/// Waits for what happens next; with `vgpu` false only for the end.
fn next(guest: &Guest, vgpu: bool) -> Happened {
    let signals = &guest.signals;
    let dm = guest.dm();
    let mut heartbeat = guest.models.heartbeat();
    let every = Timespec::try_from(EVERY).ok().filter(|_| vgpu);
    loop {
        let mut fds = vec![
            PollFd::new(&guest.qemu, PollFlags::IN),
            PollFd::new(&signals.stop, PollFlags::IN),
        ];
        if vgpu {
            fds.push(PollFd::new(&signals.broke, PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(dm.ended(), PollFlags::IN));
        }
        let events = match poll(&mut fds, every.as_ref()) {
            Ok(events) => events,
            Err(Errno::INTR) => continue,
            Err(e) => {
                // Nothing can be watched any more: end the guest's vGPU
                // rather than leave it unattended.
                log::error!("domain {}: cannot watch its processes: {e}", guest.domid);
                return Happened::Stop;
            }
        };
        let ended = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        // The end of QEMU first: what ends with it is not a failure.
        if ended(0) {
            return Happened::QemuEnded;
        }
        if ended(1) {
            return Happened::Stop;
        }
        if ended(2) {
            return Happened::RingBroke;
        }
        if ended(3) {
            return Happened::DmEnded;
        }
        if events == 0 && vgpu {
            dm.tend();
        }
        if events == 0
            && let Some(how) = heartbeat.as_mut().and_then(Heartbeat::look)
        {
            return Happened::DmHangs(how);
        }
    }
}

/// Asks the supervisor behind `stop` to end its guest.
pub fn stop(stop: &EventBell) {
    stop.ring();
}
