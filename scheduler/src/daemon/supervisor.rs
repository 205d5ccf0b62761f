//! Watches a guest's processes and ends what has to end.

use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
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
            registry.remove(guest.domid);
        })?;
    Ok(())
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happened {
    QemuEnded,
    DmEnded,
    RingBroke,
    Stop,
}

/// Returns when the guest has no vGPU and no QEMU any more, or the daemon
/// stops.
fn watch(guest: &Guest, platform: &dyn Platform) {
    let domid = guest.domid;
    let happened = next(guest, true);
    match happened {
        Happened::QemuEnded | Happened::Stop => {
            log::info!("domain {domid}: {happened:?}, the vGPU ends");
            let status = guest.dm().stop();
            log::debug!("domain {domid}: the device model ended: {status}");
            guest.end();
            return;
        }
        Happened::DmEnded => {
            let status = guest.dm().stop();
            guest.fail(&format!("its device model ended: {status}"));
        }
        Happened::RingBroke => {
            let reason = guest.ring_failure().unwrap_or_default();
            guest.dm().stop();
            guest.fail(&reason);
        }
    }
    // A device model that stops when asked has destroyed its server.
    if let Err(e) = platform.reclaim(domid, guest.dm().server()) {
        log::warn!("domain {domid}: {e:#}");
    }
    let happened = next(guest, false);
    log::info!("domain {domid}: {happened:?}");
}

/// Waits for what happens next; with `vgpu` false only for the end.
fn next(guest: &Guest, vgpu: bool) -> Happened {
    let signals = &guest.signals;
    let dm = guest.dm().ended();
    loop {
        let mut fds = vec![
            PollFd::new(&guest.qemu, PollFlags::IN),
            PollFd::new(&signals.stop, PollFlags::IN),
        ];
        if vgpu {
            fds.push(PollFd::new(&signals.broke, PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(dm, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => {
                // Nothing can be watched any more: end the guest's vGPU
                // rather than leave it unattended.
                log::error!("domain {}: cannot watch its processes: {e}", guest.domid);
                return Happened::Stop;
            }
        }
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
    }
}

/// Asks the supervisor behind `stop` to end its guest.
pub fn stop(stop: &EventBell) {
    stop.ring();
}
