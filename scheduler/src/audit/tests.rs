mod effects;

use std::collections::HashMap;

use gen8::cmd::{Dwords, pipe_control};
use proptest::prelude::*;

use super::*;

/// Host addresses start here; the guest's own addresses stay below, so the
/// two are never confused.
const HOST: u32 = 0x8000_0000;
/// Guest pages from here on are not mapped.
const MAPPED: u32 = 0x100;

/// A guest whose global pages 0 to [`MAPPED`] hold `memory` from address 0.
#[derive(Default)]
struct Fake {
    memory: Vec<u32>,
    windows: HashMap<(u32, u32), u32>,
    placed: Vec<(u32, Vec<u32>)>,
}

impl Fake {
    fn next(&self) -> u32 {
        let n = self.windows.len() + self.placed.len();
        // Two pages each is enough for windows; batches are told apart by
        // their first page.
        HOST + u32::try_from(n).unwrap() * 0x10_0000
    }

    /// Whether `address` is in something the site handed out.
    fn owns(&self, address: u32) -> bool {
        let within = |start: u32, pages: u32| {
            address
                .checked_sub(start)
                .is_some_and(|o| o < pages * 0x1000)
        };
        self.windows
            .iter()
            .any(|((_, pages), start)| within(*start, *pages))
            // A batch, or the place for a value in its last line.
            || self.placed.iter().any(|(start, batch)| {
                let last = u32::try_from(batch.len().saturating_sub(16) * 4).unwrap();
                *start == address || start + last == address
            })
    }
}

impl Site for Fake {
    fn window(&mut self, page: u32, pages: u32) -> Result<u32, AuditError> {
        if page + pages > MAPPED {
            let address = page.wrapping_shl(12);
            return Err(NotMapped::Absent { address, entry: 0 }.into());
        }
        let next = self.next();
        Ok(*self.windows.entry((page, pages)).or_insert(next))
    }

    fn fetch(&mut self, address: u32, dwords: &mut [u32]) -> Result<(), AuditError> {
        for (at, d) in (address / 4..).zip(dwords) {
            if at >= MAPPED * 1024 {
                return Err(NotMapped::Absent { address, entry: 0 }.into());
            }
            let at = usize::try_from(at).unwrap();
            *d = self.memory.get(at).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn place(&mut self, batch: &[u32]) -> Result<u32, AuditError> {
        let at = self.next();
        self.placed.push((at, batch.to_vec()));
        Ok(at)
    }

    fn amend(&mut self, address: u32, at: usize, value: u32) {
        let placed = self.placed.iter_mut().find(|p| p.0 == address);
        placed.unwrap().1[at] = value;
    }
}

const RING: u32 = 0x4000;

fn audit(engine: Engine, site: &mut Fake, words: &mut [u32]) -> Result<(), AuditError> {
    Auditor::new(engine, site, AuditLimits::default()).ring(words, 0, RING)
}

fn rule(result: Result<(), AuditError>) -> Option<Rule> {
    match result {
        Err(AuditError::Refused(r)) => Some(r.rule),
        _ => None,
    }
}

#[test]
fn global_addresses_are_moved_and_others_left() {
    // Words before, words after, with W for the window's address.
    const W: u32 = HOST;
    let cases: [(&str, Engine, &[u32], &[u32]); 15] = [
        (
            "store, global",
            Engine::Bcs,
            &[0x1040_0002, 0x1_2458, 0, 7],
            &[0x1040_0002, W | 0x458, 0, 7],
        ),
        (
            "store, own tables",
            Engine::Bcs,
            &[0x1000_0002, 0x1_2458, 9, 7],
            &[0x1000_0002, 0x1_2458, 9, 7],
        ),
        (
            "flush, global",
            Engine::Vcs,
            &[0x1300_4002, 0x1_2458 | 4, 0, 7],
            &[0x1300_4002, W | 0x458 | 4, 0, 7],
        ),
        (
            "flush without a write",
            Engine::Vcs,
            &[0x1300_0002, 0x1_2458 | 4, 0, 7],
            &[0x1300_0002, 0, 0, 7],
        ),
        (
            "flush to the status page",
            Engine::Vcs,
            &[0x1320_4002, 0xd0 | 4, 0, 7],
            &[0x1320_4002, 0xd0 | 4, 0, 7],
        ),
        (
            "pipe control, global",
            Engine::Rcs,
            &[0x7a00_0004, 1 << 24 | 1 << 14, 0x1_2458, 0, 1, 2],
            &[0x7a00_0004, 1 << 24 | 1 << 14, W | 0x458, 0, 1, 2],
        ),
        (
            "pipe control without a write",
            Engine::Rcs,
            &[0x7a00_0004, 1 << 24 | 1 << 20, 0x1_2458, 3, 1, 2],
            &[0x7a00_0004, 1 << 24 | 1 << 20, 0, 0, 1, 2],
        ),
        (
            "register store",
            Engine::Rcs,
            &[0x1240_0002, 0xb118, 0x1_2458, 0],
            &[0x1240_0002, 0xb118, W | 0x458, 0],
        ),
        (
            "register load",
            Engine::Rcs,
            &[0x14c0_0002, 0xb118, 0x1_2458, 0],
            &[0x14c0_0002, 0xb118, W | 0x458, 0],
        ),
        (
            "copy to global from own",
            Engine::Rcs,
            &[0x1720_0003, 0x1_2458, 0, 0x5_6000, 1],
            &[0x1720_0003, W | 0x458, 0, 0x5_6000, 1],
        ),
        (
            "status page of the engine becomes the context's",
            Engine::Rcs,
            &[0x1080_0001, 0x80, 7],
            &[0x10a0_0001, 0x80, 7],
        ),
        (
            "a wait for a signal polls",
            Engine::Rcs,
            &[0x0e40_4002, 1, 0x1_2458, 0],
            &[0x0e40_4002 | 1 << 15, 1, W | 0x458, 0],
        ),
        (
            "a flush that writes a register",
            Engine::Rcs,
            &[0x7a00_0004, 1 << 24 | 1 << 23, 0xb118, 0, 1, 2],
            &[0x7a00_0004, 1 << 24 | 1 << 23, 0xb118, 0, 1, 2],
        ),
        ("wait for the display", Engine::Rcs, &[0x0180_0000], &[0]),
        (
            "a batch in the guest's own tables",
            Engine::Rcs,
            &[0x1880_0101, 0x5000, 7],
            &[0x1880_0101, 0x5000, 7],
        ),
    ];
    for (name, engine, before, after) in cases {
        let mut words = before.to_vec();
        let mut site = Fake::default();
        audit(engine, &mut site, &mut words).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(words, after, "{name}");
    }
}

#[test]
fn what_breaks_a_rule_is_refused_with_it() {
    let register = |offset, value| Rule::RegisterWrite { offset, value };
    let cases: [(&str, &[u32], Rule); 24] = [
        ("flip", &[0x0a00_0001, 0, 0], Rule::Forbidden),
        ("table update", &[0x1180_0001, 0, 0], Rule::Forbidden),
        ("signal", &[0x0d80_0000, 0], Rule::Forbidden),
        ("perf count", &[0x1400_0002, 1, 0, 0], Rule::Forbidden),
        ("predicate", &[0x0080_0000], Rule::Forbidden),
        ("cache lines", &[0x1380_0001, 0, 0], Rule::Forbidden),
        ("report head", &[0x0380_0000], Rule::Forbidden),
        (
            "second level in a ring",
            &[0x18c0_0001, 0, 0],
            Rule::Forbidden,
        ),
        (
            "submit port",
            &[0x1100_0001, 0x2230, 1],
            register(0x2230, Some(1)),
        ),
        (
            "the second of two",
            &[0x1100_0003, 0x2600, 1, 0x2080, 1],
            register(0x2080, Some(1)),
        ),
        (
            "stop bit",
            &[0x1100_0001, 0x209c, 0x100_0100],
            register(0x209c, Some(0x100_0100)),
        ),
        (
            "load to a masked one",
            &[0x14c0_0002, 0x209c, 0, 0],
            register(0x209c, None),
        ),
        (
            "copy to a forbidden one",
            &[0x1500_0001, 0x2600, 0x2230],
            register(0x2230, None),
        ),
        (
            "copy from a forbidden one",
            &[0x1500_0001, 0x2080, 0x2600],
            Rule::RegisterRead { offset: 0x2080 },
        ),
        (
            "store of a forbidden one",
            &[0x1240_0002, 0x2038, 0, 0],
            Rule::RegisterRead { offset: 0x2038 },
        ),
        (
            "pipe control writes a register",
            &[0x7a00_0004, 1 << 23 | 1 << 14, 0x2230, 0, 5, 0],
            register(0x2230, Some(5)),
        ),
        (
            "past 4 GiB",
            &[0x1040_0002, 0x1000, 1, 7],
            Rule::HighAddress { upper: 1 },
        ),
        (
            "batch at an offset that users choose",
            &[0x1881_0001, 0x1000, 0],
            Rule::Forbidden,
        ),
        (
            "batch past 4 GiB",
            &[0x1880_0001, 0x1000, 1],
            Rule::HighAddress { upper: 1 },
        ),
        (
            "past the status page",
            &[0x1080_0001, 0x1000, 7],
            Rule::StatusOffset { offset: 0x1000 },
        ),
        (
            "flush past the status page",
            &[0x1320_4002, 0x1000, 0, 7],
            Rule::StatusOffset { offset: 0x1000 },
        ),
        (
            "too short for its address",
            &[0x1040_0000, 0x1000],
            Rule::Length {
                have: 2,
                allowed: Dwords::Between(4, 5),
            },
        ),
        (
            "an odd register list",
            &[0x1100_0002, 0x2600, 1, 0x2604],
            Rule::Short { have: 4, need: 5 },
        ),
        (
            "longer than the submission",
            &[0x1040_0002, 0x1000],
            Rule::PastEnd { need: 4, left: 2 },
        ),
    ];
    for (name, words, want) in cases {
        let mut words = words.to_vec();
        let got = audit(Engine::Rcs, &mut Fake::default(), &mut words);
        assert_eq!(rule(got.clone()), Some(want), "{name}: {got:?}");
    }
}

#[test]
fn a_command_across_the_end_of_the_ring_is_refused() {
    let mut words = [0, 0x1040_0002, 0x1000, 0, 7];
    let mut site = Fake::default();
    let mut auditor = Auditor::new(Engine::Rcs, &mut site, AuditLimits::default());
    let got = auditor.ring(&mut words, RING - 12, RING);
    assert_eq!(rule(got), Some(Rule::AcrossWrap));
}

#[test]
fn an_access_across_two_pages_gets_both() {
    let mut site = Fake::default();
    let mut words = [0x1060_0003, 0x1_2ffc, 0, 7, 8];
    audit(Engine::Rcs, &mut site, &mut words).unwrap();
    assert!(site.windows.contains_key(&(0x12, 2)));
    // The last mapped page has no successor.
    let mut words = [0x1060_0003, (MAPPED << 12) - 4, 0, 7, 8];
    assert!(matches!(
        audit(Engine::Rcs, &mut site, &mut words),
        Err(AuditError::NotMapped(_))
    ));
    // A dword there is fine.
    let mut words = [0x1040_0002, (MAPPED << 12) - 4, 0, 7];
    audit(Engine::Rcs, &mut site, &mut words).unwrap();
}

#[test]
fn batches_are_copied_deep_but_not_for_ever() {
    let mut site = Fake {
        memory: vec![0; 4096],
        ..Fake::default()
    };
    // At 0x1000: calls 0x2000 and returns; there: a store, the end.
    site.memory[0x400..0x404].copy_from_slice(&[0x18c0_0001, 0x2000, 0, 0x0500_0000]);
    site.memory[0x800..0x805].copy_from_slice(&[0x1040_0002, 0x9000, 0, 7, 0x0500_0000]);
    let mut words = [0x1880_0001, 0x1000, 0];
    audit(Engine::Rcs, &mut site, &mut words).unwrap();
    let (inner, outer) = (&site.placed[0], &site.placed[1]);
    assert_eq!(words[1], outer.0);
    assert_eq!(
        outer.1,
        [0x18c0_0001, inner.0, 0, 0x0500_0000, 0x0500_0000, 0]
    );
    assert_eq!(
        inner.1,
        [0x1040_0002, HOST, 0, 7, 0x0500_0000, 0x0500_0000, 0]
    );

    // A batch that goes on in itself.
    site.memory[0xc00..0xc03].copy_from_slice(&[0x1880_0001, 0x3000, 0]);
    let mut words = [0x1880_0001, 0x3000, 0];
    assert_eq!(
        rule(audit(Engine::Rcs, &mut site, &mut words)),
        Some(Rule::Depth { max: 4 })
    );
    // One that never ends runs into what is not mapped, or the budget.
    let mut words = [0x1880_0001, 0x4000, 0];
    assert!(matches!(
        audit(Engine::Rcs, &mut site, &mut words),
        Err(AuditError::NotMapped(_))
    ));
    let mut auditor = Auditor::new(
        Engine::Rcs,
        &mut site,
        AuditLimits {
            dwords: 8192,
            depth: 4,
        },
    );
    assert_eq!(
        rule(auditor.ring(&mut [0x1880_0001, 0x4000, 0], 0, RING)),
        Some(Rule::Budget { max: 8192 })
    );
}

#[test]
fn what_only_its_group_is_known_of_has_no_privilege() {
    // Among the last video packets is the number of PIPE_CONTROL, which
    // writes to a global address.
    for (engine, header) in [
        (Engine::Vecs, 0x7a00_0004),
        (Engine::Vcs, 0x7a00_0004),
        (Engine::Vcs, 0x7604_0004),
    ] {
        let command = cmd::decode(engine, header).unwrap();
        let mut site = Fake::default();
        let mut words = [header, 1 << 24 | 1 << 14, 0x1000, 0, 1, 2];
        let mut auditor = Auditor::new(engine, &mut site, AuditLimits::default());
        let refused = auditor.ring(&mut words, 0, RING).unwrap_err();
        let AuditError::Refused(refusal) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            (refusal.command, refusal.rule),
            (command.name, Rule::Forbidden)
        );
    }
}

/// Every global address in commands that passed, by a reading of its own.
fn global_addresses(engine: Engine, words: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let w = &words[at..];
        let command = cmd::decode(engine, w[0]).expect("audited");
        let len = usize::try_from(command.dwords(w[0])).unwrap();
        let is_flush = w[0] >> 23 == mi_op::FLUSH_DW;
        let is_pipe = command.name == "PIPE_CONTROL";
        let no_write = (is_flush && w[0] & 3 << 14 == 0)
            || (is_pipe && w[1] & (pipe_control::POST_SYNC_MASK | 1 << 23) == 0);
        let by_index = (is_flush && w[0] & 1 << 21 != 0) || (is_pipe && w[1] & 1 << 21 != 0);
        let to_register = is_pipe && w[1] & 1 << 23 != 0;
        for a in command.addresses {
            let low = usize::from(a.dword);
            let global = a.space.is_global(w);
            if no_write {
                for address in &w[low..len.min(low + 2)] {
                    assert_eq!(*address, 0);
                }
            } else if global && !by_index && !to_register {
                assert_eq!(w[low + 1], 0);
                found.push(w[low] & if is_flush { !7 } else { !3 });
            }
        }
        at += len;
    }
    found
}

/// Dwords that are often the start of a command, or plausible in one.
fn any_word() -> impl Strategy<Value = u32> {
    let opcode = (0u32..64, 0u32..6, any::<u32>())
        .prop_map(|(op, len, bits)| op << 23 | bits & 0x0064_c100 | len);
    prop_oneof![
        4 => opcode,
        2 => (0..MAPPED + 2, 0u32..0x400).prop_map(|(p, o)| p << 12 | o << 2),
        2 => Just(0),
        1 => Just(0x0500_0000),
        1 => Just(0x7a00_0004),
        1 => prop::sample::select(vec![0x2600, 0x209c, 0x7300, 0x2230, 0xb118, 1 << 24 | 1 << 14]),
        1 => any::<u32>(),
    ]
}

/// An audit that soon has enough.
fn small(engine: Engine, site: &mut Fake, words: &mut [u32]) -> Result<(), AuditError> {
    let limits = AuditLimits {
        dwords: 4096,
        depth: 3,
    };
    Auditor::new(engine, site, limits).ring(words, 0, RING)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever a guest puts in its ring and batches: no panic, and what
    /// passes names nothing but windows and copies made for it.
    #[test]
    fn what_passes_names_only_what_it_was_given(
        ring in prop::collection::vec(any_word(), 1..60),
        memory in prop::collection::vec(any_word(), 0..3000),
        engine in prop::sample::select(Engine::ALL.to_vec()),
    ) {
        let mut site = Fake { memory, ..Fake::default() };
        // Command by command, so that a bad one does not hide the others.
        for start in 0..ring.len() {
            let Some(command) = cmd::decode(engine, ring[start]) else { continue };
            let len = usize::try_from(command.dwords(ring[start])).unwrap();
            let Some(words) = ring.get(start..start + len) else { continue };
            let mut words = words.to_vec();
            if small(engine, &mut site, &mut words).is_ok() {
                for address in global_addresses(engine, &words) {
                    prop_assert!(site.owns(address), "{:x?} -> {:x?}", &ring[start..], words);
                }
            }
        }
        let mut whole = ring.clone();
        if small(engine, &mut site, &mut whole).is_ok() {
            for address in global_addresses(engine, &whole) {
                prop_assert!(site.owns(address));
            }
        }
        for (_, batch) in &site.placed {
            for address in global_addresses(engine, batch) {
                prop_assert!(site.owns(address), "{:x?}", batch);
            }
        }
    }

    /// The same for the batches around a context switch.
    #[test]
    fn switch_batches_name_only_what_they_were_given(
        memory in prop::collection::vec(any_word(), 64..200),
        lines in 1u32..4,
    ) {
        let mut site = Fake { memory, ..Fake::default() };
        let mut auditor = Auditor::new(Engine::Rcs, &mut site, AuditLimits::default());
        let a = auditor.indirect(0, lines).is_ok();
        let b = auditor.batch(0x40).is_ok();
        prop_assert!(site.placed.len() >= usize::from(a) + usize::from(b));
        for (_, batch) in &site.placed {
            for address in global_addresses(Engine::Rcs, batch) {
                prop_assert!(site.owns(address));
            }
        }
    }
}
