//! Foreign memory, and what log-dirty sees of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind, Stopped};
use guest_memory::{Gfn, GuestMemory, MemoryError};
use proptest::prelude::*;
use xen_glue::{
    DeviceModel, Errno, Extent, ForeignMemory, ForeignMemoryConfig, Hypervisor, MemType,
};

fn setup(frames: usize) -> (Domain, DeviceModel) {
    let xen = FakeXen::new();
    let config = DomainConfig {
        frames,
        ..DomainConfig::default()
    };
    let domain = xen.create_domain(config).unwrap();
    let dm = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
    (domain, dm)
}

fn foreign(dm: &DeviceModel, config: ForeignMemoryConfig) -> ForeignMemory {
    ForeignMemory::new(dm.privcmd().clone(), dm.domid(), config)
}

fn small() -> ForeignMemoryConfig {
    ForeignMemoryConfig {
        cache_bytes: 4 << 20,
        ..ForeignMemoryConfig::default()
    }
}

#[test]
fn both_sides_see_the_same_bytes() {
    let (domain, dm) = setup(1100);
    let memory = foreign(&dm, ForeignMemoryConfig::default());
    // Across a page and across a piece of 2 MiB.
    for gpa in [0x1ffd, 0x1f_fffd, 0x20_0000] {
        domain.ram().write(gpa, b"guest").unwrap();
        let mut buf = [0; 5];
        memory.read(gpa, &mut buf).unwrap();
        assert_eq!(&buf, b"guest");
        memory.write(gpa, b"model").unwrap();
        domain.ram().read(gpa, &mut buf).unwrap();
        assert_eq!(&buf, b"model");
    }
    assert_eq!(memory.stats().mapped, 2);
}

#[test]
fn frames_that_are_not_there_are_named_and_asked_for_again() {
    let (domain, dm) = setup(600);
    let memory = foreign(&dm, ForeignMemoryConfig::default());
    let vcpu = domain.vcpu(0).unwrap();
    let missing = |gfn| MemoryError::Unmapped(Gfn(gfn));
    assert_eq!(memory.read_u32(600 << 12), Err(missing(600)));
    assert_eq!(memory.read_u32(0xf_0000 << 12), Err(missing(0xf_0000)));
    assert_eq!(memory.read_u64(u64::MAX - 7), Err(missing(u64::MAX >> 12)));
    assert!(matches!(
        memory.read_u64(u64::MAX - 3),
        Err(MemoryError::Wraps { .. })
    ));
    vcpu.decrease_reservation(&[Gfn(5)]).unwrap().unwrap();
    assert_eq!(memory.read_u32(0x5000), Err(missing(5)));
    assert_eq!(memory.read_u32(0x4000), Ok(0));
    // A write that crosses into it did its first page.
    assert_eq!(memory.write(0x4ffe, &[1, 2, 3, 4]), Err(missing(5)));
    let mut two = [0; 2];
    domain.ram().read(0x4ffe, &mut two).unwrap();
    assert_eq!(two, [1, 2]);
    // The guest balloons it in again; nobody tells us.
    vcpu.populate(&[Gfn(5)]).unwrap().unwrap();
    domain.ram().write_u32(0x5000, 77).unwrap();
    assert_eq!(memory.read_u32(0x5000), Ok(77));
}

#[test]
fn a_frame_that_left_shows_old_bytes_until_invalidated() {
    let (domain, dm) = setup(600);
    let memory = foreign(&dm, ForeignMemoryConfig::default());
    let vcpu = domain.vcpu(0).unwrap();
    domain.ram().write_u32(0x5000, 1).unwrap();
    assert_eq!(memory.read_u32(0x5000), Ok(1));
    vcpu.decrease_reservation(&[Gfn(5)]).unwrap().unwrap();
    vcpu.populate(&[Gfn(5)]).unwrap().unwrap();
    domain.ram().write_u32(0x5000, 2).unwrap();
    assert_eq!(memory.read_u32(0x5000), Ok(1));
    memory.invalidate();
    assert_eq!(memory.read_u32(0x5000), Ok(2));
    assert_eq!(memory.stats().invalidated, 1);
}

#[test]
fn paged_out_frames_are_waited_for() {
    let (domain, dm) = setup(600);
    let memory = foreign(&dm, ForeignMemoryConfig::default());
    domain.ram().write_u32(0x7000, 9).unwrap();
    domain.page_out(Gfn(7), 3).unwrap();
    assert_eq!(memory.read_u32(0x7000), Ok(9));
    domain.page_out(Gfn(8), 1000).unwrap();
    let config = ForeignMemoryConfig {
        paged_out_retries: 2,
        ..ForeignMemoryConfig::default()
    };
    let impatient = foreign(&dm, config);
    let error = impatient.read_u32(0x8000).unwrap_err();
    assert!(matches!(error, MemoryError::Host { .. }), "{error}");
}

#[test]
fn a_frame_gets_its_memory_when_someone_looks() {
    let (domain, dm) = setup(64);
    let memory = foreign(&dm, small());
    let vcpu = domain.vcpu(0).unwrap();
    for gfn in 4..8 {
        vcpu.write_u64(gfn << 12, gfn).unwrap();
        domain.populate_on_demand(Gfn(gfn)).unwrap();
    }
    // Written by the guest, changed by it, protected, and mapped.
    vcpu.write_u64(5 << 12, 9).unwrap();
    assert_eq!(domain.frame(Gfn(5)), FrameKind::Ram);
    assert_eq!(vcpu.fetch_add(6 << 12, 8, 2), Ok(0));
    let server = dm.create_ioreq_server().unwrap();
    server.claim_write_protection().unwrap();
    let extent = Extent {
        first_gfn: 7,
        frames: 1,
    };
    dm.set_mem_type(extent, MemType::WriteProtected).unwrap();
    assert_eq!(domain.frame(Gfn(7)), FrameKind::WriteProtected);
    assert_eq!(domain.frame(Gfn(4)), FrameKind::PopulateOnDemand);
    assert_eq!(memory.read_u64(4 << 12).unwrap(), 0);
    assert_eq!(domain.frame(Gfn(4)), FrameKind::Ram);
    assert_eq!(memory.read_u64(5 << 12).unwrap(), 9);
    assert_eq!(domain.stopped(), None);
    // One that the balloon takes needs none.
    domain.populate_on_demand(Gfn(4)).unwrap();
    let gone = [Gfn(4)];
    vcpu.decrease_reservation(&gone).unwrap().unwrap();
    assert_eq!(domain.frame(Gfn(4)), FrameKind::Hole);
    // With nothing left Xen crashes the domain, whoever looked.
    domain.populate_on_demand(Gfn(5)).unwrap();
    domain.set_memory_on_demand(0);
    memory.invalidate();
    assert!(memory.read_u64(5 << 12).is_err());
    assert!(matches!(domain.stopped(), Some(Stopped::Crashed(_))));
}

#[test]
fn the_cache_keeps_to_its_limit_and_to_what_is_used() {
    let (domain, dm) = setup(512 * 5);
    let memory = foreign(&dm, small());
    for piece in 0..5_u64 {
        domain.ram().write_u64(piece << 21, piece).unwrap();
    }
    for piece in [0, 1, 0, 2, 0, 3, 0, 4] {
        assert_eq!(memory.read_u64(piece << 21), Ok(piece));
    }
    let stats = memory.stats();
    assert_eq!((stats.cached, stats.mapped, stats.evicted), (2, 5, 3));
    let config = ForeignMemoryConfig {
        cache_bytes: u64::MAX,
        ..small()
    };
    let whole = foreign(&dm, config);
    for piece in 0..5_u64 {
        assert_eq!(whole.read_u64(piece << 21), Ok(piece));
    }
    assert_eq!(whole.stats().evicted, 0);
}

#[test]
fn threads_may_access_while_pieces_come_and_go() {
    let (_domain, dm) = setup(512 * 4);
    let memory = Arc::new(foreign(&dm, small()));
    let stop = AtomicBool::new(false);
    /// Ends the other thread also when this one panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                memory.invalidate();
            }
        });
        let workers: Vec<_> = (0..3_u64)
            .map(|worker| {
                let memory = memory.clone();
                scope.spawn(move || {
                    for round in 0..200_u64 {
                        let gpa = (round % 4) << 21 | worker << 4;
                        memory.write_u64(gpa, round).unwrap();
                        assert_eq!(memory.read_u64(gpa), Ok(round));
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    assert!(memory.stats().cached <= 2);
}

#[test]
fn log_dirty_sees_the_guest_and_what_it_is_told() {
    let (domain, dm) = setup(600);
    let memory = foreign(&dm, ForeignMemoryConfig::default());
    let vcpu = domain.vcpu(0).unwrap();
    let extent = |first_gfn, frames| Extent { first_gfn, frames };
    assert_eq!(domain.clean_log_dirty(), None);
    // Off: not even looked at.
    dm.modified_memory(&[extent(u64::MAX, 9)]).unwrap();
    domain.enable_log_dirty().unwrap();
    memory.write_u32(0x5000, 1).unwrap();
    GuestMemory::write(&vcpu, 0x6000, &[1]).unwrap();
    vcpu.mmio_write(0x8ffe, 4, 0).unwrap();
    assert_eq!(domain.clean_log_dirty().unwrap(), [Gfn(6), Gfn(8), Gfn(9)]);
    dm.modified_memory(&[extent(5, 1), extent(100, 3)]).unwrap();
    let told = [5, 100, 101, 102].map(Gfn);
    assert_eq!(domain.clean_log_dirty().unwrap(), told);
    assert_eq!(domain.clean_log_dirty().unwrap(), []);
}

#[test]
fn modified_memory_takes_more_than_a_call_holds() {
    let (domain, dm) = setup(2048);
    domain.enable_log_dirty().unwrap();
    let mut extents: Vec<_> = (0..700)
        .map(|n| Extent {
            first_gfn: n * 2,
            frames: 1,
        })
        .collect();
    dm.modified_memory(&extents).unwrap();
    let dirty = domain.clean_log_dirty().unwrap();
    assert_eq!(dirty.len(), 700);
    assert!(dirty.iter().all(|gfn| gfn.0 % 2 == 0));
    // Two bad ones; all others count, and the first bad one is named.
    extents[300].frames = 0;
    extents[650].first_gfn = domain.maximum_gpfn().0;
    let error = dm.modified_memory(&extents).unwrap_err();
    assert_eq!((error.index, error.failed), (300, 2));
    assert_eq!(error.errno, Errno::EINVAL);
    assert_eq!(domain.clean_log_dirty().unwrap().len(), 698);
}

#[test]
fn write_protection_and_log_dirty_exclude_each_other() {
    let (domain, dm) = setup(600);
    let server = dm.create_ioreq_server().unwrap();
    let extent = Extent {
        first_gfn: 4,
        frames: 2,
    };
    server.claim_write_protection().unwrap();
    dm.set_mem_type(extent, MemType::WriteProtected).unwrap();
    assert_eq!(domain.frame(Gfn(5)), FrameKind::WriteProtected);
    assert_eq!(domain.enable_log_dirty(), Err(Errno::EBUSY));
    server.release_write_protection().unwrap();
    assert_eq!(domain.frame(Gfn(5)), FrameKind::Ram);
    domain.enable_log_dirty().unwrap();
    server.claim_write_protection().unwrap();
    let refused = dm.set_mem_type(extent, MemType::WriteProtected);
    assert_eq!(refused.unwrap_err().errno, Errno::EINVAL);
    domain.disable_log_dirty();
    dm.set_mem_type(extent, MemType::WriteProtected).unwrap();
    // Not with the server, but with its claim.
    server.release_write_protection().unwrap();
    drop(server);
    assert_eq!(domain.frame(Gfn(4)), FrameKind::Ram);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any mix of accesses reads as one array of bytes would.
    #[test]
    fn foreign_memory_is_an_array_of_bytes(
        ops in prop::collection::vec(
            (0_u64..0x60_0000, prop::collection::vec(any::<u8>(), 1..9000), any::<bool>()),
            1..20,
        ),
    ) {
        let (domain, dm) = setup(0x600);
        let memory = foreign(&dm, small());
        let mut model = vec![0_u8; 0x60_0000 + 9000];
        for (gpa, data, write) in ops {
            let at = usize::try_from(gpa).unwrap();
            let inside = at + data.len() <= 0x60_0000;
            if write {
                prop_assert_eq!(memory.write(gpa, &data).is_ok(), inside);
                let end = (at + data.len()).min(0x60_0000);
                model[at..end].copy_from_slice(&data[..end - at]);
            } else {
                let mut buf = vec![0; data.len()];
                prop_assert_eq!(memory.read(gpa, &mut buf).is_ok(), inside);
                if inside {
                    prop_assert_eq!(&buf[..], &model[at..at + buf.len()]);
                }
            }
        }
        let mut all = vec![0; 0x60_0000];
        domain.ram().read(0, &mut all).unwrap();
        prop_assert!(all[..] == model[..0x60_0000]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Pieces, which a mapped page serves in one go, are what they are one
    /// by one; frames that are not there included.
    #[test]
    fn pieces_are_what_they_are_one_by_one(
        gpa in 0..3_u64 << 12,
        piece in 0..40_usize,
        stride in 0..1200_usize,
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (domain, dm) = setup(2);
        let memory = foreign(&dm, small());
        let (mut got, mut expected) = (vec![1; data.len()], vec![1; data.len()]);
        let wrote = memory.write_pieces(gpa, piece, stride, &data);
        let ram = domain.ram();
        let mut after = vec![0; 2 << 12];
        ram.read(0, &mut after).unwrap();
        ram.write(0, &vec![0; 2 << 12]).unwrap();
        // The trait's own way, through a memory without a better one.
        let plain: &dyn GuestMemory = &*ram;
        let expected_wrote = guest_memory::for_each_piece(gpa, piece, stride, data.len(), |at, r| {
            plain.write(at, &data[r])
        });
        prop_assert_eq!(wrote.is_ok(), expected_wrote.is_ok());
        let mut expected_after = vec![0; 2 << 12];
        ram.read(0, &mut expected_after).unwrap();
        prop_assert!(after == expected_after);
        let read = memory.read_pieces(gpa, piece, stride, &mut got);
        let expected_read = plain.read_pieces(gpa, piece, stride, &mut expected);
        prop_assert_eq!(read.is_ok(), expected_read.is_ok());
        prop_assert_eq!(got, expected);
    }
}
