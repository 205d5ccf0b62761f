//! An event as a line.

use vgpu_control::{TraceEvent, What};

/// Time, engine, domain, what happened.
pub fn render(event: &TraceEvent) -> String {
    let (seconds, ns) = (event.at_ns / 1_000_000_000, event.at_ns % 1_000_000_000);
    let what = match event.what {
        What::Ready => "ready".into(),
        What::Start { slot } => format!("start in slot {slot}"),
        What::Switch { reads, writes, ns } => {
            format!("switch {reads} reads {writes} writes {ns} ns")
        }
        What::Handover { pairs } => format!("handover {pairs} registers"),
        What::Done { ran_ns } => format!("done {} us", micros(ran_ns)),
        What::Failed => "failed".into(),
        What::Cancelled => "cancelled".into(),
        What::Reset => "reset".into(),
        What::Throttled => "throttled".into(),
    };
    let (engine, vgpu) = (&event.engine, event.vgpu);
    format!("{seconds:>6}.{ns:09} {engine:<5} dom {vgpu:<5} {what}")
}

/// Nanoseconds as microseconds with all places.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each() {
        let line = |what| {
            render(&TraceEvent {
                number: 1,
                at_ns: 12_000_345_678,
                engine: "rcs0".into(),
                vgpu: 5,
                what,
            })
        };
        assert_eq!(line(What::Ready), "    12.000345678 rcs0  dom 5     ready");
        let switch = What::Switch {
            reads: 0,
            writes: 12,
            ns: 900,
        };
        assert!(line(switch).ends_with("dom 5     switch 0 reads 12 writes 900 ns"));
        assert!(line(What::Done { ran_ns: 1_234_567 }).ends_with("done 1234.567 us"));
    }
}
