//! From reports to a result and a verdict.

pub mod boot;
pub mod crash;
pub mod grants;
pub mod i915;
pub mod igt;
pub mod migrate;
pub mod prison;
pub mod record;
pub mod refuse;
pub mod share;
pub mod stub;
mod teardown;
mod work;

use serde_json::Value;

/// What a scenario comes to.
pub struct Verdict {
    /// The object written to result.json.
    pub result: Value,
    /// Longer material for details.json.
    pub details: Option<Value>,
    /// Further files: name and content.
    pub files: Vec<(String, Value)>,
    /// One line for each check that failed; none means passed.
    pub failures: Vec<String>,
}
