use proptest::prelude::*;

use super::*;

/// A present descriptor of context `id`.
fn ctx(id: u32) -> u64 {
    u64::from(id) << 37 | u64::from(id) << 12 | 0x19
}

fn run<R>(f: impl FnOnce(&mut Execlist, &mut Vec<Entry>) -> R, port: &mut Execlist) -> Vec<u32> {
    let mut entries = Vec::new();
    f(port, &mut entries);
    entries.iter().map(|e| e.status).collect()
}

#[test]
fn the_events_are_those_of_the_hardware() {
    let mut p = Execlist::default();
    assert_eq!(run(|p, e| p.load([ctx(1), ctx(2)], e), &mut p), [0x1]);
    assert_eq!(run(|p, e| p.done(0, 0, e), &mut p), [0x14]);
    assert_eq!(p.status()[1], Descriptor(ctx(2)).context_id());
    assert_eq!(run(|p, e| p.load([ctx(3), 0], e), &mut p), [0; 0]);
    assert_eq!(run(|p, e| p.done(0, 1, e), &mut p), [0x18, 0x1]);
    assert_eq!(run(|p, e| p.load([ctx(3), 0], e), &mut p), [0x8002]);
    assert_eq!(run(|p, e| p.done(1, 0, e), &mut p), [0; 0], "replaced");
    assert_eq!(run(|p, e| p.done(2, 0, e), &mut p), [0x18]);
    assert!(p.is_idle());
}

#[test]
fn the_fourth_dword_loads_the_port() {
    let mut p = Execlist::default();
    let mut e = Vec::new();
    let [one, two] = [ctx(1), ctx(2)];
    let half = |d: u64, high: bool| {
        let b = d.to_le_bytes();
        let at = if high { 4 } else { 0 };
        u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
    };
    for value in [half(two, true), half(two, false), half(one, true)] {
        assert_eq!(p.write(value, &mut e), Wrote::Part);
    }
    let load = LoadV1 {
        seq: 0,
        desc: [one, two],
    };
    let replaced = None;
    assert_eq!(
        p.write(half(one, false), &mut e),
        Wrote::Load { load, replaced }
    );
}

#[test]
fn vgpud_may_have_replaced_a_list_that_ran_here() {
    let mut p = Execlist::default();
    let mut e = Vec::new();
    p.load([ctx(1), ctx(2)], &mut e);
    p.load([ctx(2), 0], &mut e);
    // vgpud was at element 1 already and took the second load for a lite
    // restore of it.
    assert_eq!(run(|p, e| p.done(1, 0, e), &mut p), [0x14, 0x18, 0x1, 0x18]);
}

#[test]
fn a_fault_stops_everything_until_a_reset() {
    let mut p = Execlist::default();
    let mut e = Vec::new();
    p.load([ctx(1), ctx(2)], &mut e);
    assert_eq!(run(|p, e| p.fault(0, 1, e), &mut p), [0x14]);
    assert_eq!(p.load([ctx(4), 0], &mut e), Wrote::Refused);
    assert_eq!(run(|p, e| p.done(0, 1, e), &mut p), [0; 0]);
    assert_eq!(p.status()[1], Descriptor(ctx(2)).context_id());
    p.reset();
    assert!(p.is_idle());
    assert!(!p.fault(0, 1, &mut e), "older than the reset");
}

#[test]
fn absent_elements_do_not_run() {
    let mut p = Execlist::default();
    let mut e = Vec::new();
    assert_eq!(p.load([0, 0], &mut e), Wrote::Refused);
    let load = LoadV1 {
        seq: 0,
        desc: [ctx(1), 0],
    };
    let replaced = None;
    assert_eq!(
        p.load([ctx(7) & !1, ctx(1)], &mut e),
        Wrote::Load { load, replaced }
    );
    for _ in 1..LOADS {
        assert!(matches!(p.load([ctx(2), 0], &mut e), Wrote::Load { .. }));
    }
    assert_eq!(p.load([ctx(2), 0], &mut e), Wrote::Refused);
}

#[test]
fn impossible_saved_ports_are_refused() {
    let good = ExeclistV1 {
        next_seq: 1,
        loads: vec![LoadV1 {
            seq: 0,
            desc: [ctx(1), 0],
        }],
        ..ExeclistV1::default()
    };
    assert!(Execlist::restore(&good).is_ok());
    let mut bad = good.clone();
    bad.element = 1;
    assert_eq!(Execlist::restore(&bad).err(), Some(BadExeclist::Element(1)));
    bad = good.clone();
    bad.next_seq = 0;
    assert_eq!(Execlist::restore(&bad).err(), Some(BadExeclist::Numbers));
    bad = good.clone();
    bad.partial = vec![0; 4];
    assert_eq!(Execlist::restore(&bad).err(), Some(BadExeclist::Partial(4)));
    bad = good;
    bad.loads = vec![bad.loads[0]; 5];
    assert_eq!(Execlist::restore(&bad).err(), Some(BadExeclist::Loads(5)));
}

/// i915's own bookkeeping of pending and active elements.
#[derive(Default)]
struct Driver {
    pending: VecDeque<usize>,
    active: usize,
}

impl Driver {
    fn parse(&mut self, entries: &[Entry]) {
        for e in entries {
            if e.status & (csb::IDLE_TO_ACTIVE | csb::PREEMPTED) != 0 {
                self.active = self
                    .pending
                    .pop_front()
                    .expect("a promotion without a load");
            } else {
                assert!(self.active > 0, "a completion without an active element");
                self.active -= 1;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Load(u32, u32),
    Done(u64, usize),
    /// The oldest load's next element, as vgpud reports in the plain case.
    Next,
    Fault(u64, usize),
    Reset,
    Renumber,
    Migrate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u32, 0..4_u32).prop_map(|(a, b)| Step::Load(a, b)),
        2 => (0..30_u64, 0..3_usize).prop_map(|(s, e)| Step::Done(s, e)),
        6 => Just(Step::Next),
        1 => (0..30_u64, 0..3_usize).prop_map(|(s, e)| Step::Fault(s, e)),
        1 => Just(Step::Reset),
        1 => Just(Step::Renumber),
        1 => Just(Step::Migrate),
    ]
}

proptest! {
    #[test]
    fn the_driver_never_loses_count(steps in prop::collection::vec(step(), 0..60)) {
        let mut port = Execlist::default();
        let mut driver = Driver::default();
        for s in steps {
            let mut entries = Vec::new();
            match s {
                Step::Load(a, b) => {
                    let d = |id| if id == 0 { 0 } else { ctx(id) };
                    if let Wrote::Load { load, .. } = port.load([d(a), d(b)], &mut entries) {
                        let n = load.desc.iter().filter(|d| **d != 0).count();
                        driver.pending.push_back(n);
                    }
                }
                Step::Done(seq, element) => port.done(seq, element, &mut entries),
                Step::Next => {
                    let front = port.loads().next();
                    if let Some(front) = front {
                        let element = port.element;
                        port.done(front.seq, element, &mut entries);
                        if !port.faulted {
                            prop_assert!(!entries.is_empty());
                        }
                    }
                }
                Step::Fault(seq, element) => {
                    port.fault(seq, element, &mut entries);
                }
                Step::Reset => {
                    port.reset();
                    driver = Driver::default();
                }
                Step::Renumber => drop(port.renumber()),
                Step::Migrate => port = Execlist::restore(&port.save()).unwrap(),
            }
            driver.parse(&entries);
            // What the driver believes active is what the port will complete.
            let remaining = port.loads().next().map_or(0, |l| {
                (port.element..2).filter(|&i| l.element(i).is_some()).count()
            });
            prop_assert_eq!(driver.active, remaining);
            prop_assert_eq!(driver.pending.len(), port.loads().count().saturating_sub(1));
        }
    }
}

/// What vgpud does with loads: in order, and one that waits behind another
/// is replaced by one that goes on with its only context.
#[derive(Default)]
struct Lane {
    loads: VecDeque<LoadV1>,
    element: usize,
}

impl Lane {
    fn load(&mut self, load: LoadV1) {
        let goes_on = |back: &LoadV1| back.desc == [load.desc[0], 0];
        if self.loads.len() > 1 && self.loads.back().is_some_and(goes_on) {
            self.loads.pop_back();
        }
        self.loads.push_back(load);
    }

    /// The next element that ends, with its load's number.
    fn end(&mut self) -> Option<(u64, usize)> {
        let front = self.loads.front().copied()?;
        let done = (front.seq, self.element);
        self.element += 1;
        if front.element(self.element).is_none() {
            self.loads.pop_front();
            self.element = 0;
        }
        Some(done)
    }
}

proptest! {
    /// i915 loads what runs again, with or without another context behind,
    /// for as long as the list before was promoted and one place is free.
    #[test]
    fn what_runs_may_be_loaded_again_without_end(
        steps in prop::collection::vec(prop_oneof![5 => (1..3_u32).prop_map(Some), 1 => Just(None)], 0..1000)
    ) {
        let (mut port, mut lane, mut driver) = <(Execlist, Lane, Driver)>::default();
        let end = std::iter::repeat_n(None, 8);
        for step in steps.into_iter().chain(end) {
            let mut entries = Vec::new();
            match step {
                Some(context) => {
                    if !driver.pending.is_empty() || driver.active > 1 {
                        continue;
                    }
                    let desc = match port.running() {
                        Some(running) if running.0 == ctx(context) => [running.0, 0],
                        Some(running) => [running.0, ctx(context)],
                        None => [ctx(context), 0],
                    };
                    let Wrote::Load { load, .. } = port.load(desc, &mut entries) else {
                        panic!("refused");
                    };
                    driver.pending.push_back(1 + usize::from(desc[1] != 0));
                    lane.load(load);
                    prop_assert!(lane.loads.len() <= 3);
                }
                None => {
                    if let Some((seq, element)) = lane.end() {
                        port.done(seq, element, &mut entries);
                    }
                }
            }
            driver.parse(&entries);
        }
        prop_assert!(lane.loads.is_empty() && port.is_idle());
        prop_assert!(driver.pending.is_empty() && driver.active == 0);
    }
}
