//! Processes that are no children of this one's, or of a vgpud before it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

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
    let stat = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
    let stat = String::from_utf8_lossy(&stat);
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
    let field = rest.and_then(|r| r.split_ascii_whitespace().nth(19));
    let started = field.and_then(|f| f.parse().ok());
    started.with_context(|| format!("{path} tells no start"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::process::ExitStatusExt;
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

    /// It would live on, and be taken for one that is gone.
    #[test]
    fn a_process_whose_name_is_no_text_is_known_and_killed() {
        let name = format!("vgpud-{}-", std::process::id()).into_bytes();
        let name = OsString::from_vec([&b"\xff)"[..], &name].concat());
        let program = std::env::temp_dir().join(name);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("1000").spawn().unwrap();
        std::fs::remove_file(&program).unwrap();
        let process = Process::of(child.id().cast_signed()).unwrap();
        process.kill(Duration::from_secs(20)).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
    }
}
