use std::collections::BTreeMap;

use guest_memory::PAGE_SIZE;
use proptest::prelude::*;

use super::*;

const FRAMES: u64 = 1024;
const AMPLE: usize = 64 << 20;

/// A page of few kinds, so that pages often meet their like again.
fn page(kind: u8) -> Page {
    let mut page = [0; PAGE_SIZE];
    match kind {
        0 => {}
        1..=3 => page.fill(kind),
        _ => page[usize::from(kind) * 61] = kind,
    }
    page
}

#[derive(Clone, Debug)]
enum Step {
    Retain(Vec<(u64, u8)>),
    Forget(u64),
    Verify(Vec<(u64, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    let gfn = || prop_oneof![0..8_u64, 508..516_u64, 1018..1030_u64];
    let pages = || proptest::collection::vec((gfn(), 0..8_u8), 0..30);
    prop_oneof![
        pages().prop_map(Step::Retain),
        gfn().prop_map(Step::Forget),
        pages().prop_map(Step::Verify),
    ]
}

/// Each frame once, in any order.
fn once(pages: &[(u64, u8)]) -> Vec<(Gfn, Page)> {
    let pages: BTreeMap<_, _> = pages.iter().copied().collect();
    pages
        .into_iter()
        .map(|(gfn, kind)| (Gfn(gfn), page(kind)))
        .collect()
}

fn frames(pages: &[(Gfn, Page)]) -> Vec<Frame<'_>> {
    pages
        .iter()
        .map(|(gfn, page)| Frame { gfn: *gfn, page })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_method_is_right(
        steps in proptest::collection::vec(step(), 1..30),
        method in 0..Method::ALL.len(),
        // Ample, and so little that pages are refused.
        limit in prop_oneof![Just(AMPLE), 0..(400_usize << 10)],
    ) {
        let method = Method::ALL[method];
        let detector = method.detector(FRAMES, limit).unwrap();
        let mut target: BTreeMap<Gfn, Page> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Retain(pages) => {
                    let pages = once(&pages);
                    let kept = detector.retain(&frames(&pages));
                    prop_assert_eq!(kept.len(), pages.len());
                    for ((gfn, page), kept) in pages.into_iter().zip(kept) {
                        target.remove(&gfn);
                        if kept {
                            target.insert(gfn, page);
                        }
                        let room = method != Method::Blind && gfn.0 < FRAMES;
                        prop_assert!(kept == room || limit < AMPLE && !kept);
                    }
                }
                Step::Forget(gfn) => {
                    detector.forget(Gfn(gfn));
                    target.remove(&Gfn(gfn));
                }
                Step::Verify(pages) => {
                    let pages = once(&pages);
                    let found = detector.verify(&frames(&pages));
                    prop_assert_eq!(found.len(), pages.len());
                    for ((gfn, page), verdict) in pages.into_iter().zip(found) {
                        let right = match target.get(&gfn) {
                            None => Verdict::Unknown,
                            Some(had) => same(*had == page),
                        };
                        prop_assert_eq!(verdict, right, "{} {}", method, gfn);
                    }
                }
            }
            let footprint = detector.footprint();
            prop_assert_eq!(footprint.pages, target.len());
            prop_assert!(footprint.bytes <= footprint.limit);
            // What the limit does not cover is the array that finds leaves.
            prop_assert!(footprint.limit <= limit + 3 * 3 * 64);
        }
    }
}

#[test]
fn zero_pages_take_no_copy() {
    let detector = Compare::new(512, AMPLE);
    let leaf = {
        let page = [0; PAGE_SIZE];
        let gfn = Gfn(3);
        assert_eq!(detector.retain(&[Frame { gfn, page: &page }]), [true]);
        detector.footprint().bytes
    };
    let pages: Vec<_> = (0..512).map(|gfn| (Gfn(gfn), [0; PAGE_SIZE])).collect();
    detector.retain(&frames(&pages));
    let footprint = detector.footprint();
    assert_eq!((footprint.pages, footprint.bytes), (512, leaf));
}

#[test]
fn a_digest_takes_about_a_hundredth() {
    let detector = Method::Digest.detector(512, AMPLE).unwrap();
    let pages: Vec<_> = (0..512).map(|gfn| (Gfn(gfn), page(5))).collect();
    detector.retain(&frames(&pages));
    let footprint = detector.footprint();
    assert_eq!(footprint.pages, 512);
    assert!(footprint.bytes * 95 < 512 * PAGE_SIZE, "{footprint:?}");
}

#[test]
fn when_memory_ends_copies_give_way_to_digests() {
    // A 16th of this holds digests of all of them; the rest 32 copies.
    let limit = 512 << 10;
    let detector = Method::Compare.detector(512, limit).unwrap();
    let mut pages: Vec<_> = (0..512).map(|gfn| (Gfn(gfn), page(5))).collect();
    assert!(
        detector
            .retain(&frames(&pages))
            .into_iter()
            .all(|kept| kept)
    );
    assert!(detector.footprint().bytes <= limit + 512);
    pages[500].1[9] ^= 1;
    let found = detector.verify(&frames(&pages));
    assert_eq!(found.iter().filter(|v| v.must_send()).count(), 1);
    assert_eq!(found[500], Verdict::Changed);
}

#[test]
fn samples_spare_the_page_only_when_they_differ() {
    let detector = Sampled::new(8, AMPLE, Compare::new(8, AMPLE));
    let gfn = Gfn(1);
    let old = page(2);
    detector.retain(&[Frame { gfn, page: &old }]);

    let filled = page(3);
    let found = detector.verify(&[Frame { gfn, page: &filled }]);
    assert_eq!(found, [Verdict::Changed]);
    assert_eq!(detector.probes(), Probes { pages: 1, hits: 1 });

    // Between the samples: found all the same, by the compare behind.
    let mut spotted = old;
    spotted[0] ^= 1;
    let found = detector.verify(&[Frame {
        gfn,
        page: &spotted,
    }]);
    assert_eq!(found, [Verdict::Changed]);
    assert_eq!(detector.probes(), Probes { pages: 2, hits: 1 });
}
