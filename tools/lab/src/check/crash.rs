//! The scenario `crash`: a guest at work while what serves it is killed.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Verdict;
use super::work::Work;
use super::{i915, teardown};
use crate::facts::{Facts, Report};
use crate::scenario::Form;

/// The kills of whole domains. Each stood still before, so that a vCPU of the guest
/// at work waited for it (`tests/lab/scenarios/crash.sh:stop_stub`).
const STUB: &str = "stub";

/// What came of the kills of one kind.
#[derive(Debug, Default, PartialEq)]
struct Kills {
    wanted: usize,
    done: usize,
    /// Milliseconds until the guest was served again, ascending.
    recovery_ms: Vec<f64>,
    /// What became of the first that the guest did not survive.
    lost: Option<String>,
}

impl Kills {
    fn of(dom0: &Report, kind: &str, wanted: usize) -> Self {
        let mut kills = Self {
            wanted,
            ..Self::default()
        };
        for number in 1..=wanted {
            let Some(outcome) = dom0.get(&format!("kill/{kind}/{number}")) else {
                break;
            };
            kills.done += 1;
            match outcome.parse() {
                Ok(ms) => kills.recovery_ms.push(ms),
                Err(_) => kills.lost = kills.lost.or_else(|| Some(outcome.to_owned())),
            }
        }
        kills.recovery_ms.sort_by(f64::total_cmp);
        kills
    }

    fn survived(&self) -> usize {
        self.recovery_ms.len()
    }

    fn wrong(&self, kind: &str) -> Option<String> {
        if let Some(lost) = &self.lost {
            return Some(format!("survived: {kind}: {lost}"));
        }
        let (done, wanted) = (self.done, self.wanted);
        (done < wanted).then(|| format!("kills: {kind}: {done} of {wanted} were done"))
    }

    fn json(&self) -> Value {
        json!({
            "kills": self.done,
            "survived": self.survived(),
            "recovery_ms": {
                "p50": self.recovery_ms.get(self.survived() / 2),
                "max": self.recovery_ms.last(),
            },
        })
    }
}

/// The kinds of kills, and how many of each there were to be, of all guests.
fn wanted(dom0: &Report) -> BTreeMap<String, usize> {
    let mut wanted = BTreeMap::new();
    for kind in dom0.get("kills").unwrap_or("").split_whitespace() {
        if let Some((kind, count)) = kind.split_once('=')
            && let Ok(count) = count.parse::<usize>()
        {
            *wanted.entry(kind.to_owned()).or_default() += count;
        }
    }
    wanted
}

/// What all guests' work came to.
#[derive(Default)]
struct Sum {
    verified: u64,
    mismatches: u64,
    resets: u64,
    mismatch: Option<Value>,
}

impl Sum {
    fn add(&mut self, work: Work) {
        self.verified += work.verified;
        self.mismatches += work.mismatches;
        self.resets += work.resets;
        self.mismatch = self.mismatch.take().or(work.mismatch);
    }
}

/// Judges the run.
pub fn judge(facts: &Facts, _form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    let mut failures = Vec::new();
    let kinds = wanted(dom0);
    if kinds.is_empty() {
        failures.push("kills: there were none".into());
    }
    let (mut done, mut survived, mut stubs) = (0, 0, 0);
    let mut by_kind = Map::new();
    for (kind, count) in kinds {
        let kills = Kills::of(dom0, &kind, count);
        failures.extend(kills.wrong(&kind));
        if kind == STUB {
            stubs = kills.survived();
        }
        done += kills.done;
        survived += kills.survived();
        by_kind.insert(kind, kills.json());
    }
    let in_flight: Option<usize> = dom0.get("in-flight").and_then(|n| n.parse().ok());
    if in_flight.is_none_or(|n| n < stubs) {
        let of = in_flight.map_or_else(|| "no number".into(), |n| n.to_string());
        failures.push(format!(
            "in_flight: {of} of the {stubs} domains had a vCPU wait for them"
        ));
    }
    let guests: Vec<&str> = dom0
        .get("guests")
        .unwrap_or("")
        .split_whitespace()
        .collect();
    if guests.is_empty() {
        failures.push("guests: there were none".into());
    }
    let mut sum = Sum::default();
    for name in &guests {
        let guest = facts.guest(name);
        let work = Work::of(&guest, "crash");
        if let Some(why) = &work.wrong {
            failures.push(format!("mismatches: {name}: {why}"));
        }
        sum.add(work);
        match i915::errors(&guest).as_deref() {
            None => failures.push(format!("i915_errors: {name}: no kernel log")),
            Some([]) => {}
            Some([first, ..]) => failures.push(format!("i915_errors: {name}: {first}")),
        }
    }
    failures.extend(teardown::wrong(dom0, &guests));
    failures.extend(teardown::stubs(dom0));
    Verdict {
        result: json!({
            "kills": done,
            "survived": survived,
            "by_kind": Value::Object(by_kind),
            "seed": dom0.number("seed"),
            "in_flight": in_flight,
            "guest_gpu_resets": sum.resets,
            "mismatches": sum.mismatches,
            "mismatch": sum.mismatch,
            "buffers_verified": sum.verified,
        }),
        details: None,
        files: Vec::new(),
        failures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOM0: &str = "\
LAB kills dm=2 vgpud=1 dm=1 stub=2
LAB guests g1
LAB in-flight 2
LAB kill/dm/1 70
LAB kill/dm/2 30
LAB kill/dm/3 50
LAB kill/vgpud/1 900
LAB kill/stub/1 9000
LAB kill/stub/2 8000
LAB guest-gone/g1 yes
LAB vgpud-alive yes
LAB vgpu-dm-left 0
LAB stubs-left 0
LAB stub-nodes-left 0
";
    const G1: &str = "\
LAB work/crash {\"verified\":90,\"mismatches\":0,\"resets\":0,\"end\":\"signal\"}
LAB work-exit/crash 0
LAB= dmesg
LAB+ dmesg [ 1.0] fine
";

    fn judged(dom0: &str, guest: &str) -> Verdict {
        let mut facts = Facts {
            dom0: Report::parse(dom0),
            ..Facts::default()
        };
        facts.add_guest("g1", Report::parse(guest));
        judge(&facts, Form::Full)
    }

    #[test]
    fn each_kind_has_its_figures() {
        let verdict = judged(DOM0, G1);
        let result = verdict.result;
        assert_eq!(
            (&result["kills"], &result["survived"]),
            (&json!(6), &json!(6))
        );
        assert_eq!(
            result["by_kind"]["dm"],
            json!({"kills": 3, "survived": 3, "recovery_ms": {"p50": 50.0, "max": 70.0}})
        );
        assert_eq!(result["guest_gpu_resets"], 0);
        assert_eq!(result["in_flight"], 2);
        assert_eq!(verdict.failures, Vec::<String>::new());
    }

    #[test]
    fn what_is_not_survived_fails_the_run() {
        let has = |verdict: &Verdict, text: &str| {
            assert!(
                verdict.failures.iter().any(|f| f.starts_with(text)),
                "{:?}",
                verdict.failures
            );
        };
        let lost = DOM0.replace("kill/dm/2 30", "kill/dm/2 lost: its work stands still");
        has(
            &judged(&lost, G1),
            "survived: dm: lost: its work stands still",
        );
        let fewer = DOM0.replace("LAB kill/vgpud/1 900\n", "");
        has(&judged(&fewer, G1), "kills: vgpud: 0 of 1 were done");
        has(&judged("", G1), "kills: there were none");
        has(&judged("", G1), "guests: there were none");
        let idle = DOM0.replace("in-flight 2", "in-flight 1");
        has(
            &judged(&idle, G1),
            "in_flight: 1 of the 2 domains had a vCPU wait for them",
        );
        let unknown = DOM0.replace("LAB in-flight 2\n", "");
        has(&judged(&unknown, G1), "in_flight: no number of the 2");
        let wrong = G1.replace("\"mismatches\":0", "\"mismatches\":3");
        has(
            &judged(DOM0, &wrong),
            "mismatches: g1: 3 buffers were wrong",
        );
        let reset = G1.replace("\"resets\":0", "\"resets\":1");
        has(&judged(DOM0, &reset), "mismatches: g1: the GPU was reset");
    }
}
