//! The server on a simulated hypervisor: what a guest, vgpud and Xen see.

use std::sync::Arc;
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen, Interrupt, MmioHole, Stopped, Vcpu, place_bars};
use gen8::{Engine, irq, ring};
use vgpu_device::Config;
use vgpu_dm::{Server, ServerConfig};
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, Event, Request, SharedArea};
use xen_glue::{DomId, Handles, Sbdf};

const SLOT: u8 = 16;
/// So long that only a hang reaches it.
const HANG: Duration = Duration::from_secs(20);

struct Guest {
    domain: Domain,
    vcpu: Vcpu,
    server: Server,
    vgpud: DaemonEnd,
    registers: u64,
    aperture: u64,
}

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

fn area() -> (DaemonEnd, vgpu_ring::DeviceEnd) {
    area_of(AreaConfig::default())
}

fn area_of(config: AreaConfig) -> (DaemonEnd, vgpu_ring::DeviceEnd) {
    let area = SharedArea::create(config).unwrap();
    let bells = Bells::new().unwrap();
    let daemon = area.daemon_end(bells.try_clone().unwrap());
    (daemon, area.device_end(bells))
}

impl Guest {
    fn new(vcpus: u32) -> Self {
        Self::with(vcpus, AreaConfig::default())
    }

    fn with(vcpus: u32, rings: AreaConfig) -> Self {
        Self::of(&FakeXen::new(), vcpus, rings)
    }

    fn of(xen: &FakeXen, vcpus: u32, rings: AreaConfig) -> Self {
        let domain = xen
            .create_domain(DomainConfig {
                vcpus,
                ..DomainConfig::default()
            })
            .unwrap();
        let (vgpud, end) = area_of(rings);
        let server =
            Server::attach(Handles::open(xen, domain.id()).unwrap(), &config(), end).unwrap();
        let vcpu = domain.vcpu(0).unwrap();
        let hole = MmioHole {
            low: 0xd000_0000..=0xfbff_ffff,
            ..MmioHole::default()
        };
        let bars = place_bars(&vcpu, Sbdf::slot(SLOT), &hole).unwrap();
        let base = |n| bars.iter().find(|b| b.index == n).unwrap().base;
        let (registers, aperture) = (base(0), base(2));
        Self {
            registers,
            aperture,
            domain,
            vcpu,
            server,
            vgpud,
        }
    }

    fn read(&self, offset: u32) -> u32 {
        let value = self.vcpu.mmio_read(self.registers + u64::from(offset), 4);
        u32::try_from(value.unwrap()).unwrap()
    }

    fn write(&self, offset: u32, value: u32) {
        let at = self.registers + u64::from(offset);
        self.vcpu.mmio_write(at, 4, value.into()).unwrap();
    }

    /// A page-table entry: GGTT page and guest frame.
    fn map(&self, page: u64, frame: u64) {
        let at = self.registers + (8 << 20) + page * 8;
        self.vcpu.mmio_write(at, 8, frame << 12 | 1).unwrap();
    }

    fn enable_msi(&self) {
        let function = Sbdf::slot(SLOT);
        for (register, value) in [(0x94, 0xfee0_0000), (0x9c, 0x31), (0x90, 0x0001_0000)] {
            self.vcpu
                .pci_config_write(function, register, 4, value)
                .unwrap();
        }
    }

    fn next_request(&mut self) -> Request {
        loop {
            match self.vgpud.requests.pop().unwrap() {
                // Said once, at the start.
                Some(Request::Protection { .. }) => {}
                Some(request) => return request,
                None => drop(self.vgpud.requests.wait(Some(HANG)).unwrap()),
            }
        }
    }
}

#[test]
fn a_guest_finds_the_device_and_i915s_first_reads_succeed() {
    let guest = Guest::new(1);
    let function = Sbdf::slot(SLOT);
    let config = |at, n| guest.vcpu.pci_config_read(function, at, n).unwrap();
    assert_eq!(config(0, 4), 0x1616_8086);
    assert_eq!(config(0x50, 2), 0xc0);
    let magic = guest.vcpu.mmio_read(guest.registers + 0x7_8000, 8).unwrap();
    assert_eq!(magic, 0x4776_5447_7654_4776);
    assert_eq!(guest.vcpu.pci_config_read(Sbdf::slot(17), 0, 4), Ok(!0));
    assert!(guest.server.statistics().requests > 10);
    let tree = guest.server.inspect().unwrap();
    assert_eq!(tree["function"], "0000:00:10.0");
    assert!(tree["device"]["windows"]["BAR0"].is_string());
    assert!(tree.to_string().len() < 100 << 10, "fits a control message");
}

#[test]
fn a_submission_goes_to_vgpud_and_its_completion_interrupts_the_guest() {
    let mut guest = Guest::new(1);
    guest.enable_msi();
    guest.map(5, 0x123);
    let base = Engine::Bcs.mmio_base();
    guest.write(base + ring::HWS_PGA, 5 << 12);
    guest.write(base + ring::CSB_PTR, 0xffff_0505);
    guest.write(base + ring::IMR, 0);
    guest.write(irq::GT_IMR0, 0);
    guest.write(irq::GT_IER0, u32::MAX);
    guest.write(irq::MASTER, irq::MASTER_ENABLE);
    for value in [0, 0, 0x20, 0x8019] {
        guest.write(base + ring::ELSP, value);
    }
    let submit = loop {
        match guest.next_request() {
            Request::WriteRegister { .. } => {}
            other => break other,
        }
    };
    assert_eq!(
        submit,
        Request::Submit {
            engine: 1,
            seq: 0,
            desc: [0x20_0000_8019, 0],
        }
    );
    assert_eq!(guest.vgpud.ggtt.load(5), 0x12_3001);
    let msi = Interrupt::Msi {
        addr: 0xfee0_0000,
        data: 0x31,
    };
    assert_eq!(guest.vcpu.wait_interrupt(Some(HANG)), Some(msi));
    guest.write(irq::MASTER, 0);
    guest.write(irq::GT_IIR0, u32::MAX);
    guest.write(irq::MASTER, irq::MASTER_ENABLE);
    guest
        .vgpud
        .events
        .push(Event::ContextDone {
            bits: 0,
            engine: 1,
            element: 0,
            seq: 0,
        })
        .unwrap();
    assert_eq!(guest.vcpu.wait_interrupt(Some(HANG)), Some(msi));
    let read = |at: u64| guest.vcpu.mmio_read(0x12_3000 + at, 4).unwrap();
    assert_eq!(read(0x7c), 1);
    assert_eq!((read(0x40), read(0x48)), (0x1, 0x18));
}

#[test]
fn a_slow_vgpud_gets_everything_in_the_end() {
    let mut guest = Guest::with(
        1,
        AreaConfig {
            submit_slots: 2,
            complete_slots: 2,
        },
    );
    // A chicken register of each write, then a list on each engine.
    for (offset, value) in [(0x7000, 1), (0x7004, 2), (0x7008, 3), (0x7010, 4)] {
        guest.write(offset, 0xffff_0000 | value);
    }
    for engine in Engine::ALL {
        for value in [0, 0, 0x20, 0x8019] {
            guest.write(engine.mmio_base() + ring::ELSP, value);
        }
    }
    let got: Vec<Request> = (0..8).map(|_| guest.next_request()).collect();
    for (n, request) in got.iter().enumerate() {
        let submit = matches!(request, Request::Submit { .. });
        assert_eq!(submit, n >= 4, "{got:?}");
    }
}

#[test]
fn the_aperture_is_guest_memory_for_string_instructions_too() {
    let guest = Guest::new(1);
    guest.map(0, 0x200);
    guest.map(1, 0x180);
    let text: Vec<u8> = (0..=255).cycle().take(4096 + 512).collect();
    guest.vcpu.store_bytes(0x10_0000, &text).unwrap();
    let len = u32::try_from(text.len()).unwrap();
    guest
        .vcpu
        .rep_movs(0x10_0000, guest.aperture + 256, 4, len / 4, false)
        .unwrap();
    let mut back = vec![0; 3840];
    guest.vcpu.load_bytes(0x20_0000 + 256, &mut back).unwrap();
    assert_eq!(back[..], text[..3840]);
    guest.vcpu.load_bytes(0x18_0000, &mut back[..768]).unwrap();
    assert_eq!(back[..768], text[3840..]);
    guest
        .vcpu
        .rep_stos(guest.aperture + 64, 4, 16, 0x5a5a_5a5a, true)
        .unwrap();
    assert_eq!(
        guest.vcpu.mmio_read(0x20_0004, 8),
        Ok(0x5a5a_5a5a_5a5a_5a5a)
    );
    assert_eq!(
        guest.vcpu.mmio_read(guest.aperture + (9 << 12), 2),
        Ok(0xffff)
    );
}

#[test]
fn vgpud_hears_of_frames_that_leave_before_what_is_submitted_next() {
    let mut guest = Guest::new(1);
    let gone = [guest_memory::Gfn(5)];
    assert_eq!(guest.vcpu.decrease_reservation(&gone), Ok(Ok(())));
    let port = Engine::Bcs.mmio_base() + ring::ELSP;
    for dword in [0, 0, 1 << 5, 0x1019] {
        guest.write(port, dword);
    }
    assert_eq!(guest.next_request(), Request::InvalidateMemory);
    assert!(matches!(guest.next_request(), Request::Submit { .. }));
}

#[test]
fn blanks_interrupt_while_vgpud_is_silent() {
    let guest = Guest::new(1);
    guest.enable_msi();
    guest.write(0x7_0008, 1 << 31);
    guest.write(0x4_440c, 1);
    guest.write(irq::MASTER, irq::MASTER_ENABLE);
    guest.write(0x4_4404, !1);
    for _ in 0..3 {
        let came = guest.vcpu.wait_interrupt(Some(HANG));
        assert!(matches!(came, Some(Interrupt::Msi { .. })));
        assert_eq!(guest.read(0x4_4408), 1);
        guest.write(0x4_4408, 1);
    }
}

#[test]
fn vcpus_are_answered_side_by_side_and_none_is_left_at_the_stop() {
    let guest = Guest::new(4);
    let vcpus: Vec<Vcpu> = (0..4).map(|n| guest.domain.vcpu(n).unwrap()).collect();
    let registers = guest.registers;
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|s| {
        let readers: Vec<_> = vcpus
            .iter()
            .map(|vcpu| {
                let done = Arc::clone(&done);
                s.spawn(move || {
                    let mut reads = 0_u32;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) || reads < 100 {
                        let at = registers + 0x10_0000 + u64::from(reads % 8) * 8;
                        vcpu.mmio_write(at, 8, reads.into()).unwrap();
                        vcpu.mmio_read(at, 8).unwrap();
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        while guest.server.statistics().requests < 1000 {
            std::thread::yield_now();
        }
        guest.server.stop();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() >= 100);
        }
    });
    assert_eq!(guest.domain.ioreq_servers(), 0);
    assert_eq!(guest.domain.stopped(), None);
    // Nobody answers any more.
    let gone = guest.vcpu.pci_config_read(Sbdf::slot(SLOT), 0, 4);
    assert_eq!(gone, Ok(!0));
}

#[test]
fn a_domain_that_goes_away_takes_nothing_with_it() {
    let xen = FakeXen::new();
    let ports = || xen.ports_of(DomId(0));
    let stays = Guest::of(&xen, 1, AreaConfig::default());
    let of_one = ports();
    let goes = Guest::of(&xen, 2, AreaConfig::default());
    assert!(ports() > of_one);
    goes.write(0x10_0000, 0x1234);
    goes.domain.destroy();
    assert_eq!(goes.domain.stopped(), Some(Stopped::Destroyed));
    assert!(!goes.server.attached());
    // Who looks at it sees it as it was.
    let shown = goes.server.inspect().unwrap();
    assert_eq!(shown["function"], Sbdf::slot(SLOT).to_string());
    goes.server.stop();
    assert_eq!(ports(), of_one);
    // What serves another is none the worse.
    stays.write(0x10_0000, 0x5678);
    assert_eq!(stays.read(0x10_0000), 0x5678);
    assert!(stays.server.attached());
    stays.server.stop();
    assert_eq!((stays.domain.ioreq_servers(), ports()), (0, 0));
}

#[test]
fn what_cannot_be_attached_to_is_named() {
    let xen = FakeXen::new();
    let domain = xen.create_domain(DomainConfig::default()).unwrap();
    let attach = |config: &ServerConfig| {
        let handles = Handles::open(&xen, domain.id()).unwrap();
        let failed = Server::attach(handles, config, area().1).err();
        failed.map(|e| e.to_string()).unwrap_or_default()
    };
    let no_domain = Handles::open(&xen, DomId(77)).err().unwrap().to_string();
    assert!(no_domain.contains("domain 77"), "{no_domain}");
    let mut bad = config();
    bad.slot = 32;
    assert_eq!(attach(&bad), "slot is 32, allowed: 1 to 31");
    bad = config();
    bad.device.aperture_mib = 3;
    assert!(attach(&bad).starts_with("aperture is 3 MiB"));
    assert_eq!(domain.ioreq_servers(), 0);
}

#[test]
fn a_saved_device_goes_on_in_another_server() {
    let guest = Guest::new(1);
    guest.write(0x10_0000, 0x1234);
    let state = guest.server.device().save();
    guest.server.stop();
    let xen = FakeXen::new();
    let domain = xen.create_domain(DomainConfig::default()).unwrap();
    let (_vgpud, end) = area();
    let server = Server::restore(
        Handles::open(&xen, domain.id()).unwrap(),
        &config(),
        &state,
        end,
    )
    .unwrap();
    let vcpu = domain.vcpu(0).unwrap();
    let value = vcpu.mmio_read(guest.registers + 0x10_0000, 4).unwrap();
    assert_eq!(value, 0x1234);
    server.stop();
}
