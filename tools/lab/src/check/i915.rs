//! The scenario `i915`: what was seen, and the checks it has to pass.

use serde_json::{Map, Value, json};

use super::Verdict;
use super::igt::{self, AccessTime, Outcome, Outcomes};
use crate::facts::{Facts, Report};
use crate::scenario::Form;

/// The engines of a Broadwell GT2 as i915 names them.
const ENGINES: [&str; 4] = ["bcs0", "rcs0", "vcs0", "vecs0"];

/// Resident size allowed to one vgpu-dm, MiB.
const DM_MIB: f64 = 24.0;
/// Resident size allowed to vgpud, MiB: its own and one share per guest.
const VGPUD_MIB: f64 = 64.0 + 2.0 * 2.0;

/// How much slower than QEMU's our median register read may be measured. The
/// two are medians of interleaved reads; what is left is the emulated clock's
/// grain.
const MMIO_TOLERANCE: f64 = 1.02;

/// With what the device's register reads are compared, and by what it is known
/// what a trapped access takes here at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Yardstick {
    /// A device of QEMU's, which our reads must not be slower than.
    Qemu,
    /// Our own reads, which the caller compares with something.
    Ours,
}

impl Yardstick {
    fn access(self, guest: &Report) -> Option<AccessTime> {
        let (device, whose) = match self {
            Self::Qemu => ("qemu", "QEMU's own device"),
            Self::Ours => ("vgpu", "a register read"),
        };
        read_us(guest, device).map(|us| AccessTime { us, whose })
    }
}

/// Everything a run of the scenario saw.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Seen {
    vgpu_detected: bool,
    wedged: Option<bool>,
    engines: Vec<String>,
    i915_errors: Option<Vec<String>>,
    connector: Option<Connector>,
    igt: Outcomes,
    two_guests: Vec<(&'static str, Outcome)>,
    probe_mmio_exits: Option<u64>,
    inspect_wrong: Option<String>,
    probe_seconds: Option<f64>,
    mmio_vgpu: Option<Timing>,
    mmio_qemu: Option<Timing>,
    dm_mib: Option<f64>,
    vgpud_mib: Option<f64>,
    guests_gone: bool,
    dm_left: Option<u64>,
    vgpud_alive: bool,
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Connector {
    name: String,
    status: String,
    modes: Vec<String>,
    edid_bytes: u64,
}

/// Microseconds: median, 10th and 90th percentile.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Timing {
    median: f64,
    low: f64,
    high: f64,
}

/// The key of the time that a register read takes.
const READ_KEY: &str = "mmio_read_us_vgpu";

/// One thing that has to hold: its key in result.json, and what is wrong if
/// it does not.
struct Check {
    key: &'static str,
    wrong: fn(&Seen) -> Option<String>,
}

const CHECKS: &[Check] = &[
    Check {
        key: "vgpu_detected",
        wrong: |s| (!s.vgpu_detected).then(|| "i915 did not see a virtual GPU".into()),
    },
    Check {
        key: "wedged",
        wrong: |s| match s.wedged {
            Some(false) => None,
            Some(true) => Some("the GPU is wedged".into()),
            None => Some("i915 is not bound".into()),
        },
    },
    Check {
        key: "engines",
        wrong: |s| (s.engines != ENGINES).then(|| format!("{:?}, expected {ENGINES:?}", s.engines)),
    },
    Check {
        key: "i915_errors",
        wrong: |s| match s.i915_errors.as_deref() {
            None => Some("the kernel log was not reported".into()),
            Some([]) => None,
            Some([first, ..]) => Some(first.clone()),
        },
    },
    Check {
        key: "connector",
        wrong: connector_wrong,
    },
    Check {
        key: "igt",
        wrong: igt_wrong,
    },
    Check {
        key: "two_guests",
        wrong: two_guests_wrong,
    },
    Check {
        key: "probe_mmio_exits",
        wrong: |s| match s.probe_mmio_exits {
            Some(1..) => None,
            Some(0) => Some("vgpuctl counted no exit".into()),
            None => Some(
                s.inspect_wrong
                    .clone()
                    .unwrap_or_else(|| "vgpuctl inspect did not tell".into()),
            ),
        },
    },
    Check {
        key: "probe_seconds",
        wrong: |s| {
            s.probe_seconds
                .is_none()
                .then(|| "i915's probe did not end".into())
        },
    },
    Check {
        key: READ_KEY,
        wrong: mmio_wrong,
    },
    Check {
        key: "rss_mib",
        wrong: |s| {
            over("vgpu-dm", s.dm_mib, DM_MIB).or_else(|| over("vgpud", s.vgpud_mib, VGPUD_MIB))
        },
    },
    Check {
        key: "teardown",
        wrong: |s| {
            if !s.guests_gone {
                Some("a guest left a domain behind".into())
            } else if !s.vgpud_alive {
                Some("vgpud did not live to the end".into())
            } else {
                match s.dm_left {
                    Some(0) => None,
                    Some(n) => Some(format!("{n} vgpu-dm processes left")),
                    None => Some("vgpu-dm processes were not counted".into()),
                }
            }
        },
    },
];

fn connector_wrong(seen: &Seen) -> Option<String> {
    let Some(c) = &seen.connector else {
        return Some("no HDMI-A-1".into());
    };
    if c.status != "connected" {
        Some(format!("{} is {}", c.name, c.status))
    } else if c.edid_bytes < 128 {
        Some(format!(
            "{} has {} bytes of EDID, at least 128 expected",
            c.name, c.edid_bytes
        ))
    } else if c.modes.is_empty() {
        Some(format!("{} has no modes", c.name))
    } else {
        None
    }
}

fn igt_wrong(seen: &Seen) -> Option<String> {
    if seen.igt.is_empty() {
        return Some("no test was run".into());
    }
    let wrong: Vec<String> = seen
        .igt
        .iter()
        .map(|(name, subtests)| (name, igt::together(subtests)))
        .filter(|(_, outcome)| !outcome.passes())
        .map(|(name, outcome)| format!("{name}: {}", outcome.text()))
        .collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

fn two_guests_wrong(seen: &Seen) -> Option<String> {
    seen.two_guests
        .iter()
        .find(|(_, outcome)| *outcome != Outcome::Success)
        .map(|(guest, outcome)| format!("{guest}: {}", outcome.text()))
        .or_else(|| seen.two_guests.is_empty().then(|| "was not run".into()))
}

fn mmio_wrong(seen: &Seen) -> Option<String> {
    match (seen.mmio_vgpu, seen.mmio_qemu) {
        (Some(ours), Some(theirs)) => (ours.median > theirs.median * MMIO_TOLERANCE).then(|| {
            format!(
                "{} us a read, slower than QEMU's {} us",
                ours.median, theirs.median
            )
        }),
        _ => Some("was not measured".into()),
    }
}

fn over(name: &str, mib: Option<f64>, allowed: f64) -> Option<String> {
    match mib {
        Some(mib) if mib <= allowed => None,
        Some(mib) => Some(format!(
            "{name} has {mib} MiB resident, allowed are {allowed}"
        )),
        None => Some(format!("{name} was not measured")),
    }
}

impl Seen {
    fn new(facts: &Facts, form: Form, yardstick: Yardstick) -> Self {
        let (g1, g2) = (facts.guest("g1"), facts.guest("g2"));
        let dom0 = &facts.dom0;
        let probed = dom0.json("inspect/g1-probe");
        let mut engines: Vec<String> = g1.block("engines").to_vec();
        engines.sort();
        Self {
            vgpu_detected: [&g1, &g2].iter().all(|guest| detected(guest)),
            wedged: both(wedged(&g1), wedged(&g2)),
            engines,
            i915_errors: errors(&g1).zip(errors(&g2)).map(|(a, b)| [a, b].concat()),
            connector: connector(&g1, "HDMI-A-1"),
            igt: igt::outcomes(&g1, form, &only(dom0), yardstick.access(&g1)),
            two_guests: [("g1", &g1), ("g2", &g2)]
                .map(|(name, guest)| (name, igt::outcome(guest, "both", "gem_exec_store", "basic")))
                .to_vec(),
            probe_mmio_exits: probed.as_ref().ok().and_then(exits),
            inspect_wrong: probed.as_ref().err().cloned(),
            probe_seconds: g1
                .number("probe-end")
                .zip(g1.number("probe-start"))
                .filter(|_| detected(&g1))
                .map(|(end, start)| rounded(end - start)),
            mmio_vgpu: timing(&g1, "mmio/vgpu"),
            mmio_qemu: timing(&g1, "mmio/qemu"),
            dm_mib: peak_mib(dom0.block("memory"), "vgpu-dm"),
            vgpud_mib: peak_mib(dom0.block("memory"), "vgpud"),
            guests_gone: ["guest-gone/g1", "guest-gone/g2"]
                .iter()
                .all(|key| dom0.get(key) == Some("yes")),
            dm_left: dom0.get("vgpu-dm-left").and_then(|n| n.parse().ok()),
            vgpud_alive: dom0.get("vgpud-alive") == Some("yes"),
        }
    }

    fn result(&self) -> Value {
        let igt: Map<String, Value> = self
            .igt
            .iter()
            .map(|(name, subtests)| ((*name).to_owned(), json!(igt::together(subtests).text())))
            .collect();
        json!({
            "vgpu_detected": self.vgpu_detected,
            "wedged": self.wedged,
            "engines": self.engines,
            "i915_errors": self.i915_errors,
            "connector": self.connector.as_ref().map(|c| json!({
                "name": c.name,
                "status": c.status,
                "modes": c.modes,
                "edid_bytes": c.edid_bytes,
            })),
            "igt": igt,
            "two_guests": two_guests_wrong(self).is_none(),
            "probe_mmio_exits": self.probe_mmio_exits,
            "probe_seconds": self.probe_seconds,
            "mmio_read_us_vgpu": self.mmio_vgpu.map(|t| t.median),
            "mmio_read_us_qemu": self.mmio_qemu.map(|t| t.median),
            "rss_mib": { "vgpu_dm": self.dm_mib, "vgpud": self.vgpud_mib },
        })
    }

    fn details(&self, facts: &Facts, form: Form) -> Value {
        let subtests: Map<String, Value> = self
            .igt
            .iter()
            .flat_map(|(name, subtests)| {
                subtests
                    .iter()
                    .map(move |(s, o)| (format!("{name}@{s}"), json!(o.text())))
            })
            .collect();
        let spread = |t: Option<Timing>| {
            t.map(|t| json!({ "median": t.median, "p10": t.low, "p90": t.high }))
        };
        let guest = facts.guest("g1");
        json!({
            "igt_subtests": subtests,
            "igt_seconds": igt::seconds(&guest, form, &only(&facts.dom0)),
            "igt_version": guest.get("igt-version"),
            "guest_kernel": guest.get("kernel"),
            "xen_version": facts.dom0.get("xen-version"),
            "guest_boot_seconds": facts.dom0.number("guest-boot-seconds/g1"),
            "mmio_read_us_vgpu": spread(self.mmio_vgpu),
            "mmio_read_us_qemu": spread(self.mmio_qemu),
            "pci": guest.block("pci"),
            "interrupts": guest.block("interrupts"),
            "memory_kib": facts.dom0.block("memory"),
        })
    }
}

/// Judges the run by [`CHECKS`].
pub fn judge(facts: &Facts, form: Form) -> Verdict {
    judge_by(facts, form, Yardstick::Qemu)
}

/// Judges the run by all [`CHECKS`], but that of reads only by
/// [`Yardstick::Qemu`].
pub(super) fn judge_by(facts: &Facts, form: Form, yardstick: Yardstick) -> Verdict {
    let seen = Seen::new(facts, form, yardstick);
    Verdict {
        result: seen.result(),
        details: Some(seen.details(facts, form)),
        files: Vec::new(),
        failures: if only(&facts.dom0).is_empty() {
            failures(&seen, yardstick)
        } else {
            igt_wrong(&seen).into_iter().collect()
        },
    }
}

/// The test programs that a run was restricted to; none if it was not.
fn only(dom0: &Report) -> Vec<&str> {
    let names = dom0.get("igt-only").unwrap_or_default().split(',');
    names.filter(|name| !name.is_empty()).collect()
}

fn failures(seen: &Seen, yardstick: Yardstick) -> Vec<String> {
    let compared = |check: &&Check| yardstick == Yardstick::Qemu || check.key != READ_KEY;
    CHECKS
        .iter()
        .filter(compared)
        .filter_map(|check| (check.wrong)(seen).map(|why| format!("{}: {why}", check.key)))
        .collect()
}

pub(super) fn detected(guest: &Report) -> bool {
    // Linux i915_vgpu.c:intel_vgpu_detect.
    guest
        .block("dmesg-probe")
        .iter()
        .any(|line| line.contains("Virtual GPU for Intel GVT-g detected"))
}

pub(super) fn wedged(guest: &Report) -> Option<bool> {
    guest.number("wedged").map(|value| value != 0.0)
}

/// True if either is, and only if both told.
fn both(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    a.zip(b).map(|(a, b)| a || b)
}

/// Lines of the guest's kernel log that complain in i915's or DRM's name.
/// Tests announce themselves in the same log, as `[IGT]`.
pub(super) fn errors(guest: &Report) -> Option<Vec<String>> {
    let log = guest.block("dmesg");
    if log.is_empty() {
        return None;
    }
    let ours = |line: &&String| {
        let complains =
            line.contains("*ERROR*") || line.contains("WARN") || line.contains("GPU HANG");
        let by_driver = line.contains("i915") || line.contains("drm");
        complains && by_driver && !line.contains("[IGT]")
    };
    Some(log.iter().filter(ours).cloned().collect())
}

fn connector(guest: &Report, name: &str) -> Option<Connector> {
    let line = guest.block(&format!("connector/{name}")).first()?;
    let mut words = line.split(' ');
    Some(Connector {
        name: words.next()?.to_owned(),
        status: words.next()?.to_owned(),
        edid_bytes: words.next()?.parse().ok()?,
        modes: guest.block(&format!("modes/{name}")).to_vec(),
    })
}

/// `mmio_exits`, wherever `vgpuctl inspect --json` has it.
fn exits(value: &Value) -> Option<u64> {
    match value {
        Value::Object(keys) => keys
            .get("mmio_exits")
            .and_then(Value::as_u64)
            .or_else(|| keys.values().find_map(exits)),
        Value::Array(values) => values.iter().find_map(exits),
        _ => None,
    }
}

/// The median time of a register read, microseconds.
pub(super) fn read_us(guest: &Report, device: &str) -> Option<f64> {
    timing(guest, &format!("mmio/{device}")).map(|t| t.median)
}

fn timing(guest: &Report, key: &str) -> Option<Timing> {
    let mut numbers = guest.get(key)?.split(' ').map(str::parse::<f64>);
    let mut next = || numbers.next()?.ok();
    Some(Timing {
        median: next()?,
        low: next()?,
        high: next()?,
    })
}

/// The highest peak of process `name` in lines `NAME TAG PEAK NOW` (KiB).
fn peak_mib(samples: &[String], name: &str) -> Option<f64> {
    samples
        .iter()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let ours = words.next()? == name;
            let peak: f64 = words.nth(1)?.parse().ok()?;
            ours.then_some(peak / 1024.0)
        })
        .reduce(f64::max)
        .map(rounded)
}

/// To hundredths, as precise as the clocks and counters behind it.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests;
