//! Events as Chrome trace JSON (the "Trace Event Format"), which Perfetto and
//! chrome://tracing open.
//!
//! A process is an engine, a thread of it a vGPU. A workload on the engine is
//! a complete event, a switch another before it; what has no length is an
//! instant.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use vgpu_control::{TraceEvent, What};

use crate::ratio::as_f64;

/// A workload that went to the engine and has not left it.
struct Started {
    at_ns: u64,
    slot: u8,
    waited_ns: Option<u64>,
}

/// What one vGPU has under way on one engine.
#[derive(Default)]
struct Track {
    ready: VecDeque<u64>,
    started: VecDeque<Started>,
}

/// An engine's and a vGPU's number in the document.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    process: usize,
    thread: u64,
}

impl Place {
    /// Something that took `ns` from `start_ns` on.
    fn complete(self, name: &str, start_ns: u64, ns: u64, args: &Value) -> Value {
        json!({
            "ph": "X",
            "name": name,
            "pid": self.process,
            "tid": self.thread,
            "ts": micros(start_ns),
            "dur": micros(ns),
            "args": args,
        })
    }

    /// Something without a length.
    fn instant(self, name: &str, at_ns: u64, args: &Value) -> Value {
        json!({
            "ph": "i",
            "s": "t",
            "name": name,
            "pid": self.process,
            "tid": self.thread,
            "ts": micros(at_ns),
            "args": args,
        })
    }

    /// A name for the process or its thread.
    fn named(self, what: &str, name: &str) -> Value {
        json!({
            "ph": "M",
            "name": what,
            "pid": self.process,
            "tid": self.thread,
            "args": {"name": name},
        })
    }
}

/// Guests' names by domain.
pub type Names = BTreeMap<u64, String>;

/// The document for `events`, oldest first.
pub fn document(events: &[TraceEvent], names: &Names) -> Value {
    let mut engines: Vec<&str> = events.iter().map(|e| e.engine.as_str()).collect();
    engines.sort_unstable();
    engines.dedup();
    let mut tracks = BTreeMap::<Place, Track>::new();
    let mut out = Vec::new();
    for event in events {
        let process = engines.binary_search(&event.engine.as_str());
        let place = Place {
            process: 1 + process.unwrap_or(0),
            thread: event.vgpu,
        };
        let track = tracks.entry(place).or_default();
        out.extend(track.take(place, event));
    }
    let end = events.last().map_or(0, |e| e.at_ns);
    let mut metadata = Vec::new();
    let mut process = 0;
    for (place, track) in &tracks {
        let dom = format!("dom {}", place.thread);
        out.extend(track.started.iter().map(|s| {
            let mut args = s.args();
            args["under_way"] = true.into();
            place.complete(&dom, s.at_ns, end.saturating_sub(s.at_ns), &args)
        }));
        if place.process != process {
            process = place.process;
            let engine = engines.get(process - 1).copied().unwrap_or_default();
            metadata.push(place.named("process_name", engine));
        }
        let guest = names.get(&place.thread);
        let track_name = guest.map_or(dom.clone(), |name| format!("{dom} {name}"));
        metadata.push(place.named("thread_name", &track_name));
    }
    metadata.extend(out);
    json!({"displayTimeUnit": "ns", "traceEvents": metadata})
}

impl Started {
    fn args(&self) -> Value {
        json!({
            "slot": self.slot,
            "waited_us": self.waited_ns.map(micros),
        })
    }
}

impl Track {
    fn take(&mut self, place: Place, event: &TraceEvent) -> Option<Value> {
        let at = event.at_ns;
        let none = json!({});
        Some(match event.what {
            What::Ready => {
                self.ready.push_back(at);
                return None;
            }
            What::Start { slot } => {
                let ready = self.ready.pop_front();
                self.started.push_back(Started {
                    at_ns: at,
                    slot,
                    waited_ns: ready.map(|r| at.saturating_sub(r)),
                });
                return None;
            }
            What::Switch { reads, writes, ns } => place.complete(
                "switch",
                at.saturating_sub(ns),
                ns,
                &json!({"reads": reads, "writes": writes}),
            ),
            What::Done { ran_ns } => {
                let args = self.started.pop_front().map_or(none, |s| s.args());
                let dom = format!("dom {}", event.vgpu);
                place.complete(&dom, at.saturating_sub(ran_ns), ran_ns, &args)
            }
            What::Failed => self.ended(place, event, "failed"),
            What::Cancelled => self.ended(place, event, "cancelled"),
            What::Handover { pairs } => place.instant("handover", at, &json!({"pairs": pairs})),
            What::Reset => place.instant("reset", at, &none),
            What::Throttled => place.instant("throttled", at, &none),
        })
    }

    /// Left the engine without an end of its own.
    fn ended(&mut self, place: Place, event: &TraceEvent, how: &str) -> Value {
        match self.started.pop_front() {
            Some(s) => {
                let mut args = s.args();
                args["ended"] = how.into();
                let dom = format!("dom {}", event.vgpu);
                place.complete(&dom, s.at_ns, event.at_ns.saturating_sub(s.at_ns), &args)
            }
            // It had not got there.
            None => {
                self.ready.pop_front();
                place.instant(how, event.at_ns, &json!({}))
            }
        }
    }
}

/// Nanoseconds as microseconds.
fn micros(ns: u64) -> f64 {
    as_f64(ns) / 1e3
}

#[cfg(test)]
mod tests;
