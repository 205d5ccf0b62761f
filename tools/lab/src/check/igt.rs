//! Which tests of igt-gpu-tools are run.

/// One test program and what is run of it.
pub struct Test {
    /// The program.
    pub name: &'static str,
    /// Its subtests for the short form.
    short: &'static [&'static str],
    /// Those the full form adds.
    full: &'static [&'static str],
    /// Seconds for each subtest.
    timeout: u32,
}

/// The list that the guest's script reads: `NAME SUBTEST TIMEOUT` lines.
pub fn list(short: bool) -> String {
    let mut text = String::new();
    for test in TESTS {
        let more = if short { &[] } else { test.full };
        for subtest in test.short.iter().chain(more) {
            text.push_str(&format!("{} {subtest} {}\n", test.name, test.timeout));
        }
    }
    text
}

/// The tests.
pub const TESTS: &[Test] = &[];
