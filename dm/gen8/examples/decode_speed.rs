//! How long it takes to decode a command: `cargo run --release -p gen8
//! --example decode_speed`.
//!
//! Prints nanoseconds per command and MB/s for a stream like a driver's and
//! for one with each command of the table in turn.

use std::hint::black_box;
use std::time::Instant;

use gen8::Engine;
use gen8::cmd::{all, walk};

/// Dwords of a stream: more than a CPU's first two caches hold.
const DWORDS: usize = 1 << 20;
const ROUNDS: usize = 20;

/// Copies of `part` up to the stream's length.
fn stream(part: &[u32]) -> Vec<u32> {
    let copies = (DWORDS / part.len()).max(1);
    part.repeat(copies)
}

/// A draw with its state, as Mesa emits.
fn draw() -> Vec<u32> {
    let mut words = Vec::new();
    for (header, dwords) in [
        (0x7a00_0004, 6),
        (0x7808_0003, 5),
        (0x7809_0003, 5),
        (0x7815_0009, 11),
        (0x7817_0009, 11),
        (0x782a_0000, 2),
        (0x7820_000a, 12),
        (0x784f_0000, 2),
        (0x1100_0001, 3),
        (0x7b00_0005, 7),
    ] {
        let start = words.len();
        words.resize(start + dwords, 0x1000);
        words[start] = header;
    }
    words
}

/// Each render command once.
fn each() -> Vec<u32> {
    let mut words = Vec::new();
    for c in all().filter(|c| c.engines.contains(Engine::Rcs) && !c.is_group()) {
        let start = words.len();
        let dwords = c.lengths.least();
        words.resize(start + usize::try_from(dwords).unwrap_or(1), 0);
        let field = match c.length {
            gen8::cmd::Length::Fixed(_) => 0,
            gen8::cmd::Length::Field { bias, .. } => dwords - bias,
        };
        words[start] = c.value | field;
    }
    words
}

/// The best of several rounds: others use the machine, too.
fn measure(name: &str, words: &[u32], addresses: bool) {
    let mut commands = 0_u32;
    let mut found = 0;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        (commands, found) = (0, 0);
        let start = Instant::now();
        for item in walk(Engine::Rcs, black_box(words)) {
            let item = item.expect("made of the table");
            commands += 1;
            if addresses {
                let all = item.command.addresses_in(item.words);
                found += all.filter(|a| a.global).count();
            }
        }
        black_box(commands);
        best = best.min(start.elapsed().as_secs_f64());
    }
    let megabytes = words.len() as f64 * 4e-6;
    println!(
        "{name}: {:.2} ns a command, {:.0} MB/s, {commands} commands, {found} global addresses",
        best * 1e9 / f64::from(commands),
        megabytes / best,
    );
}

fn main() {
    for (name, part) in [
        ("draws", draw()),
        ("each command", each()),
        ("no-ops", vec![0]),
    ] {
        let words = stream(&part);
        measure(name, &words, false);
        measure(&format!("{name}, with addresses"), &words, true);
    }
}
