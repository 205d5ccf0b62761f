//! Processes that are no children of this one's, or of a vgpud before it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use vgpu_control::Place;

/// Which process, for as long as the host runs: ids come again, with another
/// start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// When it started, in clock ticks since the host did.
    pub started: u64,
}

/// The process of a device model in dom0; none of one in a domain of its own.
pub fn process_at(place: Place) -> Option<Process> {
    match place {
        Place::Process(pid) => Process::of(pid).ok(),
        Place::Domain(_) => None,
    }
}

impl Process {
    /// The process that has this id now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: i32) -> anyhow::Result<Self> {
        Ok(Self {
            pid,
            started: started(pid)?,
        })
    }

    /// A descriptor that becomes readable when it ends.
    ///
    /// # Errors
    /// When it has ended.
    pub fn open(self) -> anyhow::Result<OwnedFd> {
        let pid = Pid::from_raw(self.pid).context("0 is no process")?;
        let fd = pidfd_open(pid, PidfdFlags::empty())
            .with_context(|| format!("process {} is gone", self.pid))?;
        // Behind that, so that it is this one's.
        let started = started(self.pid)?;
        if started != self.started {
            bail!(
                "process {} started at {started}, wanted: {}",
                self.pid,
                self.started
            );
        }
        Ok(fd)
    }

    /// Kills it and waits until it has ended. It may be no more.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn kill(self, limit: Duration) -> anyhow::Result<()> {
        let Ok(fd) = self.open() else {
            return Ok(());
        };
        // It fails only when the process is gone.
        let _ = pidfd_send_signal(&fd, Signal::KILL);
        let limit = Timespec::try_from(limit).ok();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        if poll(&mut fds, limit.as_ref()).is_ok_and(|n| n > 0) {
            return Ok(());
        }
        bail!("process {} does not end", self.pid);
    }
}

/// When a process started: field 22 of its stat, behind its name in
/// parentheses, which may hold anything (Linux `fs/proc/array.c:do_task_stat`).
fn started(pid: i32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
    let field = rest.and_then(|r| r.split_ascii_whitespace().nth(19));
    let started = field.and_then(|f| f.parse().ok());
    started.with_context(|| format!("{path} tells no start"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_told_from_another_with_its_id() {
        let sleeper = || {
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::null()).spawn().unwrap()
        };
        let mut child = sleeper();
        let pid = child.id().cast_signed();
        let process = Process::of(pid).unwrap();
        process.open().unwrap();
        let other = Process {
            started: process.started + 1,
            ..process
        };
        assert!(other.open().is_err());
        other.kill(Duration::ZERO).unwrap();
        process.open().unwrap();
        process.kill(Duration::from_secs(20)).unwrap();
        child.wait().unwrap();
        assert!(process.open().is_err());
        process.kill(Duration::ZERO).unwrap();
    }
}
