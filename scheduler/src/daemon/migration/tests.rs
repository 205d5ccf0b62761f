//! The hooks in libxl's order, with a guest that notes what is asked of it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use guest_memory::Gfn;
use vgpu_control::{Cause, Phase, Step};
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
        rig.record.fail_at(step);
        let verdict = match step {
            Step::Begin => rig.plug.dirty_log(true),
            Step::Stop => {
                assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
                rig.plug.stopped()
            }
            Step::Save => {
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
    // Two pages and half a MiB of state.
    rig.record.migration().send_rate = Some(1 << 20);
    let reason = reason(rig.plug.stopped());
    let text = " ms, allowed: 500; 2 pages and the state are left at 1024 KiB/s";
    assert!(reason.contains(text), "{reason}");
    assert_eq!(rig.plug.resuming(), Verdict::Pass);
    assert_eq!(rig.guest.noted(), ["begin", "suspend", "end"]);
    assert_eq!(super::tracker::sending_ms(256, 1 << 20), 1500.0);
}

#[test]
fn a_toolstack_that_was_killed_is_noticed() {
    let mut rig = Rig::new("killed");
    rig.plug.client(i32::MAX);
    assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
    while rig.record.phase() != Phase::GivenUp {
        std::thread::yield_now();
    }
    let failure = rig.record.now().failure.unwrap();
    assert!(
        failure.starts_with("the toolstack's process is gone"),
        "{failure}"
    );
    assert_eq!(rig.guest.noted(), ["begin", "end"]);
    assert_eq!(rig.plug.dirty_log(true), Verdict::Pass);
    assert_eq!(rig.record.now().failure, None);
}

#[test]
fn a_guest_that_is_gone_is_no_panic() {
    let mut rig = Rig::new("gone");
    rig.guest = Arc::default();
    assert!(reason(rig.plug.dirty_log(true)).contains("no vGPU"));
    assert_eq!(rig.plug.resuming(), Verdict::Pass);
}
