//! The guest's page table as RAM: it follows BAR0 and traps nothing.

use std::sync::Arc;
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind, Vcpu};
use guest_memory::Gfn;
use vgpu_device::Config;
use vgpu_dm::{Server, ServerConfig, TableState};
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, DeviceEnd, SharedArea};
use xen_glue::{Handles, Hypervisor, PARKING_GFN, Privcmd, Sbdf, TableFrames};

const SLOT: u8 = 16;
const COMMAND: u8 = 4;
const BAR0: u8 = 0x10;
/// The table's offset in BAR0.
const TABLE: u64 = 8 << 20;

struct Guest {
    server: Server,
    vcpu: Vcpu,
    /// vgpud's view.
    table: TableFrames,
    _vgpud: DaemonEnd,
    domain: Domain,
}

fn area() -> (DaemonEnd, DeviceEnd) {
    let area = SharedArea::create(AreaConfig::default()).unwrap();
    let bells = Bells::new().unwrap();
    let daemon = area.daemon_end(bells.try_clone().unwrap());
    (daemon, area.device_end(bells))
}

fn config() -> ServerConfig {
    ServerConfig {
        slot: SLOT,
        table_gfn: Some(PARKING_GFN),
        device: Config::default(),
        spin: Duration::from_micros(20),
        seccomp: vgpu_dm::Seccomp::Off,
        keeper: None,
    }
}

impl Guest {
    fn new() -> Self {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let memory = xen.open_domain_memory().unwrap();
        let privcmd: Arc<dyn Privcmd> = xen.open_privcmd().unwrap();
        let table = TableFrames::create(&*memory, &*privcmd, domain.id()).unwrap();
        let (vgpud, end) = area();
        Self {
            server: Server::attach(Handles::open(&xen, domain.id()).unwrap(), &config(), end)
                .unwrap(),
            vcpu: domain.vcpu(0).unwrap(),
            table,
            _vgpud: vgpud,
            domain,
        }
    }

    fn config_write(&self, register: u8, value: u64) {
        let value = u32::try_from(value).unwrap();
        self.vcpu
            .pci_config_write(Sbdf::slot(SLOT), register, 4, value)
            .unwrap();
    }

    fn place(&self, base: u64) {
        self.config_write(COMMAND, 0);
        self.config_write(BAR0, base & 0xffff_ffff);
        self.config_write(BAR0 + 4, base >> 32);
        self.config_write(COMMAND, 2);
    }

    fn requests(&self) -> u64 {
        self.server.statistics().requests
    }

    fn state(&self) -> (u64, u64, u64) {
        match self.server.table() {
            TableState::Ram {
                gfn,
                moves,
                refused,
            } => (gfn, moves, refused),
            TableState::Trapped => panic!("trapped"),
        }
    }

    fn gfn(&self) -> u64 {
        self.state().0
    }

    fn moves(&self) -> u64 {
        self.state().1
    }

    fn refused(&self) -> u64 {
        self.state().2
    }
}

#[test]
fn the_table_follows_bar0_and_entries_cost_no_request() {
    let guest = Guest::new();
    let mut expected = Vec::new();
    let places = [0xe000_0000, 0xc100_0000, 0x10_0000_0000, 0xe000_0000];
    for (n, base) in (0_u32..).zip(places) {
        guest.place(base);
        assert_eq!(guest.gfn(), (base + TABLE) >> 12);
        let before = guest.requests();
        let entry = u64::from(n) << 12 | 1;
        // The last entry too: the guest has the whole table.
        for index in [n, (1 << 20) - 1 - n] {
            let at = base + TABLE + u64::from(index) * 8;
            guest.vcpu.mmio_write(at, 8, entry).unwrap();
            assert_eq!(guest.vcpu.mmio_read(at, 8).unwrap(), entry);
            expected.push((index, entry));
        }
        for (index, entry) in &expected {
            assert_eq!(guest.table.load(*index), *entry);
        }
        assert_eq!(guest.requests(), before);
    }
    let exits = guest.server.exits();
    assert_eq!((exits.ggtt_reads, exits.ggtt_writes), (0, 0));
    let tree = guest.server.inspect().unwrap();
    assert_eq!(tree["ggtt"]["kind"], "ram");
    assert_eq!(tree["ggtt"]["refused"], 0);
}

#[test]
fn registers_stay_trapped_and_tell_of_the_whole_table() {
    let guest = Guest::new();
    guest.place(0xe000_0000);
    let read = |at: u64| guest.vcpu.mmio_read(0xe007_8000 + at, 4).unwrap();
    // PVINFO: what BAR2 shows, then the rest up to 4 GiB.
    assert_eq!((read(0x40), read(0x44)), (0, 256 << 20));
    assert_eq!((read(0x48), read(0x4c)), (256 << 20, 0xf000_0000));
    // The last register's dword is the device's, the next byte is RAM.
    let before = guest.requests();
    guest.vcpu.mmio_read(0xe07f_fffc, 4).unwrap();
    assert_eq!(guest.requests(), before + 1);
    guest.vcpu.mmio_read(0xe080_0000, 4).unwrap();
    assert_eq!(guest.requests(), before + 1);
}

#[test]
fn the_table_is_parked_when_bar0_loses_its_address() {
    let guest = Guest::new();
    guest.place(0xe000_0000);
    guest.vcpu.mmio_write(0xe080_0000, 8, 0x5001).unwrap();
    let moves = guest.moves();
    // Off and on, as when another BAR's size is asked.
    for _ in 0..3 {
        guest.config_write(COMMAND, 0);
        assert_eq!(guest.vcpu.mmio_read(0xe000_0000, 8).unwrap(), u64::MAX);
        guest.config_write(COMMAND, 2);
        assert_eq!(guest.vcpu.mmio_read(0xe080_0000, 8).unwrap(), 0x5001);
    }
    assert_eq!(guest.moves(), moves);
    // As when BAR0's own size is asked.
    guest.config_write(COMMAND, 0);
    guest.config_write(BAR0, 0xffff_ffff);
    assert_eq!(guest.gfn(), PARKING_GFN);
    assert_eq!(guest.domain.frame(Gfn(0xe_0800)), FrameKind::Hole);
    assert_eq!(guest.vcpu.mmio_read(0xe080_0000, 8).unwrap(), u64::MAX);
    guest.config_write(BAR0, 0xe000_0000);
    guest.config_write(COMMAND, 2);
    assert_eq!(guest.vcpu.mmio_read(0xe080_0000, 8).unwrap(), 0x5001);
    assert_eq!(guest.moves(), moves + 2);
    // Moved while it answers, and to where it cannot.
    guest.config_write(BAR0, 0xe100_0000);
    assert_eq!(guest.gfn(), 0xe_1800);
    assert_eq!(guest.moves(), moves + 3);
    guest.place(0xffff_ffff_ffff_fff0);
    assert_eq!(guest.gfn(), PARKING_GFN);
    assert_eq!(guest.refused(), 0);
}

#[test]
fn bar0_over_ram_costs_the_guest_that_ram_and_nothing_else() {
    let guest = Guest::new();
    guest.domain.ram().write_u64(0x100_0000, 77).unwrap();
    guest.domain.ram().write_u64(0x180_0000, 88).unwrap();
    let before = guest.domain.current_reservation();
    guest.place(0x100_0000);
    // RAM goes before MMIO, so the registers are hidden there.
    assert_eq!(guest.vcpu.mmio_read(0x100_0000, 8).unwrap(), 77);
    assert_eq!(guest.vcpu.mmio_read(0x180_0000, 8).unwrap(), 0);
    // No mapping of the RAM that went is left.
    assert_eq!(guest.server.statistics().mapped_pieces, 0);
    guest.vcpu.mmio_write(0x180_0000, 8, 0x9001).unwrap();
    assert_eq!(guest.table.load(0), 0x9001);
    assert_eq!(guest.domain.current_reservation(), before - 2048);
    guest.place(0xe000_0000);
    assert_eq!(guest.vcpu.mmio_read(0xe080_0000, 8).unwrap(), 0x9001);
    assert_eq!(guest.domain.frame(Gfn(0x1800)), FrameKind::Hole);
    assert_eq!(guest.refused(), 0);
}

#[test]
fn a_table_that_cannot_move_is_trapped_with_the_same_entries() {
    let guest = Guest::new();
    guest.place(0xe000_0000);
    for index in [0, 5 * 512, 1 << 19] {
        let at = 0xe080_0000 + index * 8;
        guest.vcpu.mmio_write(at, 8, index << 12 | 1).unwrap();
    }
    // A frame of the table leaves the guest by its own doing.
    let frame = Gfn(0xe_0805);
    guest.vcpu.decrease_reservation(&[frame]).unwrap().unwrap();
    guest.config_write(COMMAND, 0);
    guest.config_write(BAR0, 0xc000_0000);
    assert_eq!((guest.refused(), guest.gfn()), (1, 0xe_0800));
    // What had moved is back: all or nothing.
    assert_eq!(guest.domain.frame(Gfn(PARKING_GFN)), FrameKind::Hole);
    assert_eq!(guest.domain.frame(Gfn(0xe_0800)), FrameKind::Ram);
    guest.config_write(COMMAND, 2);
    assert_eq!(guest.refused(), 2);
    let before = guest.requests();
    for index in [0, 5 * 512, 1 << 19] {
        let at = 0xc080_0000 + index * 8;
        assert_eq!(guest.vcpu.mmio_read(at, 8).unwrap(), index << 12 | 1);
        guest.vcpu.mmio_write(at + 8, 8, 3).unwrap();
        let next = u32::try_from(index).unwrap() + 1;
        assert_eq!(guest.table.load(next), 3);
    }
    assert_eq!(guest.requests(), before + 6);
    let exits = guest.server.exits();
    assert_eq!((exits.ggtt_reads, exits.ggtt_writes), (3, 3));
    // The guest repairs it.
    guest.vcpu.populate(&[frame]).unwrap().unwrap();
    guest.place(0xc100_0000);
    assert_eq!(guest.gfn(), 0xc_1800);
    assert_eq!(guest.vcpu.mmio_read(0xc180_0000, 8).unwrap(), 1);
}

#[test]
fn a_table_that_is_not_there_is_an_error() {
    let xen = FakeXen::new();
    let domain = xen.create_domain(DomainConfig::default()).unwrap();
    let failed = Server::attach(
        Handles::open(&xen, domain.id()).unwrap(),
        &config(),
        area().1,
    )
    .err();
    let text = failed.map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("frame 0xfd000 of domain 1"), "{text}");
    assert_eq!(domain.ioreq_servers(), 0);
}

#[test]
fn letting_go_leaves_the_guest_its_frames() {
    let Guest {
        server,
        vcpu,
        table,
        domain,
        ..
    } = Guest::new();
    server.stop();
    table.store(9, 1);
    assert_eq!(vcpu.mmio_read((PARKING_GFN << 12) + 72, 8).unwrap(), 1);
    drop(table);
    domain.destroy();
    assert!(domain.stopped().is_some());
}
