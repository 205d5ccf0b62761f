use std::sync::atomic::AtomicU64;

use super::*;
use crate::workload::InBatch;

/// Words that a process which died left to the next.
#[derive(Clone)]
struct Shared(Arc<Vec<AtomicU64>>);

impl KeptWords for Shared {
    fn load(&self, index: usize) -> u64 {
        KeptWords::load(&*self.0, index)
    }

    fn store(&self, index: usize, value: u64) {
        KeptWords::store(&*self.0, index, value);
    }
}

fn words() -> Shared {
    Shared(Arc::new(
        (0..LOG_WORDS).map(|_| AtomicU64::new(0)).collect(),
    ))
}

fn flight() -> Flight {
    Flight {
        lrca: 0x5000,
        commands: (512, 0x100),
        ring: (0x3f80, 0x4000),
        resumed: None,
    }
}

const BCS: usize = 1;

/// What the next process finds of the one slot in use.
fn found(words: &Shared) -> Result<Landing, Lost> {
    let next = FlightLog::open(Box::new(words.clone())).unwrap();
    let remains = next.remains();
    assert_eq!(remains.len(), 1);
    let slot = &remains[0];
    assert_eq!((slot.vgpu(), slot.lrca()), (7, 0x5000));
    assert_eq!(slot.engine(), Engine::Bcs);
    let landing = slot.landing();
    // As the process died again.
    std::mem::forget(remains);
    landing
}

#[test]
fn the_next_process_finds_what_was_at_the_gpu() {
    let words = words();
    let log = FlightLog::open(Box::new(words.clone())).unwrap();
    let slot = log.take(Engine::Bcs, 7, &flight()).unwrap();
    slot.name(0x40);
    let landing = found(&words).unwrap();
    assert_eq!(
        (landing.began, landing.head, landing.batch),
        (false, 0x3f80, None)
    );

    log.began(BCS, 0x40 << 32 | 0x9019);
    let place = |head, first| Place {
        head,
        batches: [(first, gen8::ring::BB_STATE_PPGTT), (0, 0)],
    };
    log.did(BCS, &place(512, 0), Some(&[1, 2, 3]), &[]);
    log.did(BCS, &place(512 + 0x90, 0x7001), None, &[]);
    let landing = found(&words).unwrap();
    assert!(landing.began);
    // Around the end of the guest's ring.
    assert_eq!(landing.head, 0x10);
    let batch = InBatch {
        first: 0x7001,
        second: 0,
    };
    assert_eq!(landing.batch, Some(batch));
    assert_eq!(landing.own, [1, 2, 3, 0]);

    log.about(BCS, &[8, 9]);
    assert_eq!(found(&words).unwrap().own, [1, 2, 3, 8, 9]);
    log.did(BCS, &place(512 + 0x90, 0x7011), Some(&[4, 5, 6]), &[]);
    assert_eq!(found(&words).unwrap().own, [4, 5, 6, 0]);

    drop(slot);
    let next = FlightLog::open(Box::new(words)).unwrap();
    assert!(next.remains().is_empty());
}

#[test]
fn whatever_stands_there_is_no_panic_and_privilege_is_never_gone_on_with() {
    let words = words();
    let log = FlightLog::open(Box::new(words.clone())).unwrap();
    let slot = log.take(Engine::Bcs, 7, &flight()).unwrap();
    slot.name(1);
    log.began(BCS, 1 << 32);
    let privileged = Place {
        head: 600,
        batches: [(0x7001, 0), (0, 0)],
    };
    log.did(BCS, &privileged, None, &[]);
    assert_eq!(found(&words), Err(Lost));
    let first = layout::slot(Engine::Bcs, 0);
    for value in [0, 1, 0xff, u64::MAX, 0x7fff_ffff_ffff] {
        for index in 4..1024 {
            words.store(first + index, value);
        }
        if let Ok(landing) = found(&words) {
            assert!(landing.own.len() <= 768);
        }
    }
    drop(slot);
    words.store(1, 9);
    let error = FlightLog::open(Box::new(words)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "flight log: version is 0x9, allowed: 0x1"
    );
}

#[test]
fn slots_run_out_and_come_back() {
    let log = FlightLog::open(Box::new(words())).unwrap();
    let mut taken: Vec<_> = (0..SLOTS)
        .map(|_| log.take(Engine::Rcs, 1, &flight()).unwrap())
        .collect();
    assert!(log.take(Engine::Rcs, 1, &flight()).is_none());
    assert!(log.take(Engine::Vcs, 1, &flight()).is_some());
    taken.pop();
    assert!(log.take(Engine::Rcs, 1, &flight()).is_some());
}
