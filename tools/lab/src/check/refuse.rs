//! The scenario `refuse`: guests that must not start, and what is said then.

use serde_json::{Map, Value, json};

use super::Verdict;
use crate::facts::Facts;
use crate::scenario::Form;

/// A configuration that must be refused, and what its one line must have: the
/// key with the value, and something of what is allowed instead.
const BAD_LINES: &[(&str, &[&str])] = &[
    (
        "key",
        &["vgpu: key is \"colour\"", "allowed: gpu, type, slot"],
    ),
    (
        "type",
        &["vgpu: type is \"voodoo\"", "allowed: host, bdw, kbl"],
    ),
    (
        "slot",
        &["vgpu: slot is \"2, taken by ", "allowed: 3, 4, 5"],
    ),
    (
        "taken",
        &["vgpu: slot is \"17, taken by edu\"", ", 15, 16, 18, 19"],
    ),
];

/// The guest without a vgpud.
const LONELY: &str = "lonely";

/// What it is told, in its log and by xl.
const NO_VGPUD: &str = "vgpud does not run";

/// Seconds that `xl create` may take to fail without vgpud. The launcher waits one
/// at most; making the domain takes the emulated machine 9 to 13. If it waited on,
/// libxl would give up after 60 (`LIBXL_DEVICE_MODEL_START_TIMEOUT`).
const SOON: f64 = 30.0;

/// Judges the run.
pub fn judge(facts: &Facts, _form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    let mut failures = Vec::new();
    let mut said = Map::new();
    for (name, words) in BAD_LINES {
        let stderr = dom0.block(&format!("stderr/{name}"));
        said.insert((*name).into(), json!(stderr));
        if dom0.get(&format!("exit/{name}")) != Some("1") {
            failures.push(format!(
                "{name}: xl create ended with {:?}, expected 1",
                dom0.get(&format!("exit/{name}"))
            ));
        }
        match stderr {
            [line] => {
                for word in words.iter().filter(|w| !line.contains(**w)) {
                    failures.push(format!("{name}: {line:?} does not have {word:?}"));
                }
            }
            lines => failures.push(format!("{name}: {} lines on stderr, not 1", lines.len())),
        }
    }
    let exit = dom0.get(&format!("exit/{LONELY}"));
    if exit.is_none() || exit == Some("0") {
        failures.push(format!("{LONELY}: xl create ended with {exit:?}"));
    }
    let seconds = dom0.number(&format!("seconds/{LONELY}"));
    match seconds {
        Some(s) if s <= SOON => {}
        Some(s) => failures.push(format!("{LONELY}: it took {s} s, allowed: {SOON}")),
        None => failures.push(format!("{LONELY}: how long it took is not known")),
    }
    for place in ["stderr", "log"] {
        let lines = dom0.block(&format!("{place}/{LONELY}"));
        if !lines.iter().any(|l| l.contains(NO_VGPUD)) {
            failures.push(format!("{LONELY}: the {place} has no {NO_VGPUD:?}"));
        }
    }
    for name in BAD_LINES.iter().map(|(n, _)| *n).chain([LONELY]) {
        // Domain 0 alone.
        if dom0.get(&format!("domains/{name}")) != Some("1") {
            failures.push(format!("{name}: a domain is left"));
        }
    }
    let lonely: &[String] = dom0.block(&format!("log/{LONELY}"));
    Verdict {
        result: json!({
            "stderr": Value::Object(said),
            "no_vgpud_log": lonely,
            "no_vgpud_stderr": dom0.block(&format!("stderr/{LONELY}")),
            "no_vgpud_seconds": seconds,
        }),
        details: None,
        files: Vec::new(),
        failures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Report;

    const GOOD: &str = "\
LAB exit/key 1
LAB= stderr/key
LAB+ stderr/key xl: vgpu: key is \"colour\", allowed: gpu, type, slot, aperture, mode
LAB domains/key 1
LAB exit/type 1
LAB= stderr/type
LAB+ stderr/type xl: vgpu: type is \"voodoo\", allowed: host, bdw, kbl
LAB domains/type 1
LAB exit/slot 1
LAB= stderr/slot
LAB+ stderr/slot xl: vgpu: slot is \"2, taken by xen-platform\", allowed: 3, 4, 5, 6
LAB domains/slot 1
LAB exit/taken 1
LAB= stderr/taken
LAB+ stderr/taken xl: vgpu: slot is \"17, taken by edu\", allowed: 14, 15, 16, 18, 19, 20
LAB domains/taken 1
LAB exit/lonely 3
LAB seconds/lonely 12.40
LAB= stderr/lonely
LAB+ stderr/lonely xl: vgpud does not run, so the guest will not start: cannot connect
LAB= log/lonely
LAB+ log/lonely vgpu-launcher: vgpud does not run: cannot connect
LAB domains/lonely 1
";

    fn failures(text: &str) -> Vec<String> {
        let facts = Facts {
            dom0: Report::parse(text),
            ..Facts::default()
        };
        judge(&facts, Form::Full).failures
    }

    #[test]
    fn each_way_to_fall_short_is_named() {
        assert_eq!(failures(GOOD), [""; 0]);
        for (from, to, expected) in [
            (
                "exit/key 1",
                "exit/key 0",
                "key: xl create ended with Some(\"0\"), expected 1",
            ),
            (
                "voodoo\", allowed",
                "odd\", allowed",
                "type: \"xl: vgpu: type is \\\"odd\\\", allowed: host, bdw, kbl\" \
                 does not have \"vgpu: type is \\\"voodoo\\\"\"",
            ),
            (
                "slot is \"2, taken by xen-platform\", allowed: 3, 4, 5, 6",
                "slot is \"2, taken by xen-platform\", allowed: 2, 3, 4, 5",
                "slot: \"xl: vgpu: slot is \\\"2, taken by xen-platform\\\", allowed: 2, 3, 4, 5\" \
                 does not have \"allowed: 3, 4, 5\"",
            ),
            (
                "LAB+ stderr/slot",
                "LAB+ stderr/slot x\nLAB+ stderr/slot",
                "slot: 2 lines on stderr, not 1",
            ),
            (
                "domains/taken 1",
                "domains/taken 2",
                "taken: a domain is left",
            ),
            (
                "exit/lonely 3",
                "exit/lonely 0",
                "lonely: xl create ended with Some(\"0\")",
            ),
            (
                "lonely 12.40",
                "lonely 60.17",
                "lonely: it took 60.17 s, allowed: 30",
            ),
            (
                "LAB seconds/lonely 12.40\n",
                "",
                "lonely: how long it took is not known",
            ),
            (
                "launcher: vgpud does not run",
                "launcher: no /run/vgpud.sock",
                "lonely: the log has no \"vgpud does not run\"",
            ),
            (
                "xl: vgpud does not run",
                "xl: no /run/vgpud.sock",
                "lonely: the stderr has no \"vgpud does not run\"",
            ),
        ] {
            assert_eq!(failures(&GOOD.replace(from, to)), [expected]);
        }
    }
}
