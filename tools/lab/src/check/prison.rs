//! The scenario `prison`: what a process confined as vgpu-dm is can do to domains
//! that are not its guest.

use serde_json::{Map, Value, json};

use super::Verdict;
use crate::facts::{Facts, Report};
use crate::scenario::Form;

/// An attempt, and how it is refused on a domain that is not the guest.
struct Expected {
    attempt: &'static str,
    refused: &'static str,
}

const fn refused(attempt: &'static str, refused: &'static str) -> Expected {
    Expected { attempt, refused }
}

/// What a device model does, and may do to its guest alone. The kernel refuses it
/// before Xen is asked (Linux drivers/xen/privcmd.c, evtchn.c).
const REACH: &[Expected] = &[
    refused("nr_vcpus", "EPERM"),
    refused("create_server", "EPERM"),
    refused("server_info", "EPERM"),
    refused("map_resource", "EPERM"),
    refused("enable_server", "EPERM"),
    refused("map_range", "EPERM"),
    refused("unmap_range", "EPERM"),
    refused("claim_writes", "EPERM"),
    refused("set_mem_type", "EPERM"),
    refused("release_writes", "EPERM"),
    refused("set_intx", "EPERM"),
    refused("inject_msi", "EPERM"),
    refused("relocate_memory", "EPERM"),
    refused("modified_memory", "EPERM"),
    refused("map_foreign", "EPERM"),
    refused("bind_interdomain", "EACCES"),
    refused("destroy_server", "EPERM"),
];

/// What nothing of a device model does: the process is refused it, and a thread
/// that tries is the process's end.
const CLOSED: &[Expected] = &[
    refused("open_privcmd", "ENOENT"),
    refused("open_hypercall", "ENOENT"),
    refused("open_evtchn", "ENOENT"),
    refused("open_gntdev", "ENOENT"),
    refused("open_gntalloc", "ENOENT"),
    refused("open_xenbus", "ENOENT"),
    refused("hypercall_memory_op", "EPERM"),
    refused("hypercall_domctl", "EPERM"),
    refused("bind_unbound", "EACCES"),
    refused("restrict_evtchn", "EACCES"),
    refused("restrict_privcmd", "EINVAL"),
];

/// What has to come of each attempt, as `HOW/TARGET/ATTEMPT`. Free, each works on
/// the other guest: one that cannot succeed shows nothing. On dom0 that holds for
/// event channels alone, since Xen lets no domain be its own device model.
fn expected() -> Vec<(String, &'static str)> {
    let mut all = Vec::new();
    for Expected { attempt, refused } in REACH {
        all.push((format!("free/other/{attempt}"), "ok"));
        for how in ["process", "filtered"] {
            all.push((format!("{how}/own/{attempt}"), "ok"));
            all.push((format!("{how}/other/{attempt}"), refused));
            all.push((format!("{how}/dom0/{attempt}"), refused));
        }
    }
    for Expected { attempt, refused } in CLOSED {
        all.push((format!("free/other/{attempt}"), "ok"));
        all.push((format!("process/other/{attempt}"), refused));
        all.push((format!("process/dom0/{attempt}"), refused));
        all.push((format!("filtered/other/{attempt}"), "SIGSYS"));
    }
    all.push(("free/dom0/bind_interdomain".into(), "ok"));
    all.push(("free/io/map_foreign".into(), "ok"));
    all.push(("process/io/map_foreign".into(), "EPERM"));
    all.push(("filtered/io/map_foreign".into(), "EPERM"));
    all
}

fn wrong(dom0: &Report) -> Vec<String> {
    let exit = dom0.get("prisoner-exit");
    let ended = (exit != Some("0")).then(|| {
        let said = dom0.block("prisoner").last();
        format!("prisoner ended with {exit:?}: {}", said.map_or("", |s| s))
    });
    let attempts = expected().into_iter().filter_map(|(name, wanted)| {
        let came = dom0.get(&format!("prison/{name}")).unwrap_or("not tried");
        (came != wanted).then(|| format!("{name}: {came}, expected {wanted}"))
    });
    let left = ["g1", "g2"].into_iter().filter_map(|name| {
        let gone = dom0.get(&format!("guest-gone/{name}")) == Some("yes");
        (!gone).then(|| format!("{name} left a domain behind"))
    });
    ended.into_iter().chain(attempts).chain(left).collect()
}

/// Judges the run.
pub fn judge(facts: &Facts, _form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    let attempts: Map<String, Value> = REACH
        .iter()
        .chain(CLOSED)
        .map(|Expected { attempt, .. }| {
            let mut came = Map::new();
            for how in ["free", "process", "filtered"] {
                for target in ["own", "other", "dom0", "io"] {
                    let name = format!("{how}/{target}");
                    if let Some(outcome) = dom0.get(&format!("prison/{name}/{attempt}")) {
                        came.insert(name, json!(outcome));
                    }
                }
            }
            ((*attempt).to_owned(), Value::Object(came))
        })
        .collect();
    let refused = expected()
        .into_iter()
        .filter(|(name, wanted)| {
            *wanted != "ok" && dom0.get(&format!("prison/{name}")) == Some(*wanted)
        })
        .count();
    Verdict {
        result: json!({ "refused": refused, "attempts": attempts }),
        details: None,
        files: Vec::new(),
        failures: wrong(dom0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> String {
        let mut text = String::from("LAB prisoner-exit 0\n");
        for (name, wanted) in expected() {
            text.push_str(&format!("LAB prison/{name} {wanted}\n"));
        }
        text + "LAB guest-gone/g1 yes\nLAB guest-gone/g2 yes\n"
    }

    #[test]
    fn each_way_to_fall_short_is_named() {
        assert_eq!(wrong(&Report::parse(&good())), [""; 0]);
        for (from, to, expected) in [
            (
                "exit 0",
                "exit 1\nLAB+ prisoner Error: no",
                "prisoner ended with Some(\"1\"): Error: no",
            ),
            (
                "process/other/map_foreign EPERM",
                "process/other/map_foreign ok",
                "process/other/map_foreign: ok, expected EPERM",
            ),
            (
                "filtered/other/open_evtchn SIGSYS",
                "filtered/other/open_evtchn ok",
                "filtered/other/open_evtchn: ok, expected SIGSYS",
            ),
            (
                "LAB prison/free/other/inject_msi ok\n",
                "",
                "free/other/inject_msi: not tried, expected ok",
            ),
            ("gone/g2 yes", "gone/g2 no", "g2 left a domain behind"),
        ] {
            assert!(good().contains(from), "{from}");
            assert_eq!(wrong(&Report::parse(&good().replace(from, to))), [expected]);
        }
    }
}
