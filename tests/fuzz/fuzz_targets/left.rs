//! What a process that died left to the next one, changed at will: vgpud's log
//! of what was at the GPU, and the device that a device model keeps.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use libfuzzer_sys::fuzz_target;
use vgpu_device::{Config, Device, Kept, Seams, kept};
use vgpu_ring::layout::KEPT_WORDS;
use vgpu_sched::flights::{FlightLog, KeptWords, LOG_WORDS, Lost};
use vgpu_tests::{Bytes, Surroundings, drive_device};

/// Words that outlive whoever has a handle.
#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl Words {
    fn new(count: usize) -> Self {
        Self(Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    fn put(&self, index: usize, value: u64) {
        if let Some(word) = self.0.get(index) {
            word.store(value, SeqCst);
        }
    }
}

impl KeptWords for Words {
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(SeqCst)
    }

    fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, SeqCst);
    }
}

impl Kept for Words {
    fn load(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |word| word.load(SeqCst))
    }

    fn store(&self, index: usize, value: u64) {
        self.put(index, value);
    }
}

fn one_line(error: &impl std::fmt::Display) {
    let line = error.to_string();
    assert!(line.len() < 1000 && !line.contains('\n'), "{line}");
}

/// The GPU's log. A slot is 1024 words behind 512 others, in use when its
/// first word is 1.
fn flights(b: &mut Bytes<'_>) {
    let words = Words::new(LOG_WORDS);
    drop(FlightLog::open(Box::new(words.clone())).expect("zeroes are a log"));
    for _ in 0..b.u8() % 8 {
        let slot = 512 + usize::from(b.u8() % 48) * 1024;
        words.put(slot, 1);
        for _ in 0..b.u8() % 16 {
            let at = match b.u8() % 4 {
                0 => usize::from(b.u16() % 1024),
                _ => usize::from(b.u8() % 40),
            };
            words.put(slot + at, b.value());
        }
    }
    if b.rarely(8) {
        words.put(usize::from(b.u8()), b.value());
    }
    let log = match FlightLog::open(Box::new(words.clone())) {
        Ok(log) => log,
        Err(error) => return one_line(&error),
    };
    for slot in log.remains() {
        match slot.landing() {
            Ok(landing) => assert!(landing.own.len() <= 768 && landing.head < 1 << 22),
            Err(Lost) => {}
        }
    }
    // They were dropped.
    let next = FlightLog::open(Box::new(words)).expect("a log");
    assert!(next.remains().is_empty());
}

fn recover(words: &Words, world: &Arc<Surroundings>) -> Option<Device> {
    if let Err(error) = kept::doing(words) {
        one_line(&error);
        return None;
    }
    let seams = Seams {
        kept: Arc::new(words.clone()),
        ..world.seams()
    };
    Device::recover(&Config::default(), seams)
        .inspect_err(one_line)
        .ok()
}

/// A device, used; what it keeps, changed; its successor, used; and the
/// successor's.
fn device(b: &mut Bytes<'_>) {
    let words = Words::new(KEPT_WORDS);
    let world = Arc::new(Surroundings::default());
    let seams = Seams {
        kept: Arc::new(words.clone()),
        ..world.seams()
    };
    let device = Device::new(&Config::default(), seams).expect("the default");
    let used: Vec<u8> = (0..b.u8()).map(|_| b.u8()).collect();
    drive_device(&mut Bytes::new(&used), &device, &world);
    drop(device);
    for _ in 0..b.u8() % 32 {
        let at = match b.u8() % 8 {
            0 => usize::from(b.u8() % 64),
            1 => 1024 + usize::from(b.u16() % 512),
            2..5 => 1536 + usize::from(b.u8()),
            5 => 4096 + usize::from(b.u16() % 8192),
            6 => 40960 + usize::from(b.u16()) / 2,
            _ => usize::try_from(b.u32()).unwrap() % KEPT_WORDS,
        };
        words.put(at, b.value());
    }
    let world = Arc::new(Surroundings::default());
    let Some(device) = recover(&words, &world) else {
        return;
    };
    device.tick();
    drive_device(b, &device, &world);
    device.flush();
    drop(device);
    recover(&words, &Arc::new(Surroundings::default()));
}

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let mut bytes = Bytes::new(rest);
    match first % 4 {
        0 => flights(&mut bytes),
        _ => device(&mut bytes),
    }
});
