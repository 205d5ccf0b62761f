//! Frames that the toolstack adds and that device models move.

use std::sync::Arc;

use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind};
use guest_memory::{Gfn, GuestMemory};
use xen_glue::{
    DeviceModel, DomainMemory, Errno, Extent, ForeignMemory, ForeignMemoryConfig, Hypervisor,
    PARKING_GFN, Privcmd, TABLE_FRAMES, TableError, TableFrames,
};

/// Where BAR0's upper half may lie.
const HIGH: u64 = 0x12_3800;

struct Host {
    domain: Domain,
    dm: DeviceModel,
    memory: Arc<dyn DomainMemory>,
    privcmd: Arc<dyn Privcmd>,
}

fn host(frames: usize) -> Host {
    let xen = FakeXen::new();
    let config = DomainConfig {
        frames,
        ..DomainConfig::default()
    };
    let domain = xen.create_domain(config).unwrap();
    let privcmd = xen.open_privcmd().unwrap();
    Host {
        dm: DeviceModel::new(Arc::clone(&privcmd), domain.id()),
        memory: xen.open_domain_memory().unwrap(),
        domain,
        privcmd,
    }
}

impl Host {
    fn table(&self) -> Result<TableFrames, TableError> {
        TableFrames::create(&*self.memory, &*self.privcmd, self.domain.id())
    }
}

fn all(first_gfn: u64) -> Extent {
    Extent {
        first_gfn,
        frames: TABLE_FRAMES,
    }
}

#[test]
fn a_table_is_more_memory_than_the_domain_was_built_with() {
    let host = host(300);
    let id = host.domain.id();
    let before = host.memory.maximum_reservation(id).unwrap();
    let table = host.table().unwrap();
    assert_eq!(host.domain.current_reservation(), 300 + 2048);
    // libxl's slack is left for hvmloader.
    assert_eq!(
        host.memory.maximum_reservation(id).unwrap(),
        before + u64::from(TABLE_FRAMES)
    );
    let vcpu = host.domain.vcpu(0).unwrap();
    let at = PARKING_GFN << 12;
    vcpu.mmio_write(at + 8, 8, 0x1234_5001).unwrap();
    assert_eq!(table.load(1), 0x1234_5001);
    table.store((1 << 20) - 1, 7);
    assert_eq!(vcpu.mmio_read(at + (8 << 20) - 8, 8).unwrap(), 7);
    assert_eq!(table.load(1 << 20), 0);
    // A second vGPU after the first came to nothing: the same frames, zeroed.
    drop(table);
    let table = host.table().unwrap();
    assert_eq!((table.load(1), table.load((1 << 20) - 1)), (0, 0));
    assert_eq!(host.domain.current_reservation(), 300 + 2048);
}

#[test]
fn mappings_follow_frames_that_move() {
    let host = host(300);
    let table = host.table().unwrap();
    let vcpu = host.domain.vcpu(0).unwrap();
    table.store(5, 55);
    host.dm.relocate_memory(all(PARKING_GFN), HIGH).unwrap();
    assert_eq!(host.domain.frame(Gfn(PARKING_GFN)), FrameKind::Hole);
    assert_eq!(host.domain.frame(Gfn(HIGH)), FrameKind::Ram);
    assert_eq!(host.domain.maximum_gpfn(), Gfn(HIGH + 2047));
    vcpu.mmio_write((HIGH << 12) + 48, 8, 66).unwrap();
    assert_eq!((table.load(5), table.load(6)), (55, 66));
    // Moved to where it is: nothing happens.
    host.dm.relocate_memory(all(HIGH), HIGH).unwrap();
    assert_eq!(vcpu.mmio_read((HIGH << 12) + 40, 8).unwrap(), 55);
    assert_eq!(host.domain.current_reservation(), 300 + 2048);
}

#[test]
fn ram_at_the_target_is_the_guests_loss() {
    let host = host(4096);
    let table = host.table().unwrap();
    let vcpu = host.domain.vcpu(0).unwrap();
    let memory = ForeignMemory::new(
        Arc::clone(&host.privcmd),
        host.domain.id(),
        ForeignMemoryConfig::default(),
    );
    memory.write_u64(0x80_0000, 99).unwrap();
    host.dm.relocate_memory(all(PARKING_GFN), 0x800).unwrap();
    assert_eq!(host.domain.current_reservation(), 4096);
    table.store(0, 11);
    assert_eq!(vcpu.mmio_read(0x80_0000, 8).unwrap(), 11);
    // A stale mapping shows the page that left.
    assert_eq!(memory.read_u64(0x80_0000).unwrap(), 99);
    // Moved away, there is a hole.
    host.dm.relocate_memory(all(0x800), PARKING_GFN).unwrap();
    assert_eq!(host.domain.frame(Gfn(0x800)), FrameKind::Hole);
    assert_eq!(vcpu.mmio_read(0x80_0000, 8).unwrap(), u64::MAX);
}

#[test]
fn what_cannot_move_is_refused_and_what_moved_stays_moved() {
    let host = host(300);
    let errno = |extent, to| host.dm.relocate_memory(extent, to).unwrap_err().errno;
    assert_eq!(errno(all(PARKING_GFN), HIGH), Errno::EINVAL);
    assert_eq!(errno(all(0), u64::MAX - 5), Errno::EOVERFLOW);
    let table = host.table().unwrap();
    let vcpu = host.domain.vcpu(0).unwrap();
    let hole = Gfn(PARKING_GFN + 3);
    vcpu.decrease_reservation(&[hole]).unwrap().unwrap();
    assert_eq!(errno(all(PARKING_GFN), HIGH), Errno::EINVAL);
    assert_eq!(host.domain.frame(Gfn(HIGH + 2)), FrameKind::Ram);
    assert_eq!(host.domain.frame(Gfn(HIGH + 3)), FrameKind::Hole);
    assert_eq!(host.domain.frame(Gfn(PARKING_GFN + 4)), FrameKind::Ram);
    // The mapping keeps the page that left.
    table.store(3 * 512, 4);
    assert_eq!(table.load(3 * 512), 4);
}

#[test]
fn a_host_without_memory_leaves_the_domain_as_it_was() {
    // More than the file has pages for.
    let host = host(300);
    let id = host.domain.id();
    let many = Extent {
        first_gfn: 0x20_0000,
        frames: 64_000,
    };
    host.memory.set_maximum_reservation(id, 67_000).unwrap();
    assert_eq!(host.memory.populate(id, many).unwrap(), 64_000);
    let error = host.table().unwrap_err();
    assert!(
        matches!(error, TableError::TooFew { got, .. } if got > 0 && got < TABLE_FRAMES),
        "{error}"
    );
    assert_eq!(host.domain.current_reservation(), 64_300);
    assert_eq!(host.memory.maximum_reservation(id).unwrap(), 67_000);
    assert_eq!(host.domain.frame(Gfn(PARKING_GFN)), FrameKind::Hole);
}

#[test]
fn a_table_with_a_gap_is_not_used() {
    let host = host(300);
    let first = Extent {
        first_gfn: PARKING_GFN,
        frames: 1,
    };
    assert_eq!(host.memory.populate(host.domain.id(), first).unwrap(), 1);
    let error = host.table().unwrap_err();
    assert!(
        matches!(error, TableError::Missing { gfn, .. } if gfn == PARKING_GFN + 1),
        "{error}"
    );
}
