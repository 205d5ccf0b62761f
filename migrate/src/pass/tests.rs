use guest_memory::VecMemory;

use super::*;
use crate::detect::Method;

fn two() -> NonZeroUsize {
    NonZeroUsize::new(2).unwrap()
}

/// Frame numbers that are not in order, and one that is not there.
fn gfns() -> Vec<Gfn> {
    (0..200)
        .map(|n| Gfn(n * 77 % 200))
        .chain([Gfn(5000)])
        .collect()
}

#[test]
fn every_frame_has_its_own_verdict() {
    let memory = VecMemory::new(200);
    for gfn in 0..200 {
        memory.write(gfn * 4096 + 8, &gfn.to_le_bytes()).unwrap();
    }
    for method in Method::ALL {
        let detector = method.detector(200, 4 << 20).unwrap();
        let sent = Mutex::new(Vec::new());
        let send = |frames: &[Frame<'_>]| {
            let mut sent = sent.lock().unwrap();
            sent.extend(frames.iter().map(|f| (f.gfn, *f.page)));
        };
        let kept = retain(&*detector, &memory, &gfns(), two(), &send);
        assert_eq!((kept.gone, kept.unreadable), (1, 0), "{method}");
        assert_eq!(sent.lock().unwrap().len(), 200);
        for (gfn, page) in sent.into_inner().unwrap() {
            assert_eq!(page[8..16], gfn.0.to_le_bytes(), "{method}");
        }

        let changed = |gfn: Gfn| gfn.0.is_multiple_of(3);
        for gfn in gfns().into_iter().filter(|&g| g.0 < 200 && changed(g)) {
            memory.write(gfn.0 * 4096 + 4000, &[0xee]).unwrap();
        }
        let found = verify(&*detector, &memory, &gfns(), two());
        assert_eq!(found.gone, 1);
        for (gfn, verdict) in gfns().into_iter().zip(found.results) {
            let right = match gfn {
                _ if method == Method::Blind => Verdict::Unknown,
                Gfn(5000) => Verdict::Unknown,
                gfn if changed(gfn) => Verdict::Changed,
                _ => Verdict::Same,
            };
            assert_eq!(verdict, right, "{method}, {gfn}");
        }
        for gfn in gfns().into_iter().filter(|g| g.0 < 200) {
            memory.write(gfn.0 * 4096 + 4000, &[0]).unwrap();
        }
    }
}

/// Memory of a host that cannot map some frames.
struct Broken;

impl GuestMemory for Broken {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let gfn = Gfn::containing(gpa);
        if gfn.0 % 2 == 1 {
            let reason = "no".into();
            return Err(MemoryError::Host { gfn, reason });
        }
        buf.fill(1);
        Ok(())
    }

    fn write(&self, _gpa: u64, _data: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }
}

#[test]
fn what_cannot_be_read_is_unknown_and_told() {
    let detector = Method::Digest.detector(8, 1 << 20).unwrap();
    let gfns: Vec<_> = (0..4).map(Gfn).collect();
    let kept = retain(&*detector, &Broken, &gfns, two(), &|_| {});
    assert_eq!(kept.results, [true, false, true, false]);
    let found = verify(&*detector, &Broken, &gfns, two());
    assert_eq!(
        found.results,
        [
            Verdict::Same,
            Verdict::Unknown,
            Verdict::Same,
            Verdict::Unknown
        ]
    );
    assert_eq!((found.gone, found.unreadable), (0, 2));
    assert!(found.error.unwrap().to_string().contains("gfn 0x1: no"));
}

#[test]
fn no_frames_are_no_work() {
    let found = verify(&crate::detect::Blind, &Broken, &[], two());
    assert!(found.results.is_empty());
}
