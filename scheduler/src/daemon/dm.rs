//! A guest's vgpu-dm process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use vgpu_confine::{Confinement, Identity, Seccomp};
use vgpu_control::{Connection, Disturb, FromDm, Place, StartDm, ToDm};
use vgpu_ring::{DeviceBells, SharedArea};
use vgpu_sched::saved::MAX_DEVICE;
use vgpu_sched::sync::lock;

use super::device_model::{Attached, DeviceModel, Home, LIMIT, left_until, quoted, unexpected};

/// How a device model is run.
#[derive(Clone, Debug)]
pub struct DmCommand {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    confine: Option<Confine>,
    count_registers: bool,
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
            count_registers: false,
        }
    }

    /// Confined.
    pub fn confined(mut self, confine: Confine) -> Self {
        self.confine = Some(confine);
        self
    }

    /// Counting accesses by register, or not.
    pub fn counting(mut self, counting: bool) -> Self {
        self.count_registers = counting;
        self
    }

    /// Whether device models count accesses by register.
    pub fn counts(&self) -> bool {
        self.count_registers
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

/// What is said to it, one question at a time.
struct Talk {
    connection: Connection,
    /// Answers to questions that were given up.
    owed: u32,
}

/// A device model that is attached to its guest. Dropping it stops it.
pub struct DmProcess {
    child: Mutex<Child>,
    pid: i32,
    pidfd: OwnedFd,
    talk: Mutex<Talk>,
    attached: Attached,
    seat: Arc<ProcessSeat>,
}

/// What a guest's device models in dom0 have in common.
pub struct ProcessSeat {
    /// How one is run.
    pub command: DmCommand,
    /// The memory that they share with vgpud.
    pub area: SharedArea,
    /// Their doorbells.
    pub bells: DeviceBells,
    /// How long one may take to attach.
    pub limit: Duration,
}

impl DmProcess {
    /// Runs a device model with its shared area, and `device` to restore, and
    /// waits until it is attached. Its process id is `noted` before it hears
    /// anything: a vgpud to come must know of each that may serve the guest.
    ///
    /// # Errors
    /// What it says, or how it failed to say anything; it is gone then.
    pub fn start(
        seat: Arc<ProcessSeat>,
        start: StartDm,
        device: Option<&File>,
        noted: &dyn Fn(i32),
    ) -> anyhow::Result<Self> {
        let (ours, theirs) = Connection::pair()?;
        let ProcessSeat {
            command,
            area,
            bells,
            limit,
        } = &*seat;
        let mut fds = vec![area.as_fd(), bells.submit.as_fd(), bells.complete.as_fd()];
        fds.extend(device.map(AsFd::as_fd));
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .envs(command.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .with_context(|| format!("cannot run {}", command.program.display()))?;
        noted(Pid::from_child(&child).as_raw_nonzero().get());
        match Self::handshake(&child, &ours, start, &fds, *limit) {
            Ok((pidfd, attached)) => Ok(Self {
                pid: Pid::from_child(&child).as_raw_nonzero().get(),
                child: Mutex::new(child),
                pidfd,
                talk: Mutex::new(Talk {
                    connection: ours,
                    owed: 0,
                }),
                attached,
                seat,
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
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> anyhow::Result<(OwnedFd, Attached)> {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
            .context("cannot watch the device model")?;
        connection.set_limit(Some(limit))?;
        connection.send(&ToDm::Start(start), fds)?;
        let attached = Attached::heard(connection.recv()?.0)?;
        connection.set_limit(Some(LIMIT))?;
        Ok((pidfd, attached))
    }

    /// Asks and waits for the answer.
    fn exchange(
        &self,
        message: &ToDm,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> anyhow::Result<FromDm> {
        let talk = &mut *lock(&self.talk);
        let until = Instant::now() + limit;
        let hear = |talk: &mut Talk| -> anyhow::Result<FromDm> {
            talk.connection.set_limit(Some(left_until(until)))?;
            let answer = talk.connection.recv().context("the device model")?;
            talk.owed -= 1;
            Ok(answer.0)
        };
        while talk.owed > 0 {
            hear(talk)?;
        }
        talk.connection.set_limit(Some(left_until(until)))?;
        talk.connection.send(message, fds)?;
        talk.owed += 1;
        match hear(talk)? {
            FromDm::Refused(reason) => bail!(quoted(&reason)),
            answer => Ok(answer),
        }
    }

    fn reap(&self) -> String {
        let mut child = lock(&self.child);
        child
            .wait()
            .map_or_else(|e| e.to_string(), |status| status.to_string())
    }
}

impl DeviceModel for DmProcess {
    fn place(&self) -> Place {
        Place::Process(self.pid)
    }

    fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn attached(&self) -> &Attached {
        &self.attached
    }

    fn ask(&self, message: &ToDm, limit: Duration) -> anyhow::Result<FromDm> {
        self.exchange(message, &[], limit)
    }

    fn device(&self) -> anyhow::Result<Vec<u8>> {
        let mut file = memory_file(&[]).context("no memory for the device's state")?;
        match self.exchange(&ToDm::Save, &[file.as_fd()], LIMIT)? {
            FromDm::Saved => {}
            other => return Err(unexpected(&other)),
        }
        // It may still write: what is read is a copy.
        file.rewind()?;
        let mut bytes = Vec::new();
        let most = u64::try_from(MAX_DEVICE).unwrap_or(u64::MAX);
        file.take(most + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn stop(&self) -> String {
        {
            let talk = lock(&self.talk);
            // It fails when the process is gone, which is what we want.
            let _ = talk.connection.send(&ToDm::Stop, &[]);
        }
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let limit = rustix::event::Timespec::try_from(LIMIT).ok();
        if poll(&mut fds, limit.as_ref()).is_ok_and(|n| n > 0) {
            return self.reap();
        }
        log::warn!("device model {} does not stop: killed", self.pid);
        self.kill()
    }

    fn kill(&self) -> String {
        // It fails only when the process is gone.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.reap()
    }

    fn disturb(&self, how: Disturb) -> anyhow::Result<()> {
        let signal = match how {
            Disturb::Kill => Signal::KILL,
            Disturb::Stop => Signal::STOP,
        };
        let sent = pidfd_send_signal(&self.pidfd, signal);
        sent.with_context(|| format!("process {}", self.pid))
    }

    fn successor(&self, start: StartDm, home: &dyn Home) -> anyhow::Result<Arc<dyn DeviceModel>> {
        let seat = Arc::clone(&self.seat);
        Ok(Arc::new(Self::start(seat, start, None, &|pid| {
            home.noted(pid);
        })?))
    }
}

/// A file without a name that holds `bytes`, at its start.
pub fn memory_file(bytes: &[u8]) -> std::io::Result<File> {
    let fd = memfd_create("vgpu-device", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

impl Drop for DmProcess {
    fn drop(&mut self) {
        self.stop();
    }
}
