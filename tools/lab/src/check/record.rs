//! The scenario `record`: register values of guests with different kernels,
//! as data for `vgpuctl bench switch`.

use serde_json::{Map, Value, json};

use super::Verdict;
use super::work::Work;
use super::{i915, teardown};
use crate::facts::Facts;
use crate::scenario::Form;

/// Guests, the recording each gives, and how its kernel's version starts.
const RECORDINGS: [(&str, &str, &str); 2] = [
    ("g1", "bookworm-6.1", "6.1."),
    ("g2", "trixie-6.12", "6.12."),
];

/// Engines without which a recording is of no use.
const NEEDED: [&str; 2] = ["rcs0", "bcs0"];

/// The registers in an inspection: engine → name → value as text.
fn registers(tree: &Value) -> Option<Map<String, Value>> {
    let mut engines = Map::new();
    for lane in tree["scheduler"]["engines"].as_array()? {
        let mut values = Map::new();
        for (name, value) in lane["registers"].as_object()? {
            values.insert(name.clone(), json!(format!("{:#x}", value.as_u64()?)));
        }
        engines.insert(lane["name"].as_str()?.to_owned(), Value::Object(values));
    }
    Some(engines)
}

fn values<'a>(engines: &'a Map<String, Value>, engine: &str) -> Option<&'a Map<String, Value>> {
    engines.get(engine)?.as_object()
}

/// Judges the run; its recordings are files.
pub fn judge(facts: &Facts, _form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    let generation = match dom0.get("gpu") {
        Some("kbl") => "gen9",
        _ => "gen8",
    };
    let mut failures = Vec::new();
    let mut result = Map::new();
    let mut files = Vec::new();
    for (name, recording, version) in RECORDINGS {
        let guest = facts.guest(name);
        let kernel = guest.get("kernel");
        let mut wrong = |why: String| failures.push(format!("{recording}: {why}"));
        match kernel {
            None => wrong("the guest told no kernel".into()),
            Some(k) if !k.starts_with(version) => wrong(format!("the kernel is {k}")),
            Some(_) => {}
        }
        if !i915::detected(&guest) {
            wrong("i915 did not see a virtual GPU".into());
        }
        match i915::wedged(&guest) {
            Some(false) => {}
            Some(true) => wrong("the GPU is wedged".into()),
            None => wrong("i915 is not bound".into()),
        }
        let errors = i915::errors(&guest);
        match errors.as_deref() {
            None => wrong("the kernel log was not reported".into()),
            Some([]) => {}
            Some([first, ..]) => wrong(first.clone()),
        }
        let work = Work::of(&guest, "all");
        if let Some(why) = &work.wrong {
            wrong(why.clone());
        }
        let told = dom0.json(&format!("inspect/{name}-worked"));
        let engines = told.as_ref().ok().and_then(registers);
        match (&told, &engines) {
            (Err(why), _) => wrong(why.clone()),
            (Ok(_), None) => wrong("vgpuctl inspect told no registers".into()),
            (Ok(_), Some(engines)) => {
                for engine in NEEDED {
                    if values(engines, engine).is_none_or(Map::is_empty) {
                        wrong(format!("no registers of {engine}"));
                    }
                }
            }
        }
        result.insert(
            recording.to_owned(),
            json!({
                "kernel": kernel,
                "i915_errors": errors,
                "buffers_verified": work.verified,
                "mismatches": work.mismatches,
                "gpu_resets": work.resets,
                "engines": engines,
            }),
        );
        if let (Some(kernel), Some(engines)) = (kernel, engines) {
            files.push((
                format!("{generation}-{recording}.json"),
                json!({ "kernel": kernel, "engines": engines }),
            ));
        }
    }
    failures.extend(teardown::wrong(dom0, &RECORDINGS.map(|r| r.0)));
    Verdict {
        result: Value::Object(result),
        details: None,
        files,
        failures,
    }
}

#[cfg(test)]
mod tests;
