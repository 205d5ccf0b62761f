//! An engine as slow as it is told to be.

use crate::rig::{Rig, desc, store};
use gen8::{Engine, ring};
use gpu_bus::Gpu;

const E: Engine = Engine::Vcs;

#[test]
fn work_takes_as_long_as_it_is_said_to() {
    let mut r = Rig::with_command_cost(1_000_000);
    let mut c = r.context(E, 1);
    r.run(E, &mut c, &[0; 20]);
    assert_eq!(desc(&r.take_events(E)), [0x1, 0x18]);
    // What a thread that slept too long may make up for is less than 2 ms.
    let busy = r.gpu.counters().engines[E.index()].busy_ns;
    assert!(busy >= 18_000_000, "{busy}");
}

#[test]
fn a_reset_does_not_wait_for_slow_work() {
    let mut r = Rig::with_command_cost(u32::MAX);
    let mut c = r.context(E, 1);
    let at = r.global(1);
    r.emit(&mut c, &store(true, u64::from(at), 1));
    r.submit(E, &c);
    r.wait("the store", |r| r.peek(at) == 1);
    r.gpu.write32(ring::GDRST, E.reset_domain());
    assert_eq!(r.gpu.read32(ring::GDRST), 0);
    assert_eq!(desc(&r.take_events(E)), [0x1]);
}
