//! The scenario `stub`: that of `i915`, with the device model of g1 in a domain
//! of its own and that of g2 in dom0.

use serde_json::{Value, json};

use super::{Verdict, i915, igt, teardown};
use crate::facts::{Facts, Report};
use crate::scenario::Form;

/// Memory allowed to a stub domain, MiB: what Debian's cloud kernel cannot do
/// without (docs/stub-domain.md).
const MEMORY_MIB: f64 = 72.0;
/// Initial RAM disk allowed to it, KiB.
const IMAGE_KIB: f64 = 4096.0;
/// How much longer a register read may take with the device model in a domain
/// of its own than with one in dom0. Xen has to wake an idle domain and to change
/// to it and back, 0.6 to 1 ms of an emulated processor however quick the rest is:
/// 1.7 to 3.5 times was seen. Beyond this somebody waits for a timer.
const READ_FACTOR: f64 = 8.0;

/// Where the device model of the first guest in vgpuctl's list runs, as a
/// domain.
fn stub(dom0: &Report) -> Result<u64, String> {
    let list = dom0.json("stub-list")?;
    let first = list.get(0).cloned().unwrap_or_default();
    let domain = first.pointer("/dm/domain").and_then(Value::as_u64);
    domain.ok_or_else(|| format!("stub: vgpuctl list has {first}, expected a domain"))
}

fn most(what: &str, value: Option<f64>, allowed: f64) -> Option<String> {
    match value {
        Some(value) if value <= allowed => None,
        Some(value) => Some(format!("{what}: {value}, allowed are {allowed}")),
        None => Some(format!("{what} was not told")),
    }
}

/// How vgpud ended while both guests were there.
const ENDS: [&str; 2] = ["killed", "stopped"];

/// How far a stub domain was when vgpud was killed beside it.
const EARLY: [&str; 2] = ["made", "runs"];

/// What is wrong with what the vgpud after that made of it.
fn left_early(dom0: &Report, at: &str) -> Option<String> {
    let get = |what: &str| dom0.get(&format!("{what}/{at}")).unwrap_or("not told");
    match (get("early-left"), get("early-create")) {
        ("0", status) if status.parse().is_ok_and(|status: u8| status != 0) => None,
        (left, status) => Some(format!(
            "early/{at}: {left} stub domains are left, and xl create ended with {status}, \
             expected 0, and not 0"
        )),
    }
}

/// What is wrong with how the vgpud after that took them over.
fn not_adopted(facts: &Facts, end: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    match facts.dom0.json(&format!("adopted/{end}")) {
        Ok(list) => {
            let of = |guest: usize, what: &str| list.pointer(&format!("/{guest}/{what}"));
            for guest in 0..2 {
                let whole = of(guest, "adopted") == Some(&json!(true))
                    && of(guest, "state") == Some(&json!("running"));
                if !whole {
                    wrong.push(format!("adopted/{end}: vgpuctl list has {list}"));
                    break;
                }
            }
            let now = of(0, "dm/domain").and_then(Value::as_u64);
            if stub(&facts.dom0).is_ok_and(|before| now != Some(before)) {
                wrong.push(format!("adopted/{end}: another stub domain in {list}"));
            }
        }
        Err(e) => wrong.push(e),
    }
    let work = igt::outcome(&facts.guest("g1"), end, "gem_exec_store", "basic");
    if work != igt::Outcome::Success {
        wrong.push(format!("adopted/{end}: gem_exec_store: {}", work.text()));
    }
    wrong
}

/// Judges the run.
pub fn judge(facts: &Facts, form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    // What a read costs is compared with one through dom0, below, not QEMU's.
    let mut verdict = i915::judge_by(facts, form, i915::Yardstick::Ours);
    let failures = &mut verdict.failures;
    let memory = dom0.number("stub-memory-mb");
    failures.extend(most("stub_memory_mb", memory, MEMORY_MIB));
    let image = dom0.number("stub-image-kib");
    failures.extend(most("stub_image_kib", image, IMAGE_KIB));
    let boot = dom0.json("inspect/g1-probe").ok();
    let boot = boot.and_then(|tree| tree.get("attach_seconds")?.as_f64());
    if boot.is_none() {
        failures.push("stub_boot_s was not told".into());
    }
    failures.extend(stub(dom0).err());
    failures.extend(EARLY.iter().filter_map(|at| left_early(dom0, at)));
    for end in ENDS {
        failures.extend(not_adopted(facts, end));
    }
    failures.extend(teardown::stubs(dom0));
    let in_stub = i915::read_us(&facts.guest("g1"), "vgpu");
    let in_dom0 = i915::read_us(&facts.guest("g2"), "vgpu");
    match in_stub.zip(in_dom0) {
        Some((stub, dom0)) if stub > dom0 * READ_FACTOR => failures.push(format!(
            "mmio_read_us_vgpu: {stub} us a read, {dom0} us with the device model in dom0"
        )),
        Some(_) => {}
        None => failures.push("mmio_read_us_vgpu: was not measured".into()),
    }
    if let Value::Object(keys) = &mut verdict.result {
        keys.insert("stub_memory_mb".into(), json!(memory));
        keys.insert("stub_image_kib".into(), json!(image));
        keys.insert("stub_boot_s".into(), json!(boot));
        let seconds = ENDS.map(|end| dom0.number(&format!("adopted-seconds/{end}")));
        keys.insert(
            "adopted_s".into(),
            json!({ "killed": seconds[0], "stopped": seconds[1] }),
        );
        keys.insert(
            "mmio_read_us_vgpu".into(),
            json!({ "stub": in_stub, "dom0": in_dom0 }),
        );
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOM0: &str = "\
LAB stub-memory-mb 64
LAB stub-image-kib 1700
LAB early-left/made 0
LAB early-create/made 1
LAB early-left/runs 0
LAB early-create/runs 1
LAB stub-list-status 0
LAB+ stub-list [{\"domid\": 1, \"dm\": {\"domain\": 2}}]
LAB inspect/g1-probe-status 0
LAB+ inspect/g1-probe {\"attach_seconds\": 9.5}
LAB stubs-left 0
LAB stub-nodes-left 0
";
    const BOTH: &str = "[{\"adopted\": true, \"state\": \"running\", \"dm\": {\"domain\": 2}}, \
         {\"adopted\": true, \"state\": \"running\", \"dm\": {\"process\": 7}}]";

    /// What dom0 says of the vgpuds that took the guests over.
    fn adopted() -> String {
        let of = |end: &str| {
            format!(
                "LAB adopted-seconds/{end} 3.5\nLAB adopted/{end}-status 0\n\
                 LAB+ adopted/{end} {BOTH}\n"
            )
        };
        ENDS.map(of).concat()
    }

    fn facts(dom0: &str, in_stub: &str) -> Facts {
        let mut facts = Facts {
            dom0: Report::parse(dom0),
            ..Facts::default()
        };
        let read = |us: &str| {
            let ran = ENDS.map(|end| format!("LAB {end}-exit/gem_exec_store@basic 0 1 2\n"));
            Report::parse(&format!("LAB mmio/vgpu {us} 1 2000 20\n{}", ran.concat()))
        };
        facts.add_guest("g1", read(in_stub));
        facts.add_guest("g2", read("1000"));
        facts
    }

    /// Failures that the scenario has beyond those of `i915`.
    fn failures(facts: &Facts) -> Vec<String> {
        let yardstick = i915::Yardstick::Ours;
        let of_i915 = i915::judge_by(facts, Form::Short, yardstick).failures;
        let all = judge(facts, Form::Short).failures.into_iter();
        all.filter(|f| !of_i915.contains(f)).collect()
    }

    #[test]
    fn a_whole_run_has_its_figures() {
        let facts = facts(&(DOM0.to_owned() + &adopted()), "1300");
        assert_eq!(failures(&facts), [""; 0]);
        let result = judge(&facts, Form::Short).result;
        assert_eq!(result["stub_memory_mb"], 64.0);
        assert_eq!(result["stub_boot_s"], 9.5);
        assert_eq!(result["adopted_s"]["killed"], 3.5);
        let reads = json!({ "stub": 1300.0, "dom0": 1000.0 });
        assert_eq!(result["mmio_read_us_vgpu"], reads);
    }

    #[test]
    fn what_is_too_much_or_left_is_said() {
        let dom0 = DOM0
            .replace("memory-mb 64", "memory-mb 96")
            .replace("domain\": 2", "process\": 7")
            .replace("early-left/made 0", "early-left/made 1")
            .replace("stubs-left 0", "stubs-left 1");
        assert_eq!(
            failures(&facts(&(dom0 + &adopted()), "8100")),
            [
                "stub_memory_mb: 96, allowed are 72",
                "stub: vgpuctl list has {\"dm\":{\"process\":7},\"domid\":1}, expected a domain",
                "early/made: 1 stub domains are left, and xl create ended with 1, \
                 expected 0, and not 0",
                "teardown: 1 stub domains or zombies are left",
                "mmio_read_us_vgpu: 8100 us a read, 1000 us with the device model in dom0",
            ]
        );
        let missing = failures(&facts("", "1300"));
        assert_eq!(missing.len(), 10, "{missing:?}");
    }

    #[test]
    fn a_guest_that_is_not_taken_over_is_named() {
        for (from, to, expected) in [
            (
                "\"adopted\": true",
                "\"adopted\": false",
                "vgpuctl list has",
            ),
            ("running", "failed", "vgpuctl list has"),
            ("domain\": 2", "domain\": 4", "another stub domain in"),
        ] {
            let dom0 = DOM0.to_owned() + &adopted().replace(from, to);
            let said = failures(&facts(&dom0, "1300"));
            assert!(said.len() >= ENDS.len(), "{said:?}");
            for (said, end) in said.iter().zip(ENDS) {
                assert!(
                    said.starts_with(&format!("adopted/{end}: {expected}")),
                    "{said}"
                );
            }
        }
    }
}
