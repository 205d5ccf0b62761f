//! The scenario `share`: how two guests at work shared one engine.

use serde_json::{Value, json};

use super::Verdict;
use super::work::Work;
use super::{i915, teardown};
use crate::facts::{Facts, Report};
use crate::scenario::Form;

/// How far the ratio of GPU times may be from that of the weights.
const TOLERANCE: f64 = 0.10;
/// The same in the short form. There the lighter guest has a few dozen
/// requests in the window, and one more or less of them is percents.
const SHORT_TOLERANCE: f64 = 0.25;
/// How much of the window the engine has to be busy. A ratio says nothing
/// about an engine that had time left.
const SATURATED: f64 = 0.8;

/// The lighter and the heavier guest.
const GUESTS: [&str; 2] = ["g1", "g2"];

/// What one guest cost the engine in the window.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    busy_ns: f64,
    completed: f64,
    switches: f64,
    handovers: f64,
    switch_ns: f64,
    switch_reads: f64,
    switch_writes: f64,
}

/// Counters of guest `name` on `engine`, after less before.
fn cost(dom0: &Report, name: &str, engine: &str) -> Result<Cost, String> {
    let own = dom0.json(&format!("inspect/{name}-probe"))?;
    let id = own["scheduler"]["id"]
        .as_u64()
        .ok_or(format!("{name}: vgpuctl told no id"))?;
    let counters = |when: &str| -> Result<Value, String> {
        let gpu = dom0.json(&format!("inspect/gpu-{when}"))?;
        let entry = |list: &Value, key: &str, value: &Value| {
            let mut entries = list.as_array()?.iter();
            entries.find(|v| v[key] == *value).cloned()
        };
        entry(&gpu["vgpus"], "id", &json!(id))
            .and_then(|vgpu| entry(&vgpu["engines"], "name", &json!(engine)))
            .map(|lane| lane["counters"].clone())
            .ok_or(format!("{name}: no counters of {engine} {when} the window"))
    };
    let (before, after) = (counters("before")?, counters("after")?);
    // Counters that this vgpud does not have are zero.
    let grown = |key: &str| {
        let at = |c: &Value| c[key].as_f64().unwrap_or(0.0);
        at(&after) - at(&before)
    };
    Ok(Cost {
        busy_ns: grown("busy_ns"),
        completed: grown("completed"),
        switches: grown("switches"),
        handovers: grown("handovers"),
        switch_ns: grown("switch_ns"),
        switch_reads: grown("switch_reads"),
        switch_writes: grown("switch_writes"),
    })
}

/// From the middle of one snapshot to that of the other, seconds.
fn window(dom0: &Report) -> Option<f64> {
    let middle = |when: &str| {
        let (from, to) = dom0.get(&format!("snapshot/{when}"))?.split_once(' ')?;
        Some(f64::midpoint(from.parse().ok()?, to.parse().ok()?))
    };
    Some(middle("after")? - middle("before")?).filter(|s| *s > 0.0)
}

/// What is wrong with how vgpuctl changed what a guest gets, or how vgpud
/// remembered it.
fn set_wrong(dom0: &Report) -> Option<String> {
    let Some(kept) = dom0.get("kept") else {
        return Some("was not tried".into());
    };
    let told = |name: &str, wanted: &[&str]| -> Option<String> {
        let answer = match dom0.answer(name) {
            Ok(answer) => answer,
            Err(why) => return Some(why),
        };
        let missing = wanted.iter().find(|w| !answer.contains(**w))?;
        Some(format!("{name}: no {missing:?} in {answer:?}"))
    };
    told("set", &[kept])
        .or_else(|| told("top", &["ENGINE", "WAIT99"]))
        .or_else(|| match dom0.get("vgpud-exit") {
            Some("0") => None,
            exit => Some(format!("vgpud ended with {exit:?} when it was told to")),
        })
        .or_else(|| told("again", &[kept]))
}

/// Judges the run.
pub fn judge(facts: &Facts, form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    let engine = dom0.get("engine").unwrap_or("none");
    let mut failures = Vec::new();
    let weights = GUESTS.map(|name| dom0.number(&format!("weight/{name}")));
    let costs = GUESTS.map(|name| cost(dom0, name, engine));
    let work = GUESTS.map(|name| Work::of(&facts.guest(name), "share"));

    let seconds = window(dom0);
    let share = match (&costs, weights, seconds) {
        ([Ok(light), Ok(heavy)], [Some(w1), Some(w2)], Some(seconds)) => {
            let busy = (light.busy_ns + heavy.busy_ns) / 1e9 / seconds;
            let ratio = heavy.busy_ns / light.busy_ns;
            let tolerance = match form {
                Form::Short => SHORT_TOLERANCE,
                Form::Extended | Form::Full => TOLERANCE,
            };
            failures.extend(share_wrong(busy, ratio, w2 / w1, tolerance));
            Some((ratio, busy, *light, *heavy))
        }
        ([Err(why), _] | [_, Err(why)], ..) => {
            failures.push(format!("gpu_time_ratio: {why}"));
            None
        }
        _ => {
            failures.push("gpu_time_ratio: the window or the weights were not reported".into());
            None
        }
    };
    for (name, work) in GUESTS.iter().zip(&work) {
        if let Some(why) = &work.wrong {
            failures.push(format!("mismatches: {name}: {why}"));
        }
        match i915::errors(&facts.guest(name)).as_deref() {
            None => failures.push(format!("i915_errors: {name}: no kernel log")),
            Some([]) => {}
            Some([first, ..]) => failures.push(format!("i915_errors: {name}: {first}")),
        }
    }
    let set = set_wrong(dom0);
    failures.extend(set.iter().map(|why| format!("set_and_kept: {why}")));
    // The third is the first, come again.
    failures.extend(teardown::wrong(dom0, &[GUESTS[0], GUESTS[1], "g3"]));

    let each = |value: [Value; 2]| {
        let [a, b] = value;
        json!({ GUESTS[0]: a, GUESTS[1]: b })
    };
    let of_costs =
        |f: fn(&Cost) -> f64| each(costs.each_ref().map(|c| json!(c.as_ref().ok().map(f))));
    let switches = share.map(|(_, _, a, b)| a.switches + b.switches);
    let per_switch = |f: fn(&Cost) -> f64| {
        let (_, _, a, b) = share?;
        let n = switches.filter(|n| *n > 0.0)?;
        Some(rounded((f(&a) + f(&b)) / n))
    };
    Verdict {
        result: json!({
            "engine": engine,
            "seconds": seconds.map(rounded),
            "weights": each(weights.map(|w| json!(w))),
            "gpu_time_ratio": share.map(|s| rounded(s.0)),
            "engine_busy": share.map(|s| rounded(s.1)),
            "busy_seconds": of_costs(|c| rounded(c.busy_ns / 1e9)),
            "requests": of_costs(|c| c.completed),
            "mismatches": work.iter().map(|w| w.mismatches).sum::<u64>(),
            "mismatch": each(work.each_ref().map(|w| json!(w.mismatch))),
            "buffers_verified": each(work.each_ref().map(|w| json!(w.verified))),
            "set_and_kept": set.is_none(),
            "gpu_resets": work.iter().map(|w| w.resets).sum::<u64>(),
            "switches": switches,
            "handovers": share.map(|(_, _, a, b)| a.handovers + b.handovers),
            "switch": {
                "us": per_switch(|c| c.switch_ns / 1000.0),
                "reads": per_switch(|c| c.switch_reads),
                "writes": per_switch(|c| c.switch_writes),
            },
        }),
        details: None,
        files: Vec::new(),
        failures,
    }
}

/// What is wrong with the sharing, if anything.
fn share_wrong(busy: f64, ratio: f64, expected: f64, tolerance: f64) -> Option<String> {
    if busy < SATURATED {
        return Some(format!(
            "engine_busy: {} of the window, at least {SATURATED} are needed for a ratio to mean anything",
            rounded(busy)
        ));
    }
    let right = (ratio / expected - 1.0).abs() <= tolerance;
    (!right).then(|| {
        format!(
            "gpu_time_ratio: {}, expected {} by the weights, give or take {} %",
            rounded(ratio),
            rounded(expected),
            tolerance * 100.0
        )
    })
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests;
