//! What vgpud and a vgpu-dm say to each other.

use serde::{Deserialize, Serialize};
use vgpu_config::{Gpu, VgpuSpec};
use vgpu_confine::{Confined, Confinement};

/// To a vgpu-dm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToDm {
    /// The first message, with the memfd and the submit and complete
    /// doorbells as descriptors, and behind them the file of the saved device
    /// when it is to be restored.
    Start(StartDm),
    /// Asks for [`FromDm::Tree`].
    Inspect,
    /// Destroy the ioreq server and exit.
    Stop,
    /// Make the guest's page table, if it is RAM of the guest, one in the
    /// shared area, the RAM at its parking place, and trap accesses to it.
    /// Entries are in both until [`ToDm::TableSettle`]. The answer is
    /// [`FromDm::Done`].
    TableOut,
    /// Make the guest's page table RAM again: the frames at `gfn`. Entries are
    /// in both until [`ToDm::TableSettle`]. The answer is [`FromDm::Done`].
    TableIn {
        /// The first of 2048 guest frames.
        gfn: u64,
    },
    /// vgpud reads entries from where they go: let go of the other place. The
    /// answer is [`FromDm::Done`].
    TableSettle {
        /// Where the table lies, if it is RAM, while BAR0 has no address.
        gfn: u64,
    },
    /// Record which pages of the guest the device model writes, from nothing
    /// on, or stop that. The answer is [`FromDm::Done`].
    Record(bool),
    /// Asks for [`FromDm::Written`].
    Written {
        /// At most so many runs, up to [`MAX_RUNS`].
        most: usize,
    },
    /// The guest's vCPUs do not run: take in all that the rings hold, then
    /// change nothing any more. The answer is [`FromDm::Done`].
    HoldStill {
        /// How long that may take, in milliseconds.
        limit_ms: u64,
    },
    /// Go on after [`ToDm::HoldStill`]. The answer is [`FromDm::Done`].
    GoOn,
    /// Write the device's state to the file whose descriptor comes along. The
    /// answer is [`FromDm::Saved`].
    Save,
    /// The answer to [`FromDm::PageAt`] and [`FromDm::Enabled`].
    Proceed,
    /// Have each vCPU that waits for an answer look for it: it may wait in the
    /// page of a server whose domain is gone. The answer is [`FromDm::Done`].
    Wake,
}

/// The most runs of pages in one [`FromDm::Written`]: it fits a message.
pub const MAX_RUNS: usize = 2048;

/// The longest saved device, in bytes of JSON: every register written takes
/// some 20, and there are 2^19.
pub const MAX_DEVICE: usize = 16 << 20;

/// What to attach to, and as what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartDm {
    /// The guest.
    pub domid: u16,
    /// PCI slot on bus 0.
    pub slot: u8,
    /// What GPU it is, as in "bdw".
    pub gpu: String,
    /// Size of BAR2 in MiB.
    pub aperture_mib: u32,
    /// The preferred mode, as in "1024x768".
    pub mode: String,
    /// Whether it has MSI.
    pub msi: bool,
    /// Where the guest's global page table lies while BAR0 has no address,
    /// when it is RAM of the guest: the first of 2048 guest frames, mapped by
    /// vgpud too. Else it is in the shared area and its accesses are trapped.
    pub ggtt_gfn: Option<u64>,
    /// How it confines itself before it looks at the guest; not at all without.
    pub confine: Option<Confinement>,
    /// The device is restored from the file that comes along.
    pub restored: bool,
    /// It takes the place of one that died, whose ioreq server has this id and
    /// whose shared area comes along.
    #[serde(default)]
    pub recover: Option<u16>,
    /// That one's domain is gone, and what could be done with its ioreq server: it
    /// makes a new one.
    #[serde(default)]
    pub anew: bool,
    /// So has vgpud, whose successor has to be told what the last one knew.
    #[serde(default)]
    pub replay: bool,
    /// It counts accesses by register, which its tree has then.
    #[serde(default)]
    pub count_registers: bool,
}

impl StartDm {
    /// The message for `spec` in the guest `domid` on a host whose GPU is
    /// `gpu`, and whose table is RAM at `ggtt_gfn`.
    #[must_use]
    pub fn new(domid: u16, spec: &VgpuSpec, gpu: Gpu, ggtt_gfn: Option<u64>) -> Self {
        Self {
            domid,
            slot: spec.slot,
            gpu: gpu.to_string(),
            aperture_mib: spec.aperture_mib,
            mode: spec.mode.to_string(),
            msi: spec.msi,
            ggtt_gfn,
            confine: None,
            restored: false,
            recover: None,
            anew: false,
            replay: false,
            count_registers: false,
        }
    }
}

/// From a vgpu-dm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromDm {
    /// It answers the guest's accesses from now on.
    Attached {
        /// The id of its ioreq server, which outlives the process in Xen.
        server: u16,
        /// What it gave up.
        confined: Option<Confined>,
        /// Where the guest's page table lies now, if it is RAM of the guest:
        /// the first of its frames.
        table: Option<u64>,
    },
    /// In a domain of its own, before it is attached: the page of vCPUs' requests
    /// is this frame of the guest until [`ToDm::Proceed`], and vgpud is to map it.
    PageAt {
        /// The frame.
        gfn: u64,
    },
    /// Requests are sent to that page from now on. What a predecessor was to
    /// answer is in it when [`ToDm::Proceed`] comes.
    Enabled,
    /// It cannot, and why: one line for people. It exits.
    Failed(String),
    /// The device, for people and tools.
    Tree(serde_json::Value),
    /// It was done.
    Done,
    /// It was not, and why: one line for people. The device is as before.
    Refused(String),
    /// Runs of pages written: first frame and number of frames. They count as
    /// not written from then on.
    Written(Vec<(u64, u64)>),
    /// The device's state is in the file.
    Saved,
}
