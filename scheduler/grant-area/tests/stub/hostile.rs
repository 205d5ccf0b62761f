//! Offers, and what is behind them, that are not what they should be.

use std::cell::Cell;

use grant_area::{GrantAreaError, MAX_PAGES, MappedArea, MappedControl, Offer};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vgpu_ring::{Area, AreaError};
use xen_glue::{GrantRef, GrantedPages, Hypervisor, Port};

use crate::world::{DOM0, SMALL, World};

/// Opens both regions, and checks that nothing is left of one that failed.
fn open(world: &World, offer: &Offer) -> (Option<GrantAreaError>, Option<GrantAreaError>) {
    let before = (world.left()[1], world.left()[3]);
    let domid = world.domain.id();
    let area = MappedArea::open(&world.xen, domid, &offer.area, offer.life).err();
    let control = MappedControl::open(&world.xen, domid, &offer.control).err();
    assert_eq!((world.left()[1], world.left()[3]), before);
    (area, control)
}

fn named(error: Option<GrantAreaError>) -> &'static str {
    match error {
        None => "nothing",
        Some(GrantAreaError::Field { field, .. }) => field,
        Some(GrantAreaError::Area(AreaError::Field { field, .. })) => field,
        Some(GrantAreaError::Grant(_)) => "a grant",
        Some(GrantAreaError::Channel(_)) => "a port",
        Some(other) => panic!("{other}"),
    }
}

#[test]
fn a_bad_number_is_refused() {
    let world = World::new();
    let device = world.device();
    let good = device.offer;
    let spoilt = |spoil: &dyn Fn(&mut Offer)| {
        let mut offer = good;
        spoil(&mut offer);
        let (area, control) = open(&world, &offer);
        (named(area), named(control))
    };
    assert_eq!(spoilt(&|_| ()), ("nothing", "nothing"));
    for pages in [0, 1, MAX_PAGES + 1, u32::MAX] {
        let said = spoilt(&|o| o.area.pages = pages);
        assert_eq!(said, ("pages", "nothing"));
    }
    // The directory goes on for ever, or into nothing.
    let more = spoilt(&|o| o.area.pages = MAX_PAGES);
    assert_eq!(more, ("a grant", "nothing"));
    let less = spoilt(&|o| o.area.pages -= 1);
    assert_eq!(less, ("pages in the link page", "nothing"));
    // One region for the other.
    let swapped = spoilt(&|o| (o.area, o.control) = (o.control, o.area));
    assert_eq!(swapped, ("magic", "words of the control pipe"));
    let (_, life) = device.area.offer();
    assert_eq!(spoilt(&|o| o.life = o.area.port), ("a port", "nothing"));
    assert_eq!(spoilt(&|o| o.life = Port(999)), ("a port", "nothing"));
    assert_eq!(spoilt(&|o| o.area.port = life), ("a port", "nothing"));
    for reference in [0, 1, u32::MAX] {
        let said = spoilt(&|o| o.control.directory = GrantRef(reference));
        assert_eq!(said, ("nothing", "a grant"));
    }
    // The directory in the place of its own region, and the other way round.
    let said = spoilt(&|o| o.area.directory = o.control.directory);
    assert_eq!(said.0, "a grant");
}

/// Pages of the stub's, made to look like a region of `pages` by hand.
fn region(world: &World, pages: u32, directory: impl Fn(&[GrantRef]) -> Vec<u32>) -> GrantedPages {
    let grants = world.stub.open_grant_pages().unwrap();
    let made = grants.grant(DOM0, 3).unwrap();
    let dwords = directory(made.refs());
    let bytes: Vec<u8> = dwords.into_iter().flat_map(u32::to_le_bytes).collect();
    made.mapping().write(0, &bytes).unwrap();
    let link = [u64::from_le_bytes(*b"VGPULINK"), 1, pages.into()];
    let bytes: Vec<u8> = link.into_iter().flat_map(u64::to_le_bytes).collect();
    made.mapping().write(4096, &bytes).unwrap();
    made
}

#[test]
fn a_directory_may_say_what_it_likes() {
    let world = World::new();
    let good = world.device();
    let said = |pages, directory: &dyn Fn(&[GrantRef]) -> Vec<u32>| {
        let made = region(&world, pages, directory);
        let mut offer = good.offer;
        offer.area.pages = pages;
        offer.area.directory = made.refs()[0];
        named(open(&world, &offer).0)
    };
    // A page of zeroes is no area.
    assert_eq!(said(2, &|r| vec![0, r[1].0, r[2].0]), "magic");
    // The same page many times, and a directory that leads to itself.
    let again = |r: &[GrantRef]| [vec![r[0].0], vec![r[1].0; 1023]].concat();
    assert_eq!(said(MAX_PAGES, &again), "magic");
    assert_eq!(said(2, &|r| vec![0, r[1].0]), "a grant");
    assert_eq!(said(2, &|r| vec![0, r[1].0, u32::MAX]), "a grant");
    assert_eq!(
        said(2, &|r| vec![0, r[2].0, r[1].0]),
        "magic of the link page"
    );
    assert_eq!(said(1024, &|r| vec![u32::MAX, r[1].0]), "a grant");
}

#[test]
fn a_header_is_checked_against_the_pages_that_are_there() {
    let world = World::new();
    let device = world.device();
    // An area of other sizes is as good, if it says so.
    let mut offer = device.offer;
    offer.area.pages = 5;
    let made = region(&world, 5, |r| {
        vec![0, r[1].0, r[2].0, r[2].0, r[2].0, r[2].0]
    });
    offer.area.directory = made.refs()[0];
    let header = |words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        made.mapping().write(8192, &bytes).unwrap();
        named(open(&world, &offer).0)
    };
    let magic = u64::from_le_bytes(*b"VGPURING");
    let version = vgpu_ring::layout::VERSION;
    let bytes = u64::try_from(Area::size(SMALL).unwrap() * 8).unwrap();
    assert_eq!(header(&[magic, 77]), "version");
    let entries = 1 << 20;
    assert_eq!(
        header(&[magic, version, 16384, 4, 4, entries]),
        "size in the header"
    );
    assert_eq!(
        header(&[magic, version, bytes, 4, 4, entries]),
        "size in bytes"
    );
}

/// Whatever an offer says, it opens or it does not, and leaves nothing.
#[test]
fn any_numbers_open_or_fail() {
    /// Mostly what it was, so that the rest of the offer is come to.
    fn seldom(other: impl Strategy<Value = u32>) -> impl Strategy<Value = Option<u32>> {
        prop::option::weighted(0.3, other)
    }
    let pages = prop_oneof![0..5_u32, Just(33), 30..40_u32, any::<u32>()];
    let directory = prop_oneof![0..4000_u32, any::<u32>()];
    let numbers = (
        seldom(pages),
        seldom(directory),
        seldom(0..8_u32),
        seldom(0..8_u32),
    );
    let (opened, failed) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig {
        cases: 64,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&numbers, |(pages, directory, port, life)| {
        let world = World::new();
        let device = world.device();
        let mut offer = device.offer;
        offer.control.pages = pages.unwrap_or(offer.control.pages);
        offer.control.directory = directory.map_or(offer.control.directory, GrantRef);
        offer.control.port = port.map_or(offer.control.port, Port);
        offer.life = life.map_or(offer.life, Port);
        let text = offer.to_string();
        let sane = (2..=MAX_PAGES).contains(&offer.control.pages);
        prop_assert_eq!(text.parse::<Offer>().is_ok(), sane);
        let met = match open(&world, &offer) {
            (None, None) => &opened,
            _ => &failed,
        };
        met.set(met.get() + 1);
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    // Two thirds and more of them fail; without either kind it would show little.
    let (opened, failed) = (opened.get(), failed.get());
    assert!(opened > 0 && failed > 0, "{opened} opened, {failed} failed");
}
