//! The ring under every interleaving loom can think of. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p vgpu-ring --release --test loom`.
#![cfg(loom)]

use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use vgpu_ring::layout::{RingPlace, index};
use vgpu_ring::{Consumer, Doorbell, Producer, PushError, Request, SLOT_QWORDS, Wake, Words};

const PLACE: RingPlace = RingPlace {
    indices: 0,
    slots: 3,
    capacity: 2,
};

/// Only the words a ring uses: loom tracks each of them.
#[derive(Clone)]
struct LoomWords(Arc<Vec<AtomicU64>>);

impl LoomWords {
    fn new() -> Self {
        let words = PLACE.slots + 2 * SLOT_QWORDS;
        Self(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[match at {
            index::PRODUCER => 0,
            index::CONSUMER => 1,
            index::SLEEPS => 2,
            slot => slot,
        }]
    }
}

impl Words for LoomWords {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// An eventfd: a wait without a ring blocks for ever, which loom reports as a
/// deadlock. That is how it finds a lost wake-up.
#[derive(Clone)]
struct LoomBell(Arc<(Mutex<bool>, Condvar)>);

impl LoomBell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }
}

impl Doorbell for LoomBell {
    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }
    fn wait(&self, _: Option<Duration>) -> bool {
        let mut rung = self.0.0.lock().unwrap();
        while !*rung {
            rung = self.0.1.wait(rung).unwrap();
        }
        *rung = false;
        true
    }
    fn clear(&self) {
        *self.0.0.lock().unwrap() = false;
    }
}

type Ends = (
    Producer<Request, LoomWords, LoomBell>,
    Consumer<Request, LoomWords, LoomBell>,
);

fn ends() -> Ends {
    let words = LoomWords::new();
    let bell = LoomBell::new();
    let producer = Producer::new(words.clone(), bell.clone(), PLACE);
    let consumer = Consumer::new(words, bell, PLACE).with_spin(Duration::ZERO);
    (producer, consumer)
}

/// A message whose every qword but the first depends on `n`.
fn message(n: u64) -> Request {
    Request::Submit {
        engine: 0,
        seq: n,
        desc: [n + 10, n + 20],
    }
}

#[test]
fn no_wake_up_is_lost_and_order_is_kept() {
    loom::model(|| {
        let (mut producer, mut consumer) = ends();
        let sender = thread::spawn(move || {
            for n in 0..2 {
                producer.push(message(n)).unwrap();
            }
        });
        let mut next = 0;
        while next < 2 {
            assert_ne!(consumer.wait(None).unwrap(), Wake::TimedOut);
            while let Some(request) = consumer.pop().unwrap() {
                assert_eq!(request, message(next));
                next += 1;
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_slot_is_not_reused_before_it_was_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = ends();
        let sender = thread::spawn(move || {
            let mut n = 0;
            while n < 3 {
                match producer.push(message(n)) {
                    Ok(()) => n += 1,
                    Err(PushError::Full) => thread::yield_now(),
                    Err(PushError::Broken(e)) => panic!("{e}"),
                }
            }
        });
        let mut next = 0;
        while next < 3 {
            match consumer.pop().unwrap() {
                Some(request) => {
                    assert_eq!(request, message(next));
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
        sender.join().unwrap();
    });
}
