//! What a client asks for again and again: counts, and the trace.

use serde_json::Value;
use vgpu_control::{Sample, VgpuSample};

use super::server::Shared;

/// Bytes of vGPUs in one answer: the rest of a message is plenty for what
/// stands around them. A vGPU with every bucket of every engine's waits in
/// use takes less than this.
const PAGE_BYTES: usize = 100 << 10;

/// Events in one answer. One is at most 200 bytes long.
const PAGE_EVENTS: usize = 512;

/// Counts of the GPU and of vGPUs behind domain `after`, as many as fit.
///
/// # Errors
/// None that a client can cause.
pub fn sample(shared: &Shared, after: Option<u16>) -> anyhow::Result<Value> {
    let (at_ns, engines) = shared.platform.engines();
    let guests = shared.registry.guests();
    let asked = guests.iter().filter(|g| Some(g.domid) > after);
    let (vgpus, next) = page(asked.map(|g| g.sample()))?;
    let sample = Sample {
        vgpud: std::process::id(),
        at_ns,
        engines,
        vgpus,
        next,
    };
    Ok(serde_json::to_value(&sample)?)
}

/// As many of `vgpus` as fit an answer, one at least, and the last of them
/// when there are more.
fn page(
    vgpus: impl Iterator<Item = VgpuSample>,
) -> serde_json::Result<(Vec<VgpuSample>, Option<u16>)> {
    let mut bytes = 0;
    let mut page: Vec<VgpuSample> = Vec::new();
    for vgpu in vgpus {
        bytes += serde_json::to_vec(&vgpu)?.len();
        if bytes > PAGE_BYTES
            && let Some(last) = page.last()
        {
            let last = last.domid;
            return Ok((page, Some(last)));
        }
        page.push(vgpu);
    }
    Ok((page, None))
}

/// At most `max` events of the trace from `cursor` on.
///
/// # Errors
/// None that a client can cause.
pub fn trace(shared: &Shared, cursor: u64, max: u32) -> anyhow::Result<Value> {
    let max = usize::try_from(max).unwrap_or(PAGE_EVENTS);
    let page = shared.platform.trace(cursor, max.min(PAGE_EVENTS));
    Ok(serde_json::to_value(page)?)
}

#[cfg(test)]
mod tests {
    use vgpu_config::Share;
    use vgpu_control::{LaneSample, MAX_MESSAGE, State, TraceEvent, TracePage, What};
    use vgpu_sched::histogram::Histogram;

    use super::*;

    /// The most there can be, every figure as long as it gets.
    fn longest_vgpu() -> VgpuSample {
        let histogram = Histogram::default();
        for bits in 0..41_u32 {
            for part in 0..16_u64 {
                let ns = (1 << bits) + ((part << bits) >> 4);
                histogram.record(std::time::Duration::from_nanos(ns));
            }
        }
        let buckets = histogram.buckets();
        assert!(buckets.len() > 500);
        let lane = LaneSample {
            engine: u8::MAX,
            completed: u64::MAX,
            failed: u64::MAX,
            busy_ns: u64::MAX,
            overruns: u64::MAX,
            throttled: u64::MAX,
            switches: u64::MAX,
            handovers: u64::MAX,
            switch_accesses: u64::MAX,
            switch_accesses_saved: u64::MAX,
            switch_ns: u64::MAX,
            bytes_copied: u64::MAX,
            waits: buckets.into_iter().map(|(ns, _)| (ns, u64::MAX)).collect(),
        };
        VgpuSample {
            domid: u16::MAX,
            name: Some("\"".repeat(64)),
            state: State::Running,
            share: Share::default(),
            at_ns: u64::MAX,
            lanes: vec![lane; 4],
        }
    }

    #[test]
    fn the_longest_answers_fit_a_message() {
        let vgpu = serde_json::to_vec(&longest_vgpu()).unwrap().len();
        assert!(vgpu < PAGE_BYTES, "{vgpu}");
        const { assert!(PAGE_BYTES + (32 << 10) < MAX_MESSAGE) };
        let event = TraceEvent {
            number: u64::MAX,
            at_ns: u64::MAX,
            engine: "vecs0".into(),
            vgpu: u64::MAX,
            what: What::Switch {
                reads: u32::MAX.into(),
                writes: u32::MAX.into(),
                ns: u64::MAX,
            },
        };
        let page = TracePage {
            events: vec![event; PAGE_EVENTS],
            ..TracePage::default()
        };
        assert!(serde_json::to_vec(&page).unwrap().len() < MAX_MESSAGE);
    }

    #[test]
    fn vgpus_of_many_pages_all_come() {
        let all: Vec<VgpuSample> = (1..=64)
            .map(|domid| VgpuSample {
                domid,
                ..longest_vgpu()
            })
            .collect();
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let rest = all.iter().filter(|v| Some(v.domid) > after).cloned();
            let (page, next) = page(rest).unwrap();
            assert!(serde_json::to_vec(&page).unwrap().len() < MAX_MESSAGE);
            seen.extend(page.into_iter().map(|v| v.domid));
            after = next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(seen, (1..=64).collect::<Vec<_>>());
        assert_eq!(page(std::iter::empty()).unwrap(), (Vec::new(), None));
    }
}
