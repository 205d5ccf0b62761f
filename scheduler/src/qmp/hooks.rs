//! The moments of a save or migration at which the vGPU has to act.

use std::os::fd::BorrowedFd;

/// Whether a command goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As if nobody stood between.
    Pass,
    /// The client gets an error with this text, under its own id.
    Fail(String),
}

/// What libxl is doing, told at the moment it must wait for us. A hook may
/// take its time unless it says otherwise: libxl waits for the reply.
pub trait Hooks: Send {
    /// `xen-set-global-dirty-log`, before QEMU hears it, and before Xen's
    /// log-dirty mode is turned on. libxl waits 10 s at most.
    fn dirty_log(&mut self, enable: bool) -> Verdict {
        let _ = enable;
        Verdict::Pass
    }

    /// QEMU has done `stop`; libxl has not heard. What is reported dirty now
    /// is in the final bitmap.
    fn stopped(&mut self) -> Verdict {
        Verdict::Pass
    }

    /// `add-fd`, before QEMU hears it. Its first descriptor; duplicates share
    /// its offset.
    fn add_fd(&mut self, fd: Option<BorrowedFd<'_>>) -> Verdict {
        let _ = fd;
        Verdict::Pass
    }

    /// QEMU has done `xen-save-devices-state`; libxl has not heard, and has
    /// not looked at the file.
    fn device_state_saved(&mut self) -> Verdict {
        Verdict::Pass
    }

    /// `xen-load-devices-state`, before QEMU hears it: a running QEMU is to
    /// take the state of another, as under COLO.
    fn loading(&mut self) -> Verdict {
        Verdict::Pass
    }

    /// `cont`, before QEMU hears it: the guest runs, or runs again.
    fn resuming(&mut self) -> Verdict {
        Verdict::Pass
    }

    /// A client has come: libxl in the process `pid`, which may have several
    /// conversations one after the other.
    fn client(&mut self, pid: i32) {
        let _ = pid;
    }
}

/// The commands with a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooked {
    /// `xen-set-global-dirty-log`, with its argument.
    DirtyLog(bool),
    /// `stop`.
    Stop,
    /// `add-fd`.
    AddFd,
    /// `xen-save-devices-state`.
    SaveState,
    /// `xen-load-devices-state`.
    LoadState,
    /// `cont`.
    Cont,
}

impl Hooked {
    /// Which one a command is, if any.
    pub fn of(command: &serde_json::Value) -> Option<Self> {
        let name = command.get("execute").or_else(|| command.get("exec-oob"))?;
        Some(match name.as_str()? {
            "xen-set-global-dirty-log" => {
                let enable = command.pointer("/arguments/enable")?;
                Self::DirtyLog(enable.as_bool()?)
            }
            "stop" => Self::Stop,
            "add-fd" => Self::AddFd,
            "xen-save-devices-state" => Self::SaveState,
            "xen-load-devices-state" => Self::LoadState,
            "cont" => Self::Cont,
            _ => return None,
        })
    }

    /// The hook before QEMU hears the command.
    pub fn before(self, hooks: &mut dyn Hooks, fd: Option<BorrowedFd<'_>>) -> Verdict {
        match self {
            Self::DirtyLog(enable) => hooks.dirty_log(enable),
            Self::AddFd => hooks.add_fd(fd),
            Self::LoadState => hooks.loading(),
            Self::Cont => hooks.resuming(),
            Self::Stop | Self::SaveState => Verdict::Pass,
        }
    }

    /// The hook after QEMU has done the command.
    pub fn after(self, hooks: &mut dyn Hooks) -> Verdict {
        match self {
            Self::Stop => hooks.stopped(),
            Self::SaveState => hooks.device_state_saved(),
            Self::DirtyLog(_) | Self::AddFd | Self::LoadState | Self::Cont => Verdict::Pass,
        }
    }
}
