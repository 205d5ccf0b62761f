//! From reports to a result and a verdict.

pub mod boot;
pub mod i915;
pub mod igt;
pub mod refuse;

use serde_json::Value;

/// What a scenario comes to.
pub struct Verdict {
    /// The object written to result.json.
    pub result: Value,
    /// Longer material for details.json.
    pub details: Option<Value>,
    /// One line for each check that failed; none means passed.
    pub failures: Vec<String>,
}
