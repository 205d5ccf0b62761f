//! Messages through a pipe, in memory of one process and over grants.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fake_xen::FakeXen;
use grant_area::{GrantedControl, MappedControl};
use proptest::prelude::*;
use vgpu_ring::{
    AreaWords, Doorbell, EventBell, PIPE_AREA_WORDS, PIPE_WORDS, Pipe, PipeError, PipeLimits,
    PipeMessage, PipePlace, RingError, WordMemory, Words,
};
use xen_glue::DomId;

const MOST: PipeLimits = PipeLimits {
    text: 1000,
    attached: 1 << 20,
};

const NOW: Option<Duration> = Some(Duration::ZERO);

const DEVICE: (PipePlace, PipePlace) = (PipePlace::TO_DAEMON, PipePlace::TO_DEVICE);
const DAEMON: (PipePlace, PipePlace) = (PipePlace::TO_DEVICE, PipePlace::TO_DAEMON);

type End = Pipe<AreaWords, EventBell>;

struct Memory(Vec<AtomicU64>);

impl WordMemory for Memory {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn memory() -> AreaWords {
    let words = (0..PIPE_AREA_WORDS).map(|_| AtomicU64::new(0));
    AreaWords::of(Arc::new(Memory(words.collect())))
}

/// A device model's end in memory of this process, vgpud's, and whether the
/// device model is gone.
struct Local {
    device: End,
    daemon: End,
    words: AreaWords,
    gone: Arc<AtomicBool>,
}

fn local() -> Local {
    let words = memory();
    let (a, b) = (EventBell::new().unwrap(), EventBell::new().unwrap());
    let (c, d) = (a.try_clone().unwrap(), b.try_clone().unwrap());
    let gone = Arc::new(AtomicBool::new(false));
    let left = Arc::clone(&gone);
    Local {
        device: Pipe::new(words.clone(), DEVICE, (a, b), || false),
        daemon: Pipe::new(words.clone(), DAEMON, (d, c), move || {
            left.load(Ordering::SeqCst)
        }),
        words,
        gone,
    }
}

fn granted() -> (End, End) {
    let (dom0, stub) = (DomId(0), DomId(5));
    let xen = FakeXen::new();
    let device = GrantedControl::create(&xen.seen_from(stub), dom0).unwrap();
    let daemon = MappedControl::open(&xen, stub, &device.offer()).unwrap();
    (device.end().unwrap(), daemon.end().unwrap())
}

fn message(text: usize, attached: usize) -> PipeMessage {
    let bytes = |count: usize, by: usize| (0..count).map(|n| (n * by).to_le_bytes()[0]).collect();
    PipeMessage {
        text: bytes(text, 7),
        attached: bytes(attached, 13),
    }
}

/// Answers `count` messages with themselves.
fn echo(mut end: End, count: usize) {
    for _ in 0..count {
        let m = end.recv(MOST, None).unwrap();
        end.send(&m.text, &m.attached, None).unwrap();
    }
}

fn there_and_back(device: End, mut daemon: End, sizes: &[(usize, usize)]) {
    let count = sizes.len();
    let device = thread::spawn(move || echo(device, count));
    for &(text, attached) in sizes {
        let sent = message(text, attached);
        daemon.send(&sent.text, &sent.attached, None).unwrap();
        assert_eq!(daemon.recv(MOST, None).unwrap(), sent);
    }
    device.join().unwrap();
}

#[test]
fn messages_of_any_length_cross() {
    // Longer than the pipe, and to its end.
    let sizes = [(0, 0), (1, 0), (0, 1), (1000, 1 << 20), (8, PIPE_WORDS * 8)];
    let Local { device, daemon, .. } = local();
    there_and_back(device, daemon, &sizes);
    let (device, daemon) = granted();
    there_and_back(device, daemon, &sizes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn messages_keep_their_borders(
        sizes in prop::collection::vec((0..1000_usize, 0..40_000_usize), 1..20),
        over_grants in any::<bool>(),
    ) {
        let (device, daemon) = if over_grants {
            granted()
        } else {
            let Local { device, daemon, .. } = local();
            (device, daemon)
        };
        there_and_back(device, daemon, &sizes);
    }
}

#[test]
fn what_is_too_long_is_refused_before_it_comes() {
    let Local {
        mut device,
        mut daemon,
        ..
    } = local();
    device.send(&[1; 1001], &[], NOW).unwrap();
    let too_long = PipeError::TooLong {
        len: 1001,
        most: 1000,
    };
    assert_eq!(daemon.recv(MOST, None), Err(too_long));
    assert_eq!(daemon.recv(MOST, None), Err(too_long));
    let more = PipeLimits {
        text: 1001,
        attached: 0,
    };
    assert_eq!(daemon.recv(more, None).unwrap().text, [1; 1001]);
}

#[test]
fn a_message_that_comes_slowly_is_kept() {
    let Local {
        mut device,
        mut daemon,
        words,
        ..
    } = local();
    assert_eq!(daemon.recv(MOST, NOW), Err(PipeError::TimedOut));
    device.send(b"twelve bytes", &[], NOW).unwrap();
    let produced = PipePlace::TO_DAEMON.produced;
    for words_there in 0..3 {
        words.store(produced, words_there, Ordering::SeqCst);
        assert_eq!(daemon.recv(MOST, NOW), Err(PipeError::TimedOut));
    }
    words.store(produced, 3, Ordering::SeqCst);
    assert_eq!(daemon.recv(MOST, NOW).unwrap().text, b"twelve bytes");
}

#[test]
fn a_message_sent_in_part_is_the_last() {
    let Local {
        mut device,
        mut daemon,
        ..
    } = local();
    let long = vec![0; PIPE_WORDS * 8];
    assert_eq!(daemon.send(&long, &[], NOW), Err(PipeError::TimedOut));
    assert_eq!(daemon.send(b"next", &[], None), Err(PipeError::Torn));
    // The other way is another matter.
    device.send(b"back", &[], NOW).unwrap();
    assert_eq!(daemon.recv(MOST, NOW).unwrap().text, b"back");
    // One that was not begun is none.
    let mut text = vec![0; (PIPE_WORDS - 1) * 8];
    device.send(&text, &[], NOW).unwrap();
    assert_eq!(device.send(b"next", &[], NOW), Err(PipeError::TimedOut));
    let most = PipeLimits {
        text: text.len(),
        attached: 0,
    };
    assert_eq!(daemon.recv(most, NOW).unwrap().text, text);
    text.truncate(8);
    device.send(&text, &[], NOW).unwrap();
    assert_eq!(daemon.recv(MOST, NOW).unwrap().text, text);
}

#[test]
fn last_words_are_heard() {
    let Local {
        mut device,
        mut daemon,
        gone,
        ..
    } = local();
    device.send(b"I cannot", &[], NOW).unwrap();
    gone.store(true, Ordering::SeqCst);
    assert_eq!(daemon.recv(MOST, None).unwrap().text, b"I cannot");
    assert_eq!(daemon.recv(MOST, None), Err(PipeError::Closed));
    let long = vec![0; PIPE_WORDS * 8];
    assert_eq!(daemon.send(&long, &[], None), Err(PipeError::Closed));
}

#[test]
fn impossible_indices_break_the_pipe() {
    let capacity = u64::try_from(PIPE_WORDS).unwrap();
    let broken = |which, theirs| {
        Err(PipeError::Broken(RingError::Index {
            which,
            theirs,
            ours: 0,
            capacity,
        }))
    };
    let Local {
        mut daemon, words, ..
    } = local();
    for theirs in [capacity + 1, u64::MAX, 1 << 63] {
        words.store(PipePlace::TO_DAEMON.produced, theirs, Ordering::SeqCst);
        let result = daemon.recv(MOST, None).map(drop);
        assert_eq!(result, broken("producer", theirs));
    }
    for theirs in [1, capacity, u64::MAX - capacity, 1 << 63] {
        words.store(PipePlace::TO_DEVICE.consumed, theirs, Ordering::SeqCst);
        let result = daemon.send(b"x", &[], None);
        assert_eq!(result, broken("consumer", theirs));
    }
}

/// A bell that somebody rings without end.
struct Storm;

impl Doorbell for Storm {
    fn ring(&self) {}
    fn wait(&self, _: Option<Duration>) -> bool {
        true
    }
    fn clear(&self) {}
}

#[test]
fn a_peer_that_rings_without_end_gains_no_time() {
    let mut pipe = Pipe::new(memory(), DAEMON, (Storm, Storm), || false);
    let limit = Some(Duration::from_millis(5));
    assert_eq!(pipe.recv(MOST, limit), Err(PipeError::TimedOut));
    let long = vec![0; PIPE_WORDS * 8];
    assert_eq!(pipe.send(&long, &[], limit), Err(PipeError::TimedOut));
}
