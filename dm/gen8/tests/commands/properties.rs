//! What holds for every stream.

use gen8::Engine;
use gen8::cmd::{GEN8, GEN9, Item, Table, WalkError};
use proptest::prelude::*;

use crate::streams::{Stream, stream};

fn engine() -> impl Strategy<Value = Engine> {
    prop::sample::select(Engine::ALL.to_vec())
}

fn table() -> impl Strategy<Value = &'static Table> {
    prop_oneof![Just(&GEN8), Just(&GEN9)]
}

/// A stream of a table, for an engine.
fn streams() -> impl Strategy<Value = (&'static Table, Engine, Stream)> {
    (table(), engine()).prop_flat_map(|(t, e)| (Just(t), Just(e), stream(t, e)))
}

/// A dword that is often the start of something.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        (0_u32..0x40, any::<u16>()).prop_map(|(op, low)| op << 23 | u32::from(low) & 0x00ff),
        (0_u32..0x80, 0_u32..16).prop_map(|(op, len)| 2 << 29 | op << 22 | len),
        (0_u32..0x2000, 0_u32..16).prop_map(|(op, len)| 3 << 29 | op << 16 | len),
        0_u32..4,
        any::<u32>(),
    ]
}

/// Whatever a command says of itself can be asked.
fn ask(item: &Item<'_>) {
    for a in item.command.addresses_in(item.words) {
        assert!(a.dword >= 1 && a.dword < item.words.len());
        assert!(a.bytes != Some(0));
    }
    for (offset, _, _) in item.command.registers_in(item.words) {
        assert!(offset % 4 == 0 && offset < 8 << 20);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever the dwords: no panic, each command starts where the one
    /// before ended, nothing lies past the end, and what is left over is in
    /// an error that is right.
    #[test]
    fn any_dwords_decode_or_fail_for_a_reason(
        words in prop::collection::vec(word(), 0..200),
        table in table(),
        engine in engine(),
    ) {
        let mut at = 0;
        let mut steps = table.walk(engine, &words);
        while let Some(step) = steps.next() {
            match step {
                Ok(item) => {
                    prop_assert_eq!(item.offset, at);
                    prop_assert!(!item.words.is_empty());
                    at += item.words.len();
                    prop_assert_eq!(item.words, &words[item.offset..at]);
                    prop_assert_eq!(steps.offset(), at);
                    ask(&item);
                    continue;
                }
                Err(e) => {
                    prop_assert_eq!(e.offset(), at);
                    let found = table.decode(engine, words[at]);
                    match e {
                        WalkError::Unknown { header, .. } => {
                            prop_assert_eq!(header, words[at]);
                            prop_assert!(found.is_none());
                        }
                        WalkError::PastEnd { need, left, .. } => {
                            prop_assert_eq!(left, words.len() - at);
                            prop_assert!(usize::try_from(need).unwrap() > left);
                        }
                        WalkError::Length { found, allowed, .. } => {
                            prop_assert!(!allowed.allow(found));
                        }
                    }
                    prop_assert!(steps.next().is_none());
                    return Ok(());
                }
            }
        }
        prop_assert_eq!(at, words.len());
    }

    /// What the table makes, it reads back: each command at its place, with
    /// its name, whatever the flags and operands.
    #[test]
    fn streams_of_the_table_come_back(
        (table, engine, (words, starts)) in streams(),
    ) {
        let found: Vec<_> = table.walk(engine, &words)
            .map(|step| {
                let item = step.unwrap();
                ask(&item);
                (item.offset, item.command.name)
            })
            .collect();
        prop_assert_eq!(found, starts);
    }

    /// A stream cut short fails at the command that is cut, not before.
    #[test]
    fn a_cut_stream_fails_where_it_is_cut(
        (table, engine, (words, starts)) in streams(),
        cut in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!words.is_empty());
        let cut = cut.index(words.len());
        let last = table.walk(engine, &words[..cut]).last();
        let whole = starts.iter().any(|(at, _)| *at == cut);
        match last {
            Some(Err(WalkError::PastEnd { offset, .. })) => {
                let (want, _) = starts.iter().rfind(|(at, _)| *at < cut).unwrap();
                prop_assert_eq!(offset, *want);
                prop_assert!(!whole);
            }
            Some(Err(e)) => prop_assert!(false, "{}", e),
            Some(Ok(_)) | None => prop_assert!(whole),
        }
    }
}
