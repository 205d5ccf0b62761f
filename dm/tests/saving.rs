//! What a device model does while its guest is saved, and how it is restored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind, Vcpu};
use gen8::{Engine, ring};
use guest_memory::Gfn;
use vgpu_device::{Config, DeviceV1};
use vgpu_dm::{AttachError, Server, ServerConfig, TableState};
use vgpu_ring::{
    AreaConfig, AreaWords, Bells, Consumer, DeviceEnd, Event, EventBell, GgttTable, Producer,
    Request, SharedArea,
};
use xen_glue::{Handles, Hypervisor, PARKING_GFN, Sbdf, TableFrames};

const SLOT: u8 = 16;
const REGISTERS: u64 = 0xe000_0000;
const TABLE: u64 = REGISTERS + (8 << 20);
const APERTURE: u64 = 0xd000_0000;
const LIMIT: Duration = Duration::from_secs(20);

/// vgpud, which answers pings and keeps the rest.
struct Vgpud {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Request>>>,
}

impl Vgpud {
    fn start(
        mut requests: Consumer<Request, AreaWords, EventBell>,
        mut events: Producer<Event, AreaWords, EventBell>,
        told: Vec<Event>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut kept = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    while let Some(request) = requests.pop().unwrap() {
                        if let Request::Ping { token } = request {
                            for event in &told {
                                events.push(*event).unwrap();
                            }
                            events.push(Event::Pong { token }).unwrap();
                        } else {
                            kept.push(request);
                        }
                    }
                    requests.wait(Some(Duration::from_millis(1))).unwrap();
                }
                kept
            }
        });
        let thread = Some(thread);
        Self { stop, thread }
    }

    /// Ends it; what else it was asked.
    fn end(mut self) -> Vec<Request> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

struct Guest {
    xen: FakeXen,
    server: Server,
    vcpu: Vcpu,
    shared: GgttTable,
    vgpud: Vgpud,
    domain: Domain,
}

fn config() -> ServerConfig {
    ServerConfig {
        slot: SLOT,
        table_gfn: Some(PARKING_GFN),
        device: Config {
            aperture_mib: 64,
            ..Config::default()
        },
        spin: Duration::from_micros(20),
        seccomp: vgpu_dm::Seccomp::Off,
        keeper: None,
    }
}

type Ends = (
    DeviceEnd,
    Consumer<Request, AreaWords, EventBell>,
    Producer<Event, AreaWords, EventBell>,
    GgttTable,
);

fn ends() -> Ends {
    let area = SharedArea::create(AreaConfig::default()).unwrap();
    let bells = Bells::new().unwrap();
    let daemon = area.daemon_end(bells.try_clone().unwrap());
    let end = area.device_end(bells);
    (end, daemon.requests, daemon.events, daemon.ggtt)
}

fn create_table(xen: &FakeXen, domain: &Domain) -> TableFrames {
    let memory = xen.open_domain_memory().unwrap();
    let privcmd = xen.open_privcmd().unwrap();
    TableFrames::create(&*memory, &*privcmd, domain.id()).unwrap()
}

impl Guest {
    fn new(told: Vec<Event>) -> Self {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        drop(create_table(&xen, &domain));
        let (end, requests, events, shared) = ends();
        let server =
            Server::attach(Handles::open(&xen, domain.id()).unwrap(), &config(), end).unwrap();
        let guest = Self {
            xen,
            server,
            vcpu: domain.vcpu(0).unwrap(),
            shared,
            vgpud: Vgpud::start(requests, events, told),
            domain,
        };
        let config = |register, value| {
            let function = Sbdf::slot(SLOT);
            let written = guest.vcpu.pci_config_write(function, register, 4, value);
            written.unwrap();
        };
        config(0x10, u32::try_from(REGISTERS).unwrap());
        config(0x18, u32::try_from(APERTURE).unwrap());
        config(4, 2);
        guest
    }

    fn write(&self, at: u64, value: u64) {
        self.vcpu.mmio_write(at, 8, value).unwrap();
    }

    fn read(&self, at: u64) -> u64 {
        self.vcpu.mmio_read(at, 8).unwrap()
    }

    fn written(&self) -> Vec<(u64, u64)> {
        let runs = self.server.take_written(100).into_iter();
        runs.map(|(gfn, n)| (gfn.0, n)).collect()
    }
}

#[test]
fn the_table_leaves_guest_ram_under_a_guest_that_writes_it() {
    let guest = Guest::new(Vec::new());
    let before = guest.domain.current_reservation();
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let vcpu = guest.domain.vcpu(0).unwrap();
        let writer = scope.spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                n += 1;
                let at = TABLE + n % 4096 * 8;
                vcpu.mmio_write(at, 8, n << 12 | 1).unwrap();
                assert_eq!(vcpu.mmio_read(at, 8).unwrap(), n << 12 | 1);
            }
            n
        });
        let memory = guest.xen.open_domain_memory().unwrap();
        for _ in 0..5 {
            guest.server.take_table_out().unwrap();
            assert_eq!(guest.server.table(), TableState::Trapped);
            guest.server.settle_table(PARKING_GFN);
            TableFrames::remove(&*memory, guest.domain.id()).unwrap();
            assert_eq!(guest.domain.current_reservation(), before - 2048);
            let frames = create_table(&guest.xen, &guest.domain);
            guest.server.take_table_in(PARKING_GFN).unwrap();
            drop(frames);
            guest.server.settle_table(PARKING_GFN);
            assert_eq!(guest.domain.current_reservation(), before);
        }
        stop.store(true, Ordering::SeqCst);
        let last = writer.join().unwrap();
        assert_eq!(guest.read(TABLE + last % 4096 * 8), last << 12 | 1);
    });
    // It is RAM where it was, and traps nothing.
    let exits = guest.server.exits();
    guest.write(TABLE, 0x7001);
    assert_eq!(guest.read(TABLE), 0x7001);
    assert_eq!(guest.server.exits(), exits);
    assert!(matches!(
        guest.server.table(),
        TableState::Ram { refused: 0, .. }
    ));
}

#[test]
fn both_places_are_alike_until_vgpud_has_changed_over() {
    let guest = Guest::new(Vec::new());
    let privcmd = guest.xen.open_privcmd().unwrap();
    let ram = TableFrames::open(&*privcmd, guest.domain.id(), TABLE >> 12).unwrap();
    guest.write(TABLE + 8, 0x1001);
    guest.server.take_table_out().unwrap();
    guest.write(TABLE + 16, 0x2001);
    for table in [1, 2] {
        let entry = u64::from(table) << 12 | 1;
        assert_eq!((ram.load(table), guest.shared.load(table)), (entry, entry));
    }
    guest.server.settle_table(PARKING_GFN);
    guest.write(TABLE + 16, 0x3001);
    assert_eq!((ram.load(2), guest.shared.load(2)), (0x2001, 0x3001));
    // BAR0 may go and come meanwhile.
    let function = Sbdf::slot(SLOT);
    for base in [0xe100_0000, 0xe200_0000] {
        guest
            .vcpu
            .pci_config_write(function, 0x10, 4, base)
            .unwrap();
    }
    assert_eq!(guest.read(0xe280_0010), 0x3001);
    assert_eq!(guest.domain.frame(Gfn(PARKING_GFN)), FrameKind::Ram);
    guest.server.take_table_in(PARKING_GFN).unwrap();
    guest.server.settle_table(PARKING_GFN);
    assert_eq!(guest.domain.frame(Gfn(0xe_2800)), FrameKind::Ram);
    assert_eq!(guest.read(0xe280_0010), 0x3001);
}

#[test]
fn a_table_that_a_guest_made_immovable_stays() {
    let guest = Guest::new(Vec::new());
    guest.write(TABLE, 0x1001);
    let frame = Gfn((TABLE >> 12) + 5);
    guest.vcpu.decrease_reservation(&[frame]).unwrap().unwrap();
    let stays = guest.server.take_table_out().unwrap_err().to_string();
    assert!(stays.contains("does not move"), "{stays}");
    assert!(matches!(guest.server.table(), TableState::Ram { .. }));
    assert_eq!(guest.read(TABLE), 0x1001);
    guest.vcpu.populate(&[frame]).unwrap().unwrap();
    guest.server.take_table_out().unwrap();
}

#[test]
fn every_page_it_writes_is_recorded() {
    let guest = Guest::new(Vec::new());
    // A frame in the aperture, and the status page.
    guest.write(TABLE, 0x20_0001);
    guest.write(TABLE + 8, 0x30_0001);
    let base = Engine::Rcs.mmio_base();
    let register = |offset: u32, value: u64| {
        let at = REGISTERS + u64::from(base + offset);
        guest.vcpu.mmio_write(at, 4, value).unwrap();
    };
    register(ring::HWS_PGA, 0x1000);
    guest.write(APERTURE, 1);
    guest.server.record().unwrap();
    assert_eq!(guest.written(), []);
    guest.write(APERTURE + 8, 2);
    assert_eq!(guest.written(), [(0x200, 1)]);
    // A list: its status entry.
    for value in [0, 0, 1 << 5, 0x5000 | 1] {
        register(ring::ELSP, value);
    }
    assert_eq!(guest.written(), [(0x300, 1)]);
    // A string instruction from the device to RAM.
    let done = guest.vcpu.rep_movs(APERTURE, 0x40_0ff0, 8, 4, false);
    done.unwrap();
    assert_eq!(guest.written(), [(0x400, 2)]);
    guest.server.stop_recording();
    guest.write(APERTURE, 3);
    assert_eq!(guest.written(), []);
}

#[test]
fn it_holds_still_behind_all_that_was_said() {
    let done = Event::ContextDone {
        engine: 0,
        element: 0,
        bits: 0,
        seq: 0,
    };
    let guest = Guest::new(vec![done]);
    let port = REGISTERS + u64::from(Engine::Rcs.mmio_base() + ring::ELSP);
    for value in [0, 0, 1 << 5, 0x5000 | 1] {
        guest.vcpu.mmio_write(port, 4, value).unwrap();
    }
    guest.domain.suspend();
    assert_eq!(guest.server.save().engines.engines[0].port.loads.len(), 1);
    guest.server.hold_still(LIMIT).unwrap();
    let saved = guest.server.save();
    assert_eq!(saved.engines.engines[0].port.loads, []);
    // It goes on, and can be held again.
    guest.server.go_on();
    guest.server.hold_still(LIMIT).unwrap();
    guest.server.go_on();
    guest.domain.resume();
    let mut asked = guest.vgpud.end();
    asked.retain(|r| matches!(r, Request::Submit { .. }));
    assert!(
        matches!(asked[..], [Request::Submit { seq: 0, .. }]),
        "{asked:?}"
    );
    // Nobody answers any more.
    let still = guest.server.hold_still(Duration::from_millis(5));
    assert!(still.unwrap_err().to_string().contains("5 ms"));
    guest.server.stop();
}

#[test]
fn a_device_is_restored_as_configured_or_not_at_all() {
    let guest = Guest::new(Vec::new());
    let port = REGISTERS + u64::from(Engine::Rcs.mmio_base() + ring::ELSP);
    for value in [0, 0, 1 << 5, 0x5000 | 1] {
        guest.vcpu.mmio_write(port, 4, value).unwrap();
    }
    guest.write(TABLE + 8, 0x1001);
    guest.domain.suspend();
    guest.server.hold_still(LIMIT).unwrap();
    let saved = guest.server.save();
    let text = serde_json::to_string(&saved).unwrap();
    let saved: DeviceV1 = serde_json::from_str(&text).unwrap();

    let xen = FakeXen::new();
    let domain = xen.create_domain(DomainConfig::default()).unwrap();
    let table = create_table(&xen, &domain);
    table.store(1, 0x1001);
    let restore = |config: &ServerConfig, saved: &DeviceV1| {
        let (end, requests, events, _) = ends();
        let server = Server::restore(
            Handles::open(&xen, domain.id()).unwrap(),
            config,
            saved,
            end,
        )?;
        Ok::<_, AttachError>((server, Vgpud::start(requests, events, Vec::new())))
    };
    let mut other = config();
    other.device.aperture_mib = 256;
    let refused = restore(&other, &saved).err().unwrap().to_string();
    assert_eq!(
        refused,
        "saved device: its aperture is 64 MiB, the configuration says 256 MiB"
    );
    let mut bad = saved.clone();
    bad.engines.engines.pop();
    let refused = restore(&config(), &bad).err().unwrap().to_string();
    assert_eq!(
        refused,
        "saved device: saved state has 3 engines, allowed: 4"
    );
    assert_eq!(domain.ioreq_servers(), 0);

    let (server, vgpud) = restore(&config(), &saved).unwrap();
    let vcpu = domain.vcpu(0).unwrap();
    // The table is where BAR0 is, and RAM.
    assert_eq!(vcpu.mmio_read(TABLE + 8, 8).unwrap(), 0x1001);
    assert_eq!(server.exits().windows(), 0);
    assert!(matches!(server.table(), TableState::Ram { gfn, .. } if gfn == TABLE >> 12));
    server.hold_still(LIMIT).unwrap();
    // The list in flight, and nothing else that vgpud has already.
    let mut asked = vgpud.end();
    asked.retain(|r| matches!(r, Request::Submit { .. }));
    assert!(
        matches!(asked[..], [Request::Submit { seq: 1, .. }]),
        "{asked:?}"
    );
}
