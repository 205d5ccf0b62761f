use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const END: u32 = 0x0500_0000;
/// MI_BATCH_BUFFER_START in the context's own tables.
const START: u32 = 0x1880_0101;
const SECOND_LEVEL: u32 = 1 << 22;
const LRI: u32 = 0x1100_0001;

/// Pages of dwords by address, and what was read of them.
#[derive(Default)]
struct Fake {
    pages: BTreeMap<u64, Vec<u32>>,
    read: RefCell<Vec<(u64, usize)>>,
}

impl Fake {
    fn put(&mut self, address: u64, words: &[u32]) -> &mut Self {
        for (i, w) in words.iter().enumerate() {
            let at = address + u64::try_from(i).unwrap() * 4;
            let page = self.pages.entry(at & !0xfff).or_insert(vec![0; 1024]);
            page[usize::try_from(at % 4096 / 4).unwrap()] = *w;
        }
        self
    }
}

impl AddressSpace for Fake {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.read.borrow_mut().push((address, bytes.len()));
        let Some(page) = self.pages.get(&(address & !0xfff)) else {
            return false;
        };
        let first = usize::try_from(address % 4096 / 4).unwrap();
        assert!(first * 4 + bytes.len() <= 4096, "past the page");
        for (to, w) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&page[first..]) {
            *to = w.to_le_bytes();
        }
        true
    }
}

fn scanner() -> Scanner {
    Scanner::new(&gen8::platform::BDW, ScanMode::Note, ScanLimits::default())
}

fn scan(engine: Engine, space: &Fake, start: u64) -> Report {
    scanner().scan(engine, &[], space, &[start])
}

fn faults(report: &Report) -> Vec<(u64, &'static str, Fault)> {
    let found = report.findings.iter();
    found.map(|f| (f.address, f.command, f.fault)).collect()
}

#[test]
fn what_has_no_place_is_named_with_its_address() {
    let cases: [(&[u32], &str, Fault); 12] = [
        (&[0x0400_0000], "MI_ARB_ON_OFF", Fault::Privileged),
        (&[0x1180_0002, 0, 0, 0], "MI_UPDATE_GTT", Fault::Privileged),
        (
            &[LRI, 0x2230, 0],
            "MI_LOAD_REGISTER_IMM",
            Fault::RegisterWrite { offset: 0x2230 },
        ),
        (
            &[LRI + 2, 0x2600, 0, 0x209c, 0],
            "MI_LOAD_REGISTER_IMM",
            Fault::RegisterWrite { offset: 0x209c },
        ),
        (
            &[0x14c0_0002 & !(1 << 22), 0x2080, 0x1000, 0],
            "MI_LOAD_REGISTER_MEM",
            Fault::RegisterWrite { offset: 0x2080 },
        ),
        (
            &[0x1500_0001, 0x2080, 0x2600],
            "MI_LOAD_REGISTER_REG",
            Fault::RegisterRead { offset: 0x2080 },
        ),
        (
            &[0x7a00_0004, 1 << 23, 0x2230, 0, 5, 0],
            "PIPE_CONTROL",
            Fault::RegisterWrite { offset: 0x2230 },
        ),
        (
            &[0x1040_0002, 0x1000, 0, 7],
            "MI_STORE_DATA_IMM",
            Fault::Global,
        ),
        (
            &[0x1880_0001 | SECOND_LEVEL, 0x9000, 0],
            "MI_BATCH_BUFFER_START",
            Fault::Global,
        ),
        (
            &[0x0e00_4002, 1, 0x1000, 0],
            "MI_SEMAPHORE_WAIT",
            Fault::Signal,
        ),
        (&[0x0d80_0000, 0], "MI_SEMAPHORE_SIGNAL", Fault::Signal),
        (&[0xe000_0000], NO_COMMAND, Fault::Unknown),
    ];
    for (words, name, fault) in cases {
        let mut space = Fake::default();
        space.put(0x10_0000, &[0, 0, 0]).put(0x10_000c, words);
        let end = 0x10_000c + u64::try_from(words.len()).unwrap() * 4;
        space.put(end, &[END]).put(0x9000, &[END]);
        let report = scan(Engine::Rcs, &space, 0x10_0000);
        assert_eq!(faults(&report), [(0x10_000c, name, fault)], "{words:x?}");
    }
}

#[test]
fn what_users_do_passes() {
    let mut space = Fake::default();
    space.put(
        0x4000,
        &[
            // Registers of its own, a timestamp, a poll, a store, a flush.
            LRI,
            0x2600,
            1,
            0x1200_0002,
            0x2358,
            0x9000,
            0,
            0x0e00_c002,
            1,
            0x9000,
            0,
            0x1000_0002,
            0x9000,
            0,
            7,
            0x7a00_0004,
            1 << 20,
            0,
            0,
            0,
            0,
            END,
        ],
    );
    let report = scan(Engine::Rcs, &space, 0x4000);
    assert_eq!(report.findings, []);
    assert_eq!(report.commands, 6);
    assert!(!report.doubtful && !report.cut);
    // A register that the guest opened.
    space.put(0x4000, &[LRI, 0xb118, 1, END]);
    let write = Fault::RegisterWrite { offset: 0xb118 };
    assert_eq!(scan(Engine::Rcs, &space, 0x4000).findings[0].fault, write);
    let opened = scanner().scan(Engine::Rcs, &[0xb118], &space, &[0x4000]);
    assert_eq!(opened.findings, []);
}

#[test]
fn wrong_lengths_are_named_and_end_the_scan() {
    let mut space = Fake::default();
    space.put(0x4000, &[0x1000_0000, 0x1000, 0xe000_0000]);
    let report = scan(Engine::Rcs, &space, 0x4000);
    assert_eq!(report.findings.len(), 1);
    let line = report.findings[0].to_string();
    assert_eq!(
        line,
        "MI_STORE_DATA_IMM (0x10000000) at the context's address 0x4000: 2 dwords, allowed: 4 to 5"
    );
    assert!(report.doubtful);
}

#[test]
fn chains_and_calls_are_followed_once_each() {
    let mut space = Fake::default();
    let bad = [0x0400_0000, END];
    space
        // Calls b, then chains to c; what is behind does not run.
        .put(
            0xa000,
            &[
                START | SECOND_LEVEL,
                0xb000,
                0,
                START,
                0xc000,
                0,
                0xe000_0000,
            ],
        )
        .put(0xb000, &bad)
        // A loop back to itself, if the predicate holds; then the end.
        .put(0xc000, &[START | 1 << 15, 0xc000, 0, 0x0400_0000, END]);
    let report = scan(Engine::Rcs, &space, 0xa000);
    let at: Vec<u64> = report.findings.iter().map(|f| f.address).collect();
    assert_eq!(at, [0xb000, 0xc00c]);
    assert!(!report.cut && !report.doubtful);
    // An endless loop of two ends.
    space
        .put(0xb000, &[START, 0xc000, 0])
        .put(0xc000, &[START, 0xb000, 0]);
    let report = scan(Engine::Rcs, &space, 0xb000);
    assert_eq!((report.commands, report.findings.len()), (2, 0));
}

#[test]
fn commands_across_pages_are_whole() {
    let mut space = Fake::default();
    space
        .put(0x5000 - 8, &[LRI, 0x2230, 0, 0x0400_0000, END])
        .put(0x6000, &[0xe000_0000]);
    let report = scan(Engine::Rcs, &space, 0x5000 - 8);
    let at: Vec<u64> = report.findings.iter().map(|f| f.address).collect();
    assert_eq!(at, [0x5000 - 8, 0x5004]);
    // The second half may be missing.
    let mut space = Fake::default();
    space.put(0x5000 - 8, &[LRI, 0x2230]);
    let report = scan(Engine::Rcs, &space, 0x5000 - 8);
    assert!(report.doubtful && report.findings.is_empty());
}

#[test]
fn limits_cut_a_scan_short_without_an_error() {
    let mut space = Fake::default();
    for page in 0..100 {
        space.put(page << 12, &[0; 1024]);
    }
    let report = scan(Engine::Rcs, &space, 0);
    assert!(report.cut && report.doubtful && report.findings.is_empty());
    assert_eq!(report.dwords, ScanLimits::default().dwords);
    // So many places, however short.
    let mut space = Fake::default();
    for n in 0..100_u32 {
        let next = (n + 1) << 6;
        space.put(u64::from(n) << 6, &[START, next, 0]);
    }
    let report = scan(Engine::Rcs, &space, 0);
    assert!(report.cut);
    assert_eq!(report.commands, 64);
}

#[test]
fn what_did_not_change_is_not_decoded_again() {
    let mut space = Fake::default();
    let page: Vec<u32> = [LRI, 0x2600, 1].into_iter().cycle().take(1023).collect();
    for n in 0..3 {
        space.put(0x1000 * (n + 1), &page);
    }
    space.put(0x3ffc, &[0x0400_0000, END]);
    let scanner = scanner();
    let first = scanner.scan(Engine::Rcs, &[], &space, &[0x1000]);
    assert_eq!(first.unchanged, 0);
    let second = scanner.scan(Engine::Rcs, &[], &space, &[0x1000]);
    assert_eq!(second.unchanged, 3 * 1024 + 1);
    assert_eq!(second.findings, first.findings);
    assert_eq!(second.commands, first.commands);
    // One page is other than it was.
    space.put(0x2000, &[0x0400_0000, 0, 0]);
    let third = scanner.scan(Engine::Rcs, &[], &space, &[0x1000]);
    assert_eq!(third.findings.len(), 2);
    assert!(
        (1900..third.dwords - 1000).contains(&third.unchanged),
        "{third:?}"
    );
    // Another engine, other registers: another verdict.
    let other = scanner.scan(Engine::Vcs, &[], &space, &[0x1000]);
    assert!(other.unchanged == 0 && other.findings.len() == LISTED);
    let opened = scanner.scan(Engine::Rcs, &[7], &space, &[0x1000]);
    assert_eq!(opened.unchanged, 0);
}

#[test]
fn memory_stays_bounded() {
    let mut space = Fake::default();
    for n in 0..4096 {
        space.put(n << 6, &[0x0400_0000, END]);
    }
    let scanner = scanner();
    for n in 0..4096 {
        scanner.scan(Engine::Rcs, &[], &space, &[n << 6]);
        assert!(scanner.bytes() < 128 << 10, "{}", scanner.bytes());
    }
}

/// Dwords that are often commands.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => (0u32..64, 0u32..5, any::<u32>()).prop_map(|(op, len, bits)| op << 23 | bits & 0x0060_8100 | len),
        2 => Just(0),
        1 => Just(END),
        1 => (0u32..4, 0u32..1024).prop_map(|(page, at)| page << 12 | at << 2),
        1 => Just(START),
        1 => prop::sample::select(vec![0x2600, 0x2230, 0x7a00_0004, 0x209c]),
        1 => any::<u32>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What is kept of scans before changes no verdict, whatever is in memory
    /// and however it changes.
    #[test]
    fn a_scan_does_not_depend_on_those_before(
        mut memory in prop::collection::vec(word(), 2048),
        changes in prop::collection::vec((0usize..2048, word()), 0..6),
        start in 0u64..2048,
        engine in prop::sample::select(Engine::ALL.to_vec()),
    ) {
        let kept = scanner();
        let start = start * 4;
        for n in 0..=changes.len() {
            if let Some((at, word)) = n.checked_sub(1).map(|n| changes[n]) {
                memory[at] = word;
            }
            let mut space = Fake::default();
            space.put(0, &memory);
            let with = kept.scan(engine, &[], &space, &[start]);
            let without = scanner().scan(engine, &[], &space, &[start]);
            prop_assert!(with.unchanged <= with.dwords);
            if !with.cut && !without.cut {
                prop_assert_eq!(with.commands, without.commands);
                prop_assert_eq!(with.findings, without.findings);
                prop_assert_eq!(with.doubtful, without.doubtful);
            }
            let asked = space.read.borrow().iter().map(|r| r.1).sum::<usize>();
            prop_assert!(asked <= 2 * 4 * ScanLimits::default().dwords);
        }
    }
}
