//! The rules of ioreq servers, through the calls a device model makes.

use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind};
use guest_memory::Gfn;
use xen_glue::{
    DeviceModel, DomId, Errno, EventChannel, Extent, Hypervisor, IoreqServerId, MemType, Privcmd,
    Resource, Sbdf,
};

fn setup() -> (FakeXen, Domain, DeviceModel) {
    let xen = FakeXen::new();
    let config = DomainConfig {
        vcpus: 2,
        frames: 600,
        hap: true,
    };
    let domain = xen.create_domain(config).unwrap();
    let dm = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
    (xen, domain, dm)
}

#[test]
fn a_domain_has_room_for_8_servers() {
    let (_xen, domain, dm) = setup();
    let servers: Vec<_> = (0..8).map(|_| dm.create_ioreq_server().unwrap()).collect();
    let ids: Vec<_> = servers.iter().map(|s| s.id().0).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(dm.create_ioreq_server().unwrap_err().errno, Errno::ENOSPC);
    drop(servers);
    assert_eq!(domain.ioreq_servers(), 0);
}

#[test]
fn a_server_outlives_its_process_when_told_to() {
    let (_xen, domain, dm) = setup();
    let id = dm.create_ioreq_server().unwrap().into_id();
    assert_eq!(domain.ioreq_servers(), 1);
    let again = dm.attach_ioreq_server(id);
    again.info().unwrap();
    again.persist(true);
    drop(again);
    assert_eq!(domain.ioreq_servers(), 1);
    dm.attach_ioreq_server(id).destroy().unwrap();
    assert_eq!(domain.ioreq_servers(), 0);
    let gone = dm.attach_ioreq_server(id).destroy().unwrap_err();
    assert_eq!(gone.errno, Errno::ENOENT);
}

#[test]
fn ranges_are_checked_as_xen_does() {
    let (_xen, _domain, dm) = setup();
    let server = dm.create_ioreq_server().unwrap();
    server.map_mmio(&(0x1000..=0x1fff)).unwrap();
    let overlap = server.map_mmio(&(0x1fff..=0x2fff)).unwrap_err();
    assert_eq!(overlap.errno, Errno::EEXIST);
    assert!(overlap.op.contains("0x1fff..=0x2fff"), "{overlap}");
    let (start, end) = (2, 1);
    let backwards = server.map_mmio(&(start..=end)).unwrap_err();
    assert_eq!(backwards.errno, Errno::EINVAL);
    let stranger = server.unmap_mmio(&(0x3000..=0x3fff)).unwrap_err();
    assert_eq!(stranger.errno, Errno::ENOENT);
    for n in 0..255 {
        let start = 0x10_0000 + n * 0x2000;
        server.map_mmio(&(start..=start + 0xfff)).unwrap();
    }
    let full = server.map_mmio(&(0x9000_0000..=0x9000_0fff)).unwrap_err();
    assert_eq!(full.errno, Errno::ENOMEM);
    // Each type has its own list.
    server.map_pci(Sbdf::slot(3)).unwrap();
    assert_eq!(
        server.map_pci(Sbdf::slot(3)).unwrap_err().errno,
        Errno::EEXIST
    );
    server.unmap_pci(Sbdf::slot(3)).unwrap();
    server.map_ports(&(0x10..=0x1f)).unwrap();
    server.unmap_ports(&(0x10..=0x1f)).unwrap();
}

#[test]
fn ports_are_valid_only_after_enable() {
    let (xen, domain, dm) = setup();
    let server = dm.create_ioreq_server().unwrap();
    let page = server.map_page(dm.nr_vcpus().unwrap()).unwrap();
    assert_eq!(page.vcpus(), 2);
    assert_eq!(page.port(0).unwrap().0, 0);
    server.set_enabled(true).unwrap();
    let ports = [page.port(0).unwrap(), page.port(1).unwrap()];
    assert_ne!(ports[0], ports[1]);
    let events = xen.open_event_channels().unwrap();
    let channel = EventChannel::bind_interdomain(events.clone(), domain.id(), ports[0]).unwrap();
    // Taken, until it is closed.
    let again = EventChannel::bind_interdomain(events.clone(), domain.id(), ports[0]);
    assert!(again.unwrap_err().to_string().contains("EINVAL"));
    drop(channel);
    EventChannel::bind_interdomain(events, domain.id(), ports[0]).unwrap();
}

#[test]
fn frames_of_the_resource_are_what_xen_has() {
    let (xen, domain, dm) = setup();
    let server = dm.create_ioreq_server().unwrap();
    let frame = |id: u32, frame, count| {
        let resource = Resource {
            kind: 0,
            id,
            frame,
            count,
        };
        let mapped = xen.privcmd().map_resource(domain.id(), resource);
        mapped.map(drop).map_err(|e| e.errno())
    };
    let id = u32::from(server.id().0);
    assert_eq!(frame(id, 1, 1), Ok(()));
    assert_eq!(frame(id, 0, 1), Err(Errno::ENOENT));
    assert_eq!(frame(id, 2, 1), Err(Errno::EINVAL));
    assert_eq!(frame(7, 1, 1), Err(Errno::ENOENT));
}

#[test]
fn a_restricted_handle_reaches_one_domain() {
    let (xen, domain, _dm) = setup();
    let other = xen.create_domain(DomainConfig::default()).unwrap();
    let privcmd = xen.open_privcmd().unwrap();
    privcmd.restrict(domain.id()).unwrap();
    privcmd.restrict(domain.id()).unwrap();
    let wider = privcmd.restrict(other.id()).unwrap_err();
    assert_eq!(wider.errno(), Errno::EINVAL);
    DeviceModel::new(privcmd.clone(), domain.id())
        .create_ioreq_server()
        .unwrap();
    let dm = DeviceModel::new(privcmd.clone(), other.id());
    assert_eq!(dm.create_ioreq_server().unwrap_err().errno, Errno::EPERM);
    let mapped = privcmd.map_foreign(other.id(), &[0], xen_glue::Access::ReadOnly);
    assert_eq!(mapped.unwrap_err().errno(), Errno::EPERM);
    let events = xen.open_event_channels().unwrap();
    events.restrict(domain.id()).unwrap();
    let bound = events.bind_interdomain(other.id(), xen_glue::Port(1));
    assert!(bound.unwrap_err().to_string().contains("EACCES"));
}

#[test]
fn a_server_obeys_the_domain_that_made_it() {
    let (xen, domain, dm) = setup();
    let server = dm.create_ioreq_server().unwrap();
    let stub = xen.seen_from(DomId(9));
    let theirs = DeviceModel::new(stub.open_privcmd().unwrap(), domain.id());
    let attached = theirs.attach_ioreq_server(server.id());
    assert_eq!(attached.info().unwrap_err().errno, Errno::EPERM);
    assert_eq!(attached.destroy().unwrap_err().errno, Errno::EPERM);
    server.info().unwrap();
}

#[test]
fn calls_on_a_domain_that_is_gone_say_so() {
    let (_xen, domain, dm) = setup();
    let server = dm.create_ioreq_server().unwrap();
    domain.destroy();
    assert_eq!(dm.nr_vcpus().unwrap_err().errno, Errno::ESRCH);
    assert_eq!(server.destroy().unwrap_err().errno, Errno::ESRCH);
}

#[test]
fn raw_operations_are_checked() {
    let (xen, domain, _dm) = setup();
    let privcmd = xen.privcmd();
    let call = |op: &mut [u8]| {
        let done = privcmd.dm_op(domain.id(), &mut [op]);
        done.map_err(|e| e.errno())
    };
    let mut op = [0; 32];
    op[0] = 20;
    assert_eq!(call(&mut op), Ok(()));
    assert_eq!(op[8], 2);
    assert_eq!(call(&mut op[..7]), Err(Errno::EFAULT));
    assert_eq!(call(&mut op[..11]), Err(Errno::EFAULT));
    op[4] = 1;
    assert_eq!(call(&mut op), Err(Errno::EINVAL));
    op = [0; 32];
    op[0] = 99;
    assert_eq!(call(&mut op), Err(Errno::EOPNOTSUPP));
    assert_eq!(call(&mut [0; 4097]), Err(Errno::E2BIG));
    // A pad that is not zero.
    op = [0; 32];
    op[0] = 1;
    op[9] = 1;
    assert_eq!(call(&mut op), Err(Errno::EINVAL));
    let mut empty: [&mut [u8]; 17] = Default::default();
    let many = privcmd.dm_op(domain.id(), &mut empty).unwrap_err();
    assert_eq!(many.errno(), Errno::E2BIG);
}

#[test]
fn write_protection_has_one_owner() {
    let (_xen, _domain, dm) = setup();
    let first = dm.create_ioreq_server().unwrap();
    let second = dm.create_ioreq_server().unwrap();
    let extent = Extent {
        first_gfn: 3,
        frames: 2,
    };
    let protect = || dm.set_mem_type(extent, MemType::WriteProtected);
    assert_eq!(protect().unwrap_err().errno, Errno::EINVAL);
    first.claim_write_protection().unwrap();
    let taken = second.claim_write_protection().unwrap_err();
    assert_eq!(taken.errno, Errno::EBUSY);
    let stranger = second.release_write_protection().unwrap_err();
    assert_eq!(stranger.errno, Errno::EINVAL);
    protect().unwrap();
    first.release_write_protection().unwrap();
    second.claim_write_protection().unwrap();
}

#[test]
fn a_server_that_goes_without_ending_its_claim_leaves_frames_nobody_can_write() {
    let (_xen, domain, dm) = setup();
    let first = dm.create_ioreq_server().unwrap();
    first.claim_write_protection().unwrap();
    let extent = Extent {
        first_gfn: 3,
        frames: 1,
    };
    dm.set_mem_type(extent, MemType::WriteProtected).unwrap();
    drop(first);
    assert_eq!(domain.frame(Gfn(3)), FrameKind::WriteProtected);
    assert_eq!(domain.enable_log_dirty(), Err(Errno::EBUSY));
    let second = dm.create_ioreq_server().unwrap();
    let left = second.claim_write_protection().unwrap_err();
    assert_eq!(left.errno, Errno::EBUSY);
    // One by one it still goes.
    dm.set_mem_type(extent, MemType::Ram).unwrap();
    second.claim_write_protection().unwrap();
}

#[test]
fn without_hap_there_is_no_write_protection() {
    let xen = FakeXen::new();
    let config = DomainConfig {
        hap: false,
        ..DomainConfig::default()
    };
    let domain = xen.create_domain(config).unwrap();
    let dm = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
    let server = dm.create_ioreq_server().unwrap();
    let refused = server.claim_write_protection().unwrap_err();
    assert_eq!(refused.errno, Errno::EOPNOTSUPP);
}

#[test]
fn interrupts_arrive_as_sent() {
    use fake_xen::Interrupt;
    let (_xen, domain, dm) = setup();
    let vcpu = domain.vcpu(1).unwrap();
    dm.inject_msi(0xfee0_1004, 0x4041).unwrap();
    // Vector 0 and a pirq, as Linux's PVHVM has it.
    dm.inject_msi(0xfee3_7000 | 0x100 << 32, 0).unwrap();
    dm.set_pci_intx_level(0x10, 0, true).unwrap();
    dm.set_pci_intx_level(0x10, 0, true).unwrap();
    assert!(domain.intx_level(0x10, 0));
    dm.set_pci_intx_level(0x10, 0, false).unwrap();
    assert!(!domain.intx_level(0x10, 0));
    let got: Vec<_> = (0..3).map(|_| vcpu.wait_interrupt(None).unwrap()).collect();
    assert_eq!(
        got,
        [
            Interrupt::Msi {
                addr: 0xfee0_1004,
                data: 0x4041
            },
            Interrupt::Msi {
                addr: 0x100_fee3_7000,
                data: 0
            },
            Interrupt::Intx {
                device: 0x10,
                line: 0
            },
        ]
    );
    assert_eq!(domain.interrupts_raised(), 3);
    assert_eq!(vcpu.wait_interrupt(Some(std::time::Duration::ZERO)), None);
    let no_pirq = dm.inject_msi(0xfee0_0000, 0).unwrap_err();
    assert_eq!(no_pirq.errno, Errno::ERANGE);
    let no_line = dm.set_pci_intx_level(0x10, 4, true).unwrap_err();
    assert_eq!(no_line.errno, Errno::EINVAL);
    let no_server = dm.attach_ioreq_server(IoreqServerId(6)).map_page(1);
    assert_eq!(no_server.unwrap_err().errno, Errno::ENOENT);
}

proptest::proptest! {
    /// Whatever bytes a device model sends, the hypervisor stands.
    #[test]
    fn any_bytes_are_an_operation_or_an_error(
        op in 0_u8..24,
        mut body in proptest::collection::vec(0_u8..6, 31),
        mut table in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
    ) {
        let (xen, domain, dm) = setup();
        let server = dm.create_ioreq_server().unwrap();
        server.claim_write_protection().unwrap();
        domain.enable_log_dirty().unwrap();
        body.insert(0, op);
        body[1..8].fill(0);
        let done = xen.privcmd().dm_op(domain.id(), &mut [&mut body, &mut table]);
        // No operation has so high a number (Xen public/hvm/dm_op.h).
        proptest::prop_assert!(op < 21 || done.is_err(), "{}", op);
        proptest::prop_assert_eq!(dm.nr_vcpus().unwrap(), 2);
    }
}
