//! Any dwords through the command decoder: each command starts where the one
//! before ended, nothing lies past the end, and an error is right.
#![no_main]

use gen8::Engine;
use gen8::cmd::{GEN8, GEN9, WalkError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else {
        return;
    };
    let engine = Engine::ALL[usize::from(first) % Engine::ALL.len()];
    let table = if first & 0x80 == 0 { &GEN8 } else { &GEN9 };
    let words: Vec<u32> = rest
        .as_chunks()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    let mut at = 0;
    for step in table.walk(engine, &words) {
        let item = match step {
            Ok(item) => item,
            Err(e) => {
                assert_eq!(e.offset(), at, "{e}");
                if let WalkError::PastEnd { need, left, .. } = e {
                    assert_eq!(left, words.len() - at);
                    assert!(usize::try_from(need).unwrap() > left);
                }
                return;
            }
        };
        assert_eq!(item.offset, at);
        assert!(!item.words.is_empty());
        at += item.words.len();
        assert_eq!(item.words, &words[item.offset..at]);
        for a in item.command.addresses_in(item.words) {
            assert!(a.dword < item.words.len());
        }
        for (offset, _, _) in item.command.registers_in(item.words) {
            assert!(offset < 8 << 20);
        }
    }
    assert_eq!(at, words.len());
});
