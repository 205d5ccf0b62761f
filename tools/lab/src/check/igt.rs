//! Tests of igt-gpu-tools: which are run, and what their output means.

use std::collections::BTreeMap;

use crate::facts::Report;

/// One test program and what is run of it.
pub struct Test {
    /// The program.
    pub name: &'static str,
    /// Its subtests for the short form.
    short: &'static [&'static str],
    /// Those that the full form adds.
    full: &'static [&'static str],
    /// Seconds for each subtest. Emulated, a submission takes some
    /// milliseconds instead of some microseconds.
    timeout: u32,
    /// What some of its subtests give themselves, whatever `timeout` says.
    pace: Option<Pace>,
}

/// A number of requests that a subtest wants done in a time of its own, and
/// that it says so when they are not.
struct Pace {
    requests: f64,
    seconds: f64,
    complaint: &'static str,
}

/// Trapped accesses that no device model can spare i915 for a request alone
/// on its engine: four to load it, five in the interrupt handler, one to
/// order its reading of the status buffer.
const ACCESSES: f64 = 10.0;

impl Pace {
    /// Why this host cannot keep the pace, if QEMU's own devices show that:
    /// `access_us` is what one access to such a one takes.
    fn beyond(&self, access_us: f64) -> Option<String> {
        let least = self.requests * ACCESSES * access_us / 1e6;
        (least > self.seconds).then(|| {
            format!(
                "wants {} requests in {} s; the {ACCESSES} accesses of each alone take {least:.0} s \
                 at the {access_us:.0} us of QEMU's own device here",
                self.requests, self.seconds
            )
        })
    }
}

/// The tests: Intel's own "bat" choice of each program, or its basic subtests
/// where bat has none. The full form adds subtests that need no spinning
/// batch, no preemption and no reset.
pub const TESTS: &[Test] = &[
    Test {
        name: "core_auth",
        short: &["basic-auth", "getclient-simple"],
        full: &["getclient-master-drop", "many-magics"],
        timeout: 60,
        pace: None,
    },
    Test {
        name: "gem_basic",
        short: &["bad-close", "create-close", "create-fd-close"],
        full: &[],
        timeout: 60,
        pace: None,
    },
    Test {
        name: "gem_create",
        short: &[
            "create-invalid-size",
            "create-valid-nonaligned",
            "create-size-update",
        ],
        full: &["create-massive"],
        timeout: 60,
        pace: None,
    },
    Test {
        name: "gem_exec_basic",
        short: &["basic"],
        full: &[],
        timeout: 60,
        pace: None,
    },
    Test {
        name: "gem_exec_store",
        short: &["basic"],
        full: &["dword", "cachelines", "pages"],
        timeout: 120,
        pace: None,
    },
    Test {
        name: "gem_ctx_create",
        short: &["basic"],
        full: &["basic-files"],
        timeout: 120,
        pace: None,
    },
    Test {
        name: "gem_ctx_exec",
        short: &["basic", "basic-invalid-context"],
        full: &[],
        timeout: 60,
        pace: None,
    },
    Test {
        name: "gem_sync",
        // `idle` does what the basic ones do, engine by engine, and takes the
        // time it needs.
        short: &["idle"],
        full: &[
            "basic-all",
            "basic-each",
            "basic-store-all",
            "basic-store-each",
        ],
        timeout: 300,
        // igt-gpu-tools `tests/intel/gem_sync.c`: 1024 rounds of the four
        // engines before it first looks at the clock, and 10 s beyond the 2.
        pace: Some(Pace {
            requests: 4096.0,
            seconds: 12.0,
            complaint: "Timed out waiting for children",
        }),
    },
    Test {
        name: "gem_exec_nop",
        short: &["basic-series"],
        full: &["basic-parallel", "basic-sequential"],
        timeout: 120,
        pace: None,
    },
    Test {
        name: "gem_exec_parallel",
        short: &["basic"],
        full: &["engines"],
        timeout: 240,
        pace: None,
    },
    Test {
        name: "gem_linear_blits",
        short: &["basic"],
        full: &[],
        timeout: 120,
        pace: None,
    },
    Test {
        name: "gem_softpin",
        short: &["allocator-basic", "safe-alignment"],
        full: &[
            "allocator-basic-reserve",
            "invalid",
            "zero",
            "softpin",
            "overlap",
            "reverse",
        ],
        timeout: 120,
        pace: None,
    },
];

impl Test {
    fn subtests(&self, short: bool) -> impl Iterator<Item = &'static str> {
        let more: &[&str] = if short { &[] } else { self.full };
        self.short.iter().chain(more).copied()
    }
}

/// The list that the scenario's script reads: `NAME SUBTEST SECONDS` lines.
pub fn list(short: bool) -> String {
    let mut text = String::new();
    for test in TESTS {
        for subtest in test.subtests(short) {
            text.push_str(&format!("{} {subtest} {}\n", test.name, test.timeout));
        }
    }
    text
}

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

/// What `guest` reported under `tag` for one subtest.
pub fn outcome(guest: &Report, tag: &str, name: &str, subtest: &str) -> Outcome {
    let Some(exit) = guest.get(&format!("{tag}-exit/{name}@{subtest}")) else {
        return Outcome::Fail("did not end".into());
    };
    let status = exit.split(' ').next().unwrap_or(exit);
    let output = guest.block(&format!("{tag}/{name}@{subtest}"));
    // Exit codes of igt-gpu-tools `lib/igt_core.h`; 124 and 137 are timeout's.
    match status {
        "0" => Outcome::Success,
        "77" => Outcome::Skip(skip_reason(output)),
        "79" => Outcome::Fail("no such subtest".into()),
        "124" | "137" => Outcome::Fail("timed out".into()),
        code => Outcome::Fail(format!("exit code {code}: {}", failure(output))),
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
pub type Outcomes = BTreeMap<&'static str, BTreeMap<&'static str, Outcome>>;

/// All tests of the short or full form. `access_us` is what one access to a
/// device of QEMU's took in this run.
pub fn outcomes(guest: &Report, short: bool, access_us: Option<f64>) -> Outcomes {
    let of = |test: &Test, subtest| {
        let outcome = outcome(guest, "igt", test.name, subtest);
        let output = guest.block(&format!("igt/{}@{subtest}", test.name));
        paced(outcome, output, test.pace.as_ref(), access_us)
    };
    TESTS
        .iter()
        .map(|test| {
            let each = test.subtests(short).map(|s| (s, of(test, s))).collect();
            (test.name, each)
        })
        .collect()
}

/// A failure that says only that the host is slower than the subtest allows
/// is no word on the device, if it could not have been otherwise.
fn paced(
    outcome: Outcome,
    output: &[String],
    pace: Option<&Pace>,
    access_us: Option<f64>,
) -> Outcome {
    let (Outcome::Fail(_), Some(pace), Some(access_us)) = (&outcome, pace, access_us) else {
        return outcome;
    };
    let failed_otherwise = output.iter().any(|l| l.contains("Failed assertion:"));
    if failed_otherwise || !output.iter().any(|l| l.contains(pace.complaint)) {
        return outcome;
    }
    pace.beyond(access_us).map_or(outcome, Outcome::Skip)
}

/// One program's subtests together: the first failure, else success if any
/// succeeded, else the first skip.
pub fn together(subtests: &BTreeMap<&'static str, Outcome>) -> Outcome {
    let with_name = |(name, outcome): (&&str, &Outcome)| match outcome {
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
    fn a_program_is_as_good_as_its_worst_subtest() {
        let skip = Outcome::Skip("why".into());
        let fail = Outcome::Fail("bad".into());
        let of = |list: &[(&'static str, &Outcome)]| {
            together(&list.iter().map(|(n, o)| (*n, (*o).clone())).collect())
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
            requests: 1000.0,
            seconds: 5.0,
            complaint: "too late",
        };
        let fail = || Outcome::Fail("timed out".into());
        let of = |output: &str, pace, access_us| {
            let output: Vec<String> = output.lines().map(str::to_owned).collect();
            paced(fail(), &output, pace, access_us)
        };
        let excused = of("x\nit is too late", Some(&pace), Some(600.0));
        assert_eq!(
            excused,
            Outcome::Skip(
                "wants 1000 requests in 5 s; the 10 accesses of each alone take 6 s \
                 at the 600 us of QEMU's own device here"
                    .into()
            )
        );
        assert_eq!(of("it is too late", Some(&pace), Some(400.0)), fail());
        assert_eq!(of("it is too late", Some(&pace), None), fail());
        assert_eq!(of("it is too late", None, Some(600.0)), fail());
        assert_eq!(of("something else", Some(&pace), Some(600.0)), fail());
        assert_eq!(
            of(
                "too late\nFailed assertion: a == b",
                Some(&pace),
                Some(600.0)
            ),
            fail()
        );
    }

    #[test]
    fn the_short_form_runs_every_program() {
        let short = list(true);
        for test in TESTS {
            assert!(
                short
                    .lines()
                    .any(|l| l.starts_with(&format!("{} ", test.name)))
            );
        }
        assert!(list(false).starts_with("core_auth basic-auth 60\n"));
        assert!(list(false).len() > short.len());
    }
}
