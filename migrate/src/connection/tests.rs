use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread;

use guest_memory::{Gfn, GuestMemory, PAGE_SIZE, VecMemory};

use super::*;
use crate::detect::Method;
use crate::precopy::{Candidates, Carrier, Host, Options, Precopy, RealClock, Sender};
use crate::stream::{Known, Section};

const PAGES: u64 = 600;
const KNOWN: [Known; 1] = [Known {
    name: Name::SCHEDULER,
    oldest: 1,
    newest: 1,
}];

/// Whatever was written since it was asked last.
#[derive(Default)]
struct Written(Mutex<Vec<Gfn>>);

impl Candidates for Written {
    fn take(&self, each: &mut dyn FnMut(Gfn)) {
        std::mem::take(&mut *self.0.lock().unwrap())
            .into_iter()
            .for_each(each);
    }
}

fn memory(seed: u64) -> VecMemory {
    let memory = VecMemory::new(usize::try_from(PAGES).unwrap());
    for gfn in (0..PAGES).filter(|gfn| !gfn.is_multiple_of(5)) {
        memory.write_u64(gfn * 4096 + 48, gfn ^ seed).unwrap();
    }
    memory
}

fn bytes(memory: &VecMemory) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(PAGES).unwrap() * PAGE_SIZE];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// Sends all of a guest, in rounds, and gives what `spoil` makes of the bytes
/// to the target.
fn migrate(bandwidth: Option<f64>) -> (VecMemory, VecMemory, Sent, Incoming) {
    let (source, target) = (memory(1 << 40), memory(2 << 40));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let target_thread = thread::spawn(move || {
        let came = receive(&mut theirs, &target, &KNOWN).unwrap();
        confirm(&mut theirs).unwrap();
        (target, came)
    });
    let outgoing = Outgoing::start(ours, bandwidth).unwrap();
    let written = Written::default();
    written.0.lock().unwrap().extend((0..PAGES).map(Gfn));
    let host = Host {
        memory: &source,
        candidates: &written,
        carrier: Carrier::Sends(&outgoing),
        clock: &RealClock::start(),
    };
    let options = Options {
        threads: NonZeroUsize::new(2).unwrap(),
        ..Options::default()
    };
    let detector = Method::Digest.detector(PAGES, 1 << 20).unwrap();
    let mut precopy = Precopy::new(detector, PAGES, options);
    precopy.round(&host).unwrap();
    for gfn in [7, 8, 500] {
        source.write_u64(gfn * 4096 + 8, gfn).unwrap();
        written.0.lock().unwrap().push(Gfn(gfn));
    }
    precopy.round(&host).unwrap();
    source.write_u64(7 * 4096, 5).unwrap();
    written.0.lock().unwrap().extend([Gfn(7), Gfn(9)]);
    precopy.stop(&host).unwrap();
    let state = Section::required(Name::SCHEDULER, 1, b"state");
    outgoing.section(&state).unwrap();
    let sent = outgoing.finish().unwrap();
    let (target, came) = target_thread.join().unwrap();
    (source, target, sent, came)
}

#[test]
fn a_guest_comes_over() {
    for bandwidth in [None, Some(1e9)] {
        let (source, target, sent, came) = migrate(bandwidth);
        assert!(bytes(&source) == bytes(&target));
        assert_eq!((came.pages, came.zero), (sent.pages, sent.zero));
        assert_eq!(came.bytes, sent.bytes);
        assert!((PAGES + 4..PAGES + 6).contains(&came.pages), "{came:?}");
        assert_eq!(came.zero, PAGES / 5);
        assert_eq!(&*came.sections[0].body, b"state");
    }
}

/// Some sections as they are sent.
fn stream() -> Vec<u8> {
    let page = [3; PAGE_SIZE];
    let frame = crate::Frame {
        gfn: Gfn(2),
        page: &page,
    };
    let (body, _) = pages::encode(&[frame]);
    let end: Vec<u8> = [1_u64, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
    let mut bytes = Vec::new();
    Section::required(Name::PAGES, VERSION, &body).write(&mut bytes);
    Section::required(Name::SCHEDULER, 1, b"state").write(&mut bytes);
    Section::required(END, VERSION, &end).write(&mut bytes);
    bytes
}

fn refusal(mut bytes: &[u8]) -> Option<String> {
    let refused = receive(&mut bytes, &VecMemory::new(4), &KNOWN).err();
    refused.map(|error| error.to_string())
}

#[test]
fn what_is_cut_off_or_damaged_is_refused() {
    let bytes = stream();
    assert_eq!(refusal(&bytes), None);
    for cut in 0..bytes.len() {
        assert!(refusal(&bytes[..cut]).is_some(), "{cut}");
    }
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(refusal(&flipped).is_some(), "{at}");
    }
}

#[test]
fn what_does_not_belong_is_refused_by_name() {
    let with = |section: &Section<'_>| {
        let mut bytes = Vec::new();
        section.write(&mut bytes);
        bytes.extend(stream());
        refusal(&bytes)
    };
    let later = Section::required(Name::SCHEDULER, 2, b"later");
    assert!(with(&later).unwrap().contains("scheduler"));
    let later = Section::optional(Name::SCHEDULER, 2, b"later");
    assert_eq!(with(&later), None);
    let again = Section::required(Name::SCHEDULER, 1, b"again");
    assert!(with(&again).unwrap().contains("scheduler"));
    let pages = Section::required(Name::PAGES, 2, b"");
    assert!(with(&pages).unwrap().contains("pages"));

    let page = [3; PAGE_SIZE];
    for gfn in [4, u64::MAX >> 1] {
        let frame = crate::Frame {
            gfn: Gfn(gfn),
            page: &page,
        };
        let (body, _) = pages::encode(&[frame]);
        let outside = Section::required(Name::PAGES, VERSION, &body);
        let said = with(&outside).unwrap();
        assert!(said.contains("is not guest memory"), "{said}");
    }
    let frame = crate::Frame {
        gfn: Gfn(1),
        page: &page,
    };
    let (body, _) = pages::encode(&[frame]);
    let more = Section::required(Name::PAGES, VERSION, &body);
    assert_eq!(
        with(&more).as_deref(),
        Some("2 pages came, 0 of them zero; 1 and 0 were sent")
    );
}

#[test]
fn a_target_that_goes_away_is_an_error() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let outgoing = Outgoing::start(ours, None).unwrap();
    let page = [1; PAGE_SIZE];
    let frame = crate::Frame {
        gfn: Gfn(0),
        page: &page,
    };
    let error = (0..100)
        .find_map(|_| outgoing.send(&[frame]).err())
        .unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(outgoing.send(&[frame]).is_err());
    assert!(outgoing.finish().is_err());
}

#[test]
fn a_target_that_does_not_confirm_is_an_error() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let target = thread::spawn(move || receive(&mut theirs, &VecMemory::new(1), &KNOWN).is_ok());
    let outgoing = Outgoing::start(ours, None).unwrap();
    let error = outgoing.finish().unwrap_err().to_string();
    assert!(error.contains("done"), "{error}");
    assert!(target.join().unwrap());
}
