//! Streams made from the table.

use gen8::Engine;
use gen8::cmd::{Command, Length, Table};
use proptest::prelude::*;

/// A stream and, for each command, where it starts and its name.
pub type Stream = (Vec<u32>, Vec<(usize, &'static str)>);

/// Most dwords of a command that may be of any length.
const LONG: u32 = 300;

/// The first dword of a command of `dwords` dwords, with `flags` wherever
/// neither opcode nor length stand.
fn header(command: &Command, dwords: u32, flags: u32) -> u32 {
    let (mask, field) = match command.length {
        Length::Fixed(_) => (0, 0),
        Length::Field { mask, bias } => (mask, dwords - bias),
    };
    command.value | field | flags & !command.mask & !mask
}

fn lengths(command: &Command) -> std::ops::RangeInclusive<u32> {
    let least = command.lengths.least();
    let most = match command.length {
        Length::Fixed(n) => n,
        Length::Field { mask, bias } => command
            .lengths
            .most()
            .unwrap_or_else(|| LONG.min(mask + bias)),
    };
    least..=most
}

/// One command of `engine`, with any operands.
fn command(table: &Table, engine: Engine) -> impl Strategy<Value = (Vec<u32>, &'static str)> {
    let rows: Vec<&'static Command> = table
        .rows()
        .filter(|c| c.engines.contains(engine) && !c.is_group())
        .collect();
    prop::sample::select(rows)
        .prop_flat_map(|c| (Just(c), lengths(c), any::<u32>(), any::<u32>()))
        .prop_map(|(c, dwords, flags, seed)| {
            let mut words = vec![header(c, dwords, flags)];
            let operand = |i: u32| seed.wrapping_mul(i.wrapping_mul(0x9e37_79b9) | 1);
            words.extend((1..dwords).map(operand));
            (words, c.name)
        })
}

/// A stream of commands for one engine.
pub fn stream(table: &Table, engine: Engine) -> impl Strategy<Value = Stream> {
    prop::collection::vec(command(table, engine), 0..40).prop_map(|commands| {
        let mut words = Vec::new();
        let mut starts = Vec::new();
        for (command, name) in commands {
            starts.push((words.len(), name));
            words.extend(command);
        }
        (words, starts)
    })
}
