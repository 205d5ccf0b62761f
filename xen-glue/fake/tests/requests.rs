//! A device model at work for a guest: the whole path, both sides.

mod toy;

use fake_xen::{BarKind, FakeXen, FirmwareError, MmioHole, RawIoreq, Stopped, place_bars};
use guest_memory::{Gfn, GuestMemory};
use proptest::prelude::*;
use toy::{BAR0_SIZE, BASE, Running, SLOT, domain};
use xen_glue::{DeviceModel, Extent, Hypervisor, IoreqError, IoreqState, MemType, Sbdf};

#[test]
fn firmware_finds_and_places_the_device() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let vcpu = guest.vcpu(0).unwrap();
    let hole = MmioHole::default();
    let nobody = place_bars(&vcpu, SLOT, &hole).unwrap_err();
    assert_eq!(nobody, FirmwareError::NoFunction(SLOT));
    let dm = Running::start(&xen, &guest);
    let bars = place_bars(&vcpu, SLOT, &hole).unwrap();
    assert_eq!(bars.len(), 1);
    // 256 MiB does not fit the 192 MiB below 4 GiB.
    assert_eq!(bars[0].kind, BarKind::Memory64);
    assert!(bars[0].prefetchable);
    assert_eq!((bars[0].base, bars[0].size), (0x1_0000_0000, BAR0_SIZE));
    vcpu.mmio_write(bars[0].base + 0x10, 4, 0xdead_beef)
        .unwrap();
    assert_eq!(vcpu.mmio_read(bars[0].base + 0x10, 4).unwrap(), 0xdead_beef);
    // Decoding off, and nothing answers.
    vcpu.pci_config_write(SLOT, 4, 2, 0).unwrap();
    vcpu.mmio_write(bars[0].base + 0x10, 4, 0).unwrap();
    assert_eq!(vcpu.mmio_read(bars[0].base + 0x10, 2).unwrap(), 0xffff);
    vcpu.pci_config_write(SLOT, 4, 2, 2).unwrap();
    assert_eq!(vcpu.mmio_read(bars[0].base + 0x10, 4).unwrap(), 0xdead_beef);
    // The old way to configuration space.
    vcpu.pio_write(0xcf8, 4, 0x8000_8000).unwrap();
    assert_eq!(vcpu.pio_read(0xcfe, 2).unwrap(), 0x1616);
    vcpu.pio_write(0xcf8, 4, 0).unwrap();
    assert_eq!(vcpu.pio_read(0xcfe, 2).unwrap() & 0xffff, 0xffff);
    assert_eq!(vcpu.pci_config_read(Sbdf::slot(3), 0, 4).unwrap(), u32::MAX);
    dm.stop();
}

#[test]
fn each_vcpu_is_answered_on_its_own() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 3);
    let dm = Running::start(&xen, &guest);
    dm.shared.server.map_mmio(&(BASE..=BASE + 0xffff)).unwrap();
    std::thread::scope(|scope| {
        for number in 0..3 {
            let vcpu = guest.vcpu(number).unwrap();
            scope.spawn(move || {
                let base = BASE + u64::from(number) * 0x1000;
                for n in 0..300 {
                    vcpu.mmio_write(base + n % 64 * 8, 8, n).unwrap();
                    assert_eq!(vcpu.mmio_read(base + n % 64 * 8, 8).unwrap(), n);
                }
            });
        }
    });
    assert_eq!(guest.stopped(), None);
    dm.stop();
}

#[test]
fn accesses_are_split_as_xen_splits_them() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let dm = Running::start(&xen, &guest);
    dm.shared.server.map_mmio(&(BASE..=BASE + 0xffff)).unwrap();
    let vcpu = guest.vcpu(0).unwrap();
    let count = |f: &dyn Fn()| {
        let before = dm
            .shared
            .requests
            .load(std::sync::atomic::Ordering::Relaxed);
        f();
        dm.shared
            .requests
            .load(std::sync::atomic::Ordering::Relaxed)
            - before
    };
    let write = |at: u64, n: usize| count(&|| vcpu.store_bytes(BASE + at, &vec![1; n]).unwrap());
    assert_eq!(write(0, 8), 1);
    assert_eq!(write(1, 8), 1);
    assert_eq!(write(0, 7), 3);
    assert_eq!(write(0, 32), 4);
    // 3 bytes, then 5, around a page edge.
    assert_eq!(write(0xffd, 8), 4);
    assert_eq!(
        count(&|| vcpu.rep_stos(BASE, 4, 1024, 7, false).unwrap()),
        1
    );
    assert_eq!(
        count(&|| vcpu.rep_stos(BASE + 4, 4, 1024, 7, false).unwrap()),
        2
    );
    assert_eq!(
        count(&|| vcpu.rep_movs(BASE, 0x1800, 4, 1024, false).unwrap()),
        2
    );
    dm.stop();
}

#[test]
fn the_last_server_created_wins_and_disabled_ones_are_skipped() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let first = Running::start(&xen, &guest);
    let second = Running::start(&xen, &guest);
    let range = BASE..=BASE + 0xfff;
    first.shared.server.map_mmio(&range).unwrap();
    second
        .shared
        .server
        .map_mmio(&(BASE..=BASE + 0x7ff))
        .unwrap();
    let vcpu = guest.vcpu(0).unwrap();
    first
        .shared
        .toy
        .lock()
        .unwrap()
        .bytes
        .extend([(BASE, 1), (BASE + 0x7ff, 2)]);
    second.shared.toy.lock().unwrap().bytes.insert(BASE, 9);
    assert_eq!(vcpu.mmio_read(BASE, 1).unwrap() & 0xff, 9);
    // Not wholly the second's, so the first's.
    assert_eq!(vcpu.mmio_read(BASE + 0x7ff, 2).unwrap() & 0xffff, 2);
    second.shared.server.set_enabled(false).unwrap();
    assert_eq!(vcpu.mmio_read(BASE, 1).unwrap() & 0xff, 1);
    second.shared.server.set_enabled(true).unwrap();
    assert_eq!(vcpu.mmio_read(BASE, 1).unwrap() & 0xff, 9);
    first.stop();
    second.stop();
}

#[test]
fn frames_leave_only_after_mappings_were_dropped() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let dm = Running::start(&xen, &guest);
    let vcpu = guest.vcpu(0).unwrap();
    vcpu.write(0x5000, &[1]).unwrap();
    assert_eq!(dm.shared.memory.read_u32(0x5000), Ok(1));
    vcpu.decrease_reservation(&[Gfn(5)]).unwrap().unwrap();
    assert_eq!(dm.shared.memory.stats().invalidated, 1);
    vcpu.populate(&[Gfn(5)]).unwrap().unwrap();
    assert_eq!(dm.shared.memory.read_u32(0x5000), Ok(0));
    dm.stop();
}

#[test]
fn writes_to_protected_frames_are_performed_by_the_device_model() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let dm = Running::start(&xen, &guest);
    let vcpu = guest.vcpu(0).unwrap();
    dm.shared.server.claim_write_protection().unwrap();
    let extent = Extent {
        first_gfn: 7,
        frames: 1,
    };
    dm.device_model
        .set_mem_type(extent, MemType::WriteProtected)
        .unwrap();
    let trapped = || dm.shared.toy.lock().unwrap().accesses;
    assert_eq!(vcpu.mmio_read(0x7008, 8).unwrap(), 0);
    assert_eq!(trapped(), 0);
    vcpu.mmio_write(0x7008, 8, 5).unwrap();
    GuestMemory::write(&vcpu, 0x7010, &[6; 16]).unwrap();
    assert_eq!(trapped(), 3);
    assert_eq!(vcpu.mmio_read(0x7008, 8).unwrap(), 5);
    assert_eq!(vcpu.mmio_read(0x7018, 1).unwrap(), 6);
    dm.shared.server.release_write_protection().unwrap();
    vcpu.mmio_write(0x7008, 8, 6).unwrap();
    assert_eq!(trapped(), 3);
    dm.stop();
}

#[test]
fn a_restarted_device_model_finishes_what_was_begun() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    // A process that takes a request and dies with it.
    let dm = DeviceModel::new(xen.open_privcmd().unwrap(), guest.id());
    let server = dm.create_ioreq_server().unwrap();
    let page = server.map_page(1).unwrap();
    server.set_enabled(true).unwrap();
    server.map_pci(SLOT).unwrap();
    server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
    let vcpu = guest.vcpu(0).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| vcpu.mmio_read(BASE + 8, 4).unwrap());
        let request = loop {
            if let Some(request) = page.take(0).unwrap() {
                break request;
            }
            std::thread::yield_now();
        };
        assert_eq!((request.addr, request.size), (BASE + 8, 4));
        assert_eq!(page.take(0).unwrap(), None);
        let id = server.into_id();
        drop(page);
        let successor = Running::attach(&xen, &guest, id);
        assert_eq!(read.join().unwrap(), 0);
        vcpu.mmio_write(BASE + 8, 4, 3).unwrap();
        assert_eq!(vcpu.mmio_read(BASE + 8, 4).unwrap(), 3);
        successor.stop();
    });
}

#[test]
fn a_slot_that_is_not_ours_is_left_alone() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let dm = DeviceModel::new(xen.open_privcmd().unwrap(), guest.id());
    let server = dm.create_ioreq_server().unwrap();
    let page = server.map_page(1).unwrap();
    let error = page.complete(0, 0).unwrap_err();
    assert_eq!(
        error,
        IoreqError::State {
            vcpu: 0,
            state: IoreqState::None
        }
    );
    assert!(matches!(page.take(1), Err(IoreqError::NoSuchVcpu { .. })));
}

/// The raw page, as a device model that breaks the protocol has it.
fn misbehave(state: u8) -> Option<Stopped> {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let privcmd = xen.open_privcmd().unwrap();
    let dm = DeviceModel::new(privcmd.clone(), guest.id());
    let server = dm.create_ioreq_server().unwrap();
    let resource = xen_glue::Resource {
        kind: 0,
        id: u32::from(server.id().0),
        frame: 1,
        count: 1,
    };
    let raw = privcmd.map_resource(guest.id(), resource).unwrap();
    server.set_enabled(true).unwrap();
    server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
    let events = xen.open_event_channels().unwrap();
    let mut port = [0; 4];
    raw.read(24, &mut port).unwrap();
    let port = xen_glue::Port(u32::from_le_bytes(port));
    let local = events.bind_interdomain(guest.id(), port).unwrap();
    let vcpu = guest.vcpu(0).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| vcpu.mmio_read(BASE, 4));
        let flags = raw.atomic_u8(30).unwrap();
        while flags.load(std::sync::atomic::Ordering::Acquire) & 15 != 1 {
            std::thread::yield_now();
        }
        flags.store(0x20 | state, std::sync::atomic::Ordering::Release);
        events.notify(local).unwrap();
        let _ = read.join().unwrap();
    });
    guest.stopped()
}

#[test]
fn a_state_that_is_none_crashes_the_domain() {
    let Some(Stopped::Crashed(why)) = misbehave(7) else {
        panic!("the domain must have crashed");
    };
    assert!(why.contains('7'), "{why}");
    // NONE is what an emulator that dies leaves.
    assert_eq!(misbehave(0), None);
}

#[test]
fn a_vcpu_that_waits_in_vain_is_freed_by_destruction() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let dm = DeviceModel::new(xen.open_privcmd().unwrap(), guest.id());
    let server = dm.create_ioreq_server().unwrap();
    let page = server.map_page(1).unwrap();
    server.set_enabled(true).unwrap();
    server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
    let vcpu = guest.vcpu(0).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| vcpu.mmio_read(BASE, 4));
        while page.state(0).unwrap() != IoreqState::Ready {
            std::thread::yield_now();
        }
        guest.destroy();
        assert_eq!(read.join().unwrap(), Err(Stopped::Destroyed));
        assert_eq!(vcpu.mmio_read(BASE, 4), Err(Stopped::Destroyed));
    });
}

#[test]
fn a_server_destroyed_under_a_request_reads_all_ones() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let dm = DeviceModel::new(xen.open_privcmd().unwrap(), guest.id());
    let server = dm.create_ioreq_server().unwrap();
    let page = server.map_page(1).unwrap();
    server.set_enabled(true).unwrap();
    server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
    let vcpu = guest.vcpu(0).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| vcpu.mmio_read(BASE, 4));
        while page.state(0).unwrap() != IoreqState::Ready {
            std::thread::yield_now();
        }
        server.destroy().unwrap();
        assert_eq!(read.join().unwrap().unwrap() & 0xffff_ffff, 0xffff_ffff);
    });
    assert_eq!(guest.stopped(), None);
}

#[test]
fn a_suspended_guest_has_no_request_in_flight() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 2);
    let dm = Running::start(&xen, &guest);
    dm.shared.server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
    let vcpu = guest.vcpu(1).unwrap();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            for _ in 0..200 {
                vcpu.mmio_read(BASE, 4).unwrap();
            }
        });
        for _ in 0..20 {
            guest.suspend();
            assert_eq!(dm.shared.page.state(1).unwrap(), IoreqState::None);
            guest.resume();
        }
        reads.join().unwrap();
    });
    dm.stop();
}

#[test]
fn nonsense_is_answered() {
    let xen = FakeXen::new();
    let guest = domain(&xen, 1);
    let dm = Running::start(&xen, &guest);
    let vcpu = guest.vcpu(0).unwrap();
    let id = dm.shared.server.id().0;
    for size in [0, 3, 7, 9, 4096, u32::MAX] {
        for count in [0, 1, 5000, u32::MAX] {
            for bits in 0..8_u8 {
                for data in [0, 0x7f_fffc, u64::MAX] {
                    let raw = RawIoreq {
                        kind: 1,
                        addr: u64::MAX - 2,
                        data,
                        count,
                        size,
                        read: bits & 1 != 0,
                        df: bits & 2 != 0,
                        data_is_ptr: bits & 4 != 0,
                    };
                    vcpu.raw_request_to(id, &raw).unwrap();
                }
            }
        }
    }
    for kind in [3, 7, 9, 255] {
        let raw = RawIoreq {
            kind,
            addr: 0,
            data: 0,
            count: 1,
            size: 4,
            read: true,
            df: false,
            data_is_ptr: false,
        };
        assert_eq!(vcpu.raw_request_to(id, &raw).unwrap(), u64::MAX);
    }
    assert_eq!(guest.stopped(), None);
    dm.stop();
}

/// What a guest may do to an address space that is RAM below `SPLIT` and
/// the device above.
#[derive(Clone, Debug)]
enum Op {
    Store(u64, Vec<u8>),
    Load(u64, usize),
    Stos(u64, u32, u32, u64, bool),
    Movs(u64, u64, u32, u32, bool),
}

/// Pages of RAM, and as many of the device behind them.
const SPACE: u64 = 0x3000;

/// An address of the model as the guest has it.
fn guest_address(at: u64) -> u64 {
    if at < SPACE { at } else { BASE + (at - SPACE) }
}

fn op() -> impl Strategy<Value = Op> {
    // Far enough from the ends and from the border that nothing leaves its
    // part: at most 64 items of 8 bytes either way.
    let at = (0x200_u64..0x2e00, any::<bool>())
        .prop_map(|(at, device)| if device { at + SPACE } else { at });
    let size = prop::sample::select(vec![1_u32, 2, 4, 8]);
    prop_oneof![
        (at.clone(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(a, d)| Op::Store(a, d)),
        (at.clone(), 1_usize..40).prop_map(|(a, n)| Op::Load(a, n)),
        (
            at.clone(),
            size.clone(),
            0_u32..64,
            any::<u64>(),
            any::<bool>()
        )
            .prop_map(|(a, s, c, v, df)| Op::Stos(a, s, c, v, df)),
        (at.clone(), at, size, 0_u32..64, any::<bool>())
            .prop_map(|(f, t, s, c, df)| Op::Movs(f, t, s, c, df)),
    ]
}

fn items(at: u64, size: u32, count: u32, df: bool) -> impl Iterator<Item = usize> {
    (0..u64::from(count)).map(move |i| {
        let distance = i * u64::from(size);
        usize::try_from(if df { at - distance } else { at + distance }).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Plain accesses and string instructions, over RAM and a device that is
    /// bytes, do what they do to one array of bytes.
    #[test]
    fn the_guest_sees_one_address_space(ops in prop::collection::vec(op(), 1..40)) {
        let xen = FakeXen::new();
        let guest = domain(&xen, 1);
        let dm = Running::start(&xen, &guest);
        dm.shared.server.map_mmio(&(BASE..=BASE + (SPACE - 1))).unwrap();
        let vcpu = guest.vcpu(0).unwrap();
        let mut model = vec![0_u8; usize::try_from(2 * SPACE).unwrap()];
        for op in ops {
            match op {
                Op::Store(at, data) => {
                    vcpu.store_bytes(guest_address(at), &data).unwrap();
                    let i = usize::try_from(at).unwrap();
                    model[i..i + data.len()].copy_from_slice(&data);
                }
                Op::Load(at, n) => {
                    let mut buf = vec![0; n];
                    vcpu.load_bytes(guest_address(at), &mut buf).unwrap();
                    let i = usize::try_from(at).unwrap();
                    prop_assert_eq!(&buf[..], &model[i..i + n]);
                }
                Op::Stos(at, size, count, value, df) => {
                    vcpu.rep_stos(guest_address(at), size, count, value, df).unwrap();
                    let n = usize::try_from(size).unwrap();
                    for i in items(at, size, count, df) {
                        model[i..i + n].copy_from_slice(&value.to_le_bytes()[..n]);
                    }
                }
                Op::Movs(from, to, size, count, df) => {
                    vcpu.rep_movs(guest_address(from), guest_address(to), size, count, df)
                        .unwrap();
                    let n = usize::try_from(size).unwrap();
                    for (f, t) in items(from, size, count, df).zip(items(to, size, count, df)) {
                        model.copy_within(f..f + n, t);
                    }
                }
            }
        }
        let mut all = vec![0; model.len()];
        let half = usize::try_from(SPACE).unwrap();
        guest.ram().read(0, &mut all[..half]).unwrap();
        vcpu.load_bytes(BASE, &mut all[half..]).unwrap();
        prop_assert!(all == model);
        prop_assert_eq!(guest.stopped(), None);
        dm.stop();
    }
}
