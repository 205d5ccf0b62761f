//! The daemon with a fake scheduler and fake device models, which are this
//! test program run again.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_memory::{Gfn, WrittenPages};
use serde_json::{Value, json};
use vgpu_config::{Gpu, Share};
use vgpu_control::{
    ClientRequest, Connection, EngineSample, Entry, FromDm, Held, LaneSample, QmpSockets, Register,
    Reply, Sample, State, ToDm, TraceEvent, TracePage, What,
};
use vgpu_ring::{Bells, DeviceBells, Event, GgttTable, Request, SharedArea, TableChanges, Wake};
use vgpu_sched::events::EventSink;
use vgpu_sched::ggtt::GuestGgtt;
use vgpu_sched::ppgtt::Frames;
use vgpu_sched::vgpu::{Drained, EngineV1, SchedulerV1, StillRuns};

use super::platform::{Identity, Origin, Platform, Vgpu};
use super::table::Table;
use super::{Bounds, Daemon, DmCommand, Host, Limits, OnCrashLoop, Places, Records, Stubs};

mod adopting;
mod saving;
mod stub;

/// Tells a child what to do; without it the child's test does nothing.
const ROLE: &str = "VGPUD_TEST_ROLE";

/// How to run `name`, a test of this module, as a child.
fn child_args(name: &str) -> [String; 3] {
    [
        format!("daemon::tests::{name}"),
        "--exact".into(),
        "--nocapture".into(),
    ]
}

/// What a device model does, by role.
#[test]
fn fake_dm() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let connection = Connection::from(stdin);
    let (start, fds) = connection.recv::<ToDm>().unwrap();
    let ToDm::Start(start) = start else {
        panic!("{start:?}");
    };
    assert_eq!((start.slot, start.mode.as_str()), (5, "1024x768"));
    let [area, submit, complete] = <[OwnedFd; 3]>::try_from(fds).unwrap();
    let bells = Bells::from_daemon(DeviceBells { submit, complete }).unwrap();
    let area = SharedArea::open(area).unwrap();
    let own = bells.try_clone().unwrap();
    let mut end = match start.recover {
        Some(server) => {
            assert_eq!(server, 3);
            area.resumed_device_end(own)
        }
        None => area.device_end(own),
    };
    match role.as_str() {
        "refuses" => {
            let reason = FromDm::Failed("\u{1b}[2J\nthe domain has no such thing".into());
            connection.send(&reason, &[]).unwrap();
            return;
        }
        "dies-attaching" if end.ggtt.load(8) == 0 => {
            end.ggtt.store(8, 1);
            return;
        }
        "silent" => {
            // Until it is killed.
            let _ = connection.recv::<ToDm>();
            return;
        }
        _ => connection
            .send(
                &FromDm::Attached {
                    server: 3,
                    confined: None,
                    table: None,
                },
                &[],
            )
            .unwrap(),
    }
    end.ggtt.store(7, 0x1234_5001);
    end.requests.push(Request::Ping { token: 99 }).unwrap();
    while end.events.pop().unwrap() != Some(Event::Pong { token: 99 }) {
        assert_ne!(end.events.wait(None), Ok(Wake::TimedOut));
    }
    match role.as_str() {
        "dies" => return,
        "dies-once" if start.recover.is_none() => return,
        "hangs-once" if start.recover.is_none() => {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)
                .unwrap();
        }
        "corrupts" => {
            // A producer index from nowhere, in the submit ring's first page.
            let file = std::fs::File::from(area.share().unwrap());
            std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 8], 4096).unwrap();
            vgpu_ring::Doorbell::ring(&bells.submit);
        }
        _ => {}
    }
    loop {
        match connection.recv::<ToDm>() {
            Ok((ToDm::Inspect, _)) => {
                let tree = FromDm::Tree(json!({"pci": "8086:1616"}));
                connection.send(&tree, &[]).unwrap();
            }
            Ok((ToDm::Stop, _)) => return,
            Err(_) if role == "outlives" => std::thread::park(),
            Err(_) => return,
            Ok((step, fds)) => saving::answer(&role, &connection, &step, fds),
        }
    }
}

/// A launcher that becomes "QEMU": registers over its standard input's
/// socket, prints the reply, then lives until its input closes.
#[test]
fn fake_qemu() {
    let Ok(socket) = std::env::var("VGPUD_TEST_SOCKET") else {
        return;
    };
    let vgpu = std::env::var("VGPUD_TEST_VGPU").unwrap();
    let public = std::env::var_os("VGPUD_TEST_QMP").map(PathBuf::from);
    let connection = Connection::connect(&PathBuf::from(socket), Duration::from_secs(10)).unwrap();
    let register = Register {
        domid: 9,
        vgpu,
        qmp: public.map(|public| QmpSockets {
            private: public.with_extension("private"),
            public,
        }),
        incoming: false,
    };
    connection
        .send(&ClientRequest::Register(register), &[])
        .unwrap();
    // Held to the end, as by QEMU.
    let (reply, _held) = connection.recv::<Reply<Value>>().unwrap();
    let parent = Connection::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    parent.send(&reply, &[]).unwrap();
    assert!(parent.recv::<()>().is_err());
}

/// A vgpud that is going to be killed.
#[test]
fn fake_vgpud() {
    let Some(dir) = std::env::var_os("VGPUD_TEST_DIR") else {
        return;
    };
    let (sender, _notes) = channel();
    let daemon = Fixture::daemon(&PathBuf::from(dir), "outlives", sender, None);
    let parent = Connection::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    parent.send(&(), &[]).unwrap();
    let _ = parent.recv::<()>();
    daemon.leave();
}

/// A scheduler that answers pings and tells the test what happens.
struct FakePlatform(Mutex<Sender<String>>);

struct FakeVgpu {
    events: Mutex<Box<dyn EventSink>>,
    table: Table,
    written: WrittenPages,
    notes: Sender<String>,
}

impl Platform for FakePlatform {
    fn gpu(&self) -> Gpu {
        Gpu::Bdw
    }

    fn identify(&self, domid: u16) -> Identity {
        Identity {
            uuid: Some(
                format!("{domid:08x}-1111-4222-8333-444444444444")
                    .parse()
                    .unwrap(),
            ),
            name: Some(format!("guest-{domid}")),
        }
    }

    fn add_vgpu(
        &self,
        domid: u16,
        share: Share,
        ggtt: GgttTable,
        origin: Origin<'_>,
        events: Box<dyn EventSink>,
    ) -> anyhow::Result<Arc<dyn Vgpu>> {
        let notes = self.0.lock().unwrap().clone();
        notes.send(format!("added {domid}"))?;
        if share != Share::default() {
            notes.send(format!("share {share}"))?;
        }
        let table = Table::trapped(ggtt);
        if let Origin::Saved(saved) = origin {
            notes.send(format!("restored {:?}", saved.scheduler.engines.len()))?;
            table.unpack(&saved.table);
        }
        Ok(Arc::new(FakeVgpu {
            events: Mutex::new(events),
            table,
            written: WrittenPages::default(),
            notes,
        }))
    }

    fn adopted_all(&self) {}

    fn reclaim(&self, domid: u16, server: u16) -> anyhow::Result<()> {
        let notes = self.0.lock().unwrap().clone();
        notes.send(format!("reclaimed {server} of {domid}"))?;
        Ok(())
    }

    fn pause(&self, domid: u16) -> anyhow::Result<()> {
        let notes = self.0.lock().unwrap().clone();
        notes.send(format!("paused {domid}"))?;
        Ok(())
    }

    fn engines(&self) -> (u64, Vec<EngineSample>) {
        let engine = EngineSample {
            name: "rcs0".into(),
            ..EngineSample::default()
        };
        (5, vec![engine])
    }

    fn trace(&self, cursor: u64, max: usize) -> TracePage {
        let count = u64::try_from(max).unwrap();
        let event = |number| TraceEvent {
            number,
            at_ns: number,
            engine: "rcs0".into(),
            vgpu: 9,
            what: What::Ready,
        };
        TracePage {
            vgpud: 1,
            events: (cursor..cursor + count).map(event).collect(),
            next: cursor + count,
            missed: 0,
        }
    }

    fn tree(&self) -> Value {
        json!({"accesses": 0})
    }
}

impl Vgpu for FakeVgpu {
    fn count_changes(&self, changes: TableChanges) {
        assert_eq!(changes.load(), 0);
    }

    fn request(&self, request: Request) -> Result<(), String> {
        let note = format!("{request:?} {:#x}", self.table.load(7));
        self.notes.send(note).unwrap();
        if let Request::Ping { token } = request {
            let pushed = self.events.lock().unwrap().push(Event::Pong { token });
            pushed.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn usable(&self) -> Result<(), String> {
        Ok(())
    }

    fn table(&self) -> &Table {
        &self.table
    }

    fn suspend(&self, limit: Duration) -> Result<Drained, StillRuns> {
        self.notes.send("stopped".into()).unwrap();
        if limit.is_zero() {
            return Err(StillRuns {
                engine: "rcs0",
                context: 0x4000,
                ran: Duration::from_millis(7),
            });
        }
        Ok(Drained::default())
    }

    fn resume(&self) {
        self.notes.send("goes on".into()).unwrap();
    }

    fn save(&self) -> SchedulerV1 {
        SchedulerV1 {
            engines: vec![EngineV1::default(); 4],
        }
    }

    fn written(&self) -> &WrittenPages {
        &self.written
    }

    fn track(&self, on: bool) {
        self.notes.send(format!("tracks {on}")).unwrap();
    }

    fn reached(&self) -> Frames {
        let mut frames = Frames::default();
        frames.insert_run(Gfn(7), 2);
        frames
    }

    fn name_pages(&self, gfns: &[Gfn]) -> anyhow::Result<()> {
        Ok(self.notes.send(format!("named {gfns:?}"))?)
    }

    fn set_share(&self, share: Share) {
        self.notes.send(format!("share {share}")).unwrap();
    }

    fn lanes(&self) -> (u64, Vec<LaneSample>) {
        let lane = LaneSample {
            completed: 7,
            waits: vec![(15, 7)],
            ..LaneSample::default()
        };
        (6, vec![lane])
    }

    fn tree(&self) -> Value {
        json!({"engines": 4})
    }
}

impl Drop for FakeVgpu {
    fn drop(&mut self) {
        // Nobody listens at the end of a test.
        let _ = self.notes.send("removed".into());
    }
}

struct Fixture {
    dir: PathBuf,
    notes: Receiver<String>,
    daemon: Option<Daemon>,
}

fn ask_at<T: serde::de::DeserializeOwned>(
    socket: &Path,
    request: &ClientRequest,
) -> Result<T, String> {
    let limit = Duration::from_secs(10);
    let connection = Connection::connect(socket, limit).unwrap();
    connection.send(request, &[]).unwrap();
    connection.recv::<Reply<T>>().unwrap().0.into_result()
}

impl Fixture {
    fn new(name: &str, role: &str) -> Self {
        Self::with(name, role, |_| None)
    }

    /// With domains for device models, which tell by the same notes.
    fn with(name: &str, role: &str, stubs: impl FnOnce(&Sender<String>) -> Option<Stubs>) -> Self {
        let dir = std::env::temp_dir().join(format!("vgpud-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self::start(dir, role, stubs)
    }

    fn start(
        dir: PathBuf,
        role: &str,
        stubs: impl FnOnce(&Sender<String>) -> Option<Stubs>,
    ) -> Self {
        let (sender, notes) = channel();
        let stubs = stubs(&sender);
        let daemon = Self::daemon(&dir, role, sender, stubs);
        Self {
            dir,
            notes,
            daemon: Some(daemon),
        }
    }

    fn daemon(dir: &Path, role: &str, notes: Sender<String>, stubs: Option<Stubs>) -> Daemon {
        let args = child_args("fake_dm");
        let command = DmCommand::new(std::env::current_exe().unwrap())
            .with(&args.each_ref().map(String::as_str), &[(ROLE, role)]);
        let limits = Limits {
            attach: Duration::from_secs(if role == "silent" { 1 } else { 30 }),
            crashes: Bounds {
                deaths: 2,
                within: Duration::from_secs(3600),
                then: OnCrashLoop::PauseGuest,
            },
            ..Limits::default()
        };
        let host = Host {
            dm: command,
            stubs,
            stub_default: false,
            limits,
            records: Records::open(&dir.join("run")).unwrap(),
        };
        let platform = Arc::new(FakePlatform(Mutex::new(notes)));
        let places = Places {
            socket: &dir.join("sock"),
            state: &dir.join("state"),
        };
        Daemon::start(places, host, platform).unwrap()
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, request: &ClientRequest) -> Result<T, String> {
        ask_at(&self.dir.join("sock"), request)
    }

    fn list(&self) -> Vec<Entry> {
        self.ask(&ClientRequest::List).unwrap()
    }

    fn note(&self) -> String {
        self.notes.recv().unwrap()
    }

    /// A QEMU that registers `vgpu` for domain 9, and what it was told.
    fn qemu(&self, vgpu: &str) -> (Qemu, Result<Value, String>) {
        Qemu::start(&self.dir, vgpu)
    }

    /// Attached, and one request served.
    fn attached(&self) -> Qemu {
        let (qemu, reply) = self.qemu("slot=5");
        assert_eq!(reply, Ok(json!({"incoming_at": 0})));
        assert_eq!(self.note(), "added 9");
        assert_eq!(self.note(), "Ping { token: 99 } 0x12345001");
        qemu
    }

    fn gone(&self) {
        while !self.list().is_empty() {
            std::thread::yield_now();
        }
    }
}

impl Qemu {
    fn start(dir: &Path, vgpu: &str) -> (Self, Result<Value, String>) {
        let (ours, theirs) = Connection::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(child_args("fake_qemu"))
            .env("VGPUD_TEST_SOCKET", dir.join("sock"))
            .env("VGPUD_TEST_VGPU", vgpu)
            .env("VGPUD_TEST_QMP", dir.join("qmp"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let reply = ours.recv::<Reply<Value>>().unwrap().0.into_result();
        (Self(child, ours), reply)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.daemon.take());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Killed when dropped.
struct Qemu(
    Child,
    #[expect(dead_code, reason = "its end ends the child")] Connection,
);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_guest_is_served_and_ends_with_its_qemu() {
    let f = Fixture::new("serve", "serves");
    let qemu = f.attached();
    let list = f.list();
    assert_eq!(list.len(), 1);
    assert_eq!((list[0].domid, list[0].state), (9, State::Running));
    assert_eq!(list[0].qemu_pid, qemu.0.id().cast_signed());
    let tree: Value = f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    assert_eq!(tree["device"]["pci"], "8086:1616");
    assert_eq!(tree["scheduler"]["engines"], 4);
    assert_eq!(tree["rings"]["requests"], 1);
    assert_eq!(tree["processes"]["ioreq_server"], 3);
    // libxl's socket is there although no QEMU listens behind it.
    assert!(UnixStream::connect(f.dir.join("qmp")).is_ok());
    // The domain has its vGPU.
    let (_second, reply) = f.qemu("slot=5");
    let error = reply.unwrap_err();
    assert_eq!(error, "domid is 9, allowed: a domain without a vGPU");
    drop(qemu);
    assert_eq!(f.note(), "removed");
    f.gone();
    assert!(!f.dir.join("qmp").exists());
    // And can have one again.
    let _qemu = f.attached();
}

#[test]
fn device_models_that_die_again_and_again_take_only_their_vgpu() {
    let f = Fixture::new("dies", "dies");
    let qemu = f.attached();
    for _ in 0..2 {
        assert_eq!(f.note(), "Ping { token: 99 } 0x12345001");
    }
    assert_eq!(f.note(), "paused 9");
    assert_eq!(f.note(), "removed");
    assert_eq!(f.note(), "reclaimed 3 of 9");
    assert_eq!(f.list()[0].state, State::Failed);
    assert_eq!(f.list()[0].restarts, 2);
    let tree: Value = f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    let failure = tree["failure"].as_str().unwrap();
    assert!(failure.starts_with("its device model ended"), "{failure}");
    assert!(failure.contains("more than 2 times in 3600 s"), "{failure}");
    assert!(failure.ends_with("the guest is paused"), "{failure}");
    drop(qemu);
    f.gone();
}

#[test]
fn a_device_model_that_dies_or_hangs_is_replaced() {
    for (role, death) in [("dies-once", "ended"), ("hangs-once", "stopped")] {
        let f = Fixture::new(role, role);
        let qemu = f.attached();
        // It may have been replaced already.
        let before = f.list();
        let first = (before[0].restarts == 0).then(|| json!(before[0].dm));
        // Of the second.
        assert_eq!(f.note(), "Ping { token: 99 } 0x12345001");
        while f.list()[0].restarts == 0 {
            std::thread::yield_now();
        }
        let list = f.list();
        assert_eq!((list[0].state, list[0].restarts), (State::Running, 1));
        let tree: Value = f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
        assert_eq!(tree["device"]["pci"], "8086:1616");
        assert_ne!(Some(&tree["processes"]["vgpu-dm"]), first.as_ref());
        let last = tree["device_models"]["last_death"].as_str().unwrap();
        assert!(last.contains(death), "{last}");
        drop(qemu);
        f.gone();
    }
}

#[test]
fn a_corrupted_ring_drops_the_vgpu_with_a_reason() {
    let f = Fixture::new("corrupts", "corrupts");
    let _qemu = f.attached();
    assert_eq!(f.note(), "removed");
    assert_eq!(f.note(), "reclaimed 3 of 9");
    let tree: Value = f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    let failure = tree["failure"].as_str().unwrap();
    assert!(
        failure.starts_with("ring: the peer's producer index is 0xffffffffffffffff"),
        "{failure}"
    );
}

#[test]
fn a_device_model_that_does_not_attach_fails_the_registration() {
    let f = Fixture::new("refuses", "refuses");
    let (_qemu, reply) = f.qemu("slot=5");
    let error = reply.unwrap_err();
    assert!(
        error.ends_with(" [2J the domain has no such thing"),
        "{error:?}"
    );
    assert_eq!(f.note(), "added 9");
    assert_eq!(f.note(), "removed");
    assert_eq!(f.list(), []);
    let f = Fixture::new("silent", "silent");
    let (_qemu, reply) = f.qemu("slot=5");
    let error = reply.unwrap_err();
    assert!(error.ends_with("no answer in time"), "{error}");
    assert_eq!(f.list(), []);
}

#[test]
fn bad_requests_are_refused_with_the_reason() {
    let f = Fixture::new("bad", "serves");
    let (_qemu, reply) = f.qemu("slot=77");
    assert_eq!(
        reply.unwrap_err(),
        "vgpu: slot is \"77\", allowed: 2 to 31, decimal or 0x hexadecimal"
    );
    let (_qemu, reply) = f.qemu("gpu=kbl,slot=5");
    assert_eq!(
        reply.unwrap_err(),
        r#"vgpu: gpu is "kbl", allowed: bdw, which this host's GPU is"#
    );
    for domid in [0, 0x7ff0, u16::MAX] {
        let register = Register {
            domid,
            vgpu: String::new(),
            qmp: None,
            incoming: false,
        };
        let error = f.ask::<Value>(&ClientRequest::Register(register));
        let expected = format!("domid is {domid}, allowed: 1 to 32751");
        assert_eq!(error, Err(expected));
    }
    let error = f.ask::<Value>(&ClientRequest::Inspect { domid: 1 });
    assert_eq!(
        error,
        Err("domid is 1, allowed: a domain with a vGPU".into())
    );
    let pong: Value = f.ask(&ClientRequest::Ping).unwrap();
    assert_eq!(pong["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_share_that_is_set_holds_for_the_guests_next_life() {
    let f = Fixture::new("share", "serves");
    let qemu = f.attached();
    let set = |changes: &str| {
        f.ask::<Held>(&ClientRequest::Set {
            domid: 9,
            changes: changes.into(),
        })
    };
    let held = set("weight=300,slice=0.5").unwrap();
    assert_eq!((held.share.weight, held.share.slice_us), (300, 500));
    assert_eq!(held.not_kept, None);
    let shown = "share weight=300,cap=0,slice=0.5,priority=normal";
    assert_eq!(f.note(), shown);
    // All or nothing.
    assert_eq!(
        set("cap=5,weight=0").unwrap_err(),
        r#"vgpu: weight is "0", allowed: 1 to 10000"#
    );
    assert!(f.list()[0].vgpu.contains("weight=300,cap=0,slice=0.5"));
    let request = ClientRequest::Set {
        domid: 8,
        changes: "cap=5".into(),
    };
    assert_eq!(
        f.ask::<Held>(&request).unwrap_err(),
        "domid is 8, allowed: a domain with a vGPU"
    );
    drop(qemu);
    assert_eq!(f.note(), "removed");
    f.gone();
    let (qemu, reply) = f.qemu("slot=5,cap=7");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    assert_eq!(f.note(), "added 9");
    let shown = "share weight=300,cap=7,slice=0.5,priority=normal";
    assert_eq!(f.note(), shown);
    assert_eq!(f.note(), "Ping { token: 99 } 0x12345001");
    // Back to what it was started with, and nothing is kept.
    assert_eq!(set("default").unwrap().share.cap, 7);
    assert_eq!(f.note(), "share weight=100,cap=7,slice=1,priority=normal");
    drop(qemu);
    assert_eq!(f.note(), "removed");
    f.gone();
    let _qemu = f.attached();
}

#[test]
fn guests_are_looked_at_while_their_shares_change() {
    let f = Fixture::new("at-once", "serves");
    let _qemu = f.attached();
    let socket = &f.dir.join("sock");
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || {
                for weight in 1..25 {
                    let request = match n {
                        0 | 1 => ClientRequest::Set {
                            domid: 9,
                            changes: format!("weight={weight}"),
                        },
                        2 => ClientRequest::List,
                        _ => ClientRequest::Top { after: None },
                    };
                    ask_at::<Value>(socket, &request).unwrap();
                }
            });
        }
    });
}

#[test]
fn counts_and_the_trace_come_in_pages() {
    let f = Fixture::new("top", "serves");
    let _qemu = f.attached();
    let sample: Sample = f.ask(&ClientRequest::Top { after: None }).unwrap();
    assert_eq!((sample.at_ns, sample.engines.len()), (5, 1));
    assert_eq!(sample.vgpud, std::process::id());
    let vgpu = &sample.vgpus[0];
    assert_eq!((vgpu.domid, vgpu.at_ns), (9, 6));
    assert_eq!(vgpu.name.as_deref(), Some("guest-9"));
    assert_eq!(vgpu.lanes[0].waits, [(15, 7)]);
    assert_eq!(sample.next, None);
    let sample: Sample = f.ask(&ClientRequest::Top { after: Some(9) }).unwrap();
    assert_eq!(sample.vgpus, []);
    let request = ClientRequest::Trace {
        cursor: 40,
        max: u32::MAX,
    };
    let page: TracePage = f.ask(&request).unwrap();
    assert_eq!((page.events[0].number, page.next), (40, 552));
}

#[test]
fn a_second_daemon_does_not_take_the_socket() {
    let f = Fixture::new("second", "serves");
    let (sender, _notes) = channel();
    let host = Host {
        dm: DmCommand::new("/nonexistent".into()),
        stubs: None,
        stub_default: false,
        limits: Limits::default(),
        records: Records::open(&f.dir.join("other")).unwrap(),
    };
    let platform = Arc::new(FakePlatform(Mutex::new(sender)));
    let places = Places {
        socket: &f.dir.join("sock"),
        state: &f.dir,
    };
    let second = Daemon::start(places, host, platform);
    let error = second.err().unwrap().to_string();
    assert!(error.ends_with("another process does"), "{error}");
    assert!(f.ask::<Value>(&ClientRequest::Ping).is_ok());
}

#[test]
fn the_daemons_end_ends_every_vgpu() {
    let mut f = Fixture::new("end", "serves");
    let _qemu = f.attached();
    drop(f.daemon.take());
    assert_eq!(f.note(), "removed");
    assert!(!f.dir.join("sock").exists());
    assert!(!f.dir.join("qmp").exists());
}
