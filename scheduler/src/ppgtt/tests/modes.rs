//! The ways of following a table, with a device model that is played here.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A message in the submit ring.
#[derive(Clone, Copy, Debug)]
enum Message {
    Offer(bool),
    Protected(Gfn, u32),
    Refused(Gfn, u32),
    Unprotected,
    Wrote(u64, usize),
    Released(Gfn),
    Missed(u64),
}

/// A hypervisor and device model that do their part, when told to.
#[derive(Default)]
pub struct Player {
    /// Changes announced.
    changes: Arc<AtomicU64>,
    pub protected: HashSet<u64>,
    /// Orders seen and not carried out.
    pending: Vec<Order>,
    /// Messages sent and not taken.
    ring: VecDeque<Message>,
    refuses: bool,
    pub traps: u64,
}

impl Player {
    pub fn new(f: &Fixture) -> Self {
        let mut player = Self::default();
        let changes = Arc::clone(&player.changes);
        f.tables
            .count_changes(Box::new(move || changes.load(Ordering::Relaxed)));
        player.offer(true);
        player.hear(f, usize::MAX);
        player
    }

    fn announce(&mut self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Everything is plain RAM.
    fn offer(&mut self, offered: bool) {
        self.announce();
        self.protected.clear();
        self.ring.push_back(Message::Offer(offered));
    }

    /// Carries out `n` orders at most.
    fn obey(&mut self, f: &Fixture, n: usize) {
        self.pending.extend(f.tables.orders());
        let n = n.min(self.pending.len());
        for order in self.pending.drain(..n) {
            self.ring.push_back(match order {
                Order::Protect { gfn, serial } if self.refuses => Message::Refused(gfn, serial),
                Order::Protect { gfn, serial } => {
                    self.protected.insert(gfn.0);
                    Message::Protected(gfn, serial)
                }
                Order::Unprotect { gfn } => {
                    self.protected.remove(&gfn.0);
                    Message::Unprotected
                }
            });
        }
    }

    /// vgpud takes `n` messages at most.
    pub fn hear(&mut self, f: &Fixture, n: usize) {
        let n = n.min(self.ring.len());
        for message in self.ring.drain(..n) {
            match message {
                Message::Offer(offered) => f.tables.offer(offered),
                Message::Protected(gfn, serial) => f.tables.protected(gfn, serial),
                Message::Refused(gfn, serial) => f.tables.refused(gfn, serial),
                Message::Unprotected => f.tables.unprotected(),
                Message::Wrote(gpa, size) => f.tables.wrote(gpa, size, 0),
                Message::Released(gfn) => f.tables.released(gfn),
                Message::Missed(count) => f.tables.missed(count),
            }
        }
    }

    /// All orders, and those that follow from them.
    pub fn settle(&mut self, f: &Fixture) {
        loop {
            self.obey(f, usize::MAX);
            self.hear(f, usize::MAX);
            self.pending.extend(f.tables.orders());
            if self.pending.is_empty() {
                return;
            }
        }
    }

    /// A guest's write inside a page; told, but not yet heard of.
    pub fn write(&mut self, f: &Fixture, gpa: u64, bytes: &[u8]) {
        let trapped = self.protected.contains(&(gpa >> 12));
        if trapped {
            self.announce();
        }
        f.memory.write(gpa, bytes).unwrap();
        if trapped {
            self.traps += 1;
            self.ring.push_back(Message::Wrote(gpa, bytes.len()));
        }
    }

    /// One of an entry, heard of at once.
    pub fn set(&mut self, f: &Fixture, table: u64, index: u64, entry: u64) {
        self.write(f, table * 4096 + index * 8, &entry.to_le_bytes());
        self.hear(f, usize::MAX);
    }
}

pub fn config(mode: ShadowMode) -> ShadowConfig {
    ShadowConfig {
        mode,
        fixed_costs: true,
        ..ShadowConfig::default()
    }
}

pub fn one_table(f: &Fixture) {
    f.set(1, 0, 0x2003);
    f.set(2, 0, 0x3003);
    f.set(3, 0, 0x4003);
    f.set(4, 7, 0x9003);
}

pub fn pin(f: &Fixture) -> RootPin {
    f.tables.pin(Gfn(1)).unwrap()
}

#[test]
fn strict_compares_once_and_then_goes_by_what_is_told() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Strict));
    one_table(&f);
    let mut player = Player::new(&f);
    drop(pin(&f));
    // Without an answer nothing can be relied on.
    drop(pin(&f));
    assert_eq!(f.tables.counts().compared, 8);
    player.settle(&f);
    drop(pin(&f));
    assert_eq!(f.tables.counts().compared, 12);
    player.set(&f, 4, 7, 0xa003);
    player.set(&f, 4, 8, 0xb001);
    let root = pin(&f);
    let counts = f.tables.counts();
    assert_eq!((counts.compared, counts.spared, counts.traps), (12, 4, 2));
    assert_eq!(counts.protected, 4);
    let bus = |gfn| f.map.bus(Gfn(gfn)).unwrap();
    assert_eq!(f.walk_shadow(root.bus(), 7 << 12), Some((bus(10), true)));
    assert_eq!(f.walk_shadow(root.bus(), 8 << 12), Some((bus(11), false)));
}

/// Each mode; adaptive with traps so cheap that pages are protected, and so
/// dear that they are not.
fn every_config() -> [ShadowConfig; 4] {
    let costs = |trap_ns| Costs {
        trap_ns,
        compare_ns: 1000,
        protect_ns: 1,
    };
    let with = |mode, trap_ns| ShadowConfig {
        costs: costs(trap_ns),
        ..config(mode)
    };
    [
        with(ShadowMode::Strict, 100),
        with(ShadowMode::Lazy, 100),
        with(ShadowMode::Adaptive, 100),
        with(ShadowMode::Adaptive, 100_000),
    ]
}

#[test]
fn entries_of_every_size_are_followed_in_any_pieces() {
    for config in every_config() {
        entries_of_every_size(config);
    }
}

fn entries_of_every_size(config: ShadowConfig) {
    let f = fixture_with(TableLimits::default(), config);
    one_table(&f);
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    drop(pin(&f));
    let bus = |gfn| f.map.bus(Gfn(gfn)).unwrap();
    // 64 KiB is sixteen entries in a row, with a hint in the entry above
    // that this generation has not.
    for i in 0..16 {
        let entry = (0x20 + i) << 12 | 3;
        // In halves, the upper one first, as a 32-bit guest may.
        let at = 4 * 4096 + (32 + i) * 8;
        player.write(&f, at + 4, &entry.to_le_bytes()[4..]);
        player.write(&f, at, &entry.to_le_bytes()[..4]);
        // Fewer at a time than let go of it.
        if i % 8 == 7 {
            player.hear(&f, usize::MAX);
            drop(pin(&f));
        }
    }
    // 2 MiB, at once and bytewise.
    let large: u64 = (2 << 20) | 3 | PDE_2M;
    player.set(&f, 3, 1, large);
    for (i, byte) in (0..).zip(large.to_le_bytes()) {
        player.write(&f, 3 * 4096 + 16 + i, &[byte]);
    }
    // Across two entries: the end of one and the start of the next.
    f.memory.write(4 * 4096 + 100 * 8, &[0; 16]).unwrap();
    let mut both = [0; 16];
    both[..8].copy_from_slice(&0xc003_u64.to_le_bytes());
    both[8..].copy_from_slice(&0xd003_u64.to_le_bytes());
    player.write(&f, 4 * 4096 + 100 * 8, &both[..4]);
    player.write(&f, 4 * 4096 + 100 * 8 + 4, &both[4..12]);
    player.write(&f, 4 * 4096 + 100 * 8 + 12, &both[12..]);
    player.hear(&f, usize::MAX);
    let before = f.tables.counts().compared;
    let root = pin(&f);
    if config.mode == ShadowMode::Strict {
        assert_eq!(f.tables.counts().compared, before);
    }
    let at = |address| f.walk_shadow(root.bus(), address).map(|(bus, _)| bus);
    for i in 0..16 {
        assert_eq!(at((32 + i) << 12), Some(bus(0x20 + i)));
    }
    assert_eq!(at((2 << 20) + 0x3000), Some(bus(512 + 3)));
    assert_eq!(at((4 << 20) + 0x3000), Some(bus(512 + 3)));
    assert_eq!(
        (at(100 << 12), at(101 << 12)),
        (Some(bus(12)), Some(bus(13)))
    );
}

#[test]
fn an_entry_that_names_a_table_is_walked_at_the_submission() {
    let f = fixture_with(TableLimits { keep: 2, max: 5 }, config(ShadowMode::Strict));
    one_table(&f);
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    drop(pin(&f));
    f.set(5, 1, 0xe003);
    player.set(&f, 3, 3, 0x5003);
    assert_eq!(f.tables.counts().tables, 4);
    let root = pin(&f);
    let bus = f.map.bus(Gfn(14)).unwrap();
    let address = (6 << 20) + 0x1000;
    assert_eq!(f.walk_shadow(root.bus(), address), Some((bus, true)));
    drop(root);
    // One too many is refused where someone hears of it.
    player.set(&f, 3, 4, 0x6003);
    assert_eq!(
        f.tables.pin(Gfn(1)).err(),
        Some(ShadowError::TooMany { max: 5 })
    );
    player.set(&f, 3, 4, 0);
    assert!(f.tables.pin(Gfn(1)).is_ok());
}

#[test]
fn scratch_tables_are_looked_at_once() {
    for config in every_config() {
        scratch_tables(config);
    }
}

fn scratch_tables(config: ShadowConfig) {
    let f = fixture_with(TableLimits::default(), config);
    one_table(&f);
    for i in 0..512 {
        f.set(5, i, 0x6003);
        f.set(6, i, 0x7003);
        f.set(7, i, 0x8003);
    }
    for i in 1..512 {
        f.set(1, i, 0x5003);
        f.set(2, i, 0x6003);
        f.set(3, i, 0x7003);
    }
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    let strict = config.mode == ShadowMode::Strict;
    if strict {
        assert_eq!(f.tables.counts().protects, 7);
    }
    drop(pin(&f));
    drop(pin(&f));
    let root = pin(&f);
    let counts = f.tables.counts();
    assert_eq!((counts.tables, counts.compared + counts.spared), (7, 28));
    if strict {
        assert_eq!(counts.compared, 14);
    }
    let bus = f.map.bus(Gfn(8)).unwrap();
    for address in [1 << 39, 5 << 30, 7 << 21, (1 << 48) - 4096] {
        assert_eq!(f.walk_shadow(root.bus(), address), Some((bus, true)));
    }
}

#[test]
fn a_page_used_for_something_else_is_let_go_of() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Strict));
    one_table(&f);
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    // No longer a table; the guest fills it over and over.
    player.set(&f, 3, 0, 0);
    let mut value = 0_u64;
    while player.protected.contains(&4) {
        value += 0x1_0001;
        player.set(&f, 4, value % 512, value);
        player.settle(&f);
        assert!(player.traps < 5000);
    }
    // And then it is one again.
    player.set(&f, 4, 7, 0x9003);
    player.set(&f, 3, 0, 0x4003);
    let root = pin(&f);
    let bus = f.map.bus(Gfn(9)).unwrap();
    assert_eq!(f.walk_shadow(root.bus(), 7 << 12), Some((bus, true)));
    player.settle(&f);
    assert!(player.protected.contains(&4));
}

/// A guest that binds a large buffer writes a table from end to end.
#[test]
fn of_a_table_that_is_written_whole_strict_traps_the_first_entries() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Strict));
    one_table(&f);
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    drop(pin(&f));
    for index in 0..512 {
        player.set(&f, 4, index, (10 + index % 30) << 12 | 3);
        player.settle(&f);
    }
    assert_eq!(player.traps, 32);
    let root = pin(&f);
    let bus = |gfn| Some((f.map.bus(Gfn(gfn)).unwrap(), true));
    assert_eq!(f.walk_shadow(root.bus(), 0), bus(10));
    assert_eq!(f.walk_shadow(root.bus(), 511 << 12), bus(10 + 511 % 30));
    player.settle(&f);
    assert!(player.protected.contains(&4));
}

#[test]
fn adaptive_protects_what_is_still_and_frees_what_is_busy() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Adaptive));
    one_table(&f);
    let mut player = Player::new(&f);
    for _ in 0..120 {
        drop(pin(&f));
        player.settle(&f);
    }
    assert_eq!(f.tables.counts().protected, 4);
    for round in 0..40 {
        player.set(&f, 4, 9, (10 + round % 2) << 12 | 3);
        drop(pin(&f));
        player.settle(&f);
    }
    let counts = f.tables.counts();
    assert_eq!((counts.protected, counts.unprotects), (3, 1));
    assert!(counts.traps < 40);
}

#[test]
fn without_an_offer_or_when_refused_tables_are_compared() {
    for mode in ShadowMode::ALL {
        let f = fixture_with(TableLimits::default(), config(mode));
        one_table(&f);
        for _ in 0..200 {
            drop(pin(&f));
        }
        assert!(f.tables.orders().is_empty());
        assert_eq!(f.tables.counts().compared, 800);
        let mut player = Player::new(&f);
        player.refuses = true;
        for _ in 0..200 {
            drop(pin(&f));
            player.settle(&f);
        }
        let counts = f.tables.counts();
        assert_eq!((counts.compared, counts.protected), (1600, 0));
        assert_eq!(counts.refused > 0, mode != ShadowMode::Lazy);
    }
}

#[test]
fn protection_that_ends_all_at_once_is_not_relied_on() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Strict));
    one_table(&f);
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    drop(pin(&f));
    // As before log-dirty: told first, then done.
    player.offer(false);
    player.set(&f, 4, 7, 0xa003);
    let root = pin(&f);
    let bus = f.map.bus(Gfn(10)).unwrap();
    assert_eq!(f.walk_shadow(root.bus(), 7 << 12), Some((bus, true)));
    assert!(f.tables.orders().is_empty());
}

/// A vCPU changes a table and moves its ring's tail on; vgpud, at work on
/// something before, sees the tail while the write waits in the submit ring.
#[test]
fn what_is_announced_and_not_yet_told_is_found_by_comparison() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Strict));
    one_table(&f);
    let mut player = Player::new(&f);
    drop(pin(&f));
    player.settle(&f);
    drop(pin(&f));
    let at = 4 * 4096 + 7 * 8;
    let bus = |gfn| Some((f.map.bus(Gfn(gfn)).unwrap(), true));
    player.write(&f, at, &0xa003_u64.to_le_bytes());
    player.write(&f, at, &0xb003_u64.to_le_bytes());
    let before = f.tables.counts();
    let root = pin(&f);
    assert_eq!(f.walk_shadow(root.bus(), 7 << 12), bus(11));
    let doubted = f.tables.counts();
    assert_eq!((doubted.doubted, doubted.spared), (4, before.spared));
    // What is told late is of no consequence to what runs.
    player.hear(&f, 1);
    assert_eq!(f.walk_shadow(root.bus(), 7 << 12), bus(11));
    drop(root);
    drop(pin(&f));
    assert_eq!(f.tables.counts().spared, before.spared);
    player.hear(&f, 1);
    drop(pin(&f));
    assert_eq!(f.tables.counts().spared, before.spared + 4);
    // Also when it was not told for want of room: announced is announced.
    player.announce();
    f.set(4, 7, 0xc003);
    let root = pin(&f);
    assert_eq!(f.walk_shadow(root.bus(), 7 << 12), bus(12));
    player.ring.push_back(Message::Missed(1));
    player.hear(&f, 1);
    drop(pin(&f));
    drop(pin(&f));
    assert_eq!(f.tables.counts().spared, before.spared + 8);
}

#[test]
fn without_a_count_of_changes_protection_is_not_relied_on() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Strict));
    one_table(&f);
    f.tables.offer(true);
    drop(pin(&f));
    for order in f.tables.orders() {
        if let Order::Protect { gfn, serial } = order {
            f.tables.protected(gfn, serial);
        }
    }
    for _ in 0..3 {
        drop(pin(&f));
    }
    let counts = f.tables.counts();
    assert_eq!((counts.protected, counts.spared), (4, 0));
    assert_eq!((counts.compared, counts.doubted), (16, 8));
}

#[test]
fn few_orders_are_under_way_at_once() {
    let f = fixture_with(TableLimits::default(), config(ShadowMode::Strict));
    one_table(&f);
    for i in 1..300 {
        f.set(3, i, (u64::try_from(i).unwrap() + 20) << 12 | 3);
    }
    f.tables.offer(true);
    drop(pin(&f));
    assert_eq!(f.tables.orders().len(), 64);
    assert!(f.tables.orders().is_empty());
    // False answers make room and nothing else.
    for n in 0..1000 {
        f.tables.protected(Gfn(n), 7777);
        f.tables.unprotected();
        f.tables.refused(Gfn(n), 7777);
    }
    assert_eq!(f.tables.orders().len(), 64);
    assert_eq!(f.tables.counts().protected, 0);
}

/// What happens between two submissions.
#[derive(Clone, Debug)]
pub enum Step {
    /// Bytes of an entry at an offset in it.
    Write(u64, usize, u64, usize, usize),
    /// A string instruction that fills a table's used entries.
    Fill(u64, u64),
    /// So many orders are carried out.
    Obey(usize),
    /// So many messages are taken.
    Hear(usize),
    /// The device model had no room to tell of something.
    Missed(u64, usize, u64),
    /// A page is written as no table is.
    Release(u64, u64),
    /// Frames left the guest.
    Frames,
    /// Log-dirty, on and off.
    Withdraw,
}

pub fn any_step() -> impl Strategy<Value = Step> {
    let write = || (0..TABLES, 0..ENTRIES_USED, any_entry());
    prop_oneof![
        120 => (write(), 0..8_usize, 1..9_usize).prop_map(|((t, i, e), at, len)| {
            // Mostly whole.
            if at < 5 { Step::Write(t, i, e, 0, 8) } else { Step::Write(t, i, e, at, len.min(8 - at)) }
        }),
        10 => (0..TABLES, any_entry()).prop_map(|(t, e)| Step::Fill(t, e)),
        60 => (1..12_usize).prop_map(Step::Obey),
        30 => (1..40_usize).prop_map(Step::Hear),
        5 => write().prop_map(|(t, i, e)| Step::Missed(t, i, e)),
        3 => (0..TABLES, any_entry()).prop_map(|(t, e)| Step::Release(t, e)),
        1 => Just(Step::Frames),
        1 => Just(Step::Withdraw),
    ]
}

/// The entry a guest in its right mind would have written instead: two tables
/// are of each level, and name those of the next.
fn tidy(table: u64, entry: u64) -> u64 {
    let frame = entry >> 12;
    let level = table / 2;
    if frame >= TABLES {
        return entry;
    }
    let below = if level < 3 { level * 2 + 2 } else { 8 };
    (below + frame % 2) << 12 | entry & 0xfff
}

impl Step {
    pub fn tidy(self) -> Self {
        match self {
            Self::Write(t, i, e, at, len) => Self::Write(t, i, tidy(t, e), at, len),
            Self::Fill(t, e) => Self::Fill(t, tidy(t, e)),
            Self::Missed(t, i, e) => Self::Missed(t, i, tidy(t, e)),
            Self::Release(t, e) => Self::Release(t, tidy(t, e)),
            other => other,
        }
    }
}

impl Player {
    pub fn step(&mut self, f: &Fixture, step: &Step) {
        match *step {
            Step::Write(table, index, entry, at, len) => {
                let gpa = table * 4096 + u64::try_from(index * 8 + at).unwrap();
                self.write(f, gpa, &entry.to_le_bytes()[at..at + len]);
            }
            Step::Fill(table, entry) => {
                let trapped = self.protected.contains(&table);
                if trapped {
                    self.announce();
                }
                for index in 0..ENTRIES_USED {
                    f.set(table, index, entry);
                }
                if trapped {
                    self.ring
                        .push_back(Message::Wrote(table * 4096, ENTRIES_USED * 8));
                }
            }
            Step::Obey(n) => self.obey(f, n),
            Step::Hear(n) => self.hear(f, n),
            Step::Missed(table, index, entry) => {
                let trapped = self.protected.contains(&table);
                if trapped {
                    self.announce();
                }
                f.set(table, index, entry);
                if trapped {
                    self.ring.push_back(Message::Missed(1));
                }
            }
            Step::Release(table, entry) => {
                if self.protected.contains(&table) {
                    self.announce();
                    f.set(table, 0, entry);
                    self.protected.remove(&table);
                    self.ring.push_back(Message::Released(Gfn(table)));
                }
                f.set(table, 1, entry);
            }
            Step::Frames => {
                self.offer(true);
                f.tables.frames_changed();
            }
            Step::Withdraw => {
                self.offer(false);
                self.offer(true);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// In each mode, whatever the guest writes in whatever pieces, however late
    /// the device model is and however far behind vgpud, a submission finds
    /// what a walk does; and what is told afterwards of writes before it
    /// changes nothing.
    #[test]
    fn every_mode_finds_what_a_walk_does(
        mode in prop::sample::select(&ShadowMode::ALL[..]),
        // Otherwise most frames are tables at two levels, and not protected.
        sane in prop::bool::weighted(0.75),
        // So that the ledger changes its mind within a few submissions.
        trap_ns in prop_oneof![Just(1), Just(400), Just(1000)],
        rounds in prop::collection::vec(
            (prop::collection::vec(any_step(), 0..20), 0..TABLES, any::<bool>(), 0..9_usize),
            1..24,
        )
    ) {
        let costs = Costs { trap_ns, compare_ns: 400, protect_ns: 100 };
        let config = ShadowConfig { costs, ..config(mode) };
        let f = fixture_with(TableLimits { keep: 6, max: 200 }, config);
        let mut player = Player::new(&f);
        for (steps, root, destroy, late) in rounds {
            let root = if sane { root % 2 } else { root };
            for step in steps {
                player.step(&f, &if sane { step.tidy() } else { step });
            }
            let pin = f.tables.pin(Gfn(root)).unwrap();
            same_as_a_walk(&f, &pin, root)?;
            f.tables.judge_links()?;
            if late > 0 {
                player.hear(&f, late);
                same_as_a_walk(&f, &pin, root)?;
            }
            drop(pin);
            if destroy {
                f.tables.destroy(Gfn(root));
            }
            // A table at each of four levels at most.
            prop_assert!(f.tables.counts().tables <= 4 * 41);
        }
        // What is protected without need is let go of in the end.
        f.tables.clear();
        prop_assert_eq!(f.tables.counts().protected, 0);
    }
}
