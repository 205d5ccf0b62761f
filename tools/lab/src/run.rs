//! One run of a scenario: boot, watch, bring back, judge.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use crossbeam::channel::{RecvTimeoutError, unbounded};
use log::info;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::check::{igt, migrate};
use crate::facts::{Facts, Report};
use crate::image::{Images, KernelImage, STUB};
use crate::machine::{self, Console};
use crate::payload::{self, Payload, Settings};
use crate::scenario::{self, Form, Gpu, Scenario, Shadow};

/// How long before the end dom0 stops by itself, to bring logs back.
const DOM0_GIVES_UP_BEFORE: Duration = Duration::from_secs(60);

/// Options of `lab run`.
#[derive(Args)]
pub struct Options {
    /// Fewer tests and rounds, all the same checks (for CI).
    #[arg(long)]
    short: bool,
    /// The short form and tests of memory and page tables.
    #[arg(long, conflicts_with = "short")]
    extended: bool,
    /// Of the tests of i915 and stub only these programs, of migrate's only these
    /// cases of what goes wrong, and none of the other checks, to work on them: NAME, or
    /// several with commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How vgpud follows guests' page tables, instead of its default.
    #[arg(long, value_enum)]
    shadow: Option<Shadow>,
    /// The device guests get.
    #[arg(long, value_enum, default_value = "bdw")]
    gpu: Gpu,
    /// Device models in domains of their own, where guests do not say.
    #[arg(long)]
    stub: bool,
    /// Do not build our programs first; take target/release as it is.
    #[arg(long)]
    no_build: bool,
    /// Run the scenario without our device, to work on the scenario itself.
    #[arg(long)]
    no_device: bool,
    /// Leave it to QEMU's boot ROM to load the guests' kernel, a minute slower.
    #[arg(long)]
    plain_boot: bool,
    /// Seconds for the whole run, instead of the scenario's own limit.
    #[arg(long)]
    timeout: Option<u64>,
}

impl Options {
    fn form(&self) -> Form {
        match (self.short, self.extended) {
            (true, _) => Form::Short,
            (false, true) => Form::Extended,
            (false, false) => Form::Full,
        }
    }
}

/// How the machine's part of a run ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The scenario's script came to its end.
    Done,
    /// The script gave this reason.
    Failed(String),
    /// QEMU ended before the script did.
    Stopped,
    /// Out of time; `stage` is where.
    TimedOut { stage: String },
}

/// Runs scenario `name`; true if it passed.
pub fn run(name: &str, options: &Options) -> anyhow::Result<bool> {
    let scenario = scenario::find(name)?;
    match name {
        "migrate" => migrate::known(&options.only)?,
        "i915" | "stub" => igt::known(&options.only)?,
        _ => ensure!(
            options.only.is_empty(),
            "--only is for the scenarios i915, stub and migrate, not for {name}"
        ),
    }
    let cache = Cache::open()?;
    let images = Images::ensure(&cache)?;
    let mut kernels = Vec::new();
    for kernel in scenario.kernels {
        if let Some(source) = kernel.source() {
            kernels.push((*kernel, KernelImage::ensure(&cache, &source)?));
        }
    }
    let device = scenario.device && !options.no_device;
    let stub = if device && (scenario.stub || options.stub) {
        Some(KernelImage::ensure(&cache, &STUB)?)
    } else {
        None
    };
    let out = payload::workspace().join("target/lab").join(name);
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    machine::check_path(images.dir())?;
    machine::check_path(&out)?;
    if scenario.device && !options.no_build {
        info!("building our programs");
        payload::build_programs(device, stub.is_some(), scenario.guest_programs)?;
    }
    let timeout = options
        .timeout
        .map_or(scenario.timeout, Duration::from_secs);
    let large_guest = scenario
        .large_guest
        .filter(|_| options.form() > Form::Short);
    let settings = Settings {
        scenario: name,
        device,
        stub: stub.as_ref(),
        guest_programs: scenario.guest_programs,
        guest_options: scenario.guest_options,
        kernels: &kernels,
        form: options.form(),
        only: &options.only,
        shadow: options.shadow,
        gpu: options.gpu,
        large_guest,
        plain_boot: options.plain_boot,
        timeout: timeout
            .saturating_sub(DOM0_GIVES_UP_BEFORE)
            .as_secs()
            .max(1),
    };
    let payload = Payload::make(&out.join("payload"), &images, &settings)?;

    let started = Instant::now();
    let mut machine = machine::start(&images, &payload, &Console::Piped, large_guest.unwrap_or(0))?;
    let end = watch(&mut machine, &out.join("console.log"), started, timeout);
    // Everything on the results disk was written before the last line came.
    machine.kill().ok();
    machine.wait().context("cannot wait for QEMU")?;
    let end = end?;

    let logs = out.join("logs");
    if logs.exists() {
        fs::remove_dir_all(&logs)?;
    }
    fs::create_dir_all(&logs)?;
    let facts = if payload.unpack_results(&logs)? {
        Facts::from_logs(&logs)?
    } else {
        let console = fs::read(out.join("console.log"))?;
        Facts::from_console(&String::from_utf8_lossy(&console))
    };
    conclude(scenario, options, &end, &facts, started.elapsed(), &out)
}

/// Lines that Xen's log has at least: it says more of the machine alone.
const XEN_LOG: f64 = 20.0;

/// What Xen complained of, or that its log is not there to tell. A guest's program
/// that Xen stopped may say little of it.
fn xen_wrong(dom0: &Report) -> Option<String> {
    if let Some(line) = dom0.block("xen-complaints").first() {
        return Some(format!("xen: {line}"));
    }
    let lines = dom0.number("xen-log-lines");
    let there = lines.is_some_and(|n| n >= XEN_LOG);
    (!there).then(|| format!("xen: its log has {lines:?} lines, at least {XEN_LOG} expected"))
}

fn conclude(
    scenario: &Scenario,
    options: &Options,
    end: &End,
    facts: &Facts,
    took: Duration,
    out: &Path,
) -> anyhow::Result<bool> {
    let verdict = (scenario.judge)(facts, options.form());
    let mut failures: Vec<String> = reason(end, took).into_iter().collect();
    failures.extend(xen_wrong(&facts.dom0));
    failures.extend(verdict.failures);
    let passed = failures.is_empty();
    let mut result = verdict.result;
    if let Value::Object(keys) = &mut result {
        keys.insert("passed".into(), json!(passed));
        keys.insert("failures".into(), json!(failures));
        keys.insert("total_seconds".into(), json!(took.as_secs()));
        if scenario.device {
            if !options.only.is_empty() {
                keys.insert("only".into(), json!(options.only));
            }
            keys.insert("gpu".into(), json!(options.gpu.name()));
            if options.stub {
                keys.insert("stub".into(), json!(true));
            }
            let shadow = options.shadow.map_or("default", Shadow::name);
            keys.insert("shadow".into(), json!(shadow));
        }
    }
    let path = write_json(out, "result.json", &result)?;
    if let Some(details) = verdict.details {
        write_json(out, "details.json", &details)?;
    }
    for (name, value) in &verdict.files {
        write_json(out, name, value)?;
    }
    match failures.first() {
        None => info!(
            "{}: passed in {} s; {}",
            scenario.name,
            took.as_secs(),
            path.display()
        ),
        Some(first) => {
            let more = match failures.len() - 1 {
                0 => String::new(),
                n => format!(" (and {n} more in {})", path.display()),
            };
            eprintln!("lab: {}: FAILED: {first}{more}", scenario.name);
        }
    }
    Ok(passed)
}

fn reason(end: &End, took: Duration) -> Option<String> {
    match end {
        End::Done => None,
        End::Failed(reason) => Some(reason.clone()),
        End::Stopped => Some("the machine stopped before the scenario ended".into()),
        End::TimedOut { stage } => Some(format!(
            "timed out after {} s in stage: {stage}",
            took.as_secs()
        )),
    }
}

fn write_json(out: &Path, name: &str, value: &Value) -> anyhow::Result<PathBuf> {
    let path = out.join(name);
    fs::write(&path, serde_json::to_string_pretty(value)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Follows the console until the scenario ends, one way or another.
fn watch(
    machine: &mut Child,
    log: &Path,
    started: Instant,
    timeout: Duration,
) -> anyhow::Result<End> {
    let console = machine.stdout.take().context("QEMU has no console")?;
    let mut log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let (sender, lines) = unbounded();
    thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n') {
            let Ok(line) = line else { break };
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                break;
            }
        }
    });
    let mut stage = "Xen starts".to_owned();
    progress(started, &stage);
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                let line = line.trim_end_matches('\r');
                writeln!(log, "{:8.2} {line}", started.elapsed().as_secs_f64())?;
                match event(line) {
                    Some(Event::Stage(name)) => {
                        progress(started, name);
                        name.clone_into(&mut stage);
                    }
                    Some(Event::Done) => return Ok(End::Done),
                    Some(Event::Failed(reason)) => return Ok(End::Failed(reason.to_owned())),
                    None => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => return Ok(End::TimedOut { stage }),
            Err(RecvTimeoutError::Disconnected) => return Ok(End::Stopped),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Event<'a> {
    Stage(&'a str),
    Done,
    Failed(&'a str),
}

fn event(line: &str) -> Option<Event<'_>> {
    let rest = line.strip_prefix("LAB ")?;
    match rest.split_once(' ').unwrap_or((rest, "")) {
        ("stage", name) => Some(Event::Stage(name)),
        ("finished", "ok") => Some(Event::Done),
        ("finished", reason) => Some(Event::Failed(reason)),
        _ => None,
    }
}

fn progress(started: Instant, stage: &str) {
    info!("[{:4} s] {stage}", started.elapsed().as_secs());
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn only_is_refused_where_it_would_do_nothing() {
        let line = Line::parse_from(["lab", "--only", "gem_basic"]);
        let error = run("share", &line.options).unwrap_err().to_string();
        assert!(error.starts_with("--only is for "), "{error}");
    }

    #[test]
    fn xen_has_to_have_been_asked() {
        let wrong = |text: &str| xen_wrong(&Report::parse(text));
        assert_eq!(wrong("LAB xen-log-lines 154\nLAB= xen-complaints\n"), None);
        let crash = "LAB xen-log-lines 154\nLAB+ xen-complaints domain_crash called\n";
        assert_eq!(wrong(crash).unwrap(), "xen: domain_crash called");
        let failed = "xen: its log has Some(1.0) lines, at least 20 expected";
        assert_eq!(wrong("LAB xen-log-lines 1\n").unwrap(), failed);
        assert!(wrong("").is_some());
    }

    #[test]
    fn only_the_scenarios_own_lines_steer_a_run() {
        assert_eq!(
            event("LAB stage guest boots"),
            Some(Event::Stage("guest boots"))
        );
        assert_eq!(event("LAB finished ok"), Some(Event::Done));
        assert_eq!(
            event("LAB finished xl create: 1"),
            Some(Event::Failed("xl create: 1"))
        );
        assert_eq!(event("[g1] LAB finished ok"), None);
        assert_eq!(event("LAB kernel 6.1"), None);
    }

    #[test]
    fn an_end_before_time_names_its_reason() {
        let took = Duration::from_secs(9);
        assert_eq!(reason(&End::Done, took), None);
        assert_eq!(
            reason(
                &End::TimedOut {
                    stage: "guest boots".into()
                },
                took
            )
            .as_deref(),
            Some("timed out after 9 s in stage: guest boots")
        );
    }
}
