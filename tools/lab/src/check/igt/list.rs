//! Which tests of igt-gpu-tools are run.

use anyhow::bail;

use crate::scenario::Form;

/// One test program and what is run of it. Each entry of the three lists is
/// one run of the program: a subtest, or a choice of several by igt's patterns
/// (`*`, and after a comma `!` for all but), or, with an `@`, a subtest on one
/// engine.
pub struct Test {
    /// The program.
    pub name: &'static str,
    /// What the short form runs, and all others.
    pub(super) short: &'static [&'static str],
    /// What the extended form adds, and the full one has.
    pub(super) extended: &'static [&'static str],
    /// What the full form adds.
    pub(super) full: &'static [&'static str],
    /// Seconds for each run. Emulated, a submission takes some milliseconds
    /// instead of some microseconds.
    pub(super) timeout: u32,
    /// The same when no other program is run, if it is to have more then.
    pub(super) alone: Option<u32>,
    /// What some of its subtests give themselves, whatever `timeout` says.
    pub pace: Option<Pace>,
    /// Subtests that may be skipped, and the requirement that is not met then.
    pub skips: Skips,
    /// A function that fails when its subtests are done, for a reason that is
    /// not ours.
    pub afterwards: Option<&'static str>,
    /// Settings of its environment.
    pub(super) environment: &'static [&'static str],
}

/// Subtests, each with the requirement that is not met.
pub type Skips = &'static [(&'static str, &'static str)];

/// Work that a subtest wants done in some time, and what tells that it was not.
pub struct Pace {
    /// Of what.
    pub what: &'static str,
    /// How much.
    pub count: f64,
    /// Trapped accesses that each takes at least.
    pub accesses: f64,
    /// The time it gives itself, seconds, and what it says then. None: it is
    /// ended by the limit of [`Test::limit`].
    pub own: Option<(f64, &'static str)>,
}

/// What one trapped access takes.
#[derive(Debug, Clone, Copy)]
pub struct AccessTime {
    /// Median, microseconds.
    pub us: f64,
    /// To which device.
    pub whose: &'static str,
}

/// Trapped accesses that no device model can spare i915 for a request alone
/// on its engine: four to load it, five in the interrupt handler, one to
/// order its reading of the status buffer.
const REQUEST: f64 = 10.0;

impl Pace {
    /// Why this host cannot keep the pace, if a trapped access takes what
    /// `access` says. `limit` is that of the program.
    pub fn beyond(&self, limit: u32, access: &AccessTime) -> Option<String> {
        let seconds = self.own.map_or(f64::from(limit), |(seconds, _)| seconds);
        let least = self.count * self.accesses * access.us / 1e6;
        (least > seconds).then(|| {
            format!(
                "{} {} in {seconds} s; with {} trapped accesses for each, this takes \
                 {least:.0} s at the {:.0} us of {} here",
                self.count, self.what, self.accesses, access.us, access.whose
            )
        })
    }
}

/// Has the C library copy by vectors and fill by strings. A string instruction
/// from BAR2 to BAR2 is two accesses a byte (Xen
/// `arch/x86/hvm/emulate.c:hvmemul_rep_movs`), one that fills is one a page.
const FEW_ACCESSES: &str = "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1000000000:\
     glibc.cpu.x86_memset_non_temporal_threshold=1000000000";

/// What most tests are.
pub(super) const PLAIN: Test = Test {
    name: "",
    short: &[],
    extended: &[],
    full: &[],
    timeout: 120,
    alone: None,
    pace: None,
    skips: &[],
    afterwards: None,
    environment: &[],
};

/// The tests: Intel's own "bat" choice of each program, or its basic subtests
/// where bat has none. The full form adds subtests that need no spinning
/// batch, no preemption and no reset.
pub const TESTS: &[Test] = &[
    Test {
        name: "core_auth",
        short: &["basic-auth", "getclient-simple"],
        full: &["getclient-master-drop", "many-magics"],
        timeout: 60,
        ..PLAIN
    },
    Test {
        name: "gem_basic",
        short: &["bad-close", "create-close", "create-fd-close"],
        timeout: 60,
        ..PLAIN
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
        ..PLAIN
    },
    Test {
        name: "gem_exec_basic",
        short: &["basic"],
        timeout: 60,
        ..PLAIN
    },
    Test {
        name: "gem_exec_store",
        short: &["basic"],
        full: &["dword", "cachelines", "pages"],
        ..PLAIN
    },
    Test {
        name: "gem_ctx_create",
        short: &["basic"],
        full: &["basic-files"],
        ..PLAIN
    },
    Test {
        name: "gem_ctx_exec",
        short: &["basic", "basic-invalid-context"],
        timeout: 60,
        ..PLAIN
    },
    Test {
        name: "gem_sync",
        // `idle` does what the basic ones do, engine by engine, and takes the
        // time it needs.
        short: &["idle@rcs0"],
        full: &[
            "idle",
            "basic-all",
            "basic-each",
            "basic-store-all",
            "basic-store-each",
        ],
        timeout: 300,
        // igt-gpu-tools `tests/intel/gem_sync.c`: 1024 rounds of the four
        // engines before it first looks at the clock, and 10 s beyond the 2.
        pace: Some(Pace {
            what: "requests",
            count: 4096.0,
            accesses: REQUEST,
            own: Some((12.0, "Timed out waiting for children")),
        }),
        ..PLAIN
    },
    Test {
        name: "gem_exec_nop",
        short: &["basic-series"],
        full: &["basic-parallel", "basic-sequential"],
        ..PLAIN
    },
    Test {
        name: "gem_exec_parallel",
        short: &["basic@rcs0"],
        full: &["basic", "engines"],
        timeout: 600,
        ..PLAIN
    },
    Test {
        name: "gem_linear_blits",
        // Has to be able to fill 4 GiB.
        extended: &["basic"],
        ..PLAIN
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
        ..PLAIN
    },
    Test {
        name: "gem_exec_reloc",
        extended: &["basic-*,!basic-*active,!basic-concurrent*,!basic-scanout"],
        full: &["basic-active", "basic-concurrent*"],
        timeout: 240,
        // It looks at the display for basic-scanout, by the file i915_pipe in
        // debugfs, which Linux 6.1 has not.
        afterwards: Some("__intel_get_pipe_from_crtc_index"),
        ..PLAIN
    },
    Test {
        name: "gem_ppgtt",
        // The others draw with the 3D pipeline, which softgpu has not.
        extended: &["flink-and-close-vma-leak", "shrink-vs-evict-*"],
        ..PLAIN
    },
    Test {
        name: "gem_mmap_gtt",
        // Not basic-wc, which wants writes to be faster than reads: trapped,
        // they are not. The copies write 64 MiB word by word.
        extended: &[
            "bad-object",
            "basic",
            "basic-short",
            "basic-read",
            "basic-write",
            "basic-write-gtt",
            "basic-read-write*,basic-write-read*",
            "zero-extend,isolation",
            "basic-small-bo*",
        ],
        full: &["basic-copy", "basic-write-cpu-read-gtt"],
        // A copy of 1 MiB is 262 thousand accesses, 1.5 ms each through a stub domain.
        timeout: 1200,
        // igt then takes 1 MiB instead of 16.
        environment: &["INTEL_SIMULATION=1", FEW_ACCESSES],
        ..PLAIN
    },
    Test {
        name: "gem_tiled_blits",
        extended: &["basic"],
        ..PLAIN
    },
    Test {
        name: "gem_tiled_fence_blits",
        extended: &["basic"],
        timeout: 300,
        // igt-gpu-tools `tests/intel/gem_tiled_fence_blits.c`: two buffers of
        // 1 MiB, written through the aperture by dwords, read by quadwords.
        pace: Some(Pace {
            what: "dwords",
            count: 524_288.0,
            accesses: 1.5,
            own: None,
        }),
        ..PLAIN
    },
    Test {
        name: "gem_fence_thrash",
        // The others write 20 MiB by dwords, twice.
        extended: &["bo-copy"],
        timeout: 300,
        alone: Some(2400),
        // igt-gpu-tools `tests/intel/gem_fence_thrash.c`: a thread for each
        // fence copies 128 KiB within the aperture, 8 bytes an access. i915 moves
        // fences meanwhile, as many accesses again.
        pace: Some(Pace {
            what: "copies of 8 bytes",
            count: 524_288.0,
            accesses: 2.0,
            own: None,
        }),
        environment: &[FEW_ACCESSES],
        ..PLAIN
    },
    Test {
        name: "gem_userptr_blits",
        // Linux 6.1 has none of the unsynchronised kind.
        extended: &[
            "input-checking",
            "usage-restrictions,invalid-null-pointer,forbidden-operations,sd-probe",
            "set-cache-level,relocations",
            "process-exit,process-exit-busy,create-destroy-sync,sync-overlap,sync-unmap,sync-unmap-after-close",
            "probe",
        ],
        ..PLAIN
    },
    Test {
        name: "gem_exec_gttfill",
        extended: &["basic"],
        // In lazy mode it takes two minutes. Where tables are protected, i915 then
        // gives 2000 of them back, each for some 60 ms here, and in strict mode
        // fills them as slowly.
        timeout: 900,
        ..PLAIN
    },
    Test {
        name: "gem_readwrite",
        extended: &["*"],
        timeout: 60,
        ..PLAIN
    },
    Test {
        name: "gem_pread",
        extended: &["self", "bench"],
        ..PLAIN
    },
    Test {
        name: "gem_pwrite",
        extended: &["basic-self", "basic-random", "bench"],
        ..PLAIN
    },
];

impl Test {
    /// What `form` runs of it.
    pub fn runs(&self, form: Form) -> impl Iterator<Item = &'static str> {
        let from = |least, list: &'static [&'static str]| if form >= least { list } else { &[] };
        self.short
            .iter()
            .chain(from(Form::Extended, self.extended))
            .chain(from(Form::Full, self.full))
            .copied()
    }

    /// Seconds for each of its runs when the programs in `only` are run, if
    /// there is one.
    pub(super) fn limit(&self, only: &[impl AsRef<str>]) -> u32 {
        let alone = self.alone.filter(|_| only.len() == 1);
        alone.unwrap_or(self.timeout)
    }
}

/// The tests of a form: those of the programs in `only`, if there is one.
pub fn chosen(form: Form, only: &[impl AsRef<str>]) -> impl Iterator<Item = &'static Test> {
    TESTS.iter().filter(move |test| {
        let named = only.is_empty() || only.iter().any(|o| o.as_ref() == test.name);
        named && test.runs(form).next().is_some()
    })
}

/// Whether there are such programs.
pub fn known(only: &[String]) -> anyhow::Result<()> {
    for name in only {
        if !TESTS.iter().any(|test| test.name == name) {
            let all: Vec<&str> = TESTS.iter().map(|test| test.name).collect();
            bail!("no test program {name}; there are: {}", all.join(", "));
        }
    }
    Ok(())
}

/// The list that the scenario's script reads: lines `NAME SUBTESTS SECONDS`,
/// then settings of the environment.
pub fn list(form: Form, only: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for test in chosen(form, only) {
        for run in test.runs(form) {
            let (name, limit) = (test.name, test.limit(only));
            text.push_str(&format!("{name} {run} {limit}"));
            for setting in test.environment {
                text.push_str(&format!(" {setting}"));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(form: Form) -> String {
        list(form, &[""; 0])
    }

    #[test]
    fn a_run_can_be_of_some_programs_only() {
        let only = ["gem_readwrite".to_owned()];
        assert!(known(&only).is_ok());
        assert_eq!(list(Form::Extended, &only), "gem_readwrite * 60\n");
        assert_eq!(list(Form::Short, &only), "");
        let error = known(&["gem_none".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("gem_none; there are: core_auth, "),
            "{error}"
        );
    }

    #[test]
    fn one_that_is_run_alone_may_have_more_time() {
        let of = |only: &[&str]| list(Form::Extended, only);
        assert!(of(&["gem_fence_thrash"]).contains("bo-copy 2400 "));
        let both = of(&["gem_fence_thrash", "gem_readwrite"]);
        assert!(both.contains("bo-copy 300 "));
        assert!(all(Form::Extended).contains("bo-copy 300 "));
    }

    #[test]
    fn each_form_has_more_than_the_one_before() {
        let [short, extended, full] = [Form::Short, Form::Extended, Form::Full].map(all);
        for line in short.lines() {
            assert!(extended.lines().any(|l| l == line), "{line}");
        }
        for line in extended.lines() {
            assert!(full.lines().any(|l| l == line), "{line}");
        }
        assert!(short.starts_with("core_auth basic-auth 60\n"));
        assert!(short.len() < extended.len() && extended.len() < full.len());
    }

    #[test]
    fn the_extended_form_runs_every_program() {
        let extended = all(Form::Extended);
        for test in TESTS {
            let start = format!("{} ", test.name);
            assert!(extended.lines().any(|l| l.starts_with(&start)), "{start}");
        }
    }

    #[test]
    fn lines_are_words() {
        for line in all(Form::Full).lines() {
            let words = line.split(' ').count();
            assert!((3..=5).contains(&words), "{line}");
        }
    }
}
