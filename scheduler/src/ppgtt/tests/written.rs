//! What the GPU may have written, against a GPU that writes what it can.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn frames(frames: &Frames) -> BTreeSet<u64> {
    frames.iter().map(|gfn| gfn.0).collect()
}

#[test]
fn only_what_ran_counts_and_only_what_it_may_write() {
    let f = fixture(TableLimits::default());
    for root in [1, 11] {
        f.set(root, 0, (root + 1) << 12 | 3);
        f.set(root + 1, 0, (root + 2) << 12 | 3);
        f.set(root + 2, 0, (root + 3) << 12 | 3);
        f.set(root + 3, 0, (root + 40) << 12 | 3);
        f.set(root + 3, 1, (root + 50) << 12 | 1);
    }
    drop(f.tables.pin(Gfn(1)).unwrap());
    f.tables.track(true);
    assert!(f.tables.written().is_empty());
    let pin = f.tables.pin(Gfn(11)).unwrap();
    pin.shows(vec![Gfn(77)]);
    assert_eq!(frames(&f.tables.written()), [51, 77].into());
    // It still runs.
    assert_eq!(frames(&f.tables.written()), [51, 77].into());
    drop(pin);
    assert_eq!(frames(&f.tables.written()), [51, 77].into());
    assert!(f.tables.written().is_empty());
}

#[test]
fn a_page_taken_from_running_work_counts_until_that_is_over() {
    let f = fixture(TableLimits::default());
    for (table, to) in [(1, 2), (2, 3), (3, 4), (4, 9)] {
        f.set(table, 0, to << 12 | 3);
    }
    f.tables.track(true);
    let first = f.tables.pin(Gfn(1)).unwrap();
    f.set(4, 0, 10 << 12 | 3);
    let second = f.tables.pin(Gfn(1)).unwrap();
    for _ in 0..2 {
        assert_eq!(frames(&f.tables.written()), [9, 10].into());
    }
    drop(first);
    assert_eq!(frames(&f.tables.written()), [9, 10].into());
    assert_eq!(frames(&f.tables.written()), [10].into());
    f.tables.destroy(Gfn(1));
    drop(second);
    assert_eq!(frames(&f.tables.written()), [10].into());
    assert!(f.tables.written().is_empty());
}

#[test]
fn a_set_of_frames_is_in_order_and_counted() {
    let mut set = Frames::default();
    set.insert_run(Gfn(62), 4);
    set.insert(Gfn(1));
    set.extend([Gfn(1), Gfn(u64::MAX >> 12)]);
    let all: Vec<u64> = set.iter().map(|g| g.0).collect();
    assert_eq!(all, [1, 62, 63, 64, 65, u64::MAX >> 12]);
    assert_eq!(set.len(), 6);
}

#[derive(Clone, Debug)]
enum Step {
    /// The guest changes a table.
    Set(u64, usize, u64),
    /// Work goes to the GPU.
    Pin(u64),
    /// The oldest there, or the newest, is over.
    Over(bool),
    /// The guest gives a root up.
    Destroy(u64),
    /// What was written is named.
    Round,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..TABLES, 0..ENTRIES_USED, any_entry()).prop_map(|(t, i, e)| Step::Set(t, i, e)),
        4 => (0..TABLES).prop_map(Step::Pin),
        3 => any::<bool>().prop_map(Step::Over),
        1 => (0..TABLES).prop_map(Step::Destroy),
        2 => Just(Step::Round),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The GPU writes all that work at it can reach, or ever could since it
    /// came, at every moment. Nothing of it is missed in the next round.
    #[test]
    fn nothing_the_gpu_can_write_is_missed(steps in prop::collection::vec(step(), 1..60)) {
        let f = fixture(TableLimits { keep: 6, max: 200 });
        let gfns: BTreeMap<u64, u64> = (0..u64::try_from(PAGES).unwrap())
            .filter_map(|gfn| Some((f.map.bus(Gfn(gfn))?, gfn)))
            .collect();
        f.tables.track(true);
        let mut running: Vec<(RootPin, BTreeSet<u64>)> = Vec::new();
        let mut written = BTreeSet::new();
        for step in steps {
            match step {
                Step::Set(table, index, entry) => f.set(table, index, entry),
                Step::Pin(root) => {
                    // Past the limit of tables nothing runs.
                    if let Ok(pin) = f.tables.pin(Gfn(root)) {
                        running.push((pin, BTreeSet::new()));
                    }
                }
                Step::Over(oldest) if !running.is_empty() => {
                    let at = if oldest { 0 } else { running.len() - 1 };
                    running.remove(at);
                }
                Step::Over(_) => {}
                Step::Destroy(root) => f.tables.destroy(Gfn(root)),
                Step::Round => {
                    let named = frames(&f.tables.written());
                    let missed: Vec<_> = written.difference(&named).collect();
                    prop_assert!(missed.is_empty(), "{missed:?}");
                    written.clear();
                }
            }
            for (pin, reach) in &mut running {
                for a in 0..ENTRIES_USED.pow(4) {
                    let part = |n: u32, level: Level| {
                        let index = a / ENTRIES_USED.pow(n) % ENTRIES_USED;
                        u64::try_from(index).unwrap() << level.shift()
                    };
                    let address = part(0, Level::Pt) | part(1, Level::Pd)
                        | part(2, Level::Pdp) | part(3, Level::Pml4);
                    let found = f.walk_shadow(pin.bus(), address);
                    if let Some((bus, true)) = found
                        && let Some(gfn) = gfns.get(&bus)
                    {
                        reach.insert(*gfn);
                    }
                }
                written.extend(reach.iter().copied());
            }
        }
    }
}
