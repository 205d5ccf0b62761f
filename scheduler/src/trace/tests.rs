use std::sync::atomic::AtomicBool;

use super::*;

const ALL: [What; 9] = [
    What::Ready,
    What::Start { slot: 1 },
    What::Switch {
        reads: 3,
        writes: u32::MAX as u64,
        ns: u64::MAX,
    },
    What::Handover { pairs: 7 },
    What::Done { ran_ns: 1 << 40 },
    What::Failed,
    What::Cancelled,
    What::Reset,
    What::Throttled,
];

fn at(n: u64) -> Duration {
    Duration::from_nanos(n)
}

#[test]
fn every_event_comes_out_as_it_went_in() {
    let trace = Trace::new(64);
    let mut expected = Vec::new();
    for engine in Engine::ALL {
        for what in ALL {
            let number = u64::try_from(expected.len()).unwrap();
            trace.record(at(number * 10), engine, number + 1, what);
            expected.push(TraceEvent {
                number,
                at: at(number * 10),
                engine,
                vgpu: number + 1,
                what,
            });
        }
    }
    let batch = trace.read(0, 100);
    assert_eq!(batch.events, expected);
    assert_eq!((batch.next, batch.missed), (36, 0));
    assert_eq!(
        trace.read(36, 100),
        Batch {
            next: 36,
            ..Batch::default()
        }
    );
}

#[test]
fn a_reader_goes_on_where_it_stopped_and_learns_what_it_missed() {
    let trace = Trace::new(8);
    let record = |n| trace.record(at(n), Engine::Bcs, n, What::Ready);
    (0..6).for_each(record);
    let batch = trace.read(0, 4);
    assert_eq!((batch.events.len(), batch.next, batch.missed), (4, 4, 0));
    (6..20).for_each(record);
    let batch = trace.read(batch.next, 100);
    assert_eq!(batch.missed, 8);
    let numbers: Vec<u64> = batch.events.iter().map(|e| e.vgpu).collect();
    assert_eq!(numbers, (12..20).collect::<Vec<_>>());
    // A cursor from a ring that had more events.
    assert_eq!(
        trace.read(1 << 40, 9),
        Batch {
            next: 20,
            ..Batch::default()
        }
    );
    assert_eq!(trace.read(u64::MAX, 9).next, 20);
}

#[test]
fn an_event_that_is_being_written_is_waited_for_and_one_that_never_comes_is_not() {
    let trace = Trace::new(8);
    let record = |n| trace.record(at(n), Engine::Rcs, n, What::Failed);
    record(0);
    // A thread stops in the middle of event 1.
    let number = trace.head.fetch_add(1, Ordering::Relaxed);
    trace
        .slot(number)
        .stamp
        .store(2 * number + 1, Ordering::Relaxed);
    record(2);
    let batch = trace.read(0, 9);
    assert_eq!((batch.events.len(), batch.next, batch.missed), (1, 1, 0));
    (3..6).for_each(record);
    let batch = trace.read(1, 9);
    assert_eq!((batch.events.len(), batch.next, batch.missed), (4, 6, 1));
    // The slot stays that thread's, a ring later too.
    (6..12).for_each(record);
    let batch = trace.read(6, 99);
    assert_eq!(batch.next, 9);
    assert_eq!(trace.slot(1).stamp.load(Ordering::Relaxed), 3);
}

#[test]
fn readers_beside_writers_see_whole_events_only() {
    const EACH: u64 = 20_000;
    let trace = Trace::new(64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = Engine::ALL
            .into_iter()
            .map(|engine| {
                let trace = &trace;
                scope.spawn(move || {
                    for n in 0..EACH {
                        // All words of an event follow from one number.
                        trace.record(at(n), engine, n, What::Done { ran_ns: n });
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let (mut cursor, mut seen, mut missed) = (0, 0, 0);
            loop {
                let last = stop.load(Ordering::Acquire);
                let batch = trace.read(cursor, 16);
                for e in &batch.events {
                    assert_eq!(e.at, at(e.vgpu));
                    assert_eq!(e.what, What::Done { ran_ns: e.vgpu });
                }
                let got = u64::try_from(batch.events.len()).unwrap();
                assert_eq!(batch.next - cursor, got + batch.missed);
                seen += got;
                missed += batch.missed;
                let stuck = batch.next == cursor;
                cursor = batch.next;
                if last && stuck {
                    return (seen, missed);
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Release);
        let (seen, missed) = reader.join().unwrap();
        // A dropped event near the end is waited for until a ring has passed.
        assert!(seen + missed <= 4 * EACH);
        assert!(seen > 0);
    });
}
