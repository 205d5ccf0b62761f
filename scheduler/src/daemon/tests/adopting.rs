//! vgpud is killed, and another one takes its guests over.

use vgpu_control::Place;

use super::*;

/// A vgpud in a process of its own, with a guest, killed at once.
fn killed(name: &str) -> (PathBuf, Qemu, i32) {
    let dir = std::env::temp_dir().join(format!("vgpud-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (ours, theirs) = Connection::pair().unwrap();
    let mut vgpud = Command::new(std::env::current_exe().unwrap())
        .args(child_args("fake_vgpud"))
        .env("VGPUD_TEST_DIR", &dir)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    ours.recv::<()>().unwrap();
    let (qemu, reply) = Qemu::start(&dir, "slot=5,weight=300");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    let list: Vec<Entry> = ask_at(&dir.join("sock"), &ClientRequest::List).unwrap();
    assert!(!list[0].adopted);
    vgpud.kill().unwrap();
    vgpud.wait().unwrap();
    (dir, qemu, pid(&list[0]))
}

/// The process that serves a guest.
fn pid(entry: &Entry) -> i32 {
    match entry.dm {
        Place::Process(pid) => pid,
        Place::Domain(_) => panic!("{entry:?}"),
    }
}

/// Whether a process runs. One that has ended may wait for its parent yet.
fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|s| !s.contains(") Z "))
}

#[test]
fn a_guest_goes_on_with_the_next_vgpud() {
    let (dir, qemu, dm) = killed("adopts");
    assert!(lives(dm));
    let f = Fixture::start(dir, "serves", |_| None);
    assert_eq!(f.note(), "added 9");
    assert_eq!(f.note(), "share weight=300,cap=0,slice=1,priority=normal");
    // What the old device model wrote is there.
    while f.note() != "Ping { token: 99 } 0x12345001" {}
    let list = f.list();
    let [entry] = list.as_slice() else {
        panic!("{list:?}");
    };
    let seen = (entry.domid, entry.state, entry.adopted);
    assert_eq!(seen, (9, State::Running, true));
    assert_ne!(pid(entry), dm);
    // The proxy is back.
    UnixStream::connect(f.dir.join("qmp")).unwrap();
    drop(qemu);
    while f.note() != "removed" {}
    f.gone();
    assert!(!f.dir.join("run/guest-9").exists());
}

#[test]
fn a_device_model_that_dies_while_it_attaches_is_replaced() {
    let (dir, qemu, _) = killed("adopts-twice");
    let f = Fixture::start(dir, "dies-attaching", |_| None);
    assert_eq!(f.list()[0].state, State::Running);
    drop(qemu);
    f.gone();
}

#[test]
fn a_guest_that_is_another_or_gone_is_not_adopted() {
    for what in ["uuid", "qemu", "area"] {
        let (dir, qemu, dm) = killed(what);
        let path = dir.join("run/guest-9");
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        match what {
            "uuid" => record["uuid"] = json!("00000000-1111-4222-8333-444444444444"),
            "area" => record["area"] = json!(7),
            _ => {}
        }
        let qemu = (what != "qemu").then_some(qemu);
        std::fs::write(&path, record.to_string()).unwrap();
        let f = Fixture::start(dir, "serves", |_| None);
        assert_eq!(f.list(), [], "{what}");
        assert!(!path.exists());
        assert!(!lives(dm));
        if what != "uuid" {
            assert_eq!(f.note(), "reclaimed 3 of 9");
        }
        // Not another guest, nor one that is gone.
        if what == "area" {
            assert_eq!(f.note(), "paused 9");
        }
        assert!(f.notes.try_recv().is_err());
        drop(qemu);
    }
}
