//! A vGPU is stopped, saved, and goes on here or on another host.

use std::time::Duration;

use gen8::Engine;
use vgpu_ring::Event;
use vgpu_sched::vgpu::SchedulerV1;

use crate::driver::{Context, Guest, Host, cmd};

/// So long that only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;

/// A context that waits in its ring until the word at its first address is 1.
fn waiter(guest: &mut Guest, engine: Engine, before: &[u32]) -> (Context, u64) {
    let mut c = guest.context(engine, 1);
    let (gpa, address) = guest.global_page();
    let wait = cmd::wait_global(address, 1);
    let told = cmd::store_global(address + 4, 1);
    guest.emit(&mut c, &[before, &told, &wait].concat());
    (c, gpa)
}

/// Until it does wait.
fn begun(guest: &Guest, gpa: u64) {
    while guest.read(gpa + 4) != 1 {
        std::thread::yield_now();
    }
}

fn release(guest: &Guest, gpa: u64) {
    guest.write_words(gpa, &[1]);
}

/// The saved state as it travels.
fn carried(saved: &SchedulerV1) -> SchedulerV1 {
    serde_json::from_slice(&serde_json::to_vec(saved).unwrap()).unwrap()
}

#[test]
fn what_has_not_begun_waits_and_runs_later() {
    let host = Host::new();
    let mut other = host.guest(2, 256);
    let (w, flag) = waiter(&mut other, Engine::Bcs, &[]);
    let held = other.submit(&w, None);
    begun(&other, flag);
    let mut guest = host.guest(1, 256);
    let mut contexts = Vec::new();
    for n in 1..=3 {
        let mut c = guest.context(Engine::Bcs, 1);
        let (gpa, address) = guest.global_page();
        guest.emit(&mut c, &cmd::store_global(address, n));
        contexts.push((c, gpa, n));
    }
    let first = guest.submit(&contexts[0].0, Some(&contexts[1].0));
    let drained = guest.handle.suspend(LIMIT).unwrap();
    assert_eq!((drained.put_back, drained.interrupted), (2, 0));
    // Requests are still taken.
    let second = guest.submit(&contexts[2].0, None);
    release(&other, flag);
    other.wait(held, 0);
    assert!(guest.done().is_empty());
    assert!(contexts.iter().all(|(_, gpa, _)| guest.read(*gpa) == 0));
    guest.handle.resume();
    guest.wait(first, 1);
    guest.wait(second, 0);
    for (_, gpa, n) in &contexts {
        assert_eq!(guest.read(*gpa), *n);
    }
}

/// A guest whose context stores, waits for a word in its own space, and stores
/// again, in a batch that the ring or another batch started, and then in the
/// ring. Gives the context and the pages of the batch's data and of the ring's.
fn in_batch(guest: &mut Guest, engine: Engine, deep: bool) -> (Context, u64, u64) {
    let mut c = guest.context(engine, 1);
    let (code, data) = (guest.pages(1), guest.pages(1));
    let (gpa, address) = guest.global_page();
    guest.map(&c, 1 << 20, code);
    guest.map(&c, 2 << 20, data);
    let work = [
        cmd::store(2 << 20, 5).to_vec(),
        cmd::store((2 << 20) + 4, 1).to_vec(),
        cmd::wait((2 << 20) + 8, 1).to_vec(),
        cmd::store((2 << 20) + 12, 6).to_vec(),
        vec![cmd::BATCH_END, 0],
    ]
    .concat();
    if deep {
        // A batch that calls one, and stores behind that.
        const SECOND: u32 = 1 << 22;
        let [header, low, high] = cmd::batch((1 << 20) + 0x800);
        let call = [header | SECOND, low, high];
        let behind = cmd::store((2 << 20) + 16, 7);
        guest.write_words(code, &[&call[..], &behind, &[cmd::BATCH_END, 0]].concat());
        guest.write_words(code + 0x800, &work);
    } else {
        guest.write_words(code, &work);
    }
    guest.emit(&mut c, &cmd::batch(1 << 20));
    guest.emit(&mut c, &cmd::store_global(address, 8));
    (c, data, gpa)
}

#[test]
fn a_batch_goes_on_where_it_was_taken_off() {
    for engine in Engine::ALL {
        for deep in [false, true] {
            let [source, target] = [Host::new(), Host::new()];
            let mut guest = source.guest(1, 256);
            let (c, data, gpa) = in_batch(&mut guest, engine, deep);
            guest.submit(&c, None);
            begun(&guest, data);
            let drained = guest.handle.suspend(NOW).unwrap();
            assert_eq!((drained.put_back, drained.interrupted), (1, 1));
            // What stands in front of the place is not run again.
            guest.write_words(data, &[9]);
            let saved = carried(&guest.handle.save());
            let mut there = guest.restored(&target.scheduler, 4, &saved);
            there.write_words(data + 8, &[1]);
            there.run(&c);
            let found = [0, 12, 16].map(|at| there.read(data + at));
            assert_eq!(found, [9, 6, if deep { 7 } else { 0 }], "{engine:?} {deep}");
            assert_eq!(there.read(gpa), 8);
            // And at the source, had it come to nothing.
            guest.write_words(data + 8, &[1]);
            guest.handle.resume();
            guest.wait(1, 0);
            let found = [0, 12, 16].map(|at| guest.read(data + at));
            assert_eq!(found, [9, 6, if deep { 7 } else { 0 }], "{engine:?} {deep}");
            assert_eq!(guest.read(gpa), 8);
        }
    }
}

#[test]
fn a_ring_goes_on_where_it_was_taken_off() {
    let [source, target] = [Host::new(), Host::new()];
    let mut guest = source.guest(1, 256);
    let (mut c, flag) = waiter(&mut guest, Engine::Vecs, &[]);
    let (gpa, address) = guest.global_page();
    guest.emit(&mut c, &cmd::store_global(address, 3));
    guest.submit(&c, None);
    begun(&guest, flag);
    assert_eq!(guest.handle.suspend(NOW).unwrap().interrupted, 1);
    // The head is behind the first store.
    assert_eq!(guest.image(&c, gen8::lrc::RING_HEAD), 16);
    guest.write_words(flag + 4, &[2]);
    let saved = carried(&guest.handle.save());
    let mut there = guest.restored(&target.scheduler, 1, &saved);
    release(&there, flag);
    there.run(&c);
    assert_eq!((there.read(flag + 4), there.read(gpa)), (2, 3));
}

#[test]
fn what_does_not_yield_is_named_and_goes_on() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    // One holds the engine by command, one is in a batch with privilege, which
    // is a copy of the host's.
    let (mut held, flag) = waiter(&mut guest, Engine::Rcs, &[cmd::arbitrate(false), 0]);
    guest.emit(&mut held, &[cmd::arbitrate(true), 0]);
    let mut inside = guest.context(Engine::Bcs, 1);
    let (code, batch) = guest.global_page();
    let (other_flag, address) = guest.global_page();
    let (out, after) = guest.global_page();
    guest.write_words(
        code,
        &[
            &cmd::store_global(address + 4, 1)[..],
            &cmd::wait_global(address, 1),
            &cmd::store_global(after, 4),
            &[cmd::BATCH_END, 0],
        ]
        .concat(),
    );
    guest.emit(&mut inside, &cmd::global_batch(batch));
    for (c, flag) in [(&held, flag), (&inside, other_flag)] {
        let seq = guest.submit(c, None);
        begun(&guest, flag);
        let error = guest.handle.suspend(NOW).unwrap_err();
        let lrca = u32::try_from(c.descriptor & 0xffff_f000).unwrap();
        assert_eq!((error.engine, error.context), (c.engine.sysfs_name(), lrca));
        assert!(guest.done().is_empty());
        guest.write_words(flag + 4, &[7]);
        release(&guest, flag);
        guest.wait(seq, 0);
        // It was not run again.
        assert_eq!(guest.read(flag + 4), 7);
    }
    assert_eq!(guest.read(out), 4);
    assert_eq!(guest.handle.suspend(NOW).unwrap().put_back, 0);
}

#[test]
fn what_stands_behind_it_is_run_for_its_owner() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (c, flag) = waiter(&mut guest, Engine::Bcs, &[]);
    let mut other = host.guest(2, 256);
    let mut o = other.context(Engine::Bcs, 1);
    let (gpa, address) = other.global_page();
    // Once before, so that it can follow at once.
    other.emit(&mut o, &cmd::store_global(address, 1));
    other.run(&o);
    guest.submit(&c, None);
    begun(&guest, flag);
    other.emit(&mut o, &cmd::store_global(address, 2));
    let seq = other.submit(&o, None);
    assert_eq!(guest.handle.suspend(NOW).unwrap().interrupted, 1);
    other.wait(seq, 0);
    assert_eq!(other.read(gpa), 2);
    release(&guest, flag);
    guest.handle.resume();
    guest.wait(1, 0);
}

#[test]
fn a_reset_ends_what_was_to_go_on() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (c, flag) = waiter(&mut guest, Engine::Vcs, &[]);
    guest.submit(&c, None);
    begun(&guest, flag);
    guest.handle.suspend(NOW).unwrap();
    guest.reset(1 << Engine::Vcs.index());
    guest.handle.resume();
    release(&guest, flag);
    let mut d = guest.context(Engine::Vcs, 1);
    guest.emit(&mut d, &[0, 0]);
    let events = guest.run(&d);
    assert!(
        matches!(events[..], [Event::ContextDone { seq: 2, .. }]),
        "{events:?}"
    );
}

#[test]
fn registers_that_only_the_gpu_knows_are_saved() {
    let [source, target] = [Host::new(), Host::new()];
    let mut guest = source.guest(1, 256);
    let offset = Engine::Bcs.mmio_base() + gen8::ring::INSTPM;
    let mut c = guest.context(Engine::Bcs, 1);
    // One bit of a masked register, by command.
    guest.emit(&mut c, &cmd::load_register(offset, 0x0040_0040));
    guest.run(&c);
    guest.handle.suspend(LIMIT).unwrap();
    let saved = carried(&guest.handle.save());
    let registers = &saved.engines[Engine::Bcs.index()].registers;
    assert!(registers.contains(&(offset, 0x40)), "{registers:x?}");
    let there = guest.restored(&target.scheduler, 1, &saved);
    there.handle.suspend(LIMIT).unwrap();
    assert_eq!(there.handle.save(), saved);
}
