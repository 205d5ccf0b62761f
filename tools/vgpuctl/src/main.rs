//! Administration, demo and benches.

fn main() {}
