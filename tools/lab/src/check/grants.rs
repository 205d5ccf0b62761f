//! The scenario `grants`: the shared area over grants of a real Xen.

use serde_json::{Value, json};

use super::Verdict;
use crate::facts::Facts;
use crate::scenario::Form;

/// How often each side is killed.
const KILLS: f64 = 20.0;

/// Judges the run.
pub fn judge(facts: &Facts, _form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    let mut failures = Vec::new();
    let exit = dom0.get("grant-loop-exit");
    if exit != Some("0") {
        let said = dom0.block("grant-loop").join(" / ");
        failures.push(format!("grant-loop ended with {exit:?}: {said}"));
    }
    for key in ["grant-device-killed", "grant-daemon-killed"] {
        if dom0.number(key) != Some(KILLS) {
            failures.push(format!("{key} is {:?}, not {KILLS}", dom0.get(key)));
        }
    }
    for when in ["before", "after"] {
        if dom0.number(&format!("grants-reported/{when}")) != Some(1.0) {
            failures.push(format!("Xen did not report dom0's grants {when}"));
        }
        let mapped = dom0.get(&format!("grants-mapped/{when}"));
        if mapped != Some("0") {
            failures.push(format!("{mapped:?} pages of dom0 are mapped {when}"));
        }
    }
    let transports = match dom0.json("bench-ring") {
        Ok(bench) => {
            let over = &bench["transports"]["grant"]["over"];
            if over != "xen" {
                failures.push(format!("the bench ran over {over}, not xen"));
            }
            bench["transports"].clone()
        }
        Err(why) => {
            failures.push(why);
            Value::Null
        }
    };
    Verdict {
        result: json!({
            "kills": dom0.number("grant-device-killed"),
            "device_end_us": dom0.number("grant-device-end-us"),
            "daemon_end_us": dom0.number("grant-daemon-end-us"),
            "open_us": dom0.number("grant-open-us"),
            "pipe_mib_us": dom0.number("grant-pipe-mib-us"),
            "transports": transports,
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
LAB grants-reported/before 1
LAB grants-mapped/before 0
LAB grant-open-us 9000
LAB grant-device-killed 20
LAB grant-daemon-killed 20
LAB grant-loop-exit 0
LAB grants-reported/after 1
LAB grants-mapped/after 0
LAB bench-ring-status 0
LAB= bench-ring
LAB+ bench-ring {\"transports\": {\"memfd\": {}, \"grant\": {\"over\": \"xen\"}}}
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
                "loop-exit 0",
                "loop-exit 1\nLAB= grant-loop\nLAB+ grant-loop Error: no end is told",
                "grant-loop ended with Some(\"1\"): Error: no end is told",
            ),
            (
                "device-killed 20",
                "device-killed 3",
                "grant-device-killed is Some(\"3\"), not 20",
            ),
            (
                "mapped/after 0",
                "mapped/after 2660",
                "Some(\"2660\") pages of dom0 are mapped after",
            ),
            (
                "reported/after 1",
                "reported/after 0",
                "Xen did not report dom0's grants after",
            ),
            (
                "over\\\": \\\"xen",
                "over\\\": \\\"fake-xen",
                "the bench ran over \"fake-xen\", not xen",
            ),
            (
                "ring-status 0",
                "ring-status 1",
                "bench-ring: vgpuctl ended with 1: ",
            ),
        ] {
            let (from, to) = (from.replace("\\\"", "\""), to.replace("\\\"", "\""));
            assert_eq!(failures(&GOOD.replace(&from, &to)), [expected]);
        }
    }
}
