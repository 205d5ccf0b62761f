//! The ring under every interleaving loom can think of. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p vgpu-ring --release --test loom`.
#![cfg(loom)]

use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use vgpu_ring::layout::{RingPlace, index};
use vgpu_ring::{
    Consumer, Doorbell, Pipe, PipeLimits, PipePlace, Producer, PushError, Request, SLOT_QWORDS,
    Wake, Words,
};

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

trait NewBell: Doorbell + Clone + 'static {
    fn new() -> Self;
}

impl NewBell for LoomBell {
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

/// An event channel, as its node has it: an event is queued once and masks the
/// port, events while masked are remembered as one, and a wait that ended
/// unmasks before anybody looks at what the event was about.
#[derive(Clone)]
struct LoomChannel(Arc<(Mutex<Port>, Condvar)>);

#[derive(Default)]
struct Port {
    queued: bool,
    masked: bool,
    pending: bool,
}

impl Port {
    fn deliver(&mut self) {
        if self.masked {
            self.pending = true;
        } else {
            self.masked = true;
            self.queued = true;
        }
    }

    fn unmask(&mut self) {
        self.masked = false;
        if std::mem::take(&mut self.pending) {
            self.deliver();
        }
    }
}

impl NewBell for LoomChannel {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(Port::default()), Condvar::new())))
    }
}

impl Doorbell for LoomChannel {
    fn ring(&self) {
        self.0.0.lock().unwrap().deliver();
        self.0.1.notify_one();
    }
    fn wait(&self, _: Option<Duration>) -> bool {
        let mut port = self.0.0.lock().unwrap();
        while !port.queued {
            port = self.0.1.wait(port).unwrap();
        }
        port.queued = false;
        // Two system calls: anything may come between.
        drop(port);
        self.0.0.lock().unwrap().unmask();
        true
    }
    fn clear(&self) {
        let mut port = self.0.0.lock().unwrap();
        if std::mem::take(&mut port.queued) {
            drop(port);
            self.0.0.lock().unwrap().unmask();
        }
    }
}

type Ends<B> = (
    Producer<Request, LoomWords, B>,
    Consumer<Request, LoomWords, B>,
);

fn ends<B: NewBell>() -> Ends<B> {
    let words = LoomWords::new();
    let bell = B::new();
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
    order_is_kept::<LoomBell>(None);
}

#[test]
fn no_wake_up_is_lost_over_an_event_channel() {
    order_is_kept::<LoomChannel>(Some(3));
}

fn order_is_kept<B: NewBell>(preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(|| {
        let (mut producer, mut consumer) = ends::<B>();
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
        let (mut producer, mut consumer) = ends::<LoomBell>();
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

/// Both directions of a pipe, of two words each; the second is never used.
const PIPE: (PipePlace, PipePlace) = (
    PipePlace {
        produced: index::PRODUCER,
        consumed: index::CONSUMER,
        first: 3,
        capacity: 2,
    },
    PipePlace {
        produced: 7,
        consumed: 8,
        first: 9,
        capacity: 2,
    },
);

#[test]
fn a_message_longer_than_its_pipe_gets_through() {
    pipe::<LoomBell>();
}

#[test]
fn a_message_longer_than_its_pipe_gets_through_over_event_channels() {
    pipe::<LoomChannel>();
}

fn pipe<B: NewBell>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let words = LoomWords::new();
        let (a, b) = (B::new(), B::new());
        let bells = (b.clone(), a.clone());
        let mut near = Pipe::new(words.clone(), PIPE, (a, b), || false);
        let mut far = Pipe::new(words, (PIPE.1, PIPE.0), bells, || false);
        let sender = thread::spawn(move || {
            near.send(b"two words and a bit", &[], None).unwrap();
        });
        let most = PipeLimits {
            text: 100,
            attached: 0,
        };
        let message = far.recv(most, None).unwrap();
        assert_eq!(message.text, b"two words and a bit");
        sender.join().unwrap();
    });
}
