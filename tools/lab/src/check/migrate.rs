//! The scenario `migrate`: a guest at work that is saved, restored, migrated.

mod faults;

pub use faults::known;

use serde_json::{Map, Value, json};

use super::Verdict;
use super::work::Work;
use super::{i915, teardown};
use crate::facts::{Facts, Report};
use crate::scenario::Form;

/// Migrations of the guest with a vGPU, in the full form and the short.
const ROUNDS: (usize, usize) = (10, 2);
/// Of the ones without, before and after.
const PLAIN_ROUNDS: (usize, usize) = (4, 1);
/// The migration after those that were made to fail.
const AFTER: &str = "after-aborts";

/// How long a guest's programs stood still, by its own clocks.
#[derive(Clone, Copy)]
struct Downtime {
    /// All of it, milliseconds.
    total: f64,
    /// That in which the guest's kernel ran: its drivers suspend and resume.
    awake: f64,
}

impl Downtime {
    /// That of `tag`. What the guest reports of a gap begins with the clock that
    /// counts suspension and ends with the one that does not.
    fn of(guest: &Report, tag: &str) -> Option<Self> {
        let clocks = guest.get(&format!("gap/{tag}"))?.split(' ');
        let clocks: Vec<f64> = clocks.map_while(|ms| ms.parse().ok()).collect();
        let &[total, _, awake] = clocks.as_slice() else {
            return None;
        };
        Some(Self { total, awake })
    }

    /// That in which nothing of the guest ran.
    fn asleep(self) -> f64 {
        self.total - self.awake
    }
}

/// The ratio of the medians of `part` in both.
fn ratio(ours: &[Downtime], without: &[Downtime], part: fn(&Downtime) -> f64) -> Option<f64> {
    let of = |times: &[Downtime]| median(&times.iter().map(part).collect::<Vec<_>>());
    of(ours).zip(of(without)).map(|(a, b)| a / b)
}

/// Whether `what` of `tag` ended with 0.
fn exit_wrong(dom0: &Report, what: &str, tag: &str) -> Option<String> {
    match dom0.get(&format!("{what}-exit/{tag}")) {
        Some("0") => None,
        Some(status) => Some(format!("{tag}: xl {what} ended with {status}")),
        None => Some(format!("{tag}: xl {what} was not run")),
    }
}

/// Whether the guest ran after `tag`.
fn ran(guest: &Report, tag: &str) -> bool {
    guest.get(&format!("gap/{tag}")).is_some()
}

/// Where the device model has to be after each migration to the other kind.
const KINDS: [(&str, &str); 2] = [("to-process", "process"), ("to-stub", "domain")];

/// What is wrong with them, in a run with device models in domains of their own.
fn kinds_wrong(dom0: &Report) -> Vec<String> {
    if dom0.get("stub").is_none() {
        return Vec::new();
    }
    let mut wrong: Vec<String> = teardown::stubs(dom0);
    for (tag, place) in KINDS {
        wrong.extend(exit_wrong(dom0, "migrate", tag));
        match dom0.json(&format!("place/{tag}")) {
            Ok(list) if list.pointer(&format!("/0/dm/{place}")).is_some() => {}
            Ok(list) => wrong.push(format!(
                "{tag}: vgpuctl list has {list}, expected a {place}"
            )),
            Err(e) => wrong.push(e),
        }
    }
    wrong
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Judges the run.
pub fn judge(facts: &Facts, form: Form) -> Verdict {
    let dom0 = &facts.dom0;
    let mut failures = Vec::new();
    // Of the cases only these, and nothing else.
    let only = dom0.get("only").unwrap_or("");
    let only: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    let of = |counts: (usize, usize)| {
        if !only.is_empty() {
            0
        } else if form == Form::Short {
            counts.1
        } else {
            counts.0
        }
    };
    let tags = |prefix: &str, count: usize| -> Vec<String> {
        (1..=count).map(|n| format!("{prefix}-{n}")).collect()
    };
    let rounds = tags("round", of(ROUNDS));
    let plain = tags("plain", of(PLAIN_ROUNDS));
    for what in ["save", "restore"].iter().filter(|_| only.is_empty()) {
        failures.extend(exit_wrong(dom0, what, "save"));
    }
    for tag in rounds.iter().chain(&plain) {
        failures.extend(exit_wrong(dom0, "migrate", tag));
    }
    failures.extend(exit_wrong(dom0, "migrate", AFTER));
    failures.extend(kinds_wrong(dom0));
    let guest = facts.guest("g1");
    let aborts = faults::tags(form, &only);
    failures.extend(faults::wrong(dom0, &guest, form, &only));
    let times = |guest: &Report, tags: &[String]| -> Vec<Downtime> {
        let of = |tag: &String| Downtime::of(guest, tag);
        tags.iter().filter_map(of).collect()
    };
    let ours = times(&guest, &rounds);
    let mut without = times(&facts.guest("plain"), &plain);
    without.extend(times(&facts.guest("late"), &plain));
    for (times, tags) in [(&ours, &rounds), (&without, &plain)] {
        if times.len() != tags.len() {
            failures.push(format!(
                "downtime_ms: {} of {} were told",
                times.len(),
                tags.len()
            ));
        }
    }
    let done = (rounds.iter())
        .filter(|tag| exit_wrong(dom0, "migrate", tag).is_none())
        .count();
    let work = Work::of(&guest, "migrate");
    if let Some(why) = &work.wrong {
        failures.push(format!("mismatches: {why}"));
    }
    match i915::errors(&guest).as_deref() {
        None => failures.push("i915_errors: no kernel log".into()),
        Some([]) => {}
        Some([first, ..]) => failures.push(format!("i915_errors: {first}")),
    }
    let guests = match form {
        _ if !only.is_empty() => &["g1"][..],
        Form::Short => &["g1", "plain"],
        _ => &["g1", "plain", "late"],
    };
    failures.extend(teardown::wrong(dom0, guests));
    let mut statuses = Map::new();
    let tags = rounds.iter().chain(&aborts).map(String::as_str);
    for tag in ["save", AFTER].into_iter().chain(tags) {
        let lines = dom0.block(&format!("status/{tag}"));
        if let Ok(status) = serde_json::from_str::<Value>(&lines.join("\n")) {
            statuses.insert(tag.to_owned(), status);
        }
    }
    Verdict {
        result: json!({
            "round_trips": done,
            "mismatches": work.mismatches,
            "mismatch": work.mismatch,
            "buffers_verified": work.verified,
            "gpu_resets": work.resets,
            "downtime_ms": ours.iter().map(|d| d.total).collect::<Vec<_>>(),
            "downtime_ms_no_vgpu": without.iter().map(|d| d.total).collect::<Vec<_>>(),
            "downtime_ms_save": Downtime::of(&guest, "save").map(|d| d.total),
            "ratio": ratio(&ours, &without, |d| d.total),
            "awake_ms": ours.iter().map(|d| d.awake).collect::<Vec<_>>(),
            "awake_ms_no_vgpu": without.iter().map(|d| d.awake).collect::<Vec<_>>(),
            "ratio_asleep": ratio(&ours, &without, |d| d.asleep()),
            "aborted": aborts,
            "migrations": Value::Object(statuses),
        }),
        details: None,
        files: Vec::new(),
        failures,
    }
}

#[cfg(test)]
mod tests;
