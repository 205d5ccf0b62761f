//! Tables that nothing names any more, which are other memory soon.

use std::collections::{BTreeMap, BTreeSet};

use super::modes::{Player, Step, any_step, config, one_table, pin};
use super::*;
use crate::ppgtt::tables::Id;

/// A page with scratch entries, as drivers have one for each level.
const SCRATCH: u64 = 5;

/// One root, three levels below it, and a scratch table beside the last.
fn with_scratch(mode: ShadowMode) -> (Fixture, Player) {
    let f = fixture_with(TableLimits::default(), config(mode));
    one_table(&f);
    f.set(3, 511, SCRATCH << 12 | 3);
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    drop(pin(&f));
    (f, player)
}

impl Player {
    /// Writes that were trapped while `with` made them.
    fn traps_of(&mut self, with: impl FnOnce(&mut Self)) -> u64 {
        let before = self.traps;
        with(self);
        self.traps - before
    }

    /// A guest that uses a page for something else.
    fn fill(&mut self, f: &Fixture, page: u64, with: impl Fn(u64) -> u64) -> u64 {
        self.traps_of(|this| {
            for index in 0..512 {
                this.set(f, page, index, with(index));
            }
        })
    }
}

impl ShadowTables {
    /// Judges what is linked by walking from the roots, and the counts of it by
    /// counting. Gives the frames that are protected and the ones of those to
    /// which nothing leads.
    pub fn judge_links(&self) -> Result<(BTreeSet<u64>, BTreeSet<u64>), TestCaseError> {
        let inner = self.inner.lock();
        let mut links: BTreeMap<Id, u32> = BTreeMap::new();
        let mut open: Vec<Id> = (inner.roots.values())
            .filter_map(|r| r.linked.then_some(r.id))
            .collect();
        while let Some(id) = open.pop() {
            let count = links.entry(id).or_default();
            *count += 1;
            if *count == 1 {
                open.extend(inner.table(id).unwrap().children.iter().flatten());
            }
        }
        let (mut protected, mut unlinked) = (BTreeSet::new(), BTreeSet::new());
        for &id in inner.by_key.values() {
            let table = inner.table(id).unwrap();
            let counted = links.get(&id).copied().unwrap_or(0);
            prop_assert_eq!((table.links, table.linked), (counted, counted > 0));
            if table.watch.is_asked() {
                protected.insert(table.key.0.0);
                if !table.linked {
                    unlinked.insert(table.key.0.0);
                }
            }
        }
        Ok((protected, unlinked))
    }
}

#[test]
fn a_page_that_nothing_names_is_not_trapped() {
    for mode in [ShadowMode::Strict, ShadowMode::Adaptive] {
        let f = fixture_with(TableLimits::default(), config(mode));
        one_table(&f);
        f.set(3, 511, SCRATCH << 12 | 3);
        let mut player = Player::new(&f);
        for _ in 0..200 {
            drop(pin(&f));
            player.settle(&f);
        }
        assert!(player.protected.contains(&4));
        let compared = f.tables.counts().compared;
        player.set(&f, 3, 0, SCRATCH << 12 | 3);
        player.settle(&f);
        assert!(!player.protected.contains(&4));
        // Zeros, and then what could be entries.
        assert_eq!(player.fill(&f, 4, |_| 0), 0);
        assert_eq!(player.fill(&f, 4, |i| i << 12 | 3), 0);
        // The table that named it need not be compared for that.
        drop(pin(&f));
        let counts = f.tables.counts();
        assert_eq!((counts.compared, counts.unlinked), (compared, 1));
        // And then it is a table again, which no submission takes for what it
        // was.
        assert_eq!(player.fill(&f, 4, |i| (20 + i % 20) << 12 | 3), 0);
        player.set(&f, 3, 0, 0x4003);
        let root = pin(&f);
        let bus = |gfn| Some((f.map.bus(Gfn(gfn)).unwrap(), true));
        assert_eq!(f.walk_shadow(root.bus(), 7 << 12), bus(27));
        drop(root);
        f.set(4, 7, 0x9003);
        let root = pin(&f);
        assert_eq!(f.walk_shadow(root.bus(), 7 << 12), bus(9));
        drop(root);
        for _ in 0..200 {
            drop(pin(&f));
            player.settle(&f);
        }
        assert!(player.protected.contains(&4));
        player.set(&f, 4, 7, 0xa003);
        let root = pin(&f);
        assert_eq!(f.walk_shadow(root.bus(), 7 << 12), bus(10));
    }
}

#[test]
fn a_whole_tree_goes_with_the_entry_that_named_it() {
    let (f, mut player) = with_scratch(ShadowMode::Strict);
    assert_eq!(player.protected, [1, 2, 3, 4, SCRATCH].into());
    player.set(&f, 1, 0, 0);
    player.settle(&f);
    assert_eq!(player.protected, [1].into());
    // None of it is free: the GPU may know the way still.
    assert_eq!(f.tables.counts().tables, 5);
}

#[test]
fn the_tables_of_a_root_that_is_destroyed_go_while_others_work() {
    let (f, mut player) = with_scratch(ShadowMode::Strict);
    f.set(8, 0, 0x3003);
    let other = f.tables.pin(Gfn(7)).unwrap();
    let held = pin(&f);
    player.settle(&f);
    f.tables.destroy(Gfn(1));
    player.settle(&f);
    assert_eq!(player.protected, [7].into());
    assert_eq!(player.fill(&f, 4, |_| 0), 0);
    drop(held);
    drop(other);
    assert_eq!(f.tables.counts().tables, 1);
}

#[test]
fn an_unlinking_that_is_told_late_is_found_at_the_submission() {
    let (f, mut player) = with_scratch(ShadowMode::Strict);
    player.write(&f, 3 * 4096, &(SCRATCH << 12 | 3).to_le_bytes());
    drop(pin(&f));
    assert!(
        f.tables
            .orders()
            .contains(&Order::Unprotect { gfn: Gfn(4) })
    );
    player.hear(&f, usize::MAX);
    f.tables.judge_links().unwrap();
}

/// A guest that takes a table out and puts it back is not followed each time.
#[test]
fn a_table_that_comes_and_goes_is_kept_until_it_is_written() {
    let (f, mut player) = with_scratch(ShadowMode::Strict);
    for _ in 0..400 {
        player.set(&f, 3, 0, SCRATCH << 12 | 3);
        drop(pin(&f));
        player.settle(&f);
        player.set(&f, 3, 0, 0x4003);
        drop(pin(&f));
        player.settle(&f);
    }
    let unlinked = f.tables.counts().unlinked;
    assert!(unlinked < 12, "{unlinked}");
    player.set(&f, 3, 0, SCRATCH << 12 | 3);
    player.settle(&f);
    assert!(player.protected.contains(&4));
    // The first write is told, and the last that is trapped.
    let mut trapped = 0;
    for index in 0..512 {
        trapped += player.traps_of(|p| p.set(&f, 4, index, 0));
        player.settle(&f);
    }
    assert_eq!(trapped, 1);
    // If nobody does, it is let go of in the end.
    player.set(&f, 3, 0, 0x4003);
    drop(pin(&f));
    player.settle(&f);
    player.set(&f, 3, 0, SCRATCH << 12 | 3);
    for _ in 0..40 {
        drop(pin(&f));
        player.settle(&f);
    }
    assert!(!player.protected.contains(&4));
}

/// What a driver may do to pages that are tables now and other memory then.
#[derive(Clone, Debug)]
enum Turn {
    /// Anything.
    Any(Step),
    /// An entry stops naming what it names.
    Out(u64, usize),
    /// A page is filled with what is no table's, and what could be one's.
    Fill(u64, u64),
    /// All orders are carried out and told.
    Settle,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => any_step().prop_map(|s| Turn::Any(s.tidy())),
        3 => (0..TABLES, 0..ENTRIES_USED).prop_map(|(t, i)| Turn::Out(t, i)),
        2 => (0..TABLES, any_entry()).prop_map(|(t, e)| Turn::Fill(t, e)),
        2 => Just(Turn::Settle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Tables are linked, unlinked, used for other things and linked again.
    /// What is protected is what the roots lead to, or was a moment ago and was
    /// not written since; and each submission finds what a walk does.
    #[test]
    fn what_the_roots_lead_to_is_followed_and_nothing_else(
        mode in prop::sample::select(&ShadowMode::ALL[..]),
        rounds in prop::collection::vec(
            (prop::collection::vec(any_turn(), 0..16), 0..2_u64, prop::bool::weighted(0.2)),
            1..24,
        )
    ) {
        let costs = Costs { trap_ns: 400, compare_ns: 400, protect_ns: 100 };
        let config = ShadowConfig { costs, ..config(mode) };
        let f = fixture_with(TableLimits { keep: 6, max: 200 }, config);
        let mut player = Player::new(&f);
        // Never over: nothing is freed, and tables come back from the dead.
        let mut held = Vec::new();
        for (turns, root, destroy) in rounds {
            for turn in turns {
                match turn {
                    Turn::Any(step) => player.step(&f, &step),
                    Turn::Out(table, index) => {
                        let at = table * 4096 + u64::try_from(index * 8).unwrap();
                        player.write(&f, at, &[0; 8]);
                    }
                    Turn::Fill(table, entry) => {
                        for index in 0..ENTRIES_USED {
                            let at = table * 4096 + u64::try_from(index * 8).unwrap();
                            player.write(&f, at, &entry.to_le_bytes());
                        }
                    }
                    Turn::Settle => player.settle(&f),
                }
            }
            let pin = f.tables.pin(Gfn(root)).unwrap();
            same_as_a_walk(&f, &pin, root)?;
            f.tables.judge_links()?;
            player.settle(&f);
            same_as_a_walk(&f, &pin, root)?;
            let (protected, unlinked) = f.tables.judge_links()?;
            prop_assert_eq!(&protected, &player.protected.iter().copied().collect());
            // A write to one of those ends it. Some have no memory.
            let memory = u64::try_from(PAGES).unwrap();
            for gfn in unlinked.range(..memory).copied() {
                player.write(&f, gfn * 4096 + 8 * 100, &[0; 8]);
                player.settle(&f);
                prop_assert!(!player.protected.contains(&gfn));
            }
            held.push(pin);
            if destroy {
                f.tables.destroy(Gfn(root));
                player.settle(&f);
                f.tables.judge_links()?;
            }
            if held.len() > 4 {
                held.clear();
            }
        }
    }
}
