//! The hooks in libxl's order, with a guest that notes what is asked of it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use guest_memory::Gfn;
use vgpu_control::{Cause, Failing, Phase, Step};
use vgpu_sched::ppgtt::Frames;
use vgpu_sched::qmp::{Hooks, Verdict};
use vgpu_sched::saved::{HostV1, PackedTable, Saved};
use vgpu_sched::sync::lock;
use vgpu_sched::vgpu::{Drained, EngineV1, SchedulerV1};

use super::{Arriving, Migrant, Plug, Record};

#[derive(Default)]
struct Fake {
    notes: Mutex<Vec<String>>,
    /// What fails.
    fails: Mutex<Option<&'static str>>,
}

impl Fake {
    fn note(&self, what: &'static str) -> anyhow::Result<()> {
        lock(&self.notes).push(what.into());
        if *lock(&self.fails) == Some(what) {
            anyhow::bail!("it was broken");
        }
        Ok(())
    }

    /// What was asked of it, but what is asked again and again.
    fn noted(&self) -> Vec<String> {
        let notes = std::mem::take(&mut *lock(&self.notes));
        notes.into_iter().filter(|n| n != "named 2").collect()
    }
}

impl Migrant for Fake {
    fn begin_save(&self) -> anyhow::Result<()> {
        self.note("begin")
    }

    fn end_save(&self) -> anyhow::Result<()> {
        self.note("end")
    }

    fn suspend(&self, _limit: Duration) -> anyhow::Result<Drained> {
        self.note("suspend")?;
        Ok(Drained::default())
    }

    fn save(&self) -> anyhow::Result<Saved> {
        self.note("save")?;
        Ok(saved())
    }

    fn written(&self) -> anyhow::Result<Frames> {
        let mut frames = Frames::default();
        frames.insert_run(Gfn(7), 2);
        Ok(frames)
    }

    fn preview(&self, _time: Duration) -> anyhow::Result<u64> {
        self.note("preview")?;
        Ok(240)
    }

    fn name(&self, frames: &Frames) -> anyhow::Result<()> {
        lock(&self.notes).push(format!("named {}", frames.len()));
        Ok(())
    }
}

fn saved() -> Saved {
    Saved {
        host: HostV1::new("bdw"),
        device: b"{\"device\":1}".to_vec(),
        scheduler: SchedulerV1 {
            engines: vec![EngineV1::default(); 4],
        },
        table: PackedTable::pack(|_| 0),
    }
}

/// A guest, its hooks, and libxl's file.
struct Rig {
    guest: Arc<Fake>,
    record: Arc<Record>,
    plug: Plug,
    path: std::path::PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let guest = Arc::new(Fake::default());
        let record = Record::new(7, Duration::from_millis(500));
        let weak: Weak<Fake> = Arc::downgrade(&guest);
        record.connect(weak);
        let name = format!("vgpud-plug-{}-{name}", std::process::id());
        Self {
            plug: Plug::new(Arc::clone(&record)),
            guest,
            record,
            path: std::env::temp_dir().join(name),
        }
    }

    /// As far as `add-fd`; the file as QEMU has it.
    fn stopped(&mut self) -> File {
        assert_eq!(self.plug.dirty_log(true), Verdict::Pass);
        assert_eq!(self.plug.stopped(), Verdict::Pass);
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false);
        let file = options.open(&self.path).unwrap();
        assert_eq!(self.plug.add_fd(Some(file.as_fd())), Verdict::Pass);
        file
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn reason(verdict: Verdict) -> String {
    match verdict {
        Verdict::Fail(reason) => reason,
        Verdict::Pass => panic!("it passed"),
    }
}

#[test]
fn a_guest_is_saved_behind_qemus_state_and_read_again() {
    let mut rig = Rig::new("saved");
    std::fs::write(&rig.path, vec![9; 100_000]).unwrap();
    let mut file = rig.stopped();
    file.write_all(b"QEMU's").unwrap();
    assert_eq!(rig.record.phase(), Phase::Stopped);
    assert_eq!(rig.plug.device_state_saved(), Verdict::Pass);
    // libxl switches it off when all is sent, and then ends QEMU.
    assert_eq!(rig.plug.dirty_log(false), Verdict::Pass);
    assert_eq!(rig.record.phase(), Phase::Saved);
    assert_eq!(rig.guest.noted(), ["begin", "suspend", "save"]);
    let now = rig.record.now();
    assert_eq!(now.at_stop.named, 2);
    let causes: Vec<Cause> = now.downtime.iter().map(|(cause, _)| *cause).collect();
    assert_eq!(causes, [Cause::Drain, Cause::NamePages, Cause::Save]);

    let arriving = Arriving::read(&File::open(&rig.path).unwrap()).unwrap();
    assert_eq!(arriving.saved, saved());
    let target = Record::new(8, Duration::from_millis(500));
    super::loaded(&target, arriving.times.as_ref(), Duration::from_millis(3));
    assert_eq!(target.phase(), Phase::Restored);
    let mut there = Plug::new(Arc::clone(&target));
    assert_eq!(there.resuming(), Verdict::Pass);
    super::submitted(&target);
    let causes: Vec<Cause> = target.now().downtime.iter().map(|(c, _)| *c).collect();
    assert_eq!(causes.len(), 7);
    assert_eq!(
        causes[..4],
        [Cause::Drain, Cause::NamePages, Cause::Save, Cause::Transfer]
    );
    assert_eq!(
        causes[4..],
        [Cause::Load, Cause::Start, Cause::FirstSubmission]
    );
    assert_eq!(target.phase(), Phase::Arrived);
}

#[test]
fn a_file_without_a_vgpu_is_refused() {
    let rig = Rig::new("none");
    std::fs::write(&rig.path, vec![9; 5000]).unwrap();
    let error = Arriving::read(&File::open(&rig.path).unwrap());
    let error = format!("{:#}", error.err().unwrap());
    assert!(
        error.starts_with("the saved state has no vGPU in it"),
        "{error}"
    );
}

#[test]
fn a_file_that_was_cut_off_or_changed_is_refused() {
    let mut rig = Rig::new("changed");
    let mut file = rig.stopped();
    file.write_all(b"QEMU's").unwrap();
    assert_eq!(rig.plug.device_state_saved(), Verdict::Pass);
    let whole = std::fs::read(&rig.path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&rig.path, bytes).unwrap();
        let read = Arriving::read(&File::open(&rig.path).unwrap());
        let error = format!("{:#}", read.err().unwrap());
        assert!(error.starts_with("the saved "), "{error}");
        assert!(error.len() < 300 && !error.contains('\n'), "{error}");
    };
    for at in 0..whole.len() {
        refused(&whole[..at]);
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        refused(&changed);
    }
    // Behind another state of QEMU's, of the same length.
    refused(&[b"QEMU.s", &whole[6..]].concat());
    // And with something behind it.
    refused(&[&whole[..], b"\0"].concat());
    std::fs::write(&rig.path, &whole).unwrap();
    assert!(Arriving::read(&File::open(&rig.path).unwrap()).is_ok());
}

#[test]
fn whatever_fails_the_guest_goes_on() {
    for (fails, asked) in [
        ("begin", &["begin"][..]),
        ("suspend", &["begin", "suspend", "end"]),
        ("save", &["begin", "suspend", "save", "end"]),
    ] {
        let mut rig = Rig::new(fails);
        *lock(&rig.guest.fails) = Some(fails);
        let verdict = match fails {
            "begin" => rig.plug.dirty_log(true),
            "suspend" => {
                assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
                rig.plug.stopped()
            }
            _ => {
                drop(rig.stopped());
                rig.plug.device_state_saved()
            }
        };
        let reason = reason(verdict);
        assert!(reason.starts_with("domain 7: its vGPU"), "{reason}");
        assert!(
            reason.ends_with("it was broken; the guest goes on here"),
            "{reason}"
        );
        assert_eq!(rig.record.now().failure, Some(reason));
        // What libxl does then.
        assert_eq!(rig.plug.dirty_log(false), Verdict::Pass);
        assert_eq!(rig.plug.resuming(), Verdict::Pass);
        assert_eq!(rig.guest.noted(), asked, "{fails}");
        // The next attempt is a new one.
        *lock(&rig.guest.fails) = None;
        drop(rig.stopped());
        assert_eq!(rig.plug.device_state_saved(), Verdict::Pass);
        assert_eq!(rig.record.now().failure, None);
    }
}

#[test]
fn a_client_can_have_it_fail_at_each_step() {
    for step in [Step::Begin, Step::Stop, Step::Save] {
        let mut rig = Rig::new(&format!("{step:?}"));
        rig.record.fail_at(step, Failing::Refused);
        let verdict = match step {
            Step::Begin => rig.plug.dirty_log(true),
            Step::Stop => {
                assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
                rig.plug.stopped()
            }
            _ => {
                drop(rig.stopped());
                rig.plug.device_state_saved()
            }
        };
        assert!(reason(verdict).contains("made to fail here by a client"));
        assert_eq!(rig.plug.resuming(), Verdict::Pass);
        drop(rig.stopped());
    }
}

#[test]
fn what_is_no_save_is_left_alone() {
    let mut rig = Rig::new("others");
    // A CD is changed while the guest runs.
    std::fs::write(&rig.path, b"an image").unwrap();
    let file = File::options().write(true).open(&rig.path).unwrap();
    assert_eq!(rig.plug.add_fd(Some(file.as_fd())), Verdict::Pass);
    assert_eq!(std::fs::read(&rig.path).unwrap(), b"an image");
    // The guest begins to run.
    assert_eq!(rig.plug.resuming(), Verdict::Pass);
    assert!(reason(rig.plug.loading()).contains("COLO"));
    assert_eq!(rig.guest.noted(), [""; 0]);
    // Given up while memory was copied.
    assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
    assert_eq!(rig.plug.dirty_log(false), Verdict::Pass);
    assert_eq!(rig.guest.noted(), ["begin", "end"]);
    assert_eq!(rig.record.phase(), Phase::GivenUp);
}

#[test]
fn a_guest_that_would_stand_still_for_long_goes_on() {
    let mut rig = Rig::new("long");
    assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
    // Two pages and the state.
    rig.record.migration().send_rate = Some(100 << 10);
    let reason = reason(rig.plug.stopped());
    let text = " ms, allowed: 500; 2 pages and the state are left at 100 KiB/s";
    assert!(reason.contains(text), "{reason}");
    assert_eq!(rig.plug.resuming(), Verdict::Pass);
    assert_eq!(rig.guest.noted(), ["begin", "suspend", "end"]);
    assert_eq!(super::tracker::sending_ms(240, 1 << 20), 1000.0);
}

/// A process in the place of libxl's, which waits for ever.
struct Libxl(std::process::Child);

impl Libxl {
    fn new() -> Self {
        let mut command = std::process::Command::new("cat");
        Self(command.stdin(std::process::Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().try_into().unwrap()
    }

    fn killed(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Libxl {
    fn drop(&mut self) {
        self.killed();
    }
}

/// Waits until it is known why a migration failed.
fn failure(rig: &Rig) -> String {
    loop {
        if let Some(failure) = rig.record.now().failure {
            return failure;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_toolstack_that_was_killed_is_noticed() {
    let mut rig = Rig::new("killed");
    let mut libxl = Libxl::new();
    rig.plug.client(libxl.pid());
    assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
    libxl.killed();
    while rig.record.phase() != Phase::GivenUp {
        std::thread::yield_now();
    }
    let failure = failure(&rig);
    assert!(
        failure.starts_with("the toolstack's process is gone; the guest goes on"),
        "{failure}"
    );
    assert_eq!(rig.guest.noted(), ["begin", "end"]);
    let again = Libxl::new();
    rig.plug.client(again.pid());
    drop(rig.stopped());
    assert_eq!(rig.plug.device_state_saved(), Verdict::Pass);
    assert_eq!(rig.record.now().failure, None);
}

#[test]
fn a_toolstack_that_is_killed_at_a_step_leaves_the_guest_to_be_resumed() {
    for step in [Step::Begin, Step::Stop, Step::Save] {
        let mut rig = Rig::new(&format!("killed-{step:?}"));
        let mut libxl = Libxl::new();
        rig.plug.client(libxl.pid());
        rig.record.fail_at(step, Failing::Killed);
        assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
        let (phase, why) = match step {
            Step::Begin => (Phase::GivenUp, "the guest goes on here"),
            Step::Stop => {
                assert_eq!(rig.plug.stopped(), Verdict::Pass);
                (Phase::Stopped, "it has to be resumed here")
            }
            _ => {
                let mut options = File::options();
                let options = options.write(true).create(true).truncate(false);
                let file = options.open(&rig.path).unwrap();
                assert_eq!(rig.plug.stopped(), Verdict::Pass);
                assert_eq!(rig.plug.add_fd(Some(file.as_fd())), Verdict::Pass);
                assert_eq!(rig.plug.device_state_saved(), Verdict::Pass);
                (Phase::Saved, "only if it runs nowhere else")
            }
        };
        let failure = failure(&rig);
        assert!(failure.contains(why), "{failure}");
        libxl.killed();
        while rig.record.phase() != phase {
            std::thread::yield_now();
        }
        // Whoever resumes it has QEMU go on first.
        assert_eq!(rig.plug.resuming(), Verdict::Pass);
        assert_eq!(rig.record.phase(), Phase::GivenUp);
        assert_eq!(rig.guest.noted().last().unwrap(), "end");
        drop(rig.stopped());
    }
}

#[test]
fn a_guest_can_be_kept_from_running_at_the_target() {
    let mut rig = Rig::new("start");
    super::loaded(&rig.record, None, Duration::from_millis(3));
    rig.record.fail_at(Step::Start, Failing::Refused);
    let reason = reason(rig.plug.resuming());
    assert!(
        reason.contains("not to run here: it was made to"),
        "{reason}"
    );
    assert_eq!(rig.record.phase(), Phase::Restored);
}

#[test]
fn what_a_migration_would_cost_is_told_before_it() {
    let mut rig = Rig::new("ahead");
    super::look_ahead(&rig.record);
    let ahead = rig.record.now().ahead.unwrap();
    assert_eq!((ahead.pages, ahead.expected_ms), (240, None));
    rig.record.migration().send_rate = Some(1 << 20);
    super::look_ahead(&rig.record);
    let ahead = rig.record.now().ahead.unwrap();
    assert_eq!((ahead.pages, ahead.expected_ms), (240, Some(1000.0)));
    assert_eq!(rig.guest.noted(), ["preview", "preview"]);
    // While it is under way its own looks tell, and nothing may come between.
    drop(rig.stopped());
    super::look_ahead(&rig.record);
    assert_eq!(rig.record.now().ahead, None);
    assert_eq!(rig.guest.noted(), ["begin", "suspend"]);
}

#[test]
fn a_guest_that_is_gone_is_no_panic() {
    let mut rig = Rig::new("gone");
    rig.guest = Arc::default();
    assert!(reason(rig.plug.dirty_log(true)).contains("no vGPU"));
    assert_eq!(rig.plug.resuming(), Verdict::Pass);
}
