//! Tests of igt-gpu-tools: what their output means.

mod list;

use std::collections::BTreeMap;

pub use list::{AccessTime, known, list};
use list::{Pace, Skips, Test, chosen};

use crate::facts::Report;
use crate::scenario::Form;

/// How a subtest, or a program's subtests together, came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Success,
    /// It does not apply here; the reason it gave.
    Skip(String),
    /// Anything else, with what it said.
    Fail(String),
}

impl Outcome {
    /// As result.json has it.
    pub fn text(&self) -> String {
        match self {
            Self::Success => "SUCCESS".into(),
            Self::Skip(reason) => format!("SKIP: {reason}"),
            Self::Fail(reason) => format!("FAIL: {reason}"),
        }
    }

    /// Whether it lets a run pass: a skip without a reason does not.
    pub fn passes(&self) -> bool {
        match self {
            Self::Success => true,
            Self::Skip(reason) => !reason.is_empty(),
            Self::Fail(_) => false,
        }
    }
}

/// What `guest` reported under `tag` for one run of a program.
pub fn outcome(guest: &Report, tag: &str, name: &str, run: &str) -> Outcome {
    let Some(exit) = guest.get(&format!("{tag}-exit/{name}@{run}")) else {
        return Outcome::Fail("did not end".into());
    };
    let status = exit.split(' ').next().unwrap_or(exit);
    let output = guest.block(&format!("{tag}/{name}@{run}"));
    // Exit codes of igt-gpu-tools `lib/igt_core.h`; 124 and 137 are timeout's.
    match status {
        "0" => Outcome::Success,
        "77" => Outcome::Skip(skip_reason(output)),
        "79" => Outcome::Fail("no such subtest".into()),
        "124" | "137" => timed_out(),
        code => Outcome::Fail(format!("exit code {code}: {}", failure(output))),
    }
}

/// A run that had to be ended.
fn timed_out() -> Outcome {
    Outcome::Fail("timed out".into())
}

/// The subtests of one run, each by its own line of the output. A run that
/// went wrong otherwise, or that has no such line, counts under the name of
/// the subtest it was in, else its own.
fn subtests(guest: &Report, test: &Test, run: &str) -> Vec<(String, Outcome)> {
    let name = test.name;
    let output = guest.block(&format!("igt/{name}@{run}"));
    let mut found = Vec::new();
    let mut begun = None;
    let mut from = 0;
    for (at, line) in output.iter().enumerate() {
        if let Some(subtest) = line.strip_prefix("Starting subtest: ") {
            begun = Some(subtest.trim());
            from = at;
        } else if let Some((subtest, result)) = ended(line) {
            let said = output.get(from..at).unwrap_or_default();
            // On one engine it is another subtest than on all of them.
            let name = if run.contains('@') { run } else { subtest };
            found.push((name.to_owned(), by_word(result, said, output)));
            begun = None;
        }
    }
    let whole = outcome(guest, "igt", name, run);
    let told = found.iter().any(|(_, o)| matches!(o, Outcome::Fail(_)));
    let said = match (&whole, test.afterwards, begun) {
        (Outcome::Fail(said), Some(function), None) => said.contains(function),
        _ => false,
    };
    if found.is_empty() || (matches!(whole, Outcome::Fail(_)) && !told && !said) {
        found.push((begun.unwrap_or(run).to_owned(), whole));
    }
    found
}

/// Subtest and result of a line `Subtest NAME: RESULT (TIME)`.
fn ended(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("Subtest ")?.split_once(": ")?;
    Some((name, rest.split(' ').next()?))
}

/// `said` is the output of the subtest, `output` that of the whole run: what
/// is skipped before it begins says why only once.
fn by_word(result: &str, said: &[String], output: &[String]) -> Outcome {
    match result {
        "SUCCESS" => Outcome::Success,
        "SKIP" => {
            let reason = skip_reason(said);
            Outcome::Skip(if reason.is_empty() {
                skip_reason(output)
            } else {
                reason
            })
        }
        word => Outcome::Fail(format!("{word}: {}", failure(said))),
    }
}

fn skip_reason(output: &[String]) -> String {
    let starting = |prefix: &str| {
        output
            .iter()
            .find_map(|line| Some(line.trim().strip_prefix(prefix)?.trim().to_owned()))
    };
    starting("Test requirement: ")
        .or_else(|| starting("Test requirement not met in "))
        .or_else(|| starting("No GPU"))
        .unwrap_or_default()
}

/// The lines that say why, which are not the last ones: a stack trace follows.
fn failure(output: &[String]) -> String {
    let why: Vec<&str> = output
        .iter()
        .map(|line| line.trim())
        .filter(|line| {
            line.contains("Failed assertion:")
                || line.contains("CRITICAL:")
                || line.starts_with("error:")
                || line.contains("Received signal")
        })
        .take(3)
        .collect();
    if why.is_empty() {
        let tail = output.len().saturating_sub(2);
        output.get(tail..).unwrap_or_default().join(" / ")
    } else {
        why.join(" / ")
    }
}

/// Each program's subtests as `guest` reported them.
pub type Outcomes = BTreeMap<&'static str, BTreeMap<String, Outcome>>;

/// All tests of a form. `access` is what a trapped access takes at least, by
/// what was measured in this run.
pub fn outcomes(guest: &Report, form: Form, only: &[&str], access: Option<AccessTime>) -> Outcomes {
    let of_run = |test: &Test, run: &'static str| {
        let output = guest.block(&format!("igt/{}@{run}", test.name));
        let judged = subtests(guest, test, run).into_iter();
        let judged: Vec<_> = judged
            .map(|(subtest, outcome)| {
                let outcome = unexpected(outcome, &subtest, test.skips);
                let limit = test.limit(only);
                let outcome = paced(outcome, output, test.pace.as_ref(), limit, access);
                (subtest, outcome)
            })
            .collect();
        judged
    };
    chosen(form, only)
        .map(|test| {
            let each = test.runs(form).flat_map(|run| of_run(test, run));
            (test.name, each.collect())
        })
        .collect()
}

/// Seconds that each run took in the guest.
pub fn seconds(guest: &Report, form: Form, only: &[&str]) -> BTreeMap<String, f64> {
    let took = |test: &Test, run: &str| {
        let exit = guest.get(&format!("igt-exit/{}@{run}", test.name))?;
        let mut times = exit.split(' ').skip(1).map(str::parse::<f64>);
        let (start, end) = (times.next()?.ok()?, times.next()?.ok()?);
        Some(((end - start) * 100.0).round() / 100.0)
    };
    chosen(form, only)
        .flat_map(|test| test.runs(form).map(move |run| (test, run)))
        .filter_map(|(test, run)| Some((format!("{}@{run}", test.name), took(test, run)?)))
        .collect()
}

/// A skip that the list of tests does not name with its reason is a failure.
fn unexpected(outcome: Outcome, subtest: &str, skips: Skips) -> Outcome {
    let Outcome::Skip(reason) = &outcome else {
        return outcome;
    };
    let named = skips
        .iter()
        .any(|(name, why)| *name == subtest && reason.contains(why));
    if named {
        outcome
    } else {
        Outcome::Fail(format!("skipped: {reason}"))
    }
}

/// A failure that says only that the host is slower than the subtest allows
/// is no word on the device, if it could not have been otherwise.
fn paced(
    outcome: Outcome,
    output: &[String],
    pace: Option<&Pace>,
    limit: u32,
    access: Option<AccessTime>,
) -> Outcome {
    let (Outcome::Fail(_), Some(pace), Some(access)) = (&outcome, pace, access) else {
        return outcome;
    };
    let late = match pace.own {
        Some((_, complaint)) => output.iter().any(|l| l.contains(complaint)),
        None => outcome == timed_out(),
    };
    if !late || output.iter().any(|l| l.contains("Failed assertion:")) {
        return outcome;
    }
    pace.beyond(limit, &access).map_or(outcome, Outcome::Skip)
}

/// One program's subtests together: the first failure, else success if any
/// succeeded, else the first skip.
pub fn together(subtests: &BTreeMap<String, Outcome>) -> Outcome {
    let with_name = |(name, outcome): (&String, &Outcome)| match outcome {
        Outcome::Success => Outcome::Success,
        Outcome::Skip(reason) => Outcome::Skip(reason.clone()),
        Outcome::Fail(reason) => Outcome::Fail(format!("{name}: {reason}")),
    };
    subtests
        .iter()
        .find(|(_, o)| !o.passes())
        .or_else(|| subtests.iter().find(|(_, o)| **o == Outcome::Success))
        .or_else(|| subtests.iter().next())
        .map_or_else(|| Outcome::Fail("was not run".into()), with_name)
}

#[cfg(test)]
mod tests {
    use super::list::PLAIN;
    use super::*;

    fn report(status: &str, output: &str) -> Report {
        let mut text = String::from("LAB= igt/t@s\n");
        for line in output.lines() {
            text.push_str(&format!("LAB+ igt/t@s {line}\n"));
        }
        Report::parse(&format!("{text}LAB igt-exit/t@s {status} 10.0 11.0\n"))
    }

    #[test]
    fn exit_codes_and_output_become_outcomes() {
        let of = |status, output| outcome(&report(status, output), "igt", "t", "s");
        assert_eq!(of("0", "Subtest s: SUCCESS (0.1s)"), Outcome::Success);
        assert_eq!(
            of(
                "77",
                "Test requirement not met in function f, file f.c:3:\n\
                 Test requirement: gem_has_lmem(i915)\nSubtest s: SKIP (0.0s)"
            ),
            Outcome::Skip("gem_has_lmem(i915)".into())
        );
        assert!(!of("77", "").passes(), "a skip needs its reason");
        assert_eq!(
            of(
                "98",
                "(t:9) CRITICAL: Test assertion failure function f:\n\
                 (t:9) CRITICAL: Failed assertion: a == b\nStack trace:\n  #0 x\n"
            ),
            Outcome::Fail(
                "exit code 98: (t:9) CRITICAL: Test assertion failure function f: / \
                 (t:9) CRITICAL: Failed assertion: a == b"
                    .into()
            )
        );
        assert_eq!(of("124", ""), Outcome::Fail("timed out".into()));
        assert_eq!(of("79", ""), Outcome::Fail("no such subtest".into()));
        assert_eq!(
            outcome(&Report::default(), "igt", "t", "s"),
            Outcome::Fail("did not end".into())
        );
    }

    #[test]
    fn each_subtest_of_a_run_is_judged_by_its_own_line() {
        let test = Test {
            name: "t",
            afterwards: Some("function g"),
            ..PLAIN
        };
        let of = |status: &str, output: &str| subtests(&report(status, output), &test, "s");
        let named = |name: &str, outcome| (name.to_owned(), outcome);
        let two = "Starting subtest: a\nSubtest a: SUCCESS (0.1s)\nStarting subtest: b\n";
        let skip = format!("{two}Test requirement: more\nSubtest b: SKIP (0.0s)");
        assert_eq!(
            of("0", &skip),
            [
                named("a", Outcome::Success),
                named("b", Outcome::Skip("more".into()))
            ]
        );
        let fail = format!("{two}x: Failed assertion: c\nSubtest b: FAIL (0.0s)");
        assert_eq!(
            of("98", &fail),
            [
                named("a", Outcome::Success),
                named("b", Outcome::Fail("FAIL: x: Failed assertion: c".into()))
            ]
        );
        assert_eq!(
            of("124", two),
            [
                named("a", Outcome::Success),
                named("b", Outcome::Fail("timed out".into()))
            ]
        );
        // Skipped before either began.
        assert_eq!(
            of(
                "77",
                "Test requirement: gem\nSubtest a: SKIP\nSubtest b: SKIP"
            ),
            [
                named("a", Outcome::Skip("gem".into())),
                named("b", Outcome::Skip("gem".into()))
            ]
        );
        assert_eq!(of("0", "no such line"), [named("s", Outcome::Success)]);
        // What comes when all is done, and is known, is no failure of theirs.
        let done = "Subtest a: SUCCESS (0.1s)\nCRITICAL: Test assertion failure function ";
        assert_eq!(
            of("98", &format!("{done}g, file")),
            [named("a", Outcome::Success)]
        );
        assert_eq!(of("98", &format!("{done}h, file")).len(), 2);
        let in_b = format!("{two}CRITICAL: Test assertion failure function g");
        assert_eq!(of("98", &in_b).len(), 2);
        assert!(!of("98", "function g")[0].1.passes());
    }

    #[test]
    fn a_skip_has_to_be_on_the_list() {
        let list: Skips = &[("a", "why")];
        let skip = |reason: &str| Outcome::Skip(reason.to_owned());
        assert_eq!(unexpected(skip("why"), "a", list), skip("why"));
        assert!(!unexpected(skip("why"), "another", list).passes());
        assert!(!unexpected(skip("another"), "a", list).passes());
    }

    #[test]
    fn a_program_is_as_good_as_its_worst_subtest() {
        let skip = Outcome::Skip("why".into());
        let fail = Outcome::Fail("bad".into());
        let of = |list: &[(&'static str, &Outcome)]| {
            together(
                &list
                    .iter()
                    .map(|(n, o)| ((*n).to_owned(), (*o).clone()))
                    .collect(),
            )
        };
        assert_eq!(
            of(&[("a", &skip), ("b", &Outcome::Success)]),
            Outcome::Success
        );
        assert_eq!(of(&[("a", &skip)]), skip);
        assert_eq!(
            of(&[("a", &Outcome::Success), ("b", &fail)]),
            Outcome::Fail("b: bad".into())
        );
        assert_eq!(of(&[]), Outcome::Fail("was not run".into()));
    }

    #[test]
    fn only_a_pace_beyond_the_host_excuses_a_failure() {
        let pace = Pace {
            what: "requests",
            count: 1000.0,
            accesses: 10.0,
            own: Some((5.0, "too late")),
        };
        let ours = Pace { own: None, ..pace };
        let fail = || Outcome::Fail("exit code 98: x".into());
        let of = |outcome, output: &str, pace, us: Option<f64>| {
            let output: Vec<String> = output.lines().map(str::to_owned).collect();
            let whose = "QEMU's own device";
            paced(
                outcome,
                &output,
                pace,
                5,
                us.map(|us| AccessTime { us, whose }),
            )
        };
        let excused = Outcome::Skip(
            "1000 requests in 5 s; with 10 trapped accesses for each, this takes 6 s \
             at the 600 us of QEMU's own device here"
                .into(),
        );
        let late = "x\nit is too late";
        assert_eq!(of(fail(), late, Some(&pace), Some(600.0)), excused);
        assert_eq!(of(timed_out(), "", Some(&ours), Some(600.0)), excused);
        let wrong = "too late\nFailed assertion: a == b";
        for (outcome, output, pace, access_us) in [
            (fail(), late, Some(&pace), Some(400.0)),
            (fail(), late, Some(&pace), None),
            (fail(), late, None, Some(600.0)),
            (fail(), "something else", Some(&pace), Some(600.0)),
            (fail(), wrong, Some(&pace), Some(600.0)),
            (fail(), late, Some(&ours), Some(600.0)),
            (timed_out(), wrong, Some(&ours), Some(600.0)),
            (timed_out(), "", Some(&ours), Some(400.0)),
        ] {
            assert_eq!(of(outcome.clone(), output, pace, access_us), outcome);
        }
    }
}
