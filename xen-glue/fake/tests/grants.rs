//! Grants: who may map what, and what is left when a side ends.

use std::time::Duration;

use fake_xen::{DomainConfig, FakeXen};
use xen_glue::{
    Access, DomId, EventChannel, GrantError, GrantRef, GrantedPages, Hypervisor, UnmapNotify,
};

const DOM0: DomId = DomId(0);
const STUB: DomId = DomId(5);
const NOW: Option<Duration> = Some(Duration::ZERO);

fn granted(xen: &FakeXen, pages: usize) -> GrantedPages {
    let stub = xen.seen_from(STUB).open_grant_pages().unwrap();
    stub.grant(DOM0, pages).unwrap()
}

fn byte(mapping: &xen_glue::Mapping, at: usize) -> u8 {
    let mut byte = [0];
    mapping.read(at, &mut byte).unwrap();
    byte[0]
}

#[test]
fn pages_are_shared_in_the_order_asked_for() {
    let xen = FakeXen::new();
    let (one, two) = (granted(&xen, 2), granted(&xen, 1));
    let refs = [one.refs()[1], two.refs()[0], one.refs()[0], one.refs()[1]];
    let mapper = xen.open_map_grants().unwrap();
    let mapping = mapper.map(STUB, &refs, Access::ReadWrite).unwrap();
    one.mapping().write(0, &[1]).unwrap();
    one.mapping().write(4096, &[2]).unwrap();
    two.mapping().write(0, &[3]).unwrap();
    let seen = [0, 1, 2, 3].map(|page| byte(mapping.mapping(), page * 4096));
    assert_eq!(seen, [2, 3, 1, 2]);
    mapping.mapping().write(3 * 4096 + 5, &[9]).unwrap();
    assert_eq!(byte(one.mapping(), 4096 + 5), 9);
    assert_eq!(xen.grants_mapped_by(DOM0), 4);
    drop(mapping);
    assert_eq!(xen.grants_mapped_by(DOM0), 0);
    assert_eq!(xen.grants_of(STUB), 3);
}

#[test]
fn a_reference_is_good_for_its_domain_alone() {
    let xen = FakeXen::new();
    let pages = granted(&xen, 2);
    let good = pages.refs()[0];
    let map = |from: DomId, owner, refs: &[GrantRef]| {
        let mapper = xen.seen_from(from).open_map_grants().unwrap();
        mapper.map(owner, refs, Access::ReadWrite)
    };
    assert!(map(DomId(6), STUB, &[good]).is_err());
    assert!(map(DOM0, DomId(6), &[good]).is_err());
    assert!(map(DOM0, STUB, &[GrantRef(7)]).is_err());
    assert!(map(DOM0, STUB, &[]).is_err());
    // All or none.
    assert!(map(DOM0, STUB, &[good, GrantRef(u32::MAX)]).is_err());
    assert_eq!(xen.grants_mapped_by(DOM0), 0);
    drop(pages);
    assert!(map(DOM0, STUB, &[good]).is_err());
    assert_eq!(xen.grants_of(STUB), 0);
}

#[test]
fn a_domain_grants_no_more_than_its_node_allows() {
    let xen = FakeXen::new();
    let node = xen.seen_from(STUB).open_grant_pages().unwrap();
    let most = node.grant(DOM0, 8192).unwrap();
    let GrantError::Call { errno, pages, .. } = node.grant(DOM0, 1).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!((errno, pages), (xen_glue::Errno::ENOSPC, 1));
    drop(most);
    node.grant(DOM0, 1).unwrap();
}

#[test]
fn pages_stay_while_they_are_mapped_and_cannot_be_mapped_again() {
    let xen = FakeXen::new();
    let pages = granted(&xen, 1);
    let refs = pages.refs().to_vec();
    let mapper = xen.open_map_grants().unwrap();
    let mapping = mapper.map(STUB, &refs, Access::ReadOnly).unwrap();
    pages.mapping().write(0, &[7]).unwrap();
    drop(pages);
    assert_eq!(byte(mapping.mapping(), 0), 7);
    assert_eq!(xen.grants_of(STUB), 1);
    assert!(mapper.map(STUB, &refs, Access::ReadOnly).is_err());
    drop(mapping);
    assert_eq!(xen.grants_of(STUB), 0);
}

#[test]
fn each_side_leaves_word() {
    for stub_first in [false, true] {
        let xen = FakeXen::new();
        let stub = xen.seen_from(STUB);
        let near = stub.open_event_channels().unwrap();
        let offered = EventChannel::bind_unbound(near.clone(), DOM0).unwrap();
        let far = xen.open_event_channels().unwrap();
        let bound = EventChannel::bind_interdomain(far.clone(), STUB, offered.port()).unwrap();
        assert_eq!(far.wait(NOW).unwrap(), Some(bound.port()));
        bound.unmask().unwrap();

        let pages = granted(&xen, 2);
        let mapper = xen.open_map_grants().unwrap();
        let mapping = mapper.map(STUB, pages.refs(), Access::ReadWrite).unwrap();
        pages.mapping().write(4096 + 8, &[1, 1]).unwrap();
        let word = |at, port| UnmapNotify {
            clear_byte: Some(at),
            send_event: Some(port),
        };
        pages
            .set_unmap_notify(word(4096 + 8, offered.port()))
            .unwrap();
        mapping
            .set_unmap_notify(word(4096 + 9, bound.port()))
            .unwrap();
        // Of another domain, and past the end.
        assert!(pages.set_unmap_notify(word(0, bound.port())).is_err());
        assert!(mapping.set_unmap_notify(word(8192, bound.port())).is_err());

        // Ports are closed before pages are let go of when a process ends,
        // and yet the word is sent.
        if stub_first {
            drop(offered);
            drop(pages);
            assert_eq!(far.wait(NOW).unwrap(), Some(bound.port()));
            assert_eq!(byte(mapping.mapping(), 4096 + 8), 0);
            assert_eq!(byte(mapping.mapping(), 4096 + 9), 1);
        } else {
            drop(bound);
            drop(mapping);
            assert_eq!(near.wait(NOW).unwrap(), Some(offered.port()));
            assert_eq!(byte(pages.mapping(), 4096 + 8), 1);
            assert_eq!(byte(pages.mapping(), 4096 + 9), 0);
        }
    }
}

#[test]
fn a_destroyed_domain_leaves_what_is_mapped_and_no_word() {
    let xen = FakeXen::new();
    let domain = xen.create_domain(DomainConfig::default()).unwrap();
    let stub = xen.seen_from(domain.id());
    let near = stub.open_event_channels().unwrap();
    let offered = near.bind_unbound(DOM0).unwrap();
    let far = xen.open_event_channels().unwrap();
    let bound = far.bind_interdomain(domain.id(), offered).unwrap();
    assert_eq!(far.wait(NOW).unwrap(), Some(bound));
    far.unmask(bound).unwrap();
    let pages = stub.open_grant_pages().unwrap().grant(DOM0, 2).unwrap();
    let mapper = xen.open_map_grants().unwrap();
    let mapped = &pages.refs()[..1];
    let mapping = mapper.map(domain.id(), mapped, Access::ReadOnly).unwrap();
    pages.mapping().write(0, &[1]).unwrap();

    domain.destroy();
    assert_eq!(far.wait(NOW).unwrap(), None);
    far.notify(bound).unwrap();
    assert_eq!(near.wait(NOW).unwrap(), None);
    assert!(far.bind_interdomain(domain.id(), offered).is_err());
    assert_eq!(xen.grants_of(domain.id()), 1);
    assert_eq!(byte(mapping.mapping(), 0), 1);
    drop(mapping);
    assert_eq!(xen.grants_of(domain.id()), 0);
    drop(pages);
    assert_eq!(xen.grants_mapped_by(DOM0), 0);
}
