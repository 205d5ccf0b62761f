//! The scenarios: what each needs and who judges it.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use crate::check::{self, Verdict};
use crate::facts::Facts;
use crate::image::GuestKernel;
use crate::payload::{CLOCK_GAP, GPU_WORK, GuestProgram, MMIO_LATENCY};

/// How much of a scenario is run. Each form has all the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Fewer tests and rounds.
    Short,
    /// What the short form has, and tests of memory and page tables.
    Extended,
    /// Everything.
    Full,
}

/// How vgpud is to follow the guests' page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shadow {
    /// Tables are write-protected.
    Strict,
    /// Tables are compared when they are used.
    Lazy,
    /// Whichever is cheaper for each.
    Adaptive,
}

impl Shadow {
    /// Its name for vgpud.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Lazy => "lazy",
            Self::Adaptive => "adaptive",
        }
    }
}

/// The device that guests get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Gpu {
    /// Broadwell GT2, 8086:1616.
    Bdw,
    /// Kaby Lake GT2, 8086:5916.
    Kbl,
}

impl Gpu {
    /// Its name for the scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bdw => "bdw",
            Self::Kbl => "kbl",
        }
    }
}

/// One scenario; its dom0 script is `tests/lab/scenarios/NAME.sh`.
pub struct Scenario {
    /// What `lab run` calls it.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// Whether our programs are installed in dom0.
    pub device: bool,
    /// Whether device models get domains of their own without being asked for.
    pub stub: bool,
    /// Our programs that its guests get.
    pub guest_programs: &'static [GuestProgram],
    /// Kernels that its guests boot.
    pub kernels: &'static [GuestKernel],
    /// More for the command line of its guests' kernel.
    pub guest_options: &'static str,
    /// Memory of a large guest for the longer forms, MiB.
    pub large_guest: Option<u32>,
    /// From start of QEMU to the end, full form.
    pub timeout: Duration,
    /// From what was reported to result and verdict.
    pub judge: fn(&Facts, Form) -> Verdict,
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "boot",
        summary: "Xen, dom0 and an HVM guest with Debian's kernel come up",
        device: false,
        stub: false,
        guest_programs: &[],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(10 * 60),
        judge: check::boot::judge,
    },
    Scenario {
        name: "grants",
        summary: "a shared area over grants works on this Xen, and outlives either side's death",
        device: true,
        stub: false,
        guest_programs: &[],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(10 * 60),
        judge: check::grants::judge,
    },
    Scenario {
        name: "prison",
        summary: "a process confined as vgpu-dm reaches its guest and no other domain",
        device: true,
        stub: false,
        guest_programs: &[],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(10 * 60),
        judge: check::prison::judge,
    },
    Scenario {
        name: "i915",
        summary: "an unmodified i915 guest runs its GPU work through our device model",
        device: true,
        stub: false,
        guest_programs: &[MMIO_LATENCY],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        // Three tests fill or want to be able to fill 4 GiB.
        large_guest: Some(5632),
        timeout: Duration::from_secs(50 * 60),
        judge: check::i915::judge,
    },
    Scenario {
        name: "migrate",
        summary: "an i915 guest at work is saved, restored and migrated, and every result is right",
        device: true,
        stub: false,
        guest_programs: &[GPU_WORK, CLOCK_GAP],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(40 * 60),
        judge: check::migrate::judge,
    },
    Scenario {
        name: "crash",
        summary: "guests at work go on when their device model, its domain or vgpud is killed",
        device: true,
        stub: true,
        guest_programs: &[GPU_WORK],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(50 * 60),
        judge: check::crash::judge,
    },
    Scenario {
        name: "refuse",
        summary: "guests that must not start do not, and it is said why",
        device: true,
        stub: false,
        guest_programs: &[],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(10 * 60),
        judge: check::refuse::judge,
    },
    Scenario {
        name: "share",
        summary: "two guests at work get GPU time by their weights, and every result is right",
        device: true,
        stub: false,
        guest_programs: &[GPU_WORK],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(15 * 60),
        judge: check::share::judge,
    },
    Scenario {
        name: "stub",
        summary: "scenario i915 with the device model in a domain of its own",
        device: true,
        stub: true,
        guest_programs: &[MMIO_LATENCY],
        kernels: &[GuestKernel::Bookworm],
        guest_options: "",
        large_guest: Some(5632),
        timeout: Duration::from_secs(80 * 60),
        judge: check::stub::judge,
    },
    Scenario {
        name: "record",
        summary: "guests with different kernels do GPU work; their registers are recorded",
        device: true,
        stub: false,
        guest_programs: &[GPU_WORK],
        kernels: &[GuestKernel::Bookworm, GuestKernel::Trixie],
        guest_options: "",
        large_guest: None,
        timeout: Duration::from_secs(15 * 60),
        judge: check::record::judge,
    },
];

/// The scenario called `name`.
pub fn find(name: &str) -> anyhow::Result<&'static Scenario> {
    let names: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
    if name.is_empty() {
        bail!("no scenario named; there are: {}", names.join(", "));
    }
    SCENARIOS
        .iter()
        .find(|s| s.name == name)
        .with_context(|| format!("no scenario {name}; there are: {}", names.join(", ")))
}
