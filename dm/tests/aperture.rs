//! BAR2 on a simulated hypervisor: string instructions of both directions
//! are one request a page, through fences too, and the page table is RAM
//! that changes without a request.

use std::sync::Arc;
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen, Vcpu};
use gen8::fence::{self, Tiling};
use guest_memory::{Gfn, GuestMemory};
use proptest::prelude::*;
use vgpu_device::Config;
use vgpu_dm::{Server, ServerConfig};
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, SharedArea};
use xen_glue::{Handles, Hypervisor, PARKING_GFN, Sbdf, TableFrames};

const SLOT: u8 = 16;
const REGISTERS: u64 = 0xf000_0000;
const APERTURE: u64 = 0x8_0000_0000;
const TABLE: u64 = REGISTERS + (8 << 20);
/// Where the guest has its graphics memory, and what it copies from and to.
const GRAPHICS_GFN: u64 = 0x300;
const BUFFER: u64 = 0x20_0000;
const BYTES: usize = 8 * 4096;

struct Guest {
    server: Server,
    vcpu: Vcpu,
    ram: Arc<dyn GuestMemory>,
    _vgpud: DaemonEnd,
    domain: Domain,
}

impl Guest {
    fn new() -> Self {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let memory = xen.open_domain_memory().unwrap();
        let privcmd = xen.open_privcmd().unwrap();
        TableFrames::create(&*memory, &*privcmd, domain.id()).unwrap();
        let area = SharedArea::create(AreaConfig::default()).unwrap();
        let bells = Bells::new().unwrap();
        let vgpud = area.daemon_end(bells.try_clone().unwrap());
        let config = ServerConfig {
            slot: SLOT,
            table_gfn: Some(PARKING_GFN),
            device: Config::default(),
            spin: Duration::from_micros(200),
            seccomp: vgpu_dm::Seccomp::Off,
            keeper: None,
        };
        let server = Server::attach(
            Handles::open(&xen, domain.id()).unwrap(),
            &config,
            area.device_end(bells),
        )
        .unwrap();
        let vcpu = domain.vcpu(0).unwrap();
        let guest = Self {
            server,
            ram: domain.ram(),
            vcpu,
            _vgpud: vgpud,
            domain,
        };
        for (register, value) in [(0x10, REGISTERS), (0x18, 0), (0x1c, APERTURE >> 32), (4, 6)] {
            let value = u32::try_from(value).unwrap();
            guest
                .vcpu
                .pci_config_write(Sbdf::slot(SLOT), register, 4, value)
                .unwrap();
        }
        for page in 0..u64::try_from(BYTES).unwrap() / 4096 {
            guest.map(page, GRAPHICS_GFN + page);
        }
        guest
    }

    /// A store to the page table, which is RAM.
    fn map(&self, page: u64, gfn: u64) {
        self.vcpu
            .mmio_write(TABLE + page * 8, 8, gfn << 12 | 1)
            .unwrap();
    }

    fn requests(&self) -> u64 {
        self.server.statistics().requests
    }

    /// A fence over all of the graphics memory, 1 KiB a row.
    fn fence(&self, tiling: Option<Tiling>) {
        let last = u64::try_from(BYTES).unwrap() - 4096;
        let register = tiling.map_or(0, |t| {
            let y = if t == Tiling::Y { fence::TILE_Y } else { 0 };
            (last | 7) << 32 | y | fence::VALID
        });
        let at = REGISTERS + u64::from(fence::offsets(3).start);
        self.vcpu.mmio_write(at, 8, register).unwrap();
    }

    fn fill(&self, gpa: u64, seed: u8) {
        let bytes: Vec<u8> = (0..BYTES)
            .map(|i| (i * 7 / 3).to_le_bytes()[0] ^ seed)
            .collect();
        self.ram.write(gpa, &bytes).unwrap();
    }

    fn contents(&self) -> (Vec<u8>, Vec<u8>) {
        let mut parts = (vec![0; BYTES], vec![0; BYTES]);
        self.ram.read(GRAPHICS_GFN << 12, &mut parts.0).unwrap();
        self.ram.read(BUFFER, &mut parts.1).unwrap();
        parts
    }

    fn reset(&self, tiling: Option<Tiling>) {
        self.fence(tiling);
        self.fill(GRAPHICS_GFN << 12, 0);
        self.fill(BUFFER, 0x55);
    }
}

/// `rep movs` into the aperture or out of it, or `rep stos` into it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    In,
    Out,
    Fill(u64),
}

#[derive(Clone, Copy, Debug)]
struct Strings {
    kind: Kind,
    aperture: u64,
    buffer: u64,
    size: u32,
    count: u32,
    df: bool,
}

impl Strings {
    fn run(self, guest: &Guest) {
        let (aperture, buffer) = (APERTURE + self.aperture, BUFFER + self.buffer);
        let Self {
            size, count, df, ..
        } = self;
        match self.kind {
            Kind::In => guest.vcpu.rep_movs(buffer, aperture, size, count, df),
            Kind::Out => guest.vcpu.rep_movs(aperture, buffer, size, count, df),
            Kind::Fill(value) => guest.vcpu.rep_stos(aperture, size, count, value, df),
        }
        .unwrap();
    }

    /// The same, an item at a time.
    fn one_by_one(self, guest: &Guest) {
        for i in 0..u64::from(self.count) {
            let by = i * u64::from(self.size);
            let step = |at: u64| if self.df { at - by } else { at + by };
            let (aperture, buffer) = (APERTURE + step(self.aperture), BUFFER + step(self.buffer));
            let load = |at| guest.vcpu.mmio_read(at, self.size).unwrap();
            let store = |at, value| guest.vcpu.mmio_write(at, self.size, value).unwrap();
            match self.kind {
                Kind::In => store(aperture, load(buffer)),
                Kind::Out => store(buffer, load(aperture)),
                Kind::Fill(value) => store(aperture, value),
            }
        }
    }
}

fn strings() -> impl Strategy<Value = Strings> {
    let kind = prop_oneof![
        Just(Kind::In),
        Just(Kind::Out),
        any::<u64>().prop_map(Kind::Fill)
    ];
    let size = prop::sample::select(vec![1_u32, 2, 4, 8]);
    // In the middle, with room for 1100 items of 8 bytes to either side.
    let at = || 0x2400..0x5800_u64;
    (kind, at(), at(), size, 0..1100_u32, any::<bool>()).prop_map(
        |(kind, aperture, buffer, size, count, df)| Strings {
            kind,
            aperture,
            buffer,
            size,
            count,
            df,
        },
    )
}

#[test]
fn a_string_instruction_does_what_its_items_do() {
    let guest = Guest::new();
    let tiling = prop::sample::select(vec![None, Some(Tiling::X), Some(Tiling::Y)]);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(60));
    runner
        .run(&(strings(), tiling), |(strings, tiling)| {
            guest.reset(tiling);
            strings.one_by_one(&guest);
            let expected = guest.contents();
            guest.reset(tiling);
            let before = guest.requests();
            strings.run(&guest);
            let requests = guest.requests() - before;
            prop_assert!(guest.contents() == expected);
            // A request for each page of either side, and one for each item
            // that crosses into it.
            prop_assert!(requests <= 16, "{requests} requests");
            Ok(())
        })
        .unwrap();
}

#[test]
fn an_entry_counts_from_the_store_on_and_costs_no_request() {
    let guest = Guest::new();
    guest.reset(None);
    let read = || guest.vcpu.mmio_read(APERTURE + 16, 4).unwrap();
    guest.ram.write(0x30_0010, &[1, 0, 0, 0]).unwrap();
    guest.ram.write(0x30_1010, &[2, 0, 0, 0]).unwrap();
    assert_eq!(read(), 1);
    let before = guest.requests();
    guest.map(0, GRAPHICS_GFN + 1);
    assert_eq!(guest.requests(), before);
    assert_eq!(read(), 2);
    // A frame that leaves the guest is no memory any more.
    let gone = [Gfn(GRAPHICS_GFN + 1)];
    assert_eq!(guest.vcpu.decrease_reservation(&gone), Ok(Ok(())));
    assert_eq!(read(), 0xffff_ffff);
    guest.vcpu.mmio_write(APERTURE + 16, 4, 7).unwrap();
    guest.map(0, GRAPHICS_GFN + 2);
    guest.ram.write(0x30_2010, &[3, 0, 0, 0]).unwrap();
    assert_eq!(read(), 3);
    let tree = guest.server.inspect().unwrap();
    assert_eq!(tree["device"]["aperture"]["failed"], 2);
    assert_eq!(guest.domain.stopped(), None);
}
