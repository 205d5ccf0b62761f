//! Both ends of a shared area over both transports, and areas that are not
//! what they should be.
#![cfg(not(loom))]

mod transports;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use transports::{BOTH, Pair};
use vgpu_ring::layout::{KEPT_WORDS, PAGE_WORDS, header, index};
use vgpu_ring::{
    AreaConfig, AreaError, Bells, Doorbell, Event, PushError, Request, RingError, SharedArea, Wake,
    Words,
};

const SMALL: AreaConfig = AreaConfig {
    submit_slots: 4,
    complete_slots: 4,
};

/// A pair over each transport.
fn pairs() -> impl Iterator<Item = Pair> {
    BOTH.into_iter().map(|transport| transport.pair(SMALL))
}

/// Stores a word, as a hostile peer does.
fn store(p: &Pair, word: usize, value: u64) {
    p.area.words().store(word, value, Ordering::SeqCst);
}

fn poke(file: &File, word: usize, value: u64) {
    let at = u64::try_from(word * 8).unwrap();
    file.write_all_at(&value.to_ne_bytes(), at).unwrap();
}

#[test]
fn requests_and_events_cross() {
    for mut p in pairs() {
        let request = Request::Ping { token: 7 };
        p.device.requests.push(request).unwrap();
        assert_eq!(p.daemon.requests.pop(), Ok(Some(request)));
        assert_eq!(p.daemon.requests.pop(), Ok(None));
        let event = Event::Pong { token: 7 };
        p.daemon.events.push(event).unwrap();
        assert_eq!(p.device.events.wait(None), Ok(Wake::Message));
        assert_eq!(p.device.events.pop(), Ok(Some(event)));
    }
}

#[test]
fn the_count_of_table_changes_crosses_and_is_no_index() {
    for mut p in pairs() {
        assert_eq!(p.daemon.changes.load(), 0);
        p.device.changes.store(u64::MAX);
        assert_eq!(p.daemon.changes.load(), u64::MAX);
        for token in 0..10 {
            p.device.requests.push(Request::Ping { token }).unwrap();
            assert_eq!(p.daemon.requests.pop(), Ok(Some(Request::Ping { token })));
        }
        assert_eq!(p.daemon.changes.load(), u64::MAX);
    }
}

#[test]
fn page_table_entries_cross_and_stop_at_the_end() {
    for p in pairs() {
        p.device.ggtt.store(0, 1);
        p.device.ggtt.store((1 << 20) - 1, 2);
        p.device.ggtt.store(1 << 20, 3);
        p.device.ggtt.store(u32::MAX, 4);
        assert_eq!(p.daemon.ggtt.load(0), 1);
        assert_eq!(p.daemon.ggtt.load((1 << 20) - 1), 2);
        assert_eq!(p.daemon.ggtt.load(1 << 20), 0);
        assert_eq!(p.daemon.ggtt.load(u32::MAX), 0);
    }
}

#[test]
fn a_full_ring_says_so_and_recovers() {
    for mut p in pairs() {
        for token in 0..4 {
            p.device.requests.push(Request::Ping { token }).unwrap();
        }
        let more = Request::Ping { token: 4 };
        assert_eq!(p.device.requests.push(more), Err(PushError::Full));
        assert_eq!(
            p.daemon.requests.pop(),
            Ok(Some(Request::Ping { token: 0 }))
        );
        p.device.requests.push(more).unwrap();
        for token in 1..5 {
            assert_eq!(p.daemon.requests.pop(), Ok(Some(Request::Ping { token })));
        }
    }
}

#[test]
fn a_wait_ends_without_a_message() {
    for mut p in pairs() {
        let wait = p.daemon.requests.wait(Some(Duration::ZERO));
        assert_eq!(wait, Ok(Wake::TimedOut));
        // What another thread of the daemon does to stop this one.
        p.daemon.requests.doorbell().ring();
        assert_eq!(p.daemon.requests.wait(None), Ok(Wake::Rung));
    }
}

#[test]
fn an_impossible_producer_index_breaks_the_ring() {
    for theirs in [5, u64::MAX, 1 << 63] {
        for mut p in pairs() {
            store(&p, PAGE_WORDS + index::PRODUCER, theirs);
            let error = RingError::Index {
                which: "producer",
                theirs,
                ours: 0,
                capacity: 4,
            };
            assert_eq!(p.daemon.requests.pop(), Err(error));
            assert_eq!(p.daemon.requests.wait(None), Err(error));
        }
    }
}

#[test]
fn an_impossible_consumer_index_breaks_the_ring() {
    // The complete ring's indices follow the submit ring's one page of slots.
    let consumer = 3 * PAGE_WORDS + index::CONSUMER;
    for theirs in [5, u64::MAX] {
        for mut p in pairs() {
            for token in 0..4 {
                p.daemon.events.push(Event::Pong { token }).unwrap();
            }
            store(&p, consumer, theirs);
            let pushed = p.daemon.events.push(Event::Pong { token: 4 });
            let Err(PushError::Broken(RingError::Index { which, .. })) = pushed else {
                panic!("{pushed:?}");
            };
            assert_eq!(which, "consumer");
        }
    }
}

#[test]
fn slots_of_garbage_are_errors() {
    for mut p in pairs() {
        store(&p, 2 * PAGE_WORDS, 0xff);
        store(&p, PAGE_WORDS + index::PRODUCER, 1);
        let error = p.daemon.requests.pop().unwrap_err();
        assert_eq!(
            error.to_string(),
            "ring message: kind of request is 0xff, allowed: 1 to 13"
        );
    }
}

#[test]
fn the_size_cannot_change() {
    let area = SharedArea::create(SMALL).unwrap();
    let file = File::from(area.share().unwrap());
    let size = file.metadata().unwrap().len();
    assert!(file.set_len(size - 4096).is_err());
    assert!(file.set_len(size + 4096).is_err());
}

#[test]
fn a_bad_header_is_named() {
    for (word, field) in [
        (header::MAGIC, "magic"),
        (header::VERSION, "version"),
        (header::BYTES, "size in the header"),
        (header::SUBMIT_SLOTS, "slots of the submit ring"),
        (header::COMPLETE_SLOTS, "slots of the complete ring"),
        (header::GGTT_ENTRIES, "entries of the page table"),
    ] {
        let area = SharedArea::create(SMALL).unwrap();
        poke(&File::from(area.share().unwrap()), word, 77);
        let error = SharedArea::open(area.share().unwrap()).err().unwrap();
        let AreaError::Field {
            field: named,
            value,
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((named, value), (field, 77));
    }
    // Plausible numbers of slots, but not those the file has room for.
    let area = SharedArea::create(SMALL).unwrap();
    poke(
        &File::from(area.share().unwrap()),
        header::SUBMIT_SLOTS,
        1024,
    );
    assert!(matches!(
        SharedArea::open(area.share().unwrap()),
        Err(AreaError::Field { .. })
    ));
}

#[test]
fn other_descriptors_are_refused() {
    let event: OwnedFd = Bells::new().unwrap().submit.into();
    assert!(matches!(SharedArea::open(event), Err(AreaError::NotSealed)));
    let plain = OwnedFd::from(File::open("/dev/zero").unwrap());
    assert!(matches!(SharedArea::open(plain), Err(AreaError::NotSealed)));
}

#[test]
fn a_bad_number_of_slots_is_named() {
    let error = SharedArea::create(AreaConfig {
        submit_slots: 4,
        complete_slots: 3,
    })
    .err()
    .unwrap();
    assert_eq!(
        error.to_string(),
        "shared area: slots of the complete ring is 0x3, \
         allowed: powers of two from 0x2 to 0x10000"
    );
}

#[test]
fn what_is_kept_stays_and_ends_at_its_end() {
    for p in pairs() {
        for word in [0, KEPT_WORDS - 1] {
            assert_eq!(p.device.kept.load(word), 0);
            p.device.kept.store(word, 7);
            assert_eq!(p.daemon.kept.load(word), 7);
        }
        p.device.kept.store(KEPT_WORDS, 1);
        assert_eq!(p.device.kept.load(KEPT_WORDS), 0);
        assert_eq!(p.device.ggtt.load(0), 0);
    }
}

#[test]
fn successors_go_on_where_the_dead_were() {
    let area = SharedArea::create(SMALL).unwrap();
    let bells = Bells::new().unwrap();
    let mut daemon = area.daemon_end(bells.try_clone().unwrap());
    let mut device = area.device_end(bells.try_clone().unwrap());
    let ping = |token| Request::Ping { token };
    let pong = |token| Event::Pong { token };
    for token in 0..7 {
        device.requests.push(ping(token)).unwrap();
        assert_eq!(daemon.requests.pop(), Ok(Some(ping(token))));
        daemon.events.push(pong(token)).unwrap();
        assert_eq!(device.events.pop(), Ok(Some(pong(token))));
    }
    device.requests.push(ping(7)).unwrap();
    daemon.events.push(pong(7)).unwrap();
    daemon.events.push(pong(8)).unwrap();
    assert_eq!(device.events.peek(), Ok(Some(pong(7))));
    assert_eq!(device.events.wait(None), Ok(Wake::Message));

    let mut device = area.resumed_device_end(bells.try_clone().unwrap());
    assert_eq!(device.events.taken(), 7);
    assert_eq!(device.events.peek(), Ok(Some(pong(7))));
    device.events.take();
    assert_eq!(device.events.pop(), Ok(Some(pong(8))));
    assert_eq!(device.requests.sent(), 8);
    device.requests.push(ping(8)).unwrap();

    let mut daemon = area.resumed_daemon_end(bells);
    assert_eq!(daemon.requests.pop(), Ok(Some(ping(7))));
    assert_eq!(daemon.requests.pop(), Ok(Some(ping(8))));
    daemon.events.push(pong(9)).unwrap();
    assert_eq!(device.events.pop(), Ok(Some(pong(9))));
}

#[test]
fn a_successor_sends_and_takes_what_the_dead_had_decided() {
    let area = SharedArea::create(SMALL).unwrap();
    let bells = Bells::new().unwrap();
    let mut daemon = area.daemon_end(bells.try_clone().unwrap());
    let mut device = area.device_end(bells.try_clone().unwrap());
    let mut noted = 0;
    let ping = Request::Ping { token: 1 };
    device.requests.push_noting(ping, |n| noted = n).unwrap();
    assert_eq!(noted, 1);
    // As if it had died between the note and the index.
    let producer = PAGE_WORDS + index::PRODUCER;
    let file = File::from(area.share().unwrap());
    poke(&file, producer, 0);
    daemon.events.push(Event::Pong { token: 1 }).unwrap();
    let mut device = area.resumed_device_end(bells);
    assert_eq!(daemon.requests.pop(), Ok(None));
    for impossible in [0, 6, u64::MAX] {
        device.requests.send_up_to(impossible);
        device.events.take_up_to(impossible);
    }
    assert_eq!((device.requests.sent(), device.events.taken()), (0, 0));
    device.requests.send_up_to(1);
    assert_eq!(daemon.requests.pop(), Ok(Some(ping)));
    device.events.take_up_to(1);
    assert_eq!(device.events.pop(), Ok(None));
}
