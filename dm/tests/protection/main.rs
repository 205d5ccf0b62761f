//! Protected frames on a simulated hypervisor: what the guest sees of them,
//! nothing, and what vgpud hears.

mod dying;
mod letting_go;

use std::time::{Duration, Instant};

use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind, MmioHole, Vcpu, place_bars};
use gen8::{Engine, ring};
use guest_memory::Gfn;
use vgpu_device::Config;
use vgpu_dm::{Server, ServerConfig};
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, Event, Outcome, Request, SharedArea};
use xen_glue::Sbdf;

const SLOT: u8 = 16;
/// So long that only a hang reaches it.
const HANG: Duration = Duration::from_secs(20);
/// A table page of the guest.
const TABLE: u64 = 0x200;
const AT: u64 = TABLE << 12;

fn config() -> ServerConfig {
    ServerConfig {
        slot: SLOT,
        table_gfn: None,
        device: Config::default(),
        spin: Duration::from_micros(20),
        seccomp: vgpu_dm::Seccomp::Off,
        keeper: None,
    }
}

/// Gives the device its addresses; those of BAR0 and BAR2.
fn bases(vcpu: &Vcpu) -> (u64, u64) {
    let hole = MmioHole {
        low: 0xd000_0000..=0xfbff_ffff,
        ..MmioHole::default()
    };
    let bars = place_bars(vcpu, Sbdf::slot(SLOT), &hole).unwrap();
    let base = |n| bars.iter().find(|b| b.index == n).unwrap().base;
    (base(0), base(2))
}

struct Guest {
    domain: Domain,
    vcpus: Vec<Vcpu>,
    server: Server,
    vgpud: DaemonEnd,
    registers: u64,
    aperture: u64,
}

impl Guest {
    fn new(domain: DomainConfig, rings: AreaConfig) -> Self {
        let xen = FakeXen::new();
        let domain = xen.create_domain(domain).unwrap();
        Self::attach(&xen, domain, rings)
    }

    fn attach(xen: &FakeXen, domain: Domain, rings: AreaConfig) -> Self {
        let area = SharedArea::create(rings).unwrap();
        let bells = Bells::new().unwrap();
        let vgpud = area.daemon_end(bells.try_clone().unwrap());
        let server = Server::attach(
            xen_glue::Handles::open(xen, domain.id()).unwrap(),
            &config(),
            area.device_end(bells),
        )
        .unwrap();
        let vcpus: Vec<_> = (0..).map_while(|n| domain.vcpu(n)).collect();
        let (registers, aperture) = bases(&vcpus[0]);
        Self {
            registers,
            aperture,
            domain,
            vcpus,
            server,
            vgpud,
        }
    }

    fn start() -> Self {
        let domain = DomainConfig {
            vcpus: 2,
            ..DomainConfig::default()
        };
        let mut guest = Self::new(domain, AreaConfig::default());
        assert_eq!(guest.next(), offer(true));
        guest
    }

    fn next(&mut self) -> Request {
        loop {
            match self.vgpud.requests.pop().unwrap() {
                Some(request) => return request,
                None => drop(self.vgpud.requests.wait(Some(HANG)).unwrap()),
            }
        }
    }

    /// Nothing was told: what is asked now is answered at once.
    fn silent(&mut self) {
        let gfn = 0x3ff;
        self.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
        assert_eq!(self.next(), answer(gfn, 0, Outcome::Ended));
    }

    fn protect(&mut self, gfn: u64, serial: u32) -> Outcome {
        let order = Event::Protect { gfn, serial };
        self.vgpud.events.push(order).unwrap();
        match self.next() {
            Request::Protected {
                gfn: g,
                serial: s,
                outcome,
            } if (g, s) == (gfn, serial) => outcome,
            other => panic!("{other:?} instead of an answer"),
        }
    }

    fn protected(&mut self) {
        assert_eq!(self.protect(TABLE, 1), Outcome::Done);
        assert_eq!(self.domain.frame(Gfn(TABLE)), FrameKind::WriteProtected);
    }

    /// Waits until the table's frame is RAM.
    fn is_let_go_of(&self) {
        let start = Instant::now();
        while self.domain.frame(Gfn(TABLE)) != FrameKind::Ram {
            assert!(start.elapsed() < HANG);
            std::thread::yield_now();
        }
        assert_eq!(self.server.protection().frames, 0);
    }

    fn write(&self, gpa: u64, size: u32, value: u64) {
        self.vcpus[0].mmio_write(gpa, size, value).unwrap();
    }

    fn entry(&self, index: u64) -> u64 {
        self.domain.ram().read_u64(AT + index * 8).unwrap()
    }

    fn table_write(&mut self) -> (u64, u16) {
        match self.next() {
            Request::TableWrite { gpa, size, .. } => (gpa, size),
            other => panic!("{other:?} instead of a write"),
        }
    }
}

const fn offer(offered: bool) -> Request {
    Request::Protection { offered }
}

fn answer(gfn: u64, serial: u32, outcome: Outcome) -> Request {
    Request::Protected {
        gfn,
        serial,
        outcome,
    }
}

#[test]
fn writes_are_done_and_told_until_they_need_not_be() {
    let mut guest = Guest::start();
    guest.write(AT, 8, 0x1003);
    guest.protected();
    // A read is direct.
    let before = guest.server.statistics().requests;
    assert_eq!(guest.vcpus[0].mmio_read(AT, 8), Ok(0x1003));
    assert_eq!(guest.server.statistics().requests, before);
    guest.write(AT + 8, 8, 0x2003);
    assert_eq!(guest.table_write(), (AT + 8, 8));
    assert_eq!((guest.entry(0), guest.entry(1)), (0x1003, 0x2003));
    assert_eq!(guest.server.protection().writes, 1);
    let gfn = TABLE;
    guest.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
    assert_eq!(guest.next(), answer(TABLE, 0, Outcome::Ended));
    guest.is_let_go_of();
    guest.write(AT + 16, 8, 0x3003);
    guest.silent();
    assert_eq!(guest.entry(2), 0x3003);
}

#[test]
fn string_instructions_and_vectors_arrive_whole() {
    let mut guest = Guest::start();
    guest.protected();
    guest.vcpus[0]
        .rep_stos(AT + 8 * 8, 8, 4, 0x7003, false)
        .unwrap();
    for i in 8..12 {
        assert_eq!(guest.table_write(), (AT + i * 8, 8));
    }
    let bytes: Vec<u8> = [0x4003_u64, 0x5003]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    guest.vcpus[0].store_bytes(AT + 504 * 8, &bytes).unwrap();
    assert_eq!(guest.table_write(), (AT + 504 * 8, 8));
    assert_eq!(guest.table_write(), (AT + 505 * 8, 8));
    // From one place of it to another, which overlap.
    guest.vcpus[0]
        .rep_movs(AT + 8 * 8, AT + 9 * 8, 8, 3, true)
        .unwrap();
    for i in [9, 8, 7] {
        assert_eq!(guest.table_write().0, AT + i * 8);
    }
    let whole: Vec<_> = (7..12).map(|i| guest.entry(i)).collect();
    assert_eq!(whole, [0, 0, 0x7003, 0x7003, 0x7003]);
}

#[test]
fn a_page_written_as_no_table_is_let_go_of() {
    let pointer = 0xffff_8880_1234_5678_u64;
    for (at, size, value) in [
        (AT + 4, 4, 1),
        (AT, 1, 3),
        (AT + 12, 8, 0),
        (AT, 8, pointer),
    ] {
        let mut guest = Guest::start();
        guest.protected();
        guest.write(at, size, value);
        guest.is_let_go_of();
        assert_eq!(guest.next(), Request::TableReleased { gfn: TABLE });
        let found = guest.vcpus[0].mmio_read(at, size);
        assert_eq!(found, Ok(value));
        assert_eq!(guest.server.protection().released, 1);
        // And can be protected again.
        guest.protected();
    }
}

#[test]
fn what_the_device_writes_is_told_too() {
    let mut guest = Guest::start();
    // The table behind the aperture's first page.
    guest.write(guest.registers + (8 << 20), 8, AT | 1);
    guest.protected();
    guest.write(guest.aperture + 24, 8, 0x6003);
    assert_eq!(guest.table_write(), (AT + 24, 8));
    assert_eq!(guest.entry(3), 0x6003);
    let page: Vec<u8> = (0..512_u64)
        .flat_map(|i| (i << 12 | 3).to_le_bytes())
        .collect();
    guest.vcpus[0].store_bytes(0x10_0000, &page).unwrap();
    guest.vcpus[0]
        .rep_movs(0x10_0000, guest.aperture, 8, 512, false)
        .unwrap();
    assert_eq!(guest.table_write(), (AT, 4096));
    assert_eq!(guest.entry(511), 511 << 12 | 3);
}

#[test]
fn a_write_is_told_before_what_another_vcpu_submits_after_it() {
    let mut guest = Guest::start();
    guest.protected();
    for i in 0..100 {
        guest.write(AT + i * 8, 8, i << 12 | 3);
        let port = guest.registers + u64::from(Engine::Bcs.mmio_base() + ring::ELSP);
        for dword in [0, 0, 1 << 5, 0x1019] {
            guest.vcpus[1].mmio_write(port, 4, dword).unwrap();
        }
        assert_eq!(guest.table_write(), (AT + i * 8, 8));
        let Request::Submit { engine, seq, .. } = guest.next() else {
            panic!("no submission");
        };
        guest
            .vgpud
            .events
            .push(Event::ContextDone {
                engine,
                element: 0,
                bits: 0,
                seq,
            })
            .unwrap();
    }
}

#[test]
fn what_two_vcpus_write_is_announced_before_anyone_can_see_it() {
    let mut guest = Guest::start();
    guest.protected();
    let mut told = guest.vgpud.changes.load();
    let writers: Vec<_> = (0..2_u64)
        .map(|n| {
            let vcpu = guest.domain.vcpu(u32::try_from(n).unwrap()).unwrap();
            std::thread::spawn(move || {
                for i in 1..201 {
                    vcpu.mmio_write(AT + n * 8, 8, i << 12 | 3).unwrap();
                }
            })
        })
        .collect();
    // Each entry is the number of writes to it.
    let start = told;
    while told < start + 400 {
        let written = (guest.entry(0) >> 12) + (guest.entry(1) >> 12);
        told = guest.vgpud.changes.load();
        assert!(written <= told - start, "{written} {told}");
    }
    for writer in writers {
        writer.join().unwrap();
    }
    for _ in 0..400 {
        assert_eq!(guest.table_write().1, 8);
    }
    guest.silent();
    assert_eq!(guest.vgpud.changes.load(), start + 400);
}

#[test]
fn without_room_vgpud_hears_that_it_missed_something() {
    let rings = AreaConfig {
        submit_slots: 2,
        complete_slots: 8,
    };
    let mut guest = Guest::new(DomainConfig::default(), rings);
    assert_eq!(guest.next(), offer(true));
    guest.protected();
    for i in 0..5 {
        guest.write(AT + i * 8, 8, i << 12 | 3);
    }
    assert_eq!(guest.table_write(), (AT, 8));
    assert_eq!(guest.table_write(), (AT + 8, 8));
    assert_eq!(guest.entry(4), 0x4003);
    guest.write(AT + 40, 8, 0x5003);
    assert_eq!(guest.next(), Request::WritesMissed { count: 3 });
    assert_eq!(guest.table_write(), (AT + 40, 8));
    // With the offer there are as many as were announced.
    assert_eq!(guest.vgpud.changes.load(), 1 + 6);
}

#[test]
fn answers_wait_for_room() {
    let rings = AreaConfig {
        submit_slots: 2,
        complete_slots: 64,
    };
    let mut guest = Guest::new(DomainConfig::default(), rings);
    assert_eq!(guest.next(), offer(true));
    for gfn in 0..40 {
        let order = Event::Protect { gfn, serial: 7 };
        guest.vgpud.events.push(order).unwrap();
    }
    for gfn in 0..40 {
        assert_eq!(guest.next(), answer(gfn, 7, Outcome::Done));
    }
}

#[test]
fn where_xen_does_not_protect_nothing_is_offered_or_it_is_withdrawn() {
    let without = DomainConfig {
        hap: false,
        ..DomainConfig::default()
    };
    let mut guest = Guest::new(without, AreaConfig::default());
    assert_eq!(guest.protect(TABLE, 1), Outcome::Refused);
    assert!(!guest.server.protection().offered);

    let mut guest = Guest::start();
    guest.domain.enable_log_dirty().unwrap();
    for serial in 0..15 {
        assert_eq!(guest.protect(TABLE, serial), Outcome::Refused);
    }
    let order = Event::Protect {
        gfn: TABLE,
        serial: 15,
    };
    guest.vgpud.events.push(order).unwrap();
    assert_eq!(guest.next(), offer(false));
    assert_eq!(guest.next(), answer(TABLE, 15, Outcome::Refused));
    // Also when it could be done again: once is said, once is done.
    guest.domain.disable_log_dirty();
    assert_eq!(guest.protect(TABLE, 16), Outcome::Refused);
}

#[test]
fn protection_can_be_held_back() {
    let mut guest = Guest::start();
    guest.protected();
    let told = guest.vgpud.changes.load();
    guest.server.hold_protection().unwrap();
    assert_eq!(guest.next(), offer(false));
    assert_eq!(guest.domain.frame(Gfn(TABLE)), FrameKind::Ram);
    guest.server.hold_protection().unwrap();
    // As a migration does now.
    assert_eq!(guest.domain.enable_log_dirty(), Ok(()));
    assert_eq!(guest.protect(TABLE, 2), Outcome::Refused);
    guest.write(AT, 8, 0x1003);
    guest.domain.disable_log_dirty();
    guest.server.allow_protection();
    assert_eq!(guest.next(), offer(true));
    guest.server.allow_protection();
    guest.protected();
    guest.write(AT, 8, 0x2003);
    assert_eq!(guest.table_write(), (AT, 8));
    assert_eq!(guest.vgpud.changes.load(), told + 3);

    let without = DomainConfig {
        hap: false,
        ..DomainConfig::default()
    };
    let mut guest = Guest::new(without, AreaConfig::default());
    guest.server.hold_protection().unwrap();
    guest.server.allow_protection();
    guest.silent();
    assert_eq!(guest.vgpud.changes.load(), 0);
}

#[test]
fn a_frame_the_guest_gives_back_is_no_trouble() {
    let mut guest = Guest::start();
    guest.protected();
    let gone = [Gfn(TABLE)];
    guest.vcpus[0].decrease_reservation(&gone).unwrap().unwrap();
    // What comes in its place is not protected, and nor is anything.
    assert_eq!(guest.next(), offer(true));
    assert_eq!(guest.next(), Request::InvalidateMemory);
    assert_eq!(guest.server.protection().frames, 0);
    guest.vcpus[0].populate(&gone).unwrap().unwrap();
    let gfn = TABLE;
    guest.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
    assert_eq!(guest.next(), answer(TABLE, 0, Outcome::Ended));
    assert_eq!(guest.protect(TABLE, 2), Outcome::Done);
    guest.write(AT, 8, 3);
    assert_eq!(guest.table_write(), (AT, 8));
}

#[test]
fn nothing_stays_protected_when_the_server_stops() {
    let mut guest = Guest::start();
    guest.protected();
    let vcpu = guest.domain.vcpu(1).unwrap();
    let writer = std::thread::spawn(move || {
        for i in 0..2000_u64 {
            vcpu.mmio_write(AT + i % 512 * 8, 8, i << 12 | 3).unwrap();
        }
    });
    guest.table_write();
    guest.server.stop();
    // No vCPU is left waiting,
    writer.join().unwrap();
    // no frame protected, and a migration could start.
    assert_eq!(guest.domain.frame(Gfn(TABLE)), FrameKind::Ram);
    assert_eq!(guest.domain.enable_log_dirty(), Ok(()));
    let ram = guest.domain.ram();
    assert_eq!(ram.read_u64(AT + 1999 % 512 * 8).unwrap(), 1999 << 12 | 3);
}
