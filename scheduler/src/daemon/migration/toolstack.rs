//! libxl's process, while it saves or migrates a guest.
//!
//! When it is killed nobody tells us, and nobody tells the guest.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use vgpu_control::Phase;
use vgpu_ring::{Doorbell, EventBell};

use super::record::Record;

/// The process behind a QMP connection, whatever becomes of its number.
#[derive(Debug)]
pub struct Toolstack {
    pid: i32,
    process: OwnedFd,
}

impl Toolstack {
    /// The process `pid`, which is connected to us at the moment.
    ///
    /// # Errors
    /// When it is gone, or the system has no more descriptors.
    pub fn of(pid: i32) -> std::io::Result<Self> {
        let process = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let process = pidfd_open(process, PidfdFlags::empty())?;
        Ok(Self { pid, process })
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Kills it.
    ///
    /// # Errors
    /// When it is gone, or not ours to kill.
    pub fn kill(&self) -> std::io::Result<()> {
        Ok(pidfd_send_signal(&self.process, Signal::KILL)?)
    }
}

/// Watches a toolstack, and does what it leaves undone. Dropping it ends that,
/// if it is dropped under the [lock of steps](Record::steps), as all is that
/// it does.
pub struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    stop: AtomicBool,
    bell: EventBell,
}

impl Watch {
    /// Watches `toolstack` in a thread of its own.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn start(record: &Arc<Record>, toolstack: Arc<Toolstack>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            bell: EventBell::new()?,
        });
        std::thread::Builder::new()
            .name(format!("libxl{}", record.domid()))
            .spawn({
                let shared = Arc::clone(&shared);
                let record = Arc::clone(record);
                move || {
                    if shared.ended(&toolstack) {
                        let _steps = record.steps();
                        if !shared.stop.load(Ordering::SeqCst) {
                            died(&record);
                        }
                    }
                }
            })?;
        Ok(Self { shared })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Not waited for: it may be waiting for the lock that we have.
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
    }
}

impl Shared {
    /// Waits until the process has ended, or it is told not to.
    fn ended(&self, toolstack: &Toolstack) -> bool {
        loop {
            let mut fds = [
                PollFd::new(&toolstack.process, PollFlags::IN),
                PollFd::new(&self.bell, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    log::warn!("process {} cannot be watched: {e}", toolstack.pid);
                    return false;
                }
            }
            let [process, bell] = &fds;
            if !bell.revents().is_empty() {
                return false;
            }
            if !process.revents().is_empty() {
                return true;
            }
        }
    }
}

/// The toolstack is gone before it told how it ended.
fn died(record: &Record) {
    let domid = record.domid();
    let phase = record.phase();
    let reason = match phase {
        Phase::Copying => "the toolstack's process is gone; the guest goes on here",
        Phase::Stopped => {
            "the toolstack's process is gone, and nobody lets the guest run again: it has to be \
             resumed here (docs/migration.md)"
        }
        // As it ends in any case, the domain with it.
        Phase::Saved => {
            "the toolstack's process has ended; a guest that is still here stands still, and is to \
             be resumed only if it runs nowhere else (docs/migration.md)"
        }
        Phase::None | Phase::GivenUp | Phase::Restored | Phase::Arrived => return,
    };
    if phase == Phase::Saved {
        log::info!("domain {domid}: {reason}");
    } else {
        log::warn!("domain {domid}: {reason}");
    }
    // Whoever sees that it was given up finds out why.
    record.migration().failure = Some(reason.into());
    if phase != Phase::Copying {
        return;
    }
    if let Err(e) = record.guest().and_then(|guest| guest.end_save()) {
        log::error!("domain {domid}: the vGPU does not go on as before: {e:#}");
    }
    record.enter(Phase::GivenUp);
}
