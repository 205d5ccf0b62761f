//! What becomes of an instruction when the frame it writes to becomes RAM
//! before it has its answer, as Xen 4.17.5's arch/x86/hvm/emulate.c has it.

mod dying;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind, Killed, MortalPrivcmd, Stopped, Vcpu};
use guest_memory::Gfn;
use xen_glue::{
    DeviceModel, Extent, Hypervisor, IoKind, IoreqPage, IoreqServer, IoreqState, MemType,
    VcpuIoreqs,
};

/// The device's window, and the protected page.
const BASE: u64 = 0xf000_0000;
const AT: u64 = 0x5000;

struct DeviceModelOfOne {
    xen: FakeXen,
    domain: Domain,
    privcmd: Arc<MortalPrivcmd>,
    model: DeviceModel,
    server: IoreqServer,
    page: Arc<IoreqPage>,
    requests: VcpuIoreqs,
}

fn extent() -> Extent {
    Extent {
        first_gfn: AT >> 12,
        frames: 1,
    }
}

impl DeviceModelOfOne {
    fn new() -> Self {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let dm = Self::serving(xen, domain, |model| model.create_ioreq_server().unwrap());
        dm.server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
        dm.server.claim_write_protection().unwrap();
        dm.model
            .set_mem_type(extent(), MemType::WriteProtected)
            .unwrap();
        dm
    }

    fn serving(
        xen: FakeXen,
        domain: Domain,
        server: impl FnOnce(&DeviceModel) -> IoreqServer,
    ) -> Self {
        let privcmd = MortalPrivcmd::new(xen.open_privcmd().unwrap());
        let model = DeviceModel::new(privcmd.clone(), domain.id());
        let server = server(&model);
        let page = Arc::new(server.map_page(1).unwrap());
        server.set_enabled(true).unwrap();
        let events = xen.open_event_channels().unwrap();
        let requests = VcpuIoreqs::bind(Arc::clone(&page), 0, events, domain.id()).unwrap();
        Self {
            xen,
            domain,
            privcmd,
            model,
            server,
            page,
            requests,
        }
    }

    /// Another one that takes its place.
    fn successor(self) -> Self {
        drop(self.requests);
        let id = self.server.into_id();
        Self::serving(self.xen, self.domain, |model| model.attach_ioreq_server(id))
    }

    /// Does what the vCPU asks, but calls `release` between a write to the
    /// page and its answer. Returns when the thread is through.
    fn serve(&self, vcpu: std::thread::JoinHandle<Outcome>, release: impl Fn(&Self)) -> Outcome {
        while !vcpu.is_finished() {
            let tick = Some(Duration::from_millis(1));
            let Some(request) = self.requests.next(tick).unwrap() else {
                continue;
            };
            let mut data = 0x1234;
            if request.kind == IoKind::Copy && !request.read {
                data = request.data;
                let size = usize::try_from(request.size).unwrap();
                let bytes = data.to_le_bytes();
                let ram = self.domain.ram();
                ram.write(request.addr, &bytes[..size]).unwrap();
                release(self);
            }
            self.requests.complete(data).unwrap();
        }
        vcpu.join().unwrap()
    }
}

/// How an instruction ends, and what an access to the device gives then.
type Outcome = (Result<(), Stopped>, Result<u64, Stopped>);

type Instruction = fn(&Vcpu) -> Result<(), Stopped>;

fn start(domain: &Domain, instruction: Instruction) -> std::thread::JoinHandle<Outcome> {
    let vcpu = domain.vcpu(0).unwrap();
    std::thread::spawn(move || (instruction(&vcpu), vcpu.mmio_read(BASE, 4)))
}

fn make_ram(dm: &DeviceModelOfOne) {
    dm.model.set_mem_type(extent(), MemType::Ram).unwrap();
}

const SAFE: [Instruction; 5] = [
    |vcpu| vcpu.mmio_write(AT, 8, 3),
    |vcpu| vcpu.fetch_add(AT, 8, 3).map(|old| assert_eq!(old, 0)),
    |vcpu| vcpu.exchange(AT + 1, 2, 3).map(|old| assert_eq!(old, 0)),
    |vcpu| {
        let old = vcpu.compare_exchange(AT, 4, 0, 3)?;
        assert_eq!(old, 0);
        Ok(())
    },
    |vcpu| vcpu.rep_stos(AT, 8, 1, 3, false),
];

const UNSAFE: [Instruction; 5] = [
    |vcpu| vcpu.rep_stos(AT, 8, 512, 3, false),
    |vcpu| vcpu.rep_stos(AT + 4088, 8, 512, 3, true),
    |vcpu| vcpu.rep_movs(0x9000, AT, 8, 512, false),
    |vcpu| vcpu.mmio_write(AT - 3, 8, 3),
    |vcpu| vcpu.fetch_add(AT - 3, 8, 3).map(drop),
];

#[test]
fn some_instructions_do_not_mind_that_their_frame_becomes_ram() {
    for instruction in SAFE {
        let dm = DeviceModelOfOne::new();
        let (done, read) = dm.serve(start(&dm.domain, instruction), make_ram);
        assert_eq!((done, read), (Ok(()), Ok(0x1234)));
    }
}

#[test]
fn others_leave_their_answer_to_crash_the_domain() {
    for instruction in UNSAFE {
        let dm = DeviceModelOfOne::new();
        let (done, read) = dm.serve(start(&dm.domain, instruction), make_ram);
        assert_eq!(done, Ok(()));
        assert!(matches!(read, Err(Stopped::Crashed(_))), "{read:?}");
    }
}

#[test]
fn of_a_wide_store_the_rest_is_lost() {
    let dm = DeviceModelOfOne::new();
    let store: Instruction = |vcpu| vcpu.store_bytes(AT, &[1; 16]);
    let (done, read) = dm.serve(start(&dm.domain, store), make_ram);
    assert_eq!((done, read), (Ok(()), Ok(0x1234)));
    let ram = dm.domain.ram();
    assert_eq!(ram.read_u64(AT).unwrap(), 0x0101_0101_0101_0101);
    assert_eq!(ram.read_u64(AT + 8).unwrap(), 0);
}

#[test]
fn a_frame_that_stays_protected_is_like_ram() {
    for instruction in SAFE.into_iter().chain(UNSAFE) {
        let dm = DeviceModelOfOne::new();
        let (done, read) = dm.serve(start(&dm.domain, instruction), |_| {});
        assert_eq!((done, read), (Ok(()), Ok(0x1234)));
        let found = dm.domain.frame(Gfn(AT >> 12));
        assert_eq!(found, FrameKind::WriteProtected);
    }
}

#[test]
fn a_frame_that_is_let_go_of_stays_protected_while_an_instruction_writes_to_it() {
    for instruction in SAFE.into_iter().chain(UNSAFE) {
        let dm = DeviceModelOfOne::new();
        let frames = BTreeSet::from([AT >> 12, 0x77]);
        let let_go = |dm: &DeviceModelOfOne| {
            assert_eq!(dm.page.state(0), Ok(IoreqState::InProcess));
            let left = dm.server.let_go(&dm.page, &frames).unwrap();
            let here = dm.page.peek(0).unwrap().map(|(_, r)| r.addr >> 12);
            let expected = here.filter(|gfn| *gfn == AT >> 12);
            assert!(expected.is_none_or(|gfn| left == BTreeSet::from([gfn])));
        };
        let (done, read) = dm.serve(start(&dm.domain, instruction), let_go);
        assert_eq!((done, read), (Ok(()), Ok(0x1234)));
        // Then it is RAM.
        assert_eq!(dm.server.let_go(&dm.page, &frames), Ok(BTreeSet::new()));
        assert_eq!(dm.domain.frame(Gfn(AT >> 12)), FrameKind::Ram);
    }
}

#[test]
fn a_claim_ends_when_no_instruction_writes_to_a_frame() {
    for instruction in UNSAFE {
        let dm = DeviceModelOfOne::new();
        let ram = dm.domain.ram();
        let is_memory = |gfn: u64| ram.read(gfn << 12, &mut [0]).is_ok();
        let end = |dm: &DeviceModelOfOne| {
            assert_eq!(dm.server.end_claim(&dm.page, is_memory), Ok(false));
        };
        let (done, read) = dm.serve(start(&dm.domain, instruction), end);
        assert_eq!((done, read), (Ok(()), Ok(0x1234)));
        assert_eq!(dm.server.end_claim(&dm.page, is_memory), Ok(true));
        assert_eq!(dm.domain.frame(Gfn(AT >> 12)), FrameKind::Ram);
        // There is no claim any more.
        assert!(dm.server.end_claim(&dm.page, is_memory).is_err());
    }
}

/// Of these the first part is in the frame before the protected one.
const CROSSING: [Instruction; 2] = [
    |vcpu| vcpu.mmio_write(AT - 3, 8, 3),
    |vcpu| vcpu.store_bytes(AT - 32, &[1; 64]),
];

#[test]
fn a_frame_that_becomes_protected_when_its_part_is_written_crashes_the_domain() {
    let before = Extent {
        first_gfn: (AT >> 12) - 1,
        frames: 1,
    };
    for instruction in CROSSING {
        let dm = DeviceModelOfOne::new();
        let (done, _) = dm.serve(start(&dm.domain, instruction), |dm| {
            let protected = MemType::WriteProtected;
            // The second time it is.
            let _ = dm.model.set_mem_type(before, protected);
        });
        assert!(matches!(done, Err(Stopped::Crashed(_))), "{done:?}");
    }
}

#[test]
fn a_frame_is_not_protected_while_an_instruction_wrote_its_part() {
    let before = (AT >> 12) - 1;
    for instruction in SAFE.into_iter().chain(UNSAFE).chain(CROSSING) {
        let dm = DeviceModelOfOne::new();
        let (done, read) = dm.serve(start(&dm.domain, instruction), |dm| {
            let here = dm.page.peek(0).unwrap().map(|(_, r)| r.addr);
            let crosses = here.is_some_and(|at| (AT..AT + 64).contains(&at));
            assert_eq!(dm.server.protect(&dm.page, 0x77), Ok(true));
            dm.model
                .set_mem_type(
                    Extent {
                        first_gfn: 0x77,
                        frames: 1,
                    },
                    MemType::Ram,
                )
                .unwrap();
            if crosses {
                assert_eq!(dm.server.protect(&dm.page, before), Ok(false));
            }
        });
        assert_eq!((done, read), (Ok(()), Ok(0x1234)));
        // That it was the last is no hindrance.
        assert_eq!(dm.server.protect(&dm.page, before), Ok(true));
        assert_eq!(dm.domain.frame(Gfn(before)), FrameKind::WriteProtected);
    }
}

#[test]
fn nothing_changes_while_an_answer_is_not_fetched() {
    let dm = DeviceModelOfOne::new();
    let vcpu = start(&dm.domain, |vcpu| vcpu.mmio_write(AT - 3, 8, 3));
    let request = dm.requests.next(None).unwrap().unwrap();
    dm.domain.pause();
    dm.requests.complete(request.data).unwrap();
    let frames = BTreeSet::from([0x77]);
    let is_memory = |_| true;
    assert_eq!(dm.server.let_go(&dm.page, &frames), Ok(frames.clone()));
    assert_eq!(dm.server.end_claim(&dm.page, is_memory), Ok(false));
    assert_eq!(dm.server.protect(&dm.page, (AT >> 12) - 1), Ok(false));
    dm.domain.unpause();
    let (done, read) = dm.serve(vcpu, |_| {});
    assert_eq!((done, read), (Ok(()), Ok(0x1234)));
    assert_eq!(dm.server.let_go(&dm.page, &frames), Ok(BTreeSet::new()));
}

/// Of an instruction that reads a device and stores across a page's edge the
/// store comes behind the answer, when no lock is held.
#[test]
fn no_instruction_goes_on_behind_a_read_while_a_frame_becomes_protected() {
    let dm = DeviceModelOfOne::new();
    let movs: Instruction = |vcpu| vcpu.rep_movs(BASE, 0x9000, 8, 1, false);
    let (done, read) = dm.serve(start(&dm.domain, movs), |_| {});
    assert_eq!((done, read), (Ok(()), Ok(0x1234)));
    // It pauses the domain before it protects the frame.
    dm.privcmd.dies_after(1);
    let protected = catch_unwind(AssertUnwindSafe(|| dm.server.protect(&dm.page, 0x77)));
    assert!(protected.is_err_and(|e| e.is::<Killed>()));
    assert_eq!(dm.successor().domain.frame(Gfn(0x77)), FrameKind::Ram);
}
