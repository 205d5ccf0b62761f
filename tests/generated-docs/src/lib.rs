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

#[cfg(test)]
mod tests {
    /// What stands between backquotes as `file:function`.
    fn cited(text: &str) -> impl Iterator<Item = (&str, &str)> {
        text.split('`')
            .skip(1)
            .step_by(2)
            .filter_map(|code| code.split_once(".rs:"))
    }

    /// Whether `file` has a function of that name, which is a test unless it
    /// is a program's own `main`.
    fn has_test(file: &str, name: &str) -> bool {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let function = format!("fn {name}(");
        let at = lines.iter().position(|line| line.starts_with(&function));
        at.is_some_and(|at| {
            let before = lines.get(..at).unwrap_or_default();
            let attributes = before
                .iter()
                .rev()
                .take_while(|l| l.starts_with('#') || l.starts_with("//"));
            name == "main" || attributes.into_iter().any(|l| *l == "#[test]")
        })
    }

    #[test]
    fn every_claim_of_the_threat_model_has_its_test() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let text = std::fs::read_to_string(format!("{root}/THREAT_MODEL.md"));
        let text = text.expect("the threat model is there");
        let mut missing = Vec::new();
        let mut found = 0;
        for (file, name) in cited(&text) {
            if has_test(&format!("{root}/{file}.rs"), name) {
                found += 1;
            } else {
                missing.push(format!("{file}.rs:{name}"));
            }
        }
        assert_eq!(missing, Vec::<String>::new());
        let claims = text.lines().filter(|l| l.starts_with("| ")).count();
        assert!(found > 20, "{found} of {claims} lines");
    }
}
