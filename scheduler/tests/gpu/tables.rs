//! More shadow tables than a vGPU may have, of which some are out of use.

use gen8::Engine;
use guest_memory::GuestMemory;
use vgpu_ring::{Event, FaultReason};
use vgpu_sched::ppgtt::TableLimits;
use vgpu_sched::vgpu::VgpuConfig;

use crate::driver::{Context, Guest, Host, cmd};

fn guest(host: &Host) -> Guest {
    let config = VgpuConfig {
        id: 1,
        tables: TableLimits { keep: 6, max: 12 },
        ..VgpuConfig::default()
    };
    Guest::with(&host.scheduler, config, 512)
}

/// A context with three tables and one for each of `spans`, and a page there.
fn context(guest: &mut Guest, engine: Engine, spans: u64) -> (Context, u64) {
    let context = guest.context(engine, 1);
    let data = guest.pages(1);
    for n in 0..spans {
        guest.map(&context, n << 21, data);
    }
    (context, data)
}

#[test]
fn a_context_waits_until_the_tables_of_others_can_go() {
    let host = Host::new();
    let mut guest = guest(&host);
    let (mut rcs, rcs_word) = context(&mut guest, Engine::Rcs, 2);
    let (mut vcs, vcs_word) = context(&mut guest, Engine::Vcs, 2);
    let (mut bcs, bcs_data) = context(&mut guest, Engine::Bcs, 4);
    guest.emit(&mut rcs, &cmd::wait(0, 1));
    guest.emit(&mut vcs, &cmd::wait(0, 1));
    let first = guest.submit(&rcs, None);
    let second = guest.submit(&vcs, None);
    // Seven where two are left.
    guest.emit(&mut bcs, &cmd::store(0, 7));
    let big = guest.submit(&bcs, None);
    assert_eq!(guest.read(bcs_data), 0);
    // Those who run go on by turns, and must not keep it waiting so.
    guest.memory.write_u32(rcs_word, 1).unwrap();
    guest.wait(first, 0);
    guest.memory.write_u32(rcs_word, 0).unwrap();
    guest.emit(&mut rcs, &cmd::wait(0, 1));
    let third = guest.submit(&rcs, None);
    guest.memory.write_u32(vcs_word, 1).unwrap();
    guest.wait_all(&[second, big]);
    assert_eq!(guest.read(bcs_data), 7);
    guest.memory.write_u32(rcs_word, 1).unwrap();
    guest.wait(third, 0);
    assert_eq!(guest.handle.inspect().refusals, []);
}

#[test]
fn one_that_has_too_many_by_itself_is_refused() {
    let host = Host::new();
    let mut guest = guest(&host);
    let (mut rcs, word) = context(&mut guest, Engine::Rcs, 1);
    let (mut bcs, _) = context(&mut guest, Engine::Bcs, 10);
    guest.emit(&mut rcs, &cmd::wait(0, 1));
    let waits = guest.submit(&rcs, None);
    guest.emit(&mut bcs, &cmd::store(0, 7));
    let seq = guest.submit(&bcs, None);
    guest.memory.write_u32(word, 1).unwrap();
    guest.wait(waits, 0);
    match guest.event() {
        Event::Fault { reason, seq: s, .. } => {
            assert_eq!((reason, s), (FaultReason::Exhausted, seq));
        }
        other => panic!("{other:?}"),
    }
    // Others are as they were.
    guest.emit(&mut rcs, &cmd::store(0, 5));
    guest.run(&rcs);
    assert_eq!(guest.read(word), 5);
}
