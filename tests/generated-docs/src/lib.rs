//! Documents in `docs/` that are made from tables: tests compare them with
//! what the tables say now, and write them anew on request.

#![forbid(unsafe_code)]

use std::path::Path;

/// Compares the document `docs/NAME` with `expected`. With `UPDATE_DOCS` in the
/// environment it is written first.
///
/// # Panics
/// When it is another; the message has `command`, which writes it anew.
pub fn check(name: &str, expected: &str, command: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, expected).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/{name} is stale: UPDATE_DOCS=1 {command}"
    );
}
