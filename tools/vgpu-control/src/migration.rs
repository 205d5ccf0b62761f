//! How a guest's migration goes.

use serde::{Deserialize, Serialize};

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// There is none.
    #[default]
    None,
    /// The guest runs, its memory is being copied.
    Copying,
    /// The guest stands still; the GPU's work for it is over.
    Stopped,
    /// The vGPU's state is in the hands of Xen's toolstack.
    Saved,
    /// The last attempt came to nothing and the guest goes on here.
    GivenUp,
    /// The guest came here, and has not run yet.
    Restored,
    /// It runs here.
    Arrived,
}

/// A step at which a migration can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Before the first page is copied.
    Begin,
    /// When the guest stands still.
    Stop,
    /// When the vGPU's state is written.
    Save,
    /// At the target, before the vGPU is made of its state.
    Load,
    /// At the target, before the guest runs there.
    Start,
}

impl Step {
    /// Whether it is a step of the target, of a guest that is yet to come.
    #[must_use]
    pub fn at_target(self) -> bool {
        matches!(self, Self::Load | Self::Start)
    }
}

/// How a migration is made to fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failing {
    /// The step is refused with a reason.
    #[default]
    Refused,
    /// The toolstack's process is killed when it comes to the step, which is
    /// then done: as if it had crashed.
    Killed,
}

/// What the guest waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The GPU to end what it was at.
    Drain,
    /// A last look at which pages it had changed.
    Verify,
    /// Telling Xen of these.
    NamePages,
    /// QEMU and the vGPU to write their state.
    Save,
    /// The rest of its memory and that state to be brought over.
    Transfer,
    /// The vGPU to be made of its state.
    Load,
    /// QEMU to start and the toolstack to let the guest run.
    Start,
    /// Its driver to give the GPU work again.
    FirstSubmission,
}

/// Pages of a guest, by what was done with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// That work which ran, or the device model, could have written.
    pub candidate: u64,
    /// Held against what the target was given.
    pub verified: u64,
    /// Told to Xen, to be sent again.
    pub named: u64,
}

/// A guest's migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Migration {
    /// How far it is.
    pub phase: Phase,
    /// Looks at the pages while the guest ran.
    pub rounds: u64,
    /// Pages while the guest ran, summed over the rounds.
    pub copying: Pages,
    /// Pages once it stood still.
    pub at_stop: Pages,
    /// Bytes a second that the toolstack sends, if that could be seen.
    pub send_rate: Option<u64>,
    /// How long the guest would stand still if it were stopped now, or was
    /// expected to when it was, milliseconds.
    pub predicted_ms: Option<f64>,
    /// The longest it may, milliseconds.
    pub limit_ms: f64,
    /// What it waited for so far and for how long, milliseconds.
    pub downtime: Vec<(Cause, f64)>,
    /// Why the last attempt failed.
    pub failure: Option<String>,
    /// When none is under way: what one would have to bring over at its end.
    #[serde(default)]
    pub ahead: Option<Ahead>,
}

/// What a migration that began now would come to. It is what the vGPU costs:
/// memory that the guest's processors write is between Xen and its toolstack.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ahead {
    /// Pages that work at the GPU could write in the time of a look.
    pub pages: u64,
    /// How long the guest would stand still for its vGPU, milliseconds, if
    /// memory were sent as fast as it was the last time.
    pub expected_ms: Option<f64>,
}

impl Cause {
    /// As a log line calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Verify => "verify",
            Self::NamePages => "name pages",
            Self::Save => "save",
            Self::Transfer => "transfer",
            Self::Load => "load",
            Self::Start => "start",
            Self::FirstSubmission => "first submission",
        }
    }
}
