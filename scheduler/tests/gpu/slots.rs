//! Both slots of the submit port, on a GPU that says what a test tells it to.

use std::collections::VecDeque;
use std::time::Duration;

use gen8::csb::{CONTEXT_COMPLETE, ELEMENT_SWITCH};
use gen8::{Engine, irq, lrc};
use vgpu_config::{Share, VgpuSpec};
use vgpu_ring::{Event, FaultReason};

use crate::driver::{Context, Guest};
use crate::scripted::Stage;

const MS: Duration = Duration::from_millis(1);

/// Two guests; the first one's context runs and the second's follows it.
/// Guests, loads, ids.
fn both(stage: &Stage) -> ([Guest; 2], [u64; 2], [u32; 2]) {
    let (mut first, a) = stage.restored(1);
    let (mut second, b) = stage.restored(2);
    let one = first.submit(&a, None);
    let id = stage.loaded();
    stage.takes_up();
    let two = second.submit(&b, None);
    let list = stage.list();
    assert_eq!(list[0], id);
    ([first, second], [one, two], [id, list[1]])
}

#[test]
fn another_guests_work_follows_without_a_word() {
    let stage = Stage::new();
    let ([mut first, mut second], [one, two], [a, b]) = both(&stage);
    stage.lite_restore(a);
    stage.clock.pass(MS);
    let before = stage.scheduler.inspect().accesses;
    stage.goes_on(a);
    assert_eq!(first.wait(one, 0).len(), 1);
    let view = stage.scheduler.inspect();
    assert_eq!(view.engines[0].owner, Some(2));
    assert_eq!(view.engines[0].running, Some(2));
    // The interrupt's own: master twice and once, identity twice each way.
    assert!(view.accesses.reads - before.reads <= 3);
    assert!(view.accesses.writes - before.writes <= 4);
    stage.clock.pass(2 * MS);
    stage.ends(b);
    assert_eq!(second.wait(two, 0).len(), 1);
    let view = stage.scheduler.inspect();
    let of = |i: usize| view.vgpus[i].engines[0].counters;
    assert_eq!((of(0).switches, of(0).handovers), (1, 0));
    assert_eq!((of(1).switches, of(1).handovers), (0, 1));
    assert!(of(1).switch_reads_saved > 0 && of(1).switch_writes_saved > 0);
    assert_eq!((of(0).busy_ns, of(1).busy_ns), (1_000_000, 2_000_000));
    stage.nothing();
}

#[test]
fn what_ends_while_it_is_loaded_again_is_done_when_the_engine_says_so_again() {
    let stage = Stage::new();
    let ([mut first, mut second], [one, two], [a, b]) = both(&stage);
    // It had ended before the load came.
    stage.ends(a);
    assert_eq!(
        stage.scheduler.inspect().vgpus[0].engines[0]
            .counters
            .completed,
        0
    );
    stage.takes_up();
    stage.goes_on(a);
    first.wait(one, 0);
    stage.ends(b);
    second.wait(two, 0);
}

#[test]
fn a_reset_of_the_second_slot_leaves_the_first_alone() {
    let stage = Stage::new();
    let ([mut first, mut second], [one, _], [a, b]) = both(&stage);
    stage.lite_restore(a);
    std::thread::scope(|scope| {
        scope.spawn(|| second.reset(1));
        assert_eq!(stage.loaded(), a);
        stage.lite_restore(a);
    });
    stage.ends(a);
    assert_eq!(first.wait(one, 0).len(), 1);
    let view = stage.scheduler.inspect();
    assert_eq!(view.engines[0].resets, 0);
    assert_eq!(view.vgpus[1].engines[0].counters.completed, 0);
    // An event that comes late ends nothing.
    stage.ends(b);
    stage.nothing();
}

#[test]
fn a_reset_of_what_has_begun_meanwhile_is_of_that_alone() {
    let stage = Stage::new();
    let ([mut first, mut second], [one, _], [a, b]) = both(&stage);
    stage.lite_restore(a);
    std::thread::scope(|scope| {
        scope.spawn(|| second.reset(1));
        assert_eq!(stage.loaded(), a);
        // Before the engine saw the load the first ended; the second is
        // taken off for it, and it runs through nothing.
        stage.gpu.status(CONTEXT_COMPLETE | ELEMENT_SWITCH, a);
        stage.gpu.status(gen8::csb::PREEMPTED, b);
        stage.ends(a);
    });
    first.wait(one, 0);
    // What it changed of the registers is still there.
    let view = stage.scheduler.inspect();
    assert_eq!(
        (view.engines[0].resets, view.engines[0].owner),
        (0, Some(2))
    );
}

#[test]
fn a_reset_of_the_first_slot_runs_the_second_again() {
    let stage = Stage::new();
    let ([mut first, mut second], [_, two], [a, b]) = both(&stage);
    stage.lite_restore(a);
    first.reset(1);
    let again = stage.loaded();
    assert_ne!(again, b);
    stage.takes_up();
    stage.ends(again);
    assert_eq!(second.wait(two, 0).len(), 1);
    let view = stage.scheduler.inspect();
    assert_eq!(view.engines[0].resets, 1);
    assert_eq!(view.vgpus[0].engines[0].counters.completed, 0);
}

#[test]
fn what_ends_while_the_engine_is_made_to_hold_still_is_not_reset() {
    let stage = Stage::new();
    let ([mut first, mut second], [one, two], [a, b]) = both(&stage);
    stage.lite_restore(a);
    stage
        .gpu
        .hook(move |gpu| gpu.status(CONTEXT_COMPLETE | ELEMENT_SWITCH, a));
    first.reset(1);
    let view = stage.scheduler.inspect();
    assert_eq!(
        (view.engines[0].resets, view.engines[0].running),
        (0, Some(2))
    );
    assert_eq!(view.vgpus[0].engines[0].counters.completed, 1);
    stage.ends(b);
    assert_eq!(second.wait(two, 0).len(), 1);
    let _ = one;
}

#[test]
fn one_that_runs_too_long_takes_nobody_with_it() {
    let stage = Stage::new();
    let ([mut first, mut second], [one, two], [a, _]) = both(&stage);
    stage.lite_restore(a);
    stage.clock.pass(Duration::from_secs(11));
    let event = first.event();
    assert!(
        matches!(event, Event::Fault { reason: FaultReason::TimedOut, seq, .. } if seq == one),
        "{event:?}"
    );
    let again = stage.loaded();
    stage.takes_up();
    // The limit is its own.
    stage.clock.pass(Duration::from_secs(9));
    stage.ends(again);
    assert_eq!(second.wait(two, 0).len(), 1);
}

#[test]
fn an_interrupt_that_may_be_either_ones_reaches_both() {
    let stage = Stage::new();
    let ([mut first, mut second], [one, two], [a, b]) = both(&stage);
    stage.lite_restore(a);
    stage.gpu.status(CONTEXT_COMPLETE | ELEMENT_SWITCH, a);
    stage.gpu.raise(irq::USER | irq::CONTEXT_SWITCH);
    let done = |seq| Event::ContextDone {
        engine: 0,
        element: 0,
        bits: irq::USER,
        seq,
    };
    assert_eq!(first.wait(one, 0), [done(one)]);
    // Not only with its end, which may be long in coming.
    let interrupt = Event::Interrupt {
        engine: 0,
        bits: irq::USER,
    };
    assert_eq!(second.event(), interrupt);
    stage.ends(b);
    assert_eq!(second.wait(two, 0).len(), 1);
}

/// An engine that follows the loads, one workload at a time.
struct Worked<'a> {
    stage: &'a Stage,
    active: VecDeque<u32>,
}

impl Worked<'_> {
    /// Takes up a load if there is one, runs the first one for `time`, ends
    /// it. Its id, unless there is nothing to do.
    fn step(&mut self, time: impl Fn(u32) -> Duration) -> Option<u32> {
        if let Some(list) = self.stage.waiting_list() {
            let running = self.active.front().copied();
            self.active = list.into();
            match running {
                Some(id) => self.stage.lite_restore(id),
                None => self.stage.takes_up(),
            }
        }
        // The second slot is filled when the first has begun.
        if let Some(list) = self.stage.waiting_list() {
            let id = self.active.front().copied()?;
            self.active = list.into();
            self.stage.lite_restore(id);
        }
        let id = self.active.pop_front()?;
        self.stage.clock.pass(time(id));
        if self.active.is_empty() {
            self.stage.ends(id);
        } else {
            self.stage.goes_on(id);
        }
        Some(id)
    }
}

fn share(text: &str) -> Share {
    let spec: VgpuSpec = text.parse().unwrap();
    spec.share
}

fn busy(stage: &Stage) -> Vec<u64> {
    let view = stage.scheduler.inspect();
    let all = view.vgpus.iter();
    all.map(|v| v.engines[0].counters.busy_ns).collect()
}

/// A guest with two contexts that have work at all times.
struct Loaded {
    guest: Guest,
    contexts: Vec<(Context, u64)>,
}

impl Loaded {
    fn new(stage: &Stage, id: u64, shares: &str) -> Self {
        let (mut guest, one) = stage.restored(id);
        guest.handle.set_share(share(shares));
        let mut two = guest.context(Engine::Rcs, 1);
        guest.set_image(&two, lrc::CONTEXT_CONTROL, 9 << 16 | 8);
        guest.emit(&mut two, &[0, 0]);
        let contexts = [one, two].map(|c| (c.clone(), guest.submit(&c, None)));
        Self {
            guest,
            contexts: contexts.into(),
        }
    }

    /// What is through is followed by more.
    fn go_on(&mut self) {
        for done in self.guest.done() {
            for (context, seq) in self.contexts.iter_mut().filter(|(_, s)| *s == done) {
                self.guest.emit(context, &[0, 0]);
                *seq = self.guest.submit(context, None);
            }
        }
    }
}

#[test]
fn time_is_shared_by_weight() {
    const STEPS: u64 = 1200;
    let stage = Stage::new();
    let weights = [100, 300, 200];
    let mut guests: Vec<Loaded> = (1..)
        .zip(weights)
        .map(|(id, w)| Loaded::new(&stage, id, &format!("weight={w}")))
        .collect();
    let mut worked = Worked {
        stage: &stage,
        active: VecDeque::new(),
    };
    for _ in 0..STEPS {
        worked.step(|_| MS / 2).unwrap();
        guests.iter_mut().for_each(Loaded::go_on);
    }
    let busy = busy(&stage);
    for (got, weight) in busy.iter().zip(weights) {
        let want = STEPS * 500_000 * weight / 600;
        assert!(got.abs_diff(want) < want / 50, "{busy:?}");
    }
    // It was idle at the start and never again: nothing was ever switched by
    // register accesses.
    let engine = &stage.scheduler.inspect().engines[0];
    assert_eq!(engine.switches, 1, "{engine:?}");
    assert!(engine.handovers > 100, "{engine:?}");
    // Nobody could take a guest off an engine that answers nothing.
    while worked.step(|_| MS).is_some() {}
}

#[test]
fn one_over_its_cap_waits_although_nobody_else_wants_the_engine() {
    let stage = Stage::new();
    let (mut guest, mut c) = stage.restored(1);
    guest.handle.set_share(share("cap=20"));
    let mut engine = Worked {
        stage: &stage,
        active: VecDeque::new(),
    };
    let mut ran = 0;
    // 20 of 100 ms, and no more until time has passed.
    let seq = loop {
        guest.emit(&mut c, &[0, 0]);
        let seq = guest.submit(&c, None);
        if engine.step(|_| 10 * MS).is_none() {
            break seq;
        }
        guest.wait(seq, 0);
        ran += 1;
    };
    assert!((1..=3).contains(&ran), "{ran}");
    assert_eq!(stage.scheduler.inspect().engines[0].waiting, 1);
    // Nobody says a word; the interrupt thread looks by itself.
    stage.clock.pass(200 * MS);
    let id = stage.loaded();
    stage.takes_up();
    stage.ends(id);
    guest.wait(seq, 0);
    assert!(guest.handle.inspect().engines[0].counters.throttled > 0);
}
