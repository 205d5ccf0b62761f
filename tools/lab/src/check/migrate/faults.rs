//! Migrations in whose way something is put: what has to come of each.

use anyhow::bail;

use super::{exit_wrong, ran};
use crate::facts::Report;
use crate::scenario::Form;

/// What has to become of the guest. It runs on here in the first two, at the
/// target in the third: always once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// xl fails.
    Stays,
    /// xl is killed, and the guest stands still until it is resumed.
    Resumed,
    /// xl succeeds.
    Moves,
    /// xl fails; the guest lost its QEMU, and nothing is asked of it.
    Lost,
}

/// Where a reason has to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// What xl printed.
    Xl,
    /// The log of the device model that was to be.
    DmLog,
    /// vgpud's, as `vgpuctl migrate-status` shows it.
    Status,
}

#[derive(Clone, Copy)]
struct Fault {
    /// As the script calls it.
    name: &'static str,
    /// Whether the short form has it, too.
    short: bool,
    outcome: Outcome,
    /// Words that say what happened.
    says: &'static [(Place, &'static str)],
}

const fn fault(
    name: &'static str,
    outcome: Outcome,
    says: &'static [(Place, &'static str)],
) -> Fault {
    Fault {
        name,
        short: false,
        outcome,
        says,
    }
}

const fn in_short_too(fault: Fault) -> Fault {
    Fault {
        short: true,
        ..fault
    }
}

const MADE_TO_FAIL: &str = "it was made to fail here by a client";

const FAULTS: &[Fault] = &[
    fault("begin", Outcome::Stays, &[(Place::Xl, MADE_TO_FAIL)]),
    fault("stop", Outcome::Stays, &[(Place::Xl, MADE_TO_FAIL)]),
    fault(
        "save",
        Outcome::Stays,
        &[(Place::Xl, MADE_TO_FAIL), (Place::Status, MADE_TO_FAIL)],
    ),
    fault("load", Outcome::Stays, &[(Place::DmLog, MADE_TO_FAIL)]),
    fault("start", Outcome::Stays, &[(Place::Xl, MADE_TO_FAIL)]),
    in_short_too(fault(
        "limit",
        Outcome::Stays,
        &[
            (Place::Xl, "it would stand still for"),
            (Place::Xl, "allowed: 1;"),
        ],
    )),
    fault("killed", Outcome::Stays, &[]),
    fault(
        "no-vgpud",
        Outcome::Stays,
        &[(Place::DmLog, "vgpud does not run")],
    ),
    fault(
        "gpu",
        Outcome::Stays,
        &[(Place::DmLog, "this one has gpu=")],
    ),
    fault("aperture", Outcome::Stays, &[(Place::DmLog, "aperture")]),
    fault(
        "forgotten",
        Outcome::Stays,
        &[(Place::DmLog, "Not a migration stream")],
    ),
    fault(
        "xl-begin",
        Outcome::Stays,
        &[(Place::Status, "process is gone; the guest goes on here")],
    ),
    in_short_too(fault(
        "xl-stop",
        Outcome::Resumed,
        &[(Place::Status, "resumed here")],
    )),
    fault(
        "xl-save",
        Outcome::Resumed,
        &[(Place::Status, "only if it runs nowhere else")],
    ),
    fault(
        "xl-killed",
        Outcome::Stays,
        &[(Place::Status, "process is gone; the guest goes on here")],
    ),
    fault("debug", Outcome::Moves, &[]),
    fault("balloon", Outcome::Moves, &[]),
    fault("stale", Outcome::Moves, &[]),
    fault("away", Outcome::Moves, &[]),
    fault("damaged", Outcome::Moves, &[]),
    fault("qemu", Outcome::Lost, &[(Place::Xl, "libxl")]),
];

/// Files of the case `damaged` that must not be restored, and what is said of
/// each. Those that libxl finds out by itself never come to us.
const DAMAGED: &[(&str, &[(Place, &str)])] = &[
    ("cut-memory", &[(Place::Xl, "rror")]),
    ("cut-state", &[(Place::Xl, "rror")]),
    ("flipped", &[(Place::DmLog, "checksum")]),
    ("former", &[(Place::DmLog, "belongs to it")]),
];

/// Refuses names that are no case's.
///
/// # Errors
/// With the names there are.
pub fn known(only: &[String]) -> anyhow::Result<()> {
    for name in only {
        if !FAULTS.iter().any(|fault| fault.name == name) {
            let all: Vec<&str> = FAULTS.iter().map(|fault| fault.name).collect();
            bail!("no case {name}; there are: {}", all.join(", "));
        }
    }
    Ok(())
}

/// The cases of a form, or those of `only`.
fn chosen(form: Form, only: &[&str]) -> impl Iterator<Item = &'static Fault> {
    FAULTS.iter().filter(move |fault| {
        if only.is_empty() {
            fault.short || form > Form::Short
        } else {
            only.contains(&fault.name)
        }
    })
}

/// Their tags in the report.
pub fn tags(form: Form, only: &[&str]) -> Vec<String> {
    chosen(form, only)
        .map(|fault| format!("abort-{}", fault.name))
        .collect()
}

/// What is wrong with each.
pub fn wrong(dom0: &Report, guest: &Report, form: Form, only: &[&str]) -> Vec<String> {
    chosen(form, only)
        .filter_map(|fault| fault.wrong(dom0, guest))
        .collect()
}

impl Fault {
    fn wrong(&self, dom0: &Report, guest: &Report) -> Option<String> {
        let tag = format!("abort-{}", self.name);
        let exit = dom0.get(&format!("migrate-exit/{tag}"));
        match exit {
            None => return Some(format!("{tag}: xl migrate was not run")),
            Some("124") => return Some(format!("{tag}: xl migrate did not end")),
            Some(status) if (status == "0") != (self.outcome == Outcome::Moves) => {
                return Some(format!("{tag}: xl migrate ended with {status}"));
            }
            Some(_) => {}
        }
        if self.outcome == Outcome::Resumed && dom0.get(&format!("resume-exit/{tag}")) != Some("0")
        {
            return Some(format!("{tag}: the guest could not be resumed"));
        }
        // Domain 0 and the guest.
        let domains = dom0.get(&format!("domains/{tag}"));
        if domains != Some("2") {
            return Some(format!("{tag}: {domains:?} domains are left, not 2"));
        }
        if self.outcome != Outcome::Lost && !ran(guest, &tag) {
            return Some(format!("{tag}: the guest does not run any more"));
        }
        unsaid(dom0, &tag, self.says).or_else(|| match self.name {
            "debug" => verified(dom0, &tag),
            "damaged" => damaged(dom0),
            "away" => {
                let there = dom0.get(&format!("away-status/{tag}")) == Some("0");
                let worked = there && ran(guest, "abort-away-there");
                (!worked).then(|| format!("{tag}: the guest did not run there"))
            }
            _ => None,
        })
    }
}

/// A reason that is not given where it has to be.
fn unsaid(dom0: &Report, tag: &str, says: &[(Place, &str)]) -> Option<String> {
    says.iter().find_map(|(place, words)| {
        let (block, whose) = match place {
            Place::Xl => ("xl", "xl"),
            Place::DmLog => ("dm-log", "the device model's log"),
            Place::Status => ("status", "migrate-status"),
        };
        let lines = dom0.block(&format!("{block}/{tag}"));
        let said = lines.iter().any(|line| line.contains(words));
        (!said).then(|| format!("{tag}: {whose} does not say {words:?}"))
    })
}

/// xl sends all memory once more, and the receiver compares.
fn verified(dom0: &Report, tag: &str) -> Option<String> {
    match dom0.get(&format!("verify-failed/{tag}")) {
        Some("0") => None,
        pages => Some(format!("{tag}: {pages:?} pages are not the source's")),
    }
}

fn damaged(dom0: &Report) -> Option<String> {
    if let Some(why) = exit_wrong(dom0, "save", "abort-damaged") {
        return Some(why);
    }
    DAMAGED.iter().find_map(|(name, says)| {
        let tag = format!("abort-{name}");
        match dom0.get(&format!("restore-exit/{tag}")) {
            None | Some("0" | "124") => {
                return Some(format!("{tag}: it was not refused"));
            }
            Some(_) => {}
        }
        let domains = dom0.get(&format!("domains/{tag}"));
        if domains != Some("1") {
            return Some(format!("{tag}: {domains:?} domains are left, not 1"));
        }
        unsaid(dom0, &tag, says)
    })
}
