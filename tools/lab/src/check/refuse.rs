//! The scenario `refuse`: guests that must not start, and what is said then.

use serde_json::{Map, Value, json};

use super::Verdict;
use crate::facts::Facts;
use crate::scenario::Form;

/// A configuration that must be refused, and words its one line must have:
/// the key, the value, and something of what is allowed.
const BAD_LINES: &[(&str, &[&str])] = &[
    ("key", &["colour", "type", "slot"]),
    ("type", &["type", "voodoo", "bdw"]),
    ("slot", &["slot", "2"]),
    ("taken", &["slot", "17"]),
];

/// The guest without a vgpud.
const LONELY: &str = "lonely";

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
                    failures.push(format!("{name}: {line:?} does not name {word:?}"));
                }
            }
            lines => failures.push(format!("{name}: {} lines on stderr, not 1", lines.len())),
        }
    }
    let exit = dom0.get(&format!("exit/{LONELY}"));
    if exit.is_none() || exit == Some("0") {
        failures.push(format!("{LONELY}: xl create ended with {exit:?}"));
    }
    for place in ["stderr", "log"] {
        let lines = dom0.block(&format!("{place}/{LONELY}"));
        if !lines.iter().any(|l| l.contains("vgpud")) {
            failures.push(format!("{LONELY}: the {place} does not name vgpud"));
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
            "no_vgpud_seconds": dom0.number(&format!("seconds/{LONELY}")),
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
LAB+ stderr/key vgpu: unknown key colour, allowed: type, slot
LAB domains/key 1
LAB exit/type 1
LAB= stderr/type
LAB+ stderr/type vgpu: type is voodoo, allowed: bdw
LAB domains/type 1
LAB exit/slot 1
LAB= stderr/slot
LAB+ stderr/slot vgpu: slot is 2, taken
LAB domains/slot 1
LAB exit/taken 1
LAB= stderr/taken
LAB+ stderr/taken vgpu: slot 17 is taken
LAB domains/taken 1
LAB exit/lonely 3
LAB= stderr/lonely
LAB+ stderr/lonely xl: no vgpud
LAB= log/lonely
LAB+ log/lonely vgpu-launcher: no vgpud
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
                "voodoo, allowed",
                "odd, allowed",
                "type: \"vgpu: type is odd, allowed: bdw\" does not name \"voodoo\"",
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
                "launcher: no vgpud",
                "launcher: no",
                "lonely: the log does not name vgpud",
            ),
            (
                "xl: no vgpud",
                "xl: no",
                "lonely: the stderr does not name vgpud",
            ),
        ] {
            assert_eq!(failures(&GOOD.replace(from, to)), [expected]);
        }
    }
}
