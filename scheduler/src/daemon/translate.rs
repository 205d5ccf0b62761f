//! From the scheduler's and Xen's words to those of the control socket.

use vgpu_control::{EngineSample, LaneSample, TraceEvent, TracePage};
use vgpu_sched::clock::nanos;
use vgpu_sched::engine::EngineView;
use vgpu_sched::inspect::LaneCounters;
use vgpu_sched::kept::Uuid;
use vgpu_sched::trace::Batch;

use super::platform::Identity;

/// The longest name of a guest that is shown, in characters.
const MAX_NAME: usize = 64;

/// Who a guest is, of its xenstore nodes `vm` and `name`.
pub fn identity(vm: Option<&str>, name: Option<&str>) -> Identity {
    // libxl writes "/vm/UUID" (Xen libxl_create.c:libxl__domain_make).
    let uuid = vm.and_then(|vm| {
        let uuid = vm.strip_prefix("/vm/")?.parse::<Uuid>();
        uuid.inspect_err(|e| log::warn!("node vm is {vm:?}: {e}"))
            .ok()
    });
    let printable = |name: &str| {
        let shown = name.chars().filter(|c| !c.is_control());
        shown.take(MAX_NAME).collect::<String>()
    };
    Identity {
        uuid,
        name: name.map(printable).filter(|n| !n.is_empty()),
    }
}

/// An engine.
pub fn engine(view: EngineView) -> EngineSample {
    EngineSample {
        name: view.name.into(),
        busy_ns: view.busy_ns,
        switches: view.switches,
        handovers: view.handovers,
        switch_ns: view.switch_ns,
        resets: view.resets,
        waiting: u64::try_from(view.waiting).unwrap_or(u64::MAX),
        running: view.running,
        owner: view.owner,
        dead: view.dead,
    }
}

/// A vGPU on an engine; `None` when it never did anything there.
pub fn lane(lane: LaneCounters) -> Option<LaneSample> {
    let LaneCounters {
        engine,
        values: v,
        waits,
    } = lane;
    (v.loads > 0).then(|| LaneSample {
        engine: u8::try_from(engine.index()).unwrap_or(u8::MAX),
        completed: v.completed,
        failed: v.failed,
        busy_ns: v.busy_ns,
        overruns: v.overruns,
        throttled: v.throttled,
        switches: v.switches,
        handovers: v.handovers,
        switch_accesses: v.switch_reads.saturating_add(v.switch_writes),
        switch_accesses_saved: v.switch_reads_saved.saturating_add(v.switch_writes_saved),
        switch_ns: v.switch_ns,
        bytes_copied: v.bytes_copied,
        waits,
    })
}

/// A piece of the trace.
pub fn trace(batch: Batch) -> TracePage {
    let events = batch.events.into_iter().map(|e| TraceEvent {
        number: e.number,
        at_ns: nanos(e.at),
        engine: e.engine.sysfs_name().into(),
        vgpu: e.vgpu,
        what: e.what,
    });
    TracePage {
        vgpud: std::process::id(),
        events: events.collect(),
        next: batch.next,
        missed: batch.missed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "2c5f2a0e-9f1c-4f6e-8d4e-0123456789ab";

    #[test]
    fn a_guest_is_known_by_its_nodes() {
        let known = identity(Some(&format!("/vm/{UUID}")), Some("web\x1b[2J\n"));
        assert_eq!(known.uuid.unwrap().to_string(), UUID);
        assert_eq!(known.name.as_deref(), Some("web[2J"));
        for vm in ["", "/vm/", UUID, "/vm/../x"] {
            assert_eq!(identity(Some(vm), None).uuid, None);
        }
        let long = identity(None, Some(&"é".repeat(100)));
        assert_eq!(long.name.unwrap().chars().count(), MAX_NAME);
        assert_eq!(identity(None, Some("\n")).name, None);
    }
}
