//! Pages made to look alike: whatever a guest can do to one, knowing every
//! hash there is but no key, is found by every method. The hashes in
//! `broken` are here only to be shown to miss.

use guest_memory::Gfn;
use vgpu_migrate::{Compare, Detector, DigestOf, Frame, Key, Method, Page, Sampled, Verdict};

mod broken;
mod pages;

const LIMIT: usize = 1 << 20;

/// Every method, the digests under several keys.
fn detectors() -> Vec<(String, Box<dyn Detector>)> {
    let mut all: Vec<(String, Box<dyn Detector>)> = Vec::new();
    for round in 0..3 {
        for method in Method::ALL {
            let detector = method.detector(1, LIMIT).unwrap();
            all.push((format!("{method}, key {round}"), detector));
        }
    }
    // A key need not be random to the eye, only unknown.
    let key = || Key::from_bytes(&std::array::from_fn(|i| (i % 251).to_le_bytes()[0]));
    all.push(("plain key".into(), Box::new(DigestOf::new(1, LIMIT, key()))));
    let inner = DigestOf::new(1, LIMIT, key());
    all.push((
        "plain key, sampled".into(),
        Box::new(Sampled::new(1, LIMIT, inner)),
    ));
    all.push(("copies alone".into(), Box::new(Compare::new(1, LIMIT))));
    all
}

/// That no method takes one page of a pair for the other, either way.
fn none_missed(what: &str, pairs: impl IntoIterator<Item = (Page, Page)>) {
    let detectors = detectors();
    let mut tried = 0;
    for (old, new) in pairs {
        if old == new {
            continue;
        }
        tried += 1;
        for (name, detector) in &detectors {
            for (old, new) in [(&old, &new), (&new, &old)] {
                let gfn = Gfn(0);
                detector.retain(&[Frame { gfn, page: old }]);
                let verdicts =
                    detector.verify(&[Frame { gfn, page: new }, Frame { gfn, page: old }]);
                assert!(
                    verdicts[0].must_send(),
                    "{what}: {name} missed pair {tried}"
                );
                let blind = detector.method() == Method::Blind;
                let right = if blind {
                    Verdict::Unknown
                } else {
                    Verdict::Same
                };
                assert_eq!(verdicts[1], right, "{what}: {name}");
            }
        }
    }
    assert!(tried > 0, "{what}: no pair");
}

#[test]
fn solid_fills() {
    let fills = [0, 1, 0x55, 0x7f, 0x80, 0xaa, 0xfe, 0xff];
    let pairs = fills
        .iter()
        .flat_map(|&a| fills.iter().map(move |&b| ([a; 4096], [b; 4096])));
    none_missed("solid fills", pairs);
    // A pixel of each, as a cleared surface has.
    let pixels = [0_u32, 0xff00_0000, 0xffff_ffff, 0xff20_2020, 0x0000_00ff];
    let filled = |pixel: u32| pages::filled(&pixel.to_le_bytes());
    let pairs = pixels
        .iter()
        .flat_map(|&a| pixels.iter().map(move |&b| (filled(a), filled(b))));
    none_missed("solid pixels", pairs);
}

#[test]
fn rotations() {
    for old in [pages::noise(1), pages::ramp(), pages::text()] {
        let lengths = [
            1, 2, 4, 8, 16, 24, 31, 32, 48, 64, 128, 512, 1024, 2048, 4032,
        ];
        none_missed(
            "rotations",
            lengths.map(|by| (old, pages::rotated(&old, by))),
        );
    }
}

#[test]
fn paired_deltas() {
    let old = pages::noise(2);
    let mut pairs = Vec::new();
    for unit in [1, 4, 8, 16, 32, 64] {
        for (a, b) in [(0, 1), (0, 2), (1, 3), (0, 4), (5, 21), (0, 63)] {
            for delta in [1, 0x80, 0xff] {
                pairs.push((old, pages::paired_delta(&old, unit, a, b, delta)));
                pairs.push((old, pages::paired_sum(&old, unit, a, b, delta)));
            }
        }
    }
    none_missed("paired deltas", pairs);
}

#[test]
fn permuted_blocks() {
    for old in [pages::noise(3), pages::ramp(), pages::text()] {
        let mut pairs = Vec::new();
        for unit in [8, 16, 32, 64, 256, 1024, 2048] {
            let last = 4096 / unit - 1;
            for (a, b) in [(0, 1), (0, last), (last / 2, last / 2 + 1)] {
                pairs.push((old, pages::swapped(&old, unit, a, b)));
            }
            pairs.push((old, pages::reversed(&old, unit)));
        }
        none_missed("permuted blocks", pairs);
    }
}

#[test]
fn every_bit() {
    for old in [[0; 4096], pages::noise(4)] {
        for (name, detector) in detectors() {
            let gfn = Gfn(0);
            detector.retain(&[Frame { gfn, page: &old }]);
            for byte in 0..4096 {
                let flipped: [_; 8] =
                    std::array::from_fn(|bit| pages::flipped(&old, byte * 8 + bit));
                let verdicts = detector.verify(&flipped.each_ref().map(|page| Frame { gfn, page }));
                let found = verdicts.iter().all(|verdict| verdict.must_send());
                assert!(found, "{name} missed a bit of byte {byte}");
            }
        }
    }
}

#[test]
fn published_collisions() {
    for (name, pairs) in broken::collisions() {
        for (old, new) in &pairs {
            assert_ne!(old, new, "{name}");
        }
        none_missed(name, pairs);
    }
}

#[test]
fn words_that_meet_published_secrets() {
    let pairs = broken::secrets().into_iter().flat_map(pages::around);
    none_missed("words of published secrets", pairs);
}

/// What was published and what stands in other code does miss pages: the
/// tests above are not easy.
#[test]
fn the_broken_ones_miss() {
    let fold = |a: &Page, b: &Page| broken::xor_fold(a) == broken::xor_fold(b);
    let fx = |a: &Page, b: &Page| broken::fx(a) == broken::fx(b);
    // A surface cleared to another colour.
    let (grey, white) = (pages::filled(&[0x20; 4]), pages::filled(&[0xff; 4]));
    assert!(fold(&grey, &white));
    // A page turned by a lane, and one delta in two places.
    let old = pages::noise(5);
    let turned = pages::rotated(&old, 32);
    assert!(old != turned && fold(&old, &turned));
    let delta = pages::paired_delta(&old, 32, 3, 70, 0x41);
    assert!(old != delta && fold(&old, &delta));
    // Two bits, whatever the seed.
    let bits = broken::fx_collision(&old);
    assert!(old != bits && fx(&old, &bits));
    // Each pair in the list really collides under the hash that it is named for.
    for (name, collide) in broken::checks() {
        let pairs = broken::collisions();
        let (_, pairs) = pairs.iter().find(|(of, _)| *of == name).unwrap();
        assert!(pairs.iter().all(|(a, b)| collide(a, b)), "{name}");
    }
}
