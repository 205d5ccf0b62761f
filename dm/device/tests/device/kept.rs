//! A device that dies at any step, and its successors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use gen8::{Engine, irq, ring};
use guest_memory::{GuestMemory, MemoryError, VecMemory};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vgpu_device::kept::{self, Answer, Doer, First};
use vgpu_device::{
    Bar, BarSink, Clock, Config, Device, DeviceV1, Full, GgttTable, GpuPort, InterruptSink, Kept,
    Seams,
};
use vgpu_ring::layout::KEPT_WORDS;
use vgpu_ring::{Event, FaultReason, Request};

use crate::rig::{MAPPED, Rig, Table, context, status_page};

/// Kills who takes one step too many.
#[derive(Default)]
struct Fuse {
    left: AtomicU64,
    steps: AtomicU64,
}

/// What a killed device unwinds with.
struct Killed;

impl Fuse {
    fn step(&self) {
        self.steps.fetch_add(1, SeqCst);
        let left = self.left.load(SeqCst);
        if left == 0 {
            resume_unwind(Box::new(Killed));
        }
        self.left.store(left - 1, SeqCst);
    }
}

/// What is there whoever dies: kept words, the guest's memory, the ring.
struct Lasting {
    fuse: Fuse,
    words: Vec<AtomicU64>,
    memory: VecMemory,
    /// Messages in slots, and how many vgpud sees.
    slots: Mutex<(Vec<Request>, usize)>,
    full: Mutex<bool>,
    msis: AtomicU64,
    intx: Mutex<bool>,
    windows: Mutex<Vec<(Bar, u64, u64)>>,
    now: AtomicU64,
}

impl Kept for Lasting {
    fn load(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |w| w.load(SeqCst))
    }

    fn store(&self, index: usize, value: u64) {
        self.fuse.step();
        if let Some(word) = self.words.get(index) {
            word.store(value, SeqCst);
        }
    }
}

impl GuestMemory for Lasting {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.fuse.step();
        self.memory.write(gpa, data)
    }

    fn invalidate(&self) {}
}

impl GpuPort for Lasting {
    fn send(&self, _request: Request) -> Result<(), Full> {
        panic!("a request that is not counted");
    }

    fn hand_over(&self, request: Request, count: u64) -> Result<(), Full> {
        if *self.full.lock().unwrap() {
            return Err(Full);
        }
        self.fuse.step();
        let mut slots = self.slots.lock().unwrap();
        let (messages, sent) = &mut *slots;
        messages.truncate(*sent);
        messages.push(request);
        let in_ring = *sent as u64 + 1;
        drop(slots);
        kept::note_handed(self, in_ring, count);
        self.fuse.step();
        self.slots.lock().unwrap().1 += 1;
        Ok(())
    }
}

impl InterruptSink for Lasting {
    fn msi(&self, _address: u64, _data: u32) {
        self.fuse.step();
        self.msis.fetch_add(1, SeqCst);
    }

    fn intx(&self, level: bool) {
        self.fuse.step();
        *self.intx.lock().unwrap() = level;
    }
}

impl Clock for Lasting {
    fn now_ns(&self) -> u64 {
        self.now.load(SeqCst)
    }

    fn alarm(&self, _at_ns: u64) {}
}

impl BarSink for Lasting {
    fn map(&self, bar: Bar, base: u64, len: u64) {
        self.fuse.step();
        let mut windows = self.windows.lock().unwrap();
        windows.retain(|w| *w != (bar, base, len));
        windows.push((bar, base, len));
    }

    fn unmap(&self, bar: Bar, base: u64, len: u64) {
        self.fuse.step();
        let mut windows = self.windows.lock().unwrap();
        windows.retain(|w| *w != (bar, base, len));
    }
}

/// A device, and what it leaves behind.
struct Mortal {
    lasting: Arc<Lasting>,
    seams: Seams,
    device: Device,
    /// Events taken, by the ring's index.
    taken: u64,
    deaths: u64,
}

impl Mortal {
    fn new(table: &Arc<Table>) -> Self {
        let (memory, _) = (VecMemory::new(crate::rig::PAGES), ());
        let lasting = Arc::new(Lasting {
            fuse: Fuse::default(),
            words: (0..KEPT_WORDS).map(|_| AtomicU64::new(0)).collect(),
            memory,
            slots: Mutex::default(),
            full: Mutex::new(false),
            msis: AtomicU64::new(0),
            intx: Mutex::new(false),
            windows: Mutex::default(),
            now: AtomicU64::new(1_000_000),
        });
        let seams = Seams {
            memory: lasting.clone(),
            ggtt: table.clone(),
            port: lasting.clone(),
            interrupts: lasting.clone(),
            clock: lasting.clone(),
            bars: lasting.clone(),
            kept: lasting.clone(),
        };
        lasting.fuse.left.store(u64::MAX, SeqCst);
        let device = Device::new(&Config::default(), seams.clone()).unwrap();
        Self {
            lasting,
            seams,
            device,
            taken: 0,
            deaths: 0,
        }
    }

    /// Runs until it is through or dies.
    fn attempt<T>(&self, life: u64, act: impl FnOnce(&Device) -> T) -> Option<T> {
        self.lasting.fuse.left.store(life, SeqCst);
        let result = catch_unwind(AssertUnwindSafe(|| act(&self.device)));
        self.lasting.fuse.left.store(u64::MAX, SeqCst);
        match result {
            Ok(value) => Some(value),
            Err(e) if e.is::<Killed>() => None,
            Err(e) => resume_unwind(e),
        }
    }

    /// Replaces it, as often as successors die on the way; says what it was
    /// at.
    fn replace(&mut self, lives: &mut impl FnMut() -> u64) -> First {
        loop {
            self.deaths += 1;
            let lasting = Arc::clone(&self.lasting);
            let seams = self.seams.clone();
            let life = if self.deaths.is_multiple_of(4) {
                lives().saturating_mul(4)
            } else {
                u64::MAX
            };
            lasting.fuse.left.store(life, SeqCst);
            let result = catch_unwind(AssertUnwindSafe(|| {
                let doing = kept::doing(&*lasting).unwrap();
                let noted = usize::try_from(doing.in_ring).unwrap();
                let mut slots = lasting.slots.lock().unwrap();
                assert!(noted <= slots.1 + 1);
                slots.1 = noted.max(slots.1);
                drop(slots);
                (Device::recover(&Config::default(), seams).unwrap(), doing)
            }));
            lasting.fuse.left.store(u64::MAX, SeqCst);
            match result {
                Ok((device, doing)) => {
                    self.device = device;
                    self.taken = self.taken.max(doing.events_taken);
                    return doing.first;
                }
                Err(e) if e.is::<Killed>() => {}
                Err(e) => resume_unwind(e),
            }
        }
    }

    /// One request of vCPU 3, and its answer.
    fn request(&mut self, act: &Act, lives: &mut impl FnMut() -> u64) -> Option<u64> {
        const VCPU: u32 = 3;
        self.lasting.fuse.left.store(u64::MAX, SeqCst);
        kept::take_in_hand(&*self.lasting, VCPU);
        loop {
            let attempt = self.attempt(lives(), |device| act.perform(device, Doer::Vcpu(VCPU)));
            if let Some(answer) = attempt {
                let kept = kept::answer(&*self.lasting, VCPU);
                assert!(kept.is_none_or(|kept| kept == answer));
                return answer.data;
            }
            let first = self.replace(lives);
            if let Some(answer) = kept::answer(&*self.lasting, VCPU) {
                assert_eq!(first, First::Nothing);
                return answer.data;
            }
            assert!(matches!(first, First::Nothing | First::Vcpu(VCPU)));
        }
    }

    fn event(&mut self, event: Event, lives: &mut impl FnMut() -> u64) {
        let next = self.taken + 1;
        while self.taken < next {
            let done = self.attempt(lives(), |device| device.take_event(event, next));
            if done.is_some() {
                self.taken = next;
                return;
            }
            let first = self.replace(lives);
            assert!(matches!(first, First::Nothing | First::Event));
        }
        assert_eq!(self.taken, next);
    }

    fn tick(&mut self, lives: &mut impl FnMut() -> u64) {
        while self.attempt(lives(), Device::tick).is_none() {
            self.replace(lives);
        }
    }

    fn sent(&self) -> Vec<Request> {
        let slots = self.lasting.slots.lock().unwrap();
        slots.0[..slots.1].to_vec()
    }
}

/// What a vCPU does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Read(u32),
    Write(u32, u32),
    /// A run of dwords.
    Fill(u32, u32),
    Config(u8, usize, u64),
}

impl Act {
    fn perform(&self, device: &Device, doer: Doer) -> Answer {
        let mut t = device.begin(doer);
        let data = match *self {
            Self::Read(offset) => Some(t.read(Bar::Registers, offset.into(), 4)),
            Self::Write(offset, value) => {
                t.write(Bar::Registers, offset.into(), 4, value.into());
                None
            }
            Self::Fill(offset, value) => {
                for n in 0..24 {
                    t.write(Bar::Registers, (offset + 4 * n).into(), 4, value.into());
                }
                None
            }
            Self::Config(offset, size, value) => {
                t.config_write(offset, size, value);
                None
            }
        };
        let answer = Answer { data };
        t.finish(Some(answer));
        answer
    }
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Step {
    Act(Act),
    Submit(Engine, [u32; 2]),
    Event(Event),
    Tick(u64),
    /// The submit ring has no room, or has again.
    Full(bool),
}

fn acts() -> impl Strategy<Value = Act> {
    let base = |e: Engine| e.mmio_base();
    let registers = vec![
        irq::GT_IIR0,
        irq::GT_IMR0,
        irq::MASTER,
        base(Engine::Rcs) + ring::MODE,
        base(Engine::Rcs) + ring::IMR,
        base(Engine::Rcs) + ring::CSB_PTR,
        base(Engine::Bcs) + ring::HWS_PGA,
        0x941c,
        // GMBUS, a pipe, PVINFO's notification, a switched register, others.
        0xc_5100,
        0xc_5104,
        0xc_510c,
        0x7_0008,
        0x4_4408,
        0x4_4404,
        0x7_8050,
        0x20c0,
        0x7000,
        0x10_0000,
        0x14_0000,
    ];
    let register = proptest::sample::select(registers);
    let value = prop_oneof![
        Just(0),
        Just(1),
        Just(u32::MAX),
        Just(0xc000_0000),
        Just(0x0001_0001),
        Just(0x0100_0000),
        Just(0x5),
        Just(0x4a00_00a1),
        any::<u32>()
    ];
    prop_oneof![
        2 => register.clone().prop_map(Act::Read),
        4 => (register.clone(), value.clone()).prop_map(|(r, v)| Act::Write(r, v)),
        1 => (register, value).prop_map(|(r, v)| Act::Fill(r, v)),
        1 => proptest::sample::select(vec![
            Act::Config(4, 2, 0),
            Act::Config(4, 2, 6),
            Act::Config(0x10, 4, 0xf200_0000),
            Act::Config(0x18, 8, 0x9_0000_0000),
            Act::Config(0x92, 2, 0),
            Act::Config(0x92, 2, 1),
        ]),
    ]
}

fn engines() -> impl Strategy<Value = Engine> {
    proptest::sample::select(vec![Engine::Rcs, Engine::Bcs])
}

fn steps() -> impl Strategy<Value = Step> {
    let engine = || engines().prop_map(|e| u8::try_from(e.index()).unwrap());
    prop_oneof![
        8 => acts().prop_map(Step::Act),
        6 => (engines(), 1..4_u32, 0..4_u32).prop_map(|(e, a, b)| Step::Submit(e, [a, b])),
        5 => (engine(), 0..2_u8, 0..12_u64).prop_map(|(engine, element, seq)| {
            Step::Event(Event::ContextDone { engine, element, bits: 1, seq })
        }),
        1 => (engine(), 0..12_u64).prop_map(|(engine, seq)| Step::Event(Event::Fault {
            engine,
            element: 0,
            reason: FaultReason::ALL[0],
            ipehr: 7,
            seq,
        })),
        1 => (0..16_u8, 0..4_u64).prop_map(|(engines, epoch)| {
            Step::Event(Event::ResetDone { engines, epoch })
        }),
        1 => (0..40_000_000_u64).prop_map(Step::Tick),
        1 => any::<bool>().prop_map(Step::Full),
    ]
}

fn submission(engine: Engine, contexts: [u32; 2]) -> impl Iterator<Item = Act> {
    let port = engine.mmio_base() + ring::ELSP;
    let [first, second] = contexts.map(|id| if id == 0 { 0 } else { context(id) });
    [second, first].into_iter().flat_map(move |d| {
        let b = d.to_le_bytes();
        let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        let low = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        [Act::Write(port, high), Act::Write(port, low)]
    })
}

/// What i915 does before it submits.
fn beginning() -> Vec<Act> {
    let mut acts = vec![
        Act::Config(0x10, 8, 0xf100_0000),
        Act::Config(0x18, 8, 0x8_0000_0000),
        Act::Config(4, 2, 6),
        Act::Config(0x94, 8, 0xfee0_0000),
        Act::Config(0x92, 2, 1),
        Act::Write(irq::GT_IMR0, 0),
        Act::Write(irq::GT_IER0, u32::MAX),
        Act::Write(irq::MASTER, irq::MASTER_ENABLE),
    ];
    for engine in [Engine::Rcs, Engine::Bcs] {
        let base = engine.mmio_base();
        acts.push(Act::Write(base + ring::HWS_PGA, status_page(engine)));
        acts.push(Act::Write(base + ring::CSB_PTR, 0xffff_0505));
        acts.push(Act::Write(base + ring::IMR, 0));
    }
    acts
}

/// The state but for what is about time that passed in this process.
fn state(device: &Device) -> DeviceV1 {
    device.save()
}

fn check(steps: &[Step], seed: u64) {
    let (_, _, _, table) = Rig::seams();
    for page in 0..MAPPED {
        table.store(page, u64::from(page) << 12 | 1);
    }
    // The one that never dies keeps what it does as well.
    let mut whole = Mortal::new(&table);
    let mut mortal = Mortal::new(&table);
    let mut chance = seed | 1;
    let mut lives = move || {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        // Some live for ever, or nothing long would ever be done.
        match chance % 8 {
            0 => u64::MAX,
            1 => chance / 8 % 100,
            _ => chance / 8 % 16,
        }
    };
    fn both(act: Act, whole: &mut Mortal, mortal: &mut Mortal, lives: &mut impl FnMut() -> u64) {
        let expected = whole.request(&act, &mut || u64::MAX);
        assert_eq!(mortal.request(&act, lives), expected, "{act:?}");
    }
    for act in beginning() {
        both(act, &mut whole, &mut mortal, &mut lives);
    }
    for step in steps {
        match *step {
            Step::Act(act) => {
                both(act, &mut whole, &mut mortal, &mut lives);
            }
            Step::Submit(engine, contexts) => {
                for act in submission(engine, contexts) {
                    both(act, &mut whole, &mut mortal, &mut lives);
                }
            }
            Step::Event(event) => {
                whole.event(event, &mut || u64::MAX);
                mortal.event(event, &mut lives);
            }
            Step::Tick(ns) => {
                for m in [&whole, &mortal] {
                    m.lasting.now.fetch_add(ns, SeqCst);
                }
                whole.tick(&mut || u64::MAX);
                mortal.tick(&mut lives);
            }
            Step::Full(full) => {
                for m in [&whole, &mortal] {
                    *m.lasting.full.lock().unwrap() = full;
                }
            }
        }
        compare(&whole, &mortal);
    }
    for m in [&whole, &mortal] {
        *m.lasting.full.lock().unwrap() = false;
        assert!(m.device.flush());
    }
    compare(&whole, &mortal);
    assert_eq!(whole.sent(), mortal.sent());
    // Nor is anything lost when it dies between two requests.
    mortal.replace(&mut || u64::MAX);
    compare(&whole, &mortal);
    assert_eq!(whole.deaths, 0);
    assert!(mortal.deaths > 1);
}

fn compare(whole: &Mortal, mortal: &Mortal) {
    assert_eq!(state(&whole.device), state(&mortal.device));
    let (a, b) = (&whole.lasting, &mortal.lasting);
    let mut pages = [vec![0; 4096], vec![0; 4096]];
    for engine in [Engine::Rcs, Engine::Bcs] {
        for (page, of) in pages.iter_mut().zip([a, b]) {
            of.memory.read(status_page(engine).into(), page).unwrap();
        }
        assert_eq!(pages[0], pages[1], "status page of {engine:?}");
    }
    assert!(b.msis.load(SeqCst) >= a.msis.load(SeqCst));
    assert_eq!(*a.intx.lock().unwrap(), *b.intx.lock().unwrap());
    let sorted = |of: &Lasting| {
        let mut windows = of.windows.lock().unwrap().clone();
        windows.sort_unstable();
        windows
    };
    assert_eq!(sorted(a), sorted(b));
    // What waits may have gone out sooner or later, never in another order.
    let (a, b) = (whole.sent(), mortal.sent());
    assert!(a.starts_with(&b) || b.starts_with(&a), "{a:?} {b:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Wherever a device dies, its successors do what it would have done.
    #[test]
    fn a_successor_goes_on_from_any_step(
        steps in prop::collection::vec(steps(), 1..60),
        seed in any::<u64>(),
    ) {
        check(&steps, seed);
    }
}

#[test]
fn what_is_kept_is_checked() {
    let (_, _, _, table) = Rig::seams();
    let mortal = Mortal::new(&table);
    let lasting = &mortal.lasting;
    lasting.fuse.left.store(u64::MAX, SeqCst);
    let with = |word: usize, value: u64| {
        let before = lasting.load(word);
        lasting.store(word, value);
        let doing = kept::doing(&**lasting).map(|_| ());
        let result = doing
            .and_then(|()| Device::recover(&Config::default(), mortal.seams.clone()).map(drop));
        lasting.store(word, before);
        result.map_err(|e| e.to_string())
    };
    assert_eq!(with(7, 7), Ok(()));
    let refused = |word, value, part: &str| {
        let e = with(word, value).unwrap_err();
        assert!(e.contains(part), "{e}");
    };
    refused(0, 1, "no device is kept");
    refused(5, 1, "not whole");
    refused(1, 1, "entry 0 of 1");
    refused(1, u64::MAX, "entry 0 of");
    refused(1536 + 1, 7, "usable global address space is 7 MiB");
    refused(1536 + 2, 1025, "1025 requests are kept");
    refused(1536 + 2, 1, "kind of request");
    refused(1536 + 96, 1, "timing of kept pipe 0");
    // One load, whose number is not below the next.
    refused(1536 + 128 + 2, 1 << 24, "numbers");
}

/// Words that a hostile device model may have left: anywhere, where nearly any
/// value will do, and where few values are possible ones.
fn left_words() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let anywhere = (1..8192_usize, any::<u64>());
    let small = (1..2048_usize, 0..4_u64);
    let registers = (40960..KEPT_WORDS, any::<u64>());
    // Entries of the log, whether all is there, MiB, requests, a pipe, loads.
    let checked = prop::sample::select(vec![1_usize, 5, 1537, 1538, 1632, 1666]);
    prop_oneof![
        (
            prop::collection::vec(anywhere, 1..40),
            prop::collection::vec(small, 0..40)
        )
            .prop_map(|(a, b)| [a, b].concat()),
        prop::collection::vec(registers, 1..12),
        prop::collection::vec((checked, any::<u64>()), 1..4),
    ]
}

/// Whatever a hostile device model left, its successor refuses, and has done
/// nothing then, or takes, and works.
#[test]
fn whatever_is_kept_harms_nobody() {
    let (taken, refused) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig {
        cases: 96,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    let left = (left_words(), prop::collection::vec(acts(), 1..20));
    let result = TestRunner::new(config).run(&left, |(words, acts)| {
        let (_, _, _, table) = Rig::seams();
        let mortal = Mortal::new(&table);
        mortal.lasting.fuse.left.store(u64::MAX, SeqCst);
        for (word, value) in words {
            mortal.lasting.store(word, value);
        }
        let recover = || {
            kept::doing(&*mortal.lasting)
                .and_then(|_| Device::recover(&Config::default(), mortal.seams.clone()))
        };
        let Ok(device) = recover() else {
            refused.set(refused.get() + 1);
            prop_assert_eq!(mortal.lasting.windows.lock().unwrap().len(), 0);
            prop_assert_eq!(mortal.lasting.msis.load(SeqCst), 0);
            return Ok(());
        };
        taken.set(taken.get() + 1);
        for act in acts {
            act.perform(&device, Doer::Vcpu(0));
        }
        device.tick();
        prop_assert!(device.flush());
        // The next one may find more of it: pages of registers that were not said
        // to be there, and now are.
        drop(recover());
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    // Either would show nothing if it never came.
    let (taken, refused) = (taken.get(), refused.get());
    assert!(
        taken > 8 && refused > 8,
        "{taken} were taken, {refused} refused"
    );
}
