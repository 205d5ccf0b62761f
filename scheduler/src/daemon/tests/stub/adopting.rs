//! Another vgpud takes over a guest whose device model has a domain of its own.

use std::process::{Child, Command};

use grant_area::{Lifeline, MappedArea, MappedControl};
use rustix::event::{PollFd, PollFlags, poll};
use vgpu_config::Gpu;
use vgpu_control::StartDm;

use super::*;
use crate::daemon::process::Process;
use crate::daemon::records::{GuestRecord, Records, StubRecord};

/// What a vgpud that was killed left.
pub(super) struct Left {
    pub(super) dir: PathBuf,
    xen: FakeXen,
    pub(super) guest: Domain,
    domain: Domain,
    pub(super) store: Store,
    record: GuestRecord,
    qemu: Child,
    /// How long the next vgpud waits for its domain.
    limit: Duration,
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// A node by which the first successor dies before it is attached.
const DIES: &str = "dies";

/// The first process of the domain, with a device model for each vgpud that comes.
fn first_process(xen: &FakeXen, store: &Store, folder: &str) {
    let dom0 = DomId(0);
    let area = GrantedArea::create(xen, dom0, AreaConfig::default()).unwrap();
    let lifeline = area.lifeline();
    for serial in 0.. {
        let comings = lifeline.comings();
        let pipe = GrantedControl::create(xen, dom0).unwrap();
        let (region, life) = area.offer();
        let offer = Offer {
            serial,
            comings,
            area: region,
            life,
            control: pipe.offer(),
        };
        let control = PipeConnection::from(pipe.end().unwrap());
        store.write(&format!("{folder}/{STUB_OFFER}"), &offer.to_string());
        let Ok(ToDm::Start(start)) = control.recv() else {
            return;
        };
        assert_eq!(start.recover, (serial > 0).then_some(4));
        assert_eq!(start.replay, serial > 0);
        let dies = store.0.lock().unwrap().nodes.contains_key(DIES);
        if serial == 1 && dies {
            continue;
        }
        let attached = FromDm::Attached {
            server: 4,
            confined: None,
            table: None,
        };
        control.send(&attached).unwrap();
        let bells = area.bells().unwrap();
        let mut end = if serial == 0 {
            area.device_end(bells)
        } else {
            area.resumed_device_end(bells)
        };
        end.ggtt.store(7, 0x1234_5001);
        let token = serial.into();
        end.requests.push(Request::Ping { token }).unwrap();
        serve(&control);
        if !store.0.lock().unwrap().ended.is_empty() {
            return;
        }
        wait_for_another(&lifeline, comings.max(1));
    }
}

fn wait_for_another(lifeline: &Lifeline, comings: u32) {
    while lifeline.comings() <= comings {
        let mut fds = [PollFd::from_borrowed_fd(lifeline.fd(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
    }
}

impl Left {
    pub(super) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("vgpud-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let xen = FakeXen::new();
        let guest = xen.create_domain(DomainConfig::default()).unwrap();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let stub = domain.id();
        let store = Store::default();
        store.change(|tree| tree.made.extend([stub.0]));
        let folder = format!("/local/domain/{}/device-model-vgpu", stub.0);
        let node = format!("{folder}/{STUB_OFFER}");
        thread::spawn({
            let (xen, store) = (xen.seen_from(stub), store.clone());
            move || first_process(&xen, &store, &folder)
        });
        let text = loop {
            if let Some(text) = store.0.lock().unwrap().nodes.get(&node) {
                break text.clone();
            }
            thread::yield_now();
        };
        // The vgpud, until it is killed.
        let offer: Offer = text.parse().unwrap();
        let area = MappedArea::open(&xen, stub, &offer.area, offer.life).unwrap();
        let control = MappedControl::open(&xen, stub, &offer.control).unwrap();
        let pipe = PipeConnection::from(control.end().unwrap());
        let spec = "slot=5".parse().unwrap();
        let start = StartDm::new(9, &spec, Gpu::Bdw, None);
        pipe.send(&ToDm::Start(start)).unwrap();
        assert!(matches!(pipe.recv(), Ok(FromDm::Attached { .. })));
        drop((pipe, control, area));

        let qemu = Command::new("sleep").arg("1000").spawn().unwrap();
        let uuid = |domid: u16| Some(format!("{domid:08x}-1111-4222-8333-444444444444"));
        let record = GuestRecord {
            uuid: uuid(9),
            vgpu: "slot=5".into(),
            server: 4,
            stub: Some(StubRecord {
                domid: stub.0,
                uuid: uuid(stub.0),
            }),
            ..GuestRecord::new(9, Process::of(qemu.id().cast_signed()).unwrap())
        };
        Self {
            dir,
            xen,
            guest,
            domain,
            store,
            record,
            qemu,
            limit: Duration::from_secs(30),
        }
    }

    /// The next vgpud.
    pub(super) fn next(&self) -> Fixture {
        let records = Records::open(&self.dir.join("run")).unwrap();
        records.write(&self.record).unwrap();
        drop(records);
        Fixture::start(self.dir.clone(), "serves", |notes| {
            let (xen, guest) = (&self.xen, &self.guest);
            let toolstack = FakeToolstack::new("serves", xen, guest, &self.store, notes);
            let mut stubs = toolstack.stubs(Path::new(""));
            stubs.config.limit = self.limit;
            Some(stubs)
        })
    }
}

#[test]
fn a_guest_goes_on_with_the_device_model_in_its_domain() {
    let mut left = Left::new("stub-adopted");
    let f = left.next();
    assert_eq!(f.note(), "added 9");
    // What the device model of the other vgpud wrote is there.
    assert_eq!(f.note(), "Ping { token: 0 } 0x12345001");
    assert_eq!(f.note(), "Ping { token: 1 } 0x12345001");
    let list = f.list();
    let seen = (list[0].state, list[0].adopted, list[0].dm);
    let place = Place::Domain(left.domain.id().0);
    assert_eq!(seen, (State::Running, true, place));
    let tree: Value = f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    assert_eq!(tree["device"]["pci"], "8086:1616");
    // The one after this finds it as well.
    let path = f.dir.join("run/guest-9");
    let record: GuestRecord = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(record.stub, left.record.stub);
    left.qemu.kill().unwrap();
    left.qemu.wait().unwrap();
    let notes: BTreeSet<String> = (0..2).map(|_| f.note()).collect();
    assert_eq!(notes, ["destroyed", "removed"].map(str::to_owned).into());
    f.gone();
    assert!(!path.exists());
}

#[test]
fn one_that_dies_while_it_attaches_is_replaced() {
    let left = Left::new("stub-adopted-twice");
    left.store.write(DIES, "");
    let f = left.next();
    assert_eq!(f.list()[0].state, State::Running);
    assert_eq!(f.note(), "added 9");
    assert_eq!(f.note(), "Ping { token: 0 } 0x12345001");
    assert_eq!(f.note(), "Ping { token: 2 } 0x12345001");
}

#[test]
fn a_domain_that_is_no_device_models_any_more_is_not_adopted() {
    for (what, destroyed) in [
        ("another", false),
        ("ended", true),
        ("guest-ended", true),
        ("nonsense", true),
        ("restless", true),
        ("lost", true),
    ] {
        let mut left = Left::new(&format!("stub-{what}"));
        let stub = left.domain.id().0;
        match what {
            "another" => {
                let record = left.record.stub.as_mut().unwrap();
                record.uuid = Some("of the one that had this number".into());
                left.store.change(|tree| tree.made.clear());
            }
            "ended" => left.store.change(|tree| {
                tree.ended.insert(stub, DomainState::Shutdown(3));
            }),
            "guest-ended" => {
                left.qemu.kill().unwrap();
                left.qemu.wait().unwrap();
            }
            "nonsense" => {
                let node = format!("/local/domain/{stub}/device-model-vgpu/{STUB_OFFER}");
                left.store.write(&node, "version=1");
            }
            "restless" => {
                left.limit = Duration::ZERO;
                left.store.write(RESTLESS, "");
            }
            _ => left.record.failure = Some("it broke".into()),
        }
        let f = left.next();
        assert_eq!(f.list(), [], "{what}");
        assert!(!f.dir.join("run/guest-9").exists(), "{what}");
        let notes: Vec<String> = f.notes.try_iter().collect();
        let mut expected: BTreeSet<_> = destroyed.then_some("destroyed").into_iter().collect();
        // Where it has lost its vGPU only now.
        if ["another", "ended", "nonsense", "restless"].contains(&what) {
            expected.insert("paused 9");
        }
        assert_eq!(notes.len(), expected.len(), "{what}: {notes:?}");
        assert!(
            notes.iter().all(|n| expected.contains(&**n)),
            "{what}: {notes:?}"
        );
        assert_eq!(left.xen.grants_mapped_by(DomId(0)), 0, "{what}");
    }
}
