//! What is counted and traced is what happened.

use std::time::Duration;

use gen8::Engine;
use vgpu_sched::trace::{TraceEvent, What};

use crate::driver::{Context, Guest, Host, cmd};

const ROUNDS: u64 = 20;

fn trace(host: &Host) -> Vec<TraceEvent> {
    let batch = host.scheduler.trace().read(0, usize::MAX);
    assert_eq!(batch.missed, 0);
    batch.events
}

fn count(events: &[&TraceEvent], which: fn(&What) -> bool) -> u64 {
    let found = events.iter().filter(|e| which(&e.what));
    u64::try_from(found.count()).unwrap()
}

#[test]
fn counters_and_trace_agree_on_every_engine() {
    let host = Host::new();
    let mut guests: Vec<(Guest, Vec<Context>)> = (1..=2)
        .map(|id| {
            let mut guest = host.guest(id, 256);
            let contexts = Engine::ALL.map(|e| guest.context(e, 1));
            (guest, contexts.into())
        })
        .collect();
    for _ in 0..ROUNDS {
        let mut under_way = Vec::new();
        for (guest, contexts) in &mut guests {
            let seqs: Vec<u64> = contexts
                .iter_mut()
                .map(|c| {
                    guest.emit(c, &[0, 0]);
                    guest.submit(c, None)
                })
                .collect();
            under_way.push(seqs);
        }
        for ((guest, _), seqs) in guests.iter_mut().zip(&under_way) {
            guest.wait_all(seqs);
        }
    }
    let events = trace(&host);
    assert!(events.is_sorted_by_key(|e| e.number));
    let engines = host.scheduler.engines();
    for engine in Engine::ALL {
        let (mut busy, mut switches, mut handovers) = (0, 0, 0);
        for (guest, _) in &guests {
            let lane = guest.handle.lanes()[engine.index()].clone();
            let id = guest.handle.inspect().id;
            let mine = |e: &&TraceEvent| e.engine == engine && e.vgpu == id;
            let mine: Vec<&TraceEvent> = events.iter().filter(mine).collect();
            let is = |which| count(&mine, which);
            assert_eq!(is(|w| matches!(w, What::Ready)), ROUNDS);
            assert_eq!(is(|w| matches!(w, What::Start { .. })), ROUNDS);
            assert_eq!(is(|w| matches!(w, What::Done { .. })), ROUNDS);
            assert_eq!(
                is(|w| matches!(w, What::Switch { .. })),
                lane.values.switches
            );
            assert_eq!(
                is(|w| matches!(w, What::Handover { .. })),
                lane.values.handovers
            );
            let ran: u64 = mine
                .iter()
                .map(|e| match e.what {
                    What::Done { ran_ns } => ran_ns,
                    _ => 0,
                })
                .sum();
            assert_eq!(lane.values.busy_ns, ran);
            assert_eq!(lane.values.completed, ROUNDS);
            let waited: u64 = lane.waits.iter().map(|(_, n)| n).sum();
            assert_eq!(waited, ROUNDS);
            assert!(lane.values.wait_ns_p50 <= lane.values.wait_ns_p99);
            busy += ran;
            switches += lane.values.switches;
            handovers += lane.values.handovers;
        }
        let view = &engines[engine.index()];
        assert_eq!(view.busy_ns, busy);
        // No moment counts twice, though two workloads are at the engine.
        assert!(u128::from(busy) <= host.scheduler.clock().now().as_nanos());
        assert_eq!((view.switches, view.handovers), (switches, handovers));
    }
}

#[test]
fn a_failure_is_traced_with_the_reset_it_took() {
    let host = Host::new();
    let mut guest = host.guest(5, 256);
    let mut context = guest.context(Engine::Rcs, 1);
    // No page there.
    guest.emit(&mut context, &cmd::batch(1 << 30));
    guest.fails(&context);
    let ends: Vec<What> = trace(&host)
        .into_iter()
        .filter(|e| matches!(e.what, What::Reset | What::Failed))
        .inspect(|e| assert_eq!((e.engine, e.vgpu), (Engine::Rcs, 5)))
        .map(|e| e.what)
        .collect();
    assert_eq!(ends, [What::Reset, What::Failed]);
    assert_eq!(guest.handle.lanes()[0].values.failed, 1);
    assert_eq!(host.scheduler.engines()[0].resets, 1);
}

/// Looking takes one lock at a time: an engine that finds a slice overrun asks
/// for the share under its own.
#[test]
fn looking_does_not_stop_who_is_looked_at() {
    const ROUNDS: u64 = 400;
    let host = Host::new();
    let work = |id| {
        let mut guest = host.guest(id, 256);
        let mut contexts = [Engine::Rcs, Engine::Bcs].map(|e| guest.context(e, 1));
        for _ in 0..ROUNDS {
            let seqs = contexts.each_mut().map(|c| {
                guest.emit(c, &[0, 0]);
                guest.submit(c, None)
            });
            // Past its slice, if it is at the engine.
            host.clock.pass(Duration::from_millis(2));
            guest.wait_all(&seqs);
        }
        let lanes = guest.handle.lanes().map(|l| l.values.completed);
        assert_eq!(lanes, [ROUNDS, ROUNDS, 0, 0]);
    };
    std::thread::scope(|scope| {
        let guests = [1, 2].map(|id| {
            let work = &work;
            scope.spawn(move || work(id))
        });
        while guests.iter().any(|g| !g.is_finished()) {
            let seen = host.scheduler.inspect();
            assert!(seen.vgpus.iter().all(|v| v.failed.is_none()));
        }
    });
}
