//! Device models in domains of their own: the toolstack and the device model
//! are stand-ins, what they share goes over the simulated hypervisor.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen};
use grant_area::{GrantedArea, GrantedControl, Offer};
use serde_json::{Value, json};
use vgpu_control::{
    ClientRequest, ControlError, Disturb, FromDm, PipeConnection, Place, STUB_FAILED, STUB_OFFER,
    STUB_ORDER, State, StubOrder, ToDm,
};
use vgpu_ring::{AreaConfig, Doorbell, EventBell, Request};
use xen_glue::{DomId, DomainState, Hypervisor, IoreqPage, IoreqState, VcpuIoreqs};

use super::Fixture;
use crate::daemon::stub::{DomainPlan, StubConfig, Stubs, Toolstack, Watch};

mod adopting;
mod dying;

/// A node by which there is another offer whenever vgpud looks, with no pipe
/// behind it.
const RESTLESS: &str = "restless";

/// A bell that changes ring.
struct Bell(EventBell);

impl Watch for Bell {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn take(&mut self) -> anyhow::Result<()> {
        self.0.clear();
        Ok(())
    }
}

/// Xenstore, and which domains run.
#[derive(Default)]
struct Tree {
    nodes: BTreeMap<String, String>,
    /// How often vgpud has read an offer.
    looks: u32,
    ended: BTreeMap<u16, DomainState>,
    /// Domains for device models.
    made: BTreeSet<u16>,
    /// How often the guest is paused.
    pauses: u32,
    bells: Vec<EventBell>,
    /// Where vgpud dies: at which step, the how manieth of that name, and who
    /// hears of it.
    dies_at: Option<(&'static str, usize, Sender<()>)>,
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Tree>>);

impl Store {
    fn change(&self, change: impl FnOnce(&mut Tree)) {
        let tree = &mut *self.0.lock().unwrap();
        change(tree);
        tree.bells.iter().for_each(Doorbell::ring);
    }

    fn write(&self, path: &str, value: &str) {
        self.change(|tree| drop(tree.nodes.insert(path.into(), value.into())));
    }

    /// Where vgpud may die.
    fn step(&self, what: &str) {
        let dies = {
            let dies_at = &mut self.0.lock().unwrap().dies_at;
            if let Some((at, left, _)) = dies_at
                && *at == what
            {
                *left -= 1;
            }
            dies_at.take_if(|(_, left, _)| *left == 0)
        };
        if let Some((_, _, told)) = dies {
            told.send(()).unwrap();
            loop {
                thread::park();
            }
        }
    }
}

struct FakeToolstack {
    xen: FakeXen,
    role: &'static str,
    notes: Sender<String>,
    store: Store,
    guest: Domain,
    domains: Mutex<BTreeMap<u16, Domain>>,
}

impl Toolstack for FakeToolstack {
    fn create(&self, plan: &DomainPlan) -> anyhow::Result<u16> {
        self.store.step("create");
        self.notes.send(format!("created {}", plan.name))?;
        let there = self.domains.lock().unwrap().len();
        if self.role == "no-memory" || self.role == "dies" && there > 0 {
            anyhow::bail!("xl create failed (exit status: 3): no memory");
        }
        let domain = self.xen.create_domain(DomainConfig::default())?;
        let domid = domain.id().0;
        self.domains.lock().unwrap().insert(domid, domain);
        self.store.change(|tree| tree.made.extend([domid]));
        self.store.step("created");
        Ok(domid)
    }

    fn made(&self) -> anyhow::Result<Vec<u16>> {
        Ok(self.store.0.lock().unwrap().made.iter().copied().collect())
    }

    fn set_target(&self, stub: u16, guest: u16, folder: &str) -> anyhow::Result<()> {
        assert_eq!(guest, 9);
        assert_eq!(folder, format!("/local/domain/{stub}/device-model-vgpu"));
        Ok(())
    }

    fn unpause(&self, stub: u16) -> anyhow::Result<()> {
        let model = DeviceModel {
            xen: self.xen.seen_from(DomId(stub)),
            folder: format!("/local/domain/{stub}/device-model-vgpu"),
            store: self.store.clone(),
            stub,
        };
        let role = match (self.role, self.domains.lock().unwrap().len()) {
            ("dies-anew", 2) => "dies-in-turn",
            ("dies-anew", 3) => "succeeds",
            ("dies-silent", 2) => "says-nothing",
            ("dies-silent", 3) => "answers-both",
            (role, _) => role,
        };
        thread::spawn(move || model.run(role));
        self.store.step("runs");
        Ok(())
    }

    fn destroy(&self, stub: u16) -> anyhow::Result<()> {
        self.notes.send("destroyed".into())?;
        self.store.change(|tree| {
            tree.ended.insert(stub, DomainState::Gone);
        });
        self.store.step("destroyed");
        Ok(())
    }

    fn have_frames(&self, guest: u16) -> anyhow::Result<()> {
        assert_eq!(guest, 9);
        Ok(())
    }

    fn pause_guest(&self, _guest: u16) -> anyhow::Result<()> {
        self.store.step("pause");
        self.guest.pause();
        self.store.change(|tree| tree.pauses += 1);
        self.store.step("paused");
        Ok(())
    }

    fn unpause_guest(&self, _guest: u16) -> anyhow::Result<()> {
        self.store.step("unpause");
        let pauses = self.store.0.lock().unwrap().pauses;
        if pauses > 0 {
            self.guest.unpause();
            self.store.change(|tree| tree.pauses -= 1);
        }
        self.store.step("unpaused");
        Ok(())
    }

    fn state(&self, stub: u16) -> anyhow::Result<DomainState> {
        let tree = self.store.0.lock().unwrap();
        Ok(tree.ended.get(&stub).copied().unwrap_or(DomainState::Alive))
    }

    fn read(&self, path: &str) -> anyhow::Result<Option<String>> {
        let tree = &mut *self.store.0.lock().unwrap();
        tree.looks += u32::from(path.ends_with(STUB_OFFER));
        let Some(text) = tree.nodes.get(path) else {
            return Ok(None);
        };
        if tree.nodes.contains_key(RESTLESS) && path.ends_with(STUB_OFFER) {
            let mut offer: Offer = text.parse()?;
            (offer.serial, offer.comings) = (100 + tree.looks, 2);
            offer.control.directory.0 = u32::MAX;
            return Ok(Some(offer.to_string()));
        }
        Ok(Some(text.clone()))
    }

    fn write(&self, _stub: u16, path: &str, value: &str) -> anyhow::Result<()> {
        self.store.write(path, value);
        Ok(())
    }

    fn watch(&self, path: &str) -> anyhow::Result<Box<dyn Watch>> {
        if self.role == "unwatched" && path == "@releaseDomain" {
            // The first time.
            let nodes = &mut self.store.0.lock().unwrap().nodes;
            if nodes.insert("refused".into(), path.into()).is_none() {
                anyhow::bail!("xenstore has no watch to spare");
            }
        }
        let bell = EventBell::new()?;
        let ours = bell.try_clone()?;
        self.store.change(|tree| tree.bells.push(ours));
        Ok(Box::new(Bell(bell)))
    }
}

impl FakeToolstack {
    /// One that plays `role` beside the guest, in front of what `store` has.
    fn new(
        role: &'static str,
        xen: &FakeXen,
        guest: &Domain,
        store: &Store,
        notes: &Sender<String>,
    ) -> Self {
        Self {
            xen: xen.clone(),
            role,
            notes: notes.clone(),
            store: store.clone(),
            guest: guest.clone(),
            domains: Mutex::default(),
        }
    }

    /// It, for images in a folder.
    fn stubs(self, image: &Path) -> Stubs {
        Stubs {
            xen: Arc::new(self.xen.clone()),
            toolstack: Arc::new(self),
            config: StubConfig {
                image: image.to_owned(),
                memory_mib: 64,
                cpus: None,
                limit: Duration::from_secs(30),
            },
        }
    }
}

/// What runs in the stub domain.
struct DeviceModel {
    xen: FakeXen,
    folder: String,
    store: Store,
    stub: u16,
}

impl DeviceModel {
    fn run(&self, role: &str) {
        match role {
            "fails" => {
                let node = format!("{}/{STUB_FAILED}", self.folder);
                return self.store.write(&node, "no grants\nleft");
            }
            "nonsense" => {
                let node = format!("{}/{STUB_OFFER}", self.folder);
                return self.store.write(&node, "version=2 serial=x");
            }
            "crashes" => {
                return self.store.change(|tree| {
                    tree.ended.insert(self.stub, DomainState::Shutdown(3));
                });
            }
            _ => {}
        }
        let dom0 = DomId(0);
        let area = GrantedArea::create(&self.xen, dom0, AreaConfig::default()).unwrap();
        let pipe = GrantedControl::create(&self.xen, dom0).unwrap();
        let (region, life) = area.offer();
        let offer = Offer {
            serial: 0,
            comings: 0,
            area: region,
            life,
            control: pipe.offer(),
        };
        let control = PipeConnection::from(pipe.end().unwrap());
        let node = format!("{}/{STUB_OFFER}", self.folder);
        self.store.write(&node, &offer.to_string());
        let ToDm::Start(start) = control.recv().unwrap() else {
            panic!("no start");
        };
        assert_eq!((start.domid, start.slot), (9, 5));
        let successor =
            ["dies-in-turn", "succeeds", "says-nothing", "answers-both"].contains(&role);
        assert_eq!(start.recover.is_some(), successor);
        assert_eq!(start.anew, successor);
        if role == "refuses" {
            let reason = "the domain has no such thing".into();
            return control.send(&FromDm::Failed(reason)).unwrap();
        }
        let anew = successor || ["dies-anew", "dies-silent"].contains(&role);
        let served = anew.then(|| self.serve_requests(&control));
        if role == "dies-in-turn" {
            // One of the two is answered.
            served.unwrap().answer(0, 70);
            return self.end();
        }
        let attached = FromDm::Attached {
            server: 4,
            confined: None,
            table: None,
        };
        if role == "says-nothing" {
            // To the guest.
            control.send(&attached).unwrap();
            return serve(&control);
        }
        if role == "answers-both" {
            served.as_ref().unwrap().answer(0, 70);
        }
        if successor {
            self.succeed_anew(&area, &served.unwrap());
            control.send(&attached).unwrap();
            return serve(&control);
        }
        control.send(&attached).unwrap();
        let mut end = area.device_end(area.bells().unwrap());
        end.ggtt.store(7, 0x1234_5001);
        end.requests.push(Request::Ping { token: 99 }).unwrap();
        match role {
            "dies" => {
                while end.events.pop().unwrap().is_none() {
                    end.events.wait(None).unwrap();
                }
                self.end();
            }
            "dies-anew" | "dies-silent" => {
                let served = served.unwrap();
                while (0..2).any(|vcpu| served.page.state(vcpu) == Ok(IoreqState::None)) {
                    thread::yield_now();
                }
                self.end();
            }
            "dies-once" => {
                drop((end, control, pipe));
                self.succeed(&area, offer, 1);
            }
            "unwatched" => {
                let node = format!("{}/{STUB_ORDER}", self.folder);
                let ordered = || self.store.0.lock().unwrap().nodes.get(&node).cloned();
                let order = loop {
                    match ordered() {
                        Some(order) => break order.parse(),
                        None => thread::yield_now(),
                    }
                };
                let kill = StubOrder {
                    serial: 0,
                    how: Disturb::Kill,
                };
                assert_eq!(order, Ok(kill));
                drop((end, control, pipe));
                self.succeed(&area, offer, 1);
            }
            "refuses-next" => {
                drop((end, control, pipe));
                let (control, _pipe) = self.offer_next(offer, 1);
                assert!(matches!(control.recv(), Ok(ToDm::Start(_))));
                let reason = "nothing of it is left".into();
                control.send(&FromDm::Failed(reason)).unwrap();
                serve(&control);
            }
            "late" => {
                assert!(matches!(control.recv(), Ok(ToDm::Inspect)));
                while !self.store.0.lock().unwrap().nodes.contains_key("go") {
                    thread::yield_now();
                }
                control.set_limit(Some(Duration::ZERO));
                // Nothing more is asked of one that owes an answer.
                let more = control.recv::<ToDm>();
                assert!(matches!(more, Err(ControlError::TimedOut)), "{more:?}");
                control.set_limit(None);
                let late = FromDm::Tree(json!("late"));
                control.send(&late).unwrap();
                serve(&control);
            }
            "dies-attaching" => {
                drop((end, control, pipe));
                self.die_attaching(offer);
                self.succeed(&area, offer, 2);
            }
            _ => serve(&control),
        }
    }

    /// The domain ends.
    fn end(&self) {
        self.store.change(|tree| {
            tree.ended.insert(self.stub, DomainState::Shutdown(3));
        });
    }

    /// Has the guest's requests come here, and vgpud know where they are.
    fn serve_requests(&self, control: &PipeConnection) -> Served {
        let privcmd = self.xen.open_privcmd().unwrap();
        let server = xen_glue::DeviceModel::new(Arc::clone(&privcmd), DomId(9));
        let server = server.create_ioreq_server().unwrap();
        server.persist(true);
        let gfn = server.frame().unwrap();
        let page = IoreqPage::of_frame(&*privcmd, DomId(9), gfn, 2).unwrap();
        for said in [FromDm::PageAt { gfn }, FromDm::Enabled] {
            if said == FromDm::Enabled {
                server.set_enabled(true).unwrap();
            }
            control.send(&said).unwrap();
            assert_eq!(control.recv::<ToDm>().unwrap(), ToDm::Proceed);
        }
        server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
        let page = Arc::new(page);
        let slot = |vcpu| {
            let channels = self.xen.open_event_channels().unwrap();
            VcpuIoreqs::bind(Arc::clone(&page), vcpu, channels, DomId(9)).unwrap()
        };
        Served {
            slots: [0, 1].map(slot),
            page,
        }
    }

    /// Goes on in another domain, with what is in the area.
    fn succeed_anew(&self, area: &GrantedArea, served: &Served) {
        let mut end = area.resumed_device_end(area.bells().unwrap());
        assert_eq!(end.ggtt.load(7), 0x1234_5001);
        end.requests.push(Request::Ping { token: 98 }).unwrap();
        assert_eq!(served.page.state(0), Ok(IoreqState::RespReady));
        served.slots[0].channel().notify().unwrap();
        served.answer(1, 71);
    }

    /// What the next in the same domain offers.
    fn offer_next(&self, offer: Offer, serial: u32) -> (PipeConnection, GrantedControl) {
        let pipe = GrantedControl::create(&self.xen, DomId(0)).unwrap();
        let offer = Offer {
            serial,
            control: pipe.offer(),
            ..offer
        };
        let control = PipeConnection::from(pipe.end().unwrap());
        let node = format!("{}/{STUB_OFFER}", self.folder);
        self.store.write(&node, &offer.to_string());
        (control, pipe)
    }

    /// Another dies in the same domain before it is attached, and vgpud looks for
    /// the next.
    fn die_attaching(&self, offer: Offer) {
        let (control, pipe) = self.offer_next(offer, 1);
        assert!(matches!(control.recv(), Ok(ToDm::Start(_))));
        let looks = || self.store.0.lock().unwrap().looks;
        let before = looks();
        // And one before it could not even offer.
        let node = format!("{}/{STUB_FAILED}", self.folder);
        self.store.write(&node, "no grants left");
        drop((control, pipe));
        while looks() == before {
            thread::yield_now();
        }
    }

    /// Another goes on in the same domain.
    fn succeed(&self, area: &GrantedArea, offer: Offer, serial: u32) {
        let (control, _pipe) = self.offer_next(offer, serial);
        let ToDm::Start(start) = control.recv().unwrap() else {
            panic!("no start");
        };
        assert_eq!((start.domid, start.recover), (9, Some(4)));
        let attached = FromDm::Attached {
            server: 4,
            confined: None,
            table: None,
        };
        control.send(&attached).unwrap();
        let mut end = area.resumed_device_end(area.bells().unwrap());
        end.requests.push(Request::Ping { token: 98 }).unwrap();
        serve(&control);
    }
}

/// Where the device is.
const BASE: u64 = 0xf000_0000;

/// Requests come here.
struct Served {
    page: Arc<IoreqPage>,
    slots: [VcpuIoreqs; 2],
}

impl Served {
    fn answer(&self, vcpu: usize, data: u64) {
        let slot = &self.slots[vcpu];
        assert!(slot.take_unfinished().unwrap().is_some());
        slot.complete(data).unwrap();
    }
}

/// Answers vgpud until it says stop.
fn serve(control: &PipeConnection) {
    loop {
        let answer = match control.recv() {
            Ok(ToDm::Inspect) => FromDm::Tree(json!({"pci": "8086:1616"})),
            Ok(ToDm::Record(false)) => FromDm::Done,
            Ok(ToDm::Stop) | Err(_) => return,
            Ok(other) => FromDm::Refused(format!("{other:?}")),
        };
        control.send(&answer).unwrap();
    }
}

struct World {
    f: Fixture,
    xen: FakeXen,
    guest: Domain,
    image: PathBuf,
    store: Store,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.image);
    }
}

impl World {
    fn new(name: &str, role: &'static str) -> Self {
        let xen = FakeXen::new();
        let config = DomainConfig {
            vcpus: 2,
            frames: 600,
            hap: true,
        };
        // Number 9 is the one that the fixture has a vGPU for.
        let mut domains: Vec<_> = (1..=9)
            .map(|_| xen.create_domain(config).unwrap())
            .collect();
        let guest = domains.pop().unwrap();
        let image = std::env::temp_dir().join(format!("vgpud-image-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&image).unwrap();
        if role != "no-image" {
            for file in ["vmlinuz", "initramfs.gz"] {
                std::fs::write(image.join(file), "").unwrap();
            }
        }
        let store = Store::default();
        let f = Fixture::with(name, "serves", |notes| {
            let toolstack = FakeToolstack::new(role, &xen, &guest, &store, notes);
            Some(toolstack.stubs(&image))
        });
        Self {
            f,
            xen,
            guest,
            image,
            store,
        }
    }

    /// The next notes, in no order.
    fn notes(&self, count: usize) -> BTreeSet<String> {
        (0..count).map(|_| self.f.note()).collect()
    }

    /// What dom0 has of others.
    fn mapped(&self) -> usize {
        self.xen.grants_mapped_by(DomId(0))
    }

    /// Nothing of the two domains is shared any more.
    fn nothing_left(&self) {
        while self.xen.grants_mapped_by(DomId(0)) + self.xen.ports_of(DomId(0)) > 0 {
            thread::yield_now();
        }
    }
}

#[test]
fn a_device_model_in_its_own_domain_serves_and_goes_with_the_guest() {
    let w = World::new("stub-serves", "serves");
    let (qemu, reply) = w.f.qemu("slot=5,stub=1");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    assert_eq!(w.f.note(), "created vgpu-dm-9");
    assert_eq!(w.f.note(), "added 9");
    assert_eq!(w.f.note(), "Ping { token: 99 } 0x12345001");
    let list = w.f.list();
    assert_eq!(list[0].state, State::Running);
    assert!(matches!(list[0].dm, Place::Domain(1..)), "{:?}", list[0].dm);
    let tree: Value = w.f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    assert_eq!(tree["device"]["pci"], "8086:1616");
    assert_eq!(tree["processes"]["ioreq_server"], 4);
    // Another vgpud would find it.
    let record = std::fs::read(w.f.dir.join("run/guest-9")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(
        json!({"domain": record["stub"]["domid"]}),
        json!(list[0].dm)
    );
    drop(qemu);
    let notes = w.notes(2);
    assert_eq!(notes, ["destroyed", "removed"].map(str::to_owned).into());
    w.f.gone();
    w.nothing_left();
}

#[test]
fn its_domains_end_takes_only_its_vgpu_when_no_other_can_be_made() {
    let w = World::new("stub-dies", "dies");
    let (qemu, reply) = w.f.qemu("slot=5,stub=1");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    assert_eq!(w.f.note(), "created vgpu-dm-9");
    let expected = [
        "added 9",
        "Ping { token: 99 } 0x12345001",
        "destroyed",
        "created vgpu-dm-9",
        "paused 9",
        "removed",
    ];
    assert_eq!(w.notes(6), expected.map(str::to_owned).into());
    assert_eq!(w.f.list()[0].state, State::Failed);
    let tree: Value = w.f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    let failure = tree["failure"].as_str().unwrap();
    assert!(failure.contains("no memory"), "{failure}");
    // Its domain is gone, and what was mapped of it.
    w.nothing_left();
    // It runs, as far as that can be without a device.
    w.guest.suspend();
    w.guest.resume();
    drop(qemu);
    w.f.gone();
    // No server is destroyed on the word of a domain.
    assert!(w.f.notes.try_recv().is_err());
    w.nothing_left();
}

#[test]
fn the_domain_of_a_guest_that_lost_its_vgpu_goes() {
    let w = World::new("stub-refuses-next", "refuses-next");
    let (qemu, reply) = w.f.qemu("slot=5,stub=1");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    while w.f.note() != "destroyed" {}
    assert_eq!(w.f.list()[0].state, State::Failed);
    drop(qemu);
    w.f.gone();
    w.nothing_left();
}

#[test]
fn no_late_answer_is_taken_for_another() {
    let w = World::new("stub-late", "late");
    let (_qemu, reply) = w.f.qemu("slot=5,stub=1");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    let dm = w.f.daemon.as_ref().unwrap().guest(9).unwrap().dm();
    for _ in 0..3 {
        assert!(dm.ask(&ToDm::Inspect, Duration::ZERO).is_err());
    }
    w.store.write("go", "");
    let answer = dm.ask(&ToDm::Inspect, Duration::from_secs(60)).unwrap();
    assert_eq!(answer, FromDm::Tree(json!({"pci": "8086:1616"})));
}

#[test]
fn another_domain_takes_its_place() {
    for role in ["dies-anew", "dies-silent"] {
        takes_its_place(role);
    }
}

fn takes_its_place(role: &'static str) {
    let w = World::new(&format!("stub-{role}"), role);
    let (qemu, reply) = w.f.qemu("slot=5,stub=1");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    let mapped = w.mapped();
    let read = |vcpu: u32| {
        let vcpu = w.guest.vcpu(vcpu).unwrap();
        thread::spawn(move || vcpu.mmio_read(BASE, 4).unwrap())
    };
    let reads = [read(0), read(1)];
    assert_eq!(reads.map(|read| read.join().unwrap()), [70, 71]);
    let expected = [
        "created vgpu-dm-9",
        "added 9",
        "Ping { token: 99 } 0x12345001",
        "destroyed",
        "Ping { token: 98 } 0x12345001",
    ];
    // Of two domains each.
    assert_eq!(w.notes(8), expected.map(str::to_owned).into());
    while w.f.list()[0].restarts == 0 {
        thread::yield_now();
    }
    assert_eq!(w.f.list()[0].state, State::Running);
    let tree: Value = w.f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    assert_eq!(tree["device"]["pci"], "8086:1616");
    // Of the domains that are gone nothing stays.
    while w.mapped() > mapped {
        thread::yield_now();
    }
    drop(qemu);
    let notes = w.notes(2);
    assert_eq!(notes, ["destroyed", "removed"].map(str::to_owned).into());
    w.f.gone();
    w.guest.destroy();
    w.nothing_left();
}

#[test]
fn another_goes_on_in_the_same_domain() {
    for role in ["dies-once", "dies-attaching", "unwatched"] {
        goes_on_in_the_same_domain(role);
    }
}

fn goes_on_in_the_same_domain(role: &'static str) {
    let w = World::new(&format!("stub-{role}"), role);
    let (qemu, reply) = w.f.qemu("slot=5,stub=1");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    assert_eq!(w.f.note(), "created vgpu-dm-9");
    assert_eq!(w.f.note(), "added 9");
    assert_eq!(w.f.note(), "Ping { token: 99 } 0x12345001");
    assert_eq!(w.f.note(), "Ping { token: 98 } 0x12345001", "{role}");
    while w.f.list()[0].restarts == 0 {
        thread::yield_now();
    }
    let tree: Value = w.f.ask(&ClientRequest::Inspect { domid: 9 }).unwrap();
    assert_eq!(tree["device"]["pci"], "8086:1616");
    assert_eq!(tree["state"], "running");
    drop(qemu);
    let notes = w.notes(2);
    assert_eq!(notes, ["destroyed", "removed"].map(str::to_owned).into());
    w.f.gone();
    w.nothing_left();
}

#[test]
fn a_domain_that_does_not_come_up_fails_the_registration() {
    for (role, why) in [
        ("no-image", "vgpu-stub-image makes it"),
        ("no-memory", "xl create failed (exit status: 3): no memory"),
        ("fails", "no grants\\nleft"),
        ("nonsense", "serial is \"x\", allowed: a number of 32 bits"),
        ("crashes", "crashed"),
        ("refuses", "the domain has no such thing"),
    ] {
        let w = World::new(&format!("stub-{role}"), role);
        let (_qemu, reply) = w.f.qemu("slot=5,stub=1");
        let error = reply.unwrap_err();
        assert!(error.ends_with(why), "{role}: {error}");
        assert_eq!(w.f.list(), [], "{role}");
        w.nothing_left();
    }
}

#[test]
fn a_guest_may_ask_for_a_process_of_dom0() {
    let w = World::new("stub-not", "serves");
    let (_qemu, reply) = w.f.qemu("slot=5,stub=0");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    assert_eq!(w.f.note(), "added 9");
    assert!(matches!(w.f.list()[0].dm, Place::Process(_)));
    // And without a toolstack there is nothing else.
    let f = Fixture::new("stub-none", "serves");
    let (_qemu, reply) = f.qemu("slot=5,stub=1");
    assert_eq!(
        reply.unwrap_err(),
        "this vgpud makes no domains for device models"
    );
}
