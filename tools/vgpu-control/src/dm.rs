//! What vgpud and a vgpu-dm say to each other.

use serde::{Deserialize, Serialize};
use vgpu_config::VgpuSpec;
use vgpu_confine::{Confined, Confinement};

/// To a vgpu-dm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToDm {
    /// The first message, with the memfd and the submit and complete
    /// doorbells as descriptors.
    Start(StartDm),
    /// Asks for [`FromDm::Tree`].
    Inspect,
    /// Destroy the ioreq server and exit.
    Stop,
}

/// What to attach to, and as what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartDm {
    /// The guest.
    pub domid: u16,
    /// PCI slot on bus 0.
    pub slot: u8,
    /// Size of BAR2 in MiB.
    pub aperture_mib: u32,
    /// The preferred mode, as in "1024x768".
    pub mode: String,
    /// Where the guest's global page table lies while BAR0 has no address,
    /// when it is RAM of the guest: the first of 2048 guest frames, mapped by
    /// vgpud too. Else it is in the shared area and its accesses are trapped.
    pub ggtt_gfn: Option<u64>,
    /// How it confines itself before it looks at the guest; not at all without.
    pub confine: Option<Confinement>,
}

impl StartDm {
    /// The message for `spec` in the guest `domid`, whose table is RAM at
    /// `ggtt_gfn`.
    #[must_use]
    pub fn new(
        domid: u16,
        spec: &VgpuSpec,
        ggtt_gfn: Option<u64>,
        confine: Option<Confinement>,
    ) -> Self {
        Self {
            domid,
            slot: spec.slot,
            aperture_mib: spec.aperture_mib,
            mode: spec.mode.to_string(),
            ggtt_gfn,
            confine,
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
    },
    /// It cannot, and why: one line for people. It exits.
    Failed(String),
    /// The device, for people and tools.
    Tree(serde_json::Value),
}
