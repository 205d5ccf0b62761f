//! Frames that become RAM under the hands of vCPUs. Xen emulates an
//! instruction once more when its answer is there, and some look the frame's
//! type up again then.

use std::sync::atomic::{AtomicBool, Ordering};

use fake_xen::{DomainConfig, FakeXen, FrameKind, Stopped, Vcpu};
use guest_memory::Gfn;
use proptest::prelude::*;
use vgpu_ring::{AreaConfig, Event, Outcome};
use xen_glue::{DeviceModel, Extent, Hypervisor, MemType};

use super::{AT, Guest, TABLE};

/// A kernel's pointer: no entry of a table.
const POINTER: u64 = 0xffff_8880_1234_5678;

/// Waits until the device model answers an order that it has nothing to do
/// for, after whatever it was told before.
fn settle(guest: &mut Guest) {
    let gfn = 0x3ff;
    guest.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
    loop {
        if let vgpu_ring::Request::Protected { gfn: 0x3ff, .. } = guest.next() {
            return;
        }
    }
}

type Instruction = fn(&Vcpu) -> Result<(), Stopped>;

/// Everything a vCPU can do that is no plain store of up to 8 bytes, from the
/// start of a page on.
fn instructions() -> Vec<Instruction> {
    vec![
        |vcpu| vcpu.rep_stos(AT, 8, 512, POINTER, false),
        |vcpu| vcpu.rep_stos(AT, 1, 4096, 0x5a, false),
        |vcpu| vcpu.rep_stos(AT + 4088, 8, 512, POINTER, true),
        |vcpu| vcpu.rep_movs(0x10_0000, AT, 8, 512, false),
        |vcpu| vcpu.store_bytes(AT, &[0xa5; 64]),
        |vcpu| vcpu.store_bytes(AT - 32, &[0xa5; 64]),
        |vcpu| vcpu.mmio_write(AT - 3, 8, POINTER),
        |vcpu| vcpu.rep_stos(AT - 4, 8, 3, POINTER, false),
        |vcpu| vcpu.fetch_add(AT + 4, 4, 1).map(drop),
        |vcpu| vcpu.exchange(AT + 4, 4, 1).map(drop),
        |vcpu| vcpu.compare_exchange(AT + 4, 4, 0, 1).map(drop),
    ]
}

#[test]
fn an_instruction_that_shows_what_a_page_is_now_comes_to_its_end() {
    for instruction in instructions() {
        let mut guest = Guest::start();
        guest.protected();
        guest.vcpus[0]
            .store_bytes(0x10_0000, &[0xa5; 4096])
            .unwrap();
        instruction(&guest.vcpus[0]).unwrap();
        // The next access to a device is where Xen would find an answer that
        // was left behind.
        guest.vcpus[0].mmio_read(guest.registers, 4).unwrap();
        assert_eq!(guest.domain.stopped(), None);
        guest.is_let_go_of();
        settle(&mut guest);
        // It does to RAM what it did to the protected page.
        let mut after = [0; 4096];
        let mut fresh = [0; 4096];
        guest.domain.ram().read(AT, &mut after).unwrap();
        guest.domain.ram().write(AT, &fresh).unwrap();
        instruction(&guest.vcpus[0]).unwrap();
        guest.domain.ram().read(AT, &mut fresh).unwrap();
        assert!(after == fresh);
    }
}

#[test]
fn a_frame_is_protected_again_before_it_became_ram() {
    let mut guest = Guest::start();
    guest.protected();
    for serial in 2..200 {
        let gfn = TABLE;
        guest.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
        guest.next();
        assert_eq!(guest.protect(TABLE, serial), Outcome::Done);
        guest.write(AT, 8, u64::from(serial) << 12 | 3);
        assert_eq!(guest.table_write(), (AT, 8));
    }
    assert_eq!(guest.domain.frame(Gfn(TABLE)), FrameKind::WriteProtected);
}

#[test]
fn what_another_server_protects_stays_its_own() {
    let xen = FakeXen::new();
    let domain = xen.create_domain(DomainConfig::default()).unwrap();
    let model = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
    let other = model.create_ioreq_server().unwrap();
    other.claim_write_protection().unwrap();
    let extent = Extent {
        first_gfn: TABLE,
        frames: 1,
    };
    model.set_mem_type(extent, MemType::WriteProtected).unwrap();
    let mut guest = Guest::attach(&xen, domain, AreaConfig::default());
    assert_eq!(guest.protect(TABLE, 1), Outcome::Refused);
    assert_eq!(guest.domain.frame(Gfn(TABLE)), FrameKind::WriteProtected);
    assert!(!guest.server.protection().offered);
    guest.server.stop();
    assert!(other.release_write_protection().is_ok());
}

/// What a vCPU may do to its half of three pages, of which the middle one
/// is in both halves.
#[derive(Clone, Debug)]
enum Op {
    Store(u64, Vec<u8>),
    Stos(u64, u32, u32, u64, bool),
    Movs(u64, u64, u32, u32, bool),
    Add(u64, u32, u64),
    Exchange(u64, u32, u64),
    /// Whether what is there is what is expected.
    ExchangeIf(u64, u32, bool, u64),
}

/// Bytes of a half.
const HALF: u64 = 0x1800;
/// The first of the pages.
const FIRST: u64 = 0x300;

fn op() -> impl Strategy<Value = Op> {
    // Far enough from the ends that nothing leaves the half.
    let at = || 0x200_u64..HALF - 0x200;
    let size = || prop::sample::select(vec![1_u32, 2, 4, 8]);
    // Of entries and of other things.
    let value = || {
        prop_oneof![
            Just(0),
            (0_u64..1 << 27).prop_map(|n| n << 12 | 3),
            any::<u64>()
        ]
    };
    let one = || (at(), size(), value()).prop_map(|(at, size, v)| (at & !7, size, v));
    prop_oneof![
        (at(), prop::collection::vec(any::<u8>(), 1..70)).prop_map(|(a, d)| Op::Store(a, d)),
        (at(), size(), 0_u32..64, value(), any::<bool>())
            .prop_map(|(a, s, c, v, df)| Op::Stos(a, s, c, v, df)),
        (at(), at(), size(), 0_u32..64, any::<bool>()).prop_map(|(f, t, s, c, df)| {
            // Not onto itself: Xen writes the pages before a protected one, then
            // begins anew with what is there (hvmemul_rep_movs).
            let apart = u32::try_from(f.abs_diff(t)).unwrap() / s;
            Op::Movs(f, t, s, c.min(apart.max(1)), df)
        }),
        one().prop_map(|(at, size, value)| Op::Add(at, size, value)),
        one().prop_map(|(at, size, value)| Op::Exchange(at, size, value)),
        (one(), any::<bool>()).prop_map(|((a, s, v), fits)| Op::ExchangeIf(a, s, fits, v)),
    ]
}

/// A half as bytes.
struct Model(Vec<u8>);

impl Model {
    fn at(&mut self, at: u64, size: u32) -> &mut [u8] {
        let (at, size) = (usize::try_from(at).unwrap(), usize::try_from(size).unwrap());
        &mut self.0[at..at + size]
    }

    fn value(&mut self, at: u64, size: u32) -> u64 {
        let mut bytes = [0; 8];
        let here = self.at(at, size);
        bytes[..here.len()].copy_from_slice(here);
        u64::from_le_bytes(bytes)
    }

    fn set(&mut self, at: u64, size: u32, value: u64) -> u64 {
        let old = self.value(at, size);
        let here = self.at(at, size);
        let n = here.len();
        here.copy_from_slice(&value.to_le_bytes()[..n]);
        old
    }
}

fn items(at: u64, size: u32, count: u32, df: bool) -> impl Iterator<Item = u64> {
    (0..u64::from(count)).map(move |i| {
        let distance = i * u64::from(size);
        if df { at - distance } else { at + distance }
    })
}

/// Does it to the guest, at `base`, and to the model.
fn perform(vcpu: &Vcpu, base: u64, model: &mut Model, op: Op) -> Result<(), Stopped> {
    match op {
        Op::Store(at, data) => {
            vcpu.store_bytes(base + at, &data)?;
            model
                .at(at, u32::try_from(data.len()).unwrap())
                .copy_from_slice(&data);
        }
        Op::Stos(at, size, count, value, df) => {
            vcpu.rep_stos(base + at, size, count, value, df)?;
            for at in items(at, size, count, df) {
                model.set(at, size, value);
            }
        }
        Op::Movs(from, to, size, count, df) => {
            vcpu.rep_movs(base + from, base + to, size, count, df)?;
            for (from, to) in items(from, size, count, df).zip(items(to, size, count, df)) {
                let value = model.value(from, size);
                model.set(to, size, value);
            }
        }
        Op::Add(at, size, value) => {
            let old = vcpu.fetch_add(base + at, size, value)?;
            let was = model.value(at, size);
            model.set(at, size, was.wrapping_add(value));
            assert_eq!(old, was);
        }
        Op::Exchange(at, size, value) => {
            let old = vcpu.exchange(base + at, size, value)?;
            assert_eq!(old, model.set(at, size, value));
        }
        Op::ExchangeIf(at, size, fits, value) => {
            let was = model.value(at, size);
            let expected = if fits { was } else { was ^ 1 };
            let old = vcpu.compare_exchange(base + at, size, expected, value)?;
            assert_eq!(old, was);
            if fits {
                model.set(at, size, value);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever vgpud orders meanwhile, and however often, the guest sees
    /// memory and a device that answers.
    #[test]
    fn a_guest_does_not_see_what_its_pages_are(
        programs in prop::array::uniform2(prop::collection::vec(op(), 1..60)),
        orders in prop::collection::vec((0_u64..3, 0_u32..8), 1..40),
    ) {
        let mut guest = Guest::start();
        let running = AtomicBool::new(true);
        let (domain, registers) = (&guest.domain.clone(), guest.registers);
        std::thread::scope(|scope| {
            let halves: Vec<_> = (0_u64..).zip(programs).map(|(n, program)| {
                let vcpu = domain.vcpu(u32::try_from(n).unwrap()).unwrap();
                scope.spawn(move || {
                    let base = (FIRST << 12) + n * HALF;
                    let mut model = Model(vec![0; usize::try_from(HALF).unwrap()]);
                    for op in program {
                        perform(&vcpu, base, &mut model, op).unwrap();
                        vcpu.mmio_read(registers, 4).unwrap();
                    }
                    let mut found = vec![0; model.0.len()];
                    domain.ram().read(base, &mut found).unwrap();
                    assert!(found == model.0);
                })
            }).collect();
            let (running, orders) = (&running, &orders);
            let vgpud = &mut guest.vgpud;
            let server = &guest.server;
            let orderer = scope.spawn(move || {
                for (n, (page, what)) in (0_u32..).zip(orders.iter().cycle()) {
                    let gfn = FIRST + page;
                    match what {
                        0..=4 => drop(vgpud.events.push(Event::Protect { gfn, serial: n })),
                        5 | 6 => drop(vgpud.events.push(Event::Unprotect { gfn })),
                        _ => {
                            // A vCPU that gets no CPU for long has it tried again.
                            while server.hold_protection().is_err() {}
                            for page in 0..3 {
                                let kind = domain.frame(Gfn(FIRST + page));
                                assert_eq!(kind, FrameKind::Ram);
                            }
                            server.allow_protection();
                        }
                    }
                    while vgpud.requests.pop().unwrap().is_some() {}
                    if !running.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
            let ends: Vec<_> = halves.into_iter().map(|half| half.join()).collect();
            running.store(false, Ordering::Release);
            orderer.join().unwrap();
            for end in ends {
                end.unwrap();
            }
        });
        prop_assert_eq!(guest.domain.stopped(), None);
    }
}
