//! What clients of vgpud say and hear.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use vgpu_config::Share;

use crate::migration::{Failing, Step};
use crate::order::Disturb;

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientRequest {
    /// Whether vgpud is there. The reply is a [`Version`].
    Ping,
    /// Every vGPU. The reply is a list of [`Entry`].
    List,
    /// The GPU and its scheduler, a tree for people and tools.
    InspectHost,
    /// One vGPU in full, a tree for people and tools.
    Inspect {
        /// The guest.
        domid: u16,
    },
    /// Changes what a vGPU gets of the GPU's time. The reply is [`Held`].
    Set {
        /// The guest.
        domid: u16,
        /// As `vgpu_config::VgpuSpec::change` takes it; `default` goes back
        /// to what the guest was started with.
        changes: String,
    },
    /// What the GPU and each vGPU did so far. The reply is a
    /// [`Sample`](crate::Sample).
    Top {
        /// Only vGPUs of domains behind this one.
        after: Option<u16>,
    },
    /// Has another device model take the place of a guest's.
    RestartDm {
        /// The guest.
        domid: u16,
        /// What becomes of the present one.
        how: Disturb,
    },
    /// How a guest's migration goes. The reply is a
    /// [`Migration`](crate::Migration).
    MigrateStatus {
        /// The guest.
        domid: u16,
    },
    /// Makes the next migration of a guest fail, to see what becomes of it
    /// then.
    FailMigration {
        /// The guest; 0 with a step of the target: whichever comes next.
        domid: u16,
        /// At which step.
        at: Step,
        /// In which way.
        #[serde(default)]
        how: Failing,
    },
    /// Changes how long a guest may stand still when it is migrated from here.
    LimitMigration {
        /// The guest.
        domid: u16,
        /// Milliseconds.
        limit_ms: u32,
    },
    /// Events of the trace. The reply is a [`TracePage`](crate::TracePage).
    Trace {
        /// The number of the first event wanted; one too great is the number
        /// of the next event.
        cursor: u64,
        /// How many at most; vgpud may send fewer.
        max: u32,
    },
    /// A new vGPU. The reply is [`Registered`], when its device model is
    /// attached. The vGPU lives until the sending process, which is going to
    /// be the guest's QEMU, ends.
    Register(Register),
}

/// A vGPU to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The guest.
    pub domid: u16,
    /// The specification, as `vgpu-config` parses it.
    pub vgpu: String,
    /// The control socket to stand in for, if libxl asked QEMU for one.
    pub qmp: Option<QmpSockets>,
    /// The guest was saved or comes from another host: a descriptor beside
    /// the message is the file that QEMU is going to load its state from,
    /// with the vGPU's behind it.
    #[serde(default)]
    pub incoming: bool,
}

/// The answer to [`ClientRequest::Register`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Where in the file of an incoming guest QEMU's state begins, in bytes.
    #[serde(default)]
    pub incoming_at: u64,
}

/// The two ends of the QMP proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QmpSockets {
    /// Where libxl connects.
    pub public: PathBuf,
    /// Where QEMU is going to listen.
    pub private: PathBuf,
}

/// What vgpud answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply<T> {
    /// It was done.
    Ok(T),
    /// It was not, and why: one line for people.
    Error(String),
}

impl<T> Reply<T> {
    /// The answer, or the reason as an error.
    ///
    /// # Errors
    /// The reason vgpud gave.
    pub fn into_result(self) -> Result<T, String> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Error(reason) => Err(reason),
        }
    }
}

/// What holds for a vGPU after [`ClientRequest::Set`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The share that holds now.
    pub share: Share,
    /// Why it does not outlive the guest or vgpud, if it does not.
    pub not_kept: Option<String>,
}

/// The answer to a ping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Of vgpud.
    pub version: String,
}

/// How a vGPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It works.
    Running,
    /// Its device model broke the rings, or died and no other could take its
    /// place; the guest's accesses read all ones. It goes away with its guest.
    Failed,
}

/// Where a device model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// In dom0, as the process with this id.
    Process(i32),
    /// In the domain with this id, which is its own.
    Domain(u16),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "pid {pid}"),
            Self::Domain(domid) => write!(f, "domain {domid}"),
        }
    }
}

/// A vGPU in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The guest.
    pub domid: u16,
    /// The specification, as [`vgpu_config::VgpuSpec`] is shown.
    pub vgpu: String,
    /// How it is.
    pub state: State,
    /// Process id of the guest's QEMU.
    pub qemu_pid: i32,
    /// Where its device model runs.
    pub dm: Place,
    /// Requests taken from the submit ring so far.
    pub requests: u64,
    /// It was another vgpud's, which ended while the guest ran.
    #[serde(default)]
    pub adopted: bool,
    /// Device models that took the place of one that died.
    #[serde(default)]
    pub restarts: u64,
}
