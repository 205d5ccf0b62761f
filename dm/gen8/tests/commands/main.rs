//! The command table against what drivers write, against random dwords, and
//! against its document.

mod document;
mod drivers;
mod null_state;
mod properties;
mod streams;

use gen8::Engine;
use gen8::cmd::walk;

/// Names of the commands in `words`, which must all decode.
fn names(engine: Engine, words: &[u32]) -> Vec<&'static str> {
    walk(engine, words)
        .map(|item| match item {
            Ok(item) => item.command.name,
            Err(e) => panic!("{e}"),
        })
        .collect()
}
