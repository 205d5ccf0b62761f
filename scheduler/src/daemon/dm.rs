//! A guest's vgpu-dm process.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use vgpu_confine::{Confined, Confinement, Identity, Seccomp};
use vgpu_control::{Connection, FromDm, StartDm, ToDm};
use vgpu_sched::sync::lock;

/// How a device model is run.
#[derive(Clone, Debug)]
pub struct DmCommand {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    confine: Option<Confine>,
}

/// How device models are confined.
#[derive(Clone, Copy, Debug)]
pub struct Confine {
    /// The uid, and gid, of a device model is this and its guest's number.
    pub uid_base: u32,
    /// What a forbidden system call leads to.
    pub seccomp: Seccomp,
}

impl DmCommand {
    /// Runs `program` without arguments: what it needs comes on its standard
    /// input.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            args: Vec::new(),
            env: Vec::new(),
            confine: None,
        }
    }

    /// Confined.
    pub fn confined(mut self, confine: Confine) -> Self {
        self.confine = Some(confine);
        self
    }

    /// How a guest's device model is confined.
    pub fn confinement(&self, domid: u16) -> Option<Confinement> {
        self.confine.map(|confine| {
            let id = confine.uid_base + u32::from(domid);
            Confinement {
                identity: Identity { uid: id, gid: id },
                seccomp: confine.seccomp,
            }
        })
    }

    /// With arguments and environment, for a test's stand-in.
    #[cfg(test)]
    pub fn with(mut self, args: &[&str], env: &[(&str, &str)]) -> Self {
        self.args = args.iter().map(Into::into).collect();
        self.env = env.iter().map(|(k, v)| (k.into(), v.into())).collect();
        self
    }
}

/// How long a device model may take for an answer or to stop.
const LIMIT: Duration = Duration::from_secs(2);

/// A device model that is attached to its guest. Dropping it stops it.
pub struct DmProcess {
    child: Mutex<Child>,
    pid: i32,
    pidfd: OwnedFd,
    connection: Mutex<Connection>,
    server: u16,
    confined: Option<Confined>,
}

impl DmProcess {
    /// Runs a device model with the descriptors of its shared area (memfd,
    /// submit doorbell, complete doorbell) and waits, at most `limit`, until
    /// it is attached.
    ///
    /// # Errors
    /// What it says, or how it failed to say anything; it is gone then.
    pub fn start(
        command: &DmCommand,
        start: StartDm,
        area: [BorrowedFd<'_>; 3],
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let (ours, theirs) = Connection::pair()?;
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .envs(command.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .with_context(|| format!("cannot run {}", command.program.display()))?;
        match Self::handshake(&child, &ours, start, area, limit) {
            Ok((pidfd, (server, confined))) => Ok(Self {
                pid: Pid::from_child(&child).as_raw_nonzero().get(),
                child: Mutex::new(child),
                pidfd,
                connection: Mutex::new(ours),
                server,
                confined,
            }),
            Err(e) => {
                // It fails only when the process is gone already.
                let _ = child.kill();
                let status = child.wait();
                Err(e.context(match status {
                    Ok(status) => format!("the device model did not attach ({status})"),
                    Err(_) => "the device model did not attach".into(),
                }))
            }
        }
    }

    fn handshake(
        child: &Child,
        connection: &Connection,
        start: StartDm,
        area: [BorrowedFd<'_>; 3],
        limit: Duration,
    ) -> anyhow::Result<(OwnedFd, (u16, Option<Confined>))> {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
            .context("cannot watch the device model")?;
        connection.set_limit(Some(limit))?;
        connection.send(&ToDm::Start(start), &area)?;
        let attached = match connection.recv()?.0 {
            FromDm::Attached { server, confined } => (server, confined),
            FromDm::Failed(reason) => bail!(reason),
            FromDm::Tree(_) => bail!("it answered what nobody asked"),
        };
        connection.set_limit(Some(LIMIT))?;
        Ok((pidfd, attached))
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Becomes readable when the process ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The id of its ioreq server.
    pub fn server(&self) -> u16 {
        self.server
    }

    /// What it gave up, if it was told to.
    pub fn confined(&self) -> Option<&Confined> {
        self.confined.as_ref()
    }

    /// The device, for people and tools.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn tree(&self) -> anyhow::Result<Value> {
        let connection = lock(&self.connection);
        connection.send(&ToDm::Inspect, &[])?;
        match connection.recv()?.0 {
            FromDm::Tree(tree) => Ok(tree),
            other => bail!("the device model answered {other:?}"),
        }
    }

    /// Stops it, kindly first, and tells how it ended.
    pub fn stop(&self) -> String {
        {
            let connection = lock(&self.connection);
            // It fails when the process is gone, which is what we want.
            let _ = connection.send(&ToDm::Stop, &[]);
        }
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let limit = rustix::event::Timespec::try_from(LIMIT).ok();
        if poll(&mut fds, limit.as_ref()).is_ok_and(|n| n > 0) {
            return self.reap();
        }
        log::warn!("device model {} does not stop: killed", self.pid);
        // It fails only when the process is gone.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.reap()
    }

    fn reap(&self) -> String {
        let mut child = lock(&self.child);
        child
            .wait()
            .map_or_else(|e| e.to_string(), |status| status.to_string())
    }
}

impl Drop for DmProcess {
    fn drop(&mut self) {
        self.stop();
    }
}
