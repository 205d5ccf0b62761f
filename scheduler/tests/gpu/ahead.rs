//! Two elements of one guest at the engine.

use gen8::cmd::mi_op;
use gen8::{Engine, irq, lrc};
use guest_memory::GuestMemory;
use vgpu_ring::{Event, FaultReason};

use crate::driver::{Context, Guest, Host, cmd};
use crate::scripted::Stage;

const RCS: u8 = 1;

fn done(seq: u64, element: u8) -> Event {
    Event::ContextDone {
        engine: 0,
        element,
        bits: 0,
        seq,
    }
}

/// Events without the interrupts of a wait for a semaphore.
fn without_interrupts(events: Vec<Event>) -> Vec<Event> {
    let done = |event| match event {
        Event::Interrupt { .. } => None,
        Event::ContextDone { element, seq, .. } => Some(done(seq, element)),
        other => Some(other),
    };
    events.into_iter().filter_map(done).collect()
}

/// The next event that is no such interrupt.
fn next(guest: &mut Guest) -> Event {
    loop {
        if let Some(event) = without_interrupts(vec![guest.event()]).pop() {
            return event;
        }
    }
}

/// A context that waits for a word of a page, and the word's address.
fn waiting(guest: &mut Guest) -> (Context, u64) {
    let mut c = guest.context(Engine::Rcs, 1);
    let (data, address) = guest.global_page();
    guest.emit(&mut c, &cmd::wait_global(address, 1));
    (c, data)
}

/// A context that stores 7 in a word of a page, and the word's address.
fn storing(guest: &mut Guest) -> (Context, u64) {
    let mut c = guest.context(Engine::Rcs, 1);
    let (data, address) = guest.global_page();
    guest.emit(&mut c, &cmd::store_global(address, 7));
    (c, data)
}

/// Waits until the engine has two elements of guest 1.
fn until_two(host: &Host) {
    while host.scheduler.inspect().engines[0].second != Some(1) {
        std::thread::yield_now();
    }
}

#[test]
fn both_elements_of_a_load_are_given_to_the_engine() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (a, word) = waiting(&mut guest);
    let (b, data) = storing(&mut guest);
    let seq = guest.submit(&a, Some(&b));
    until_two(&host);
    guest.memory.write_u32(word, 1).unwrap();
    let events = without_interrupts(guest.wait(seq, 1));
    assert_eq!(events, [done(seq, 0), done(seq, 1)]);
    assert_eq!(guest.read(data), 7);
    let engine = host.gpu.counters().engines[0];
    assert_eq!((engine.idles, engine.contexts), (1, 2));
}

#[test]
fn a_context_loaded_again_without_more_to_do_is_done_with_what_it_did() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (a, word) = waiting(&mut guest);
    let (b, data) = storing(&mut guest);
    let first = guest.submit(&a, None);
    // As a driver does that has something new behind what runs.
    let second = guest.submit(&a, Some(&b));
    until_two(&host);
    guest.memory.write_u32(word, 1).unwrap();
    let events = without_interrupts(guest.wait(second, 1));
    assert_eq!(events, [done(first, 0), done(second, 0), done(second, 1)]);
    assert_eq!(guest.read(data), 7);
    assert_eq!(host.gpu.counters().engines[0].idles, 1);
}

/// i915 moves the tail of what runs over two commands that do nothing when it
/// loads it again (Linux `gt/gen8_engine_cs.c:gen8_emit_wa_tail`).
#[test]
fn no_ops_behind_what_runs_do_not_keep_the_next_one_waiting() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (mut a, word) = waiting(&mut guest);
    let mut b = guest.context(Engine::Rcs, 1);
    let (data, address) = guest.global_page();
    guest.emit(&mut b, &cmd::store_global(address, 7));
    let first = guest.submit(&a, None);
    guest.emit(&mut a, &[mi_op::ARB_CHECK << 23, mi_op::NOOP << 23]);
    let tail = guest.image(&a, lrc::RING_TAIL);
    let second = guest.submit(&a, Some(&b));
    until_two(&host);
    guest.memory.write_u32(word, 1).unwrap();
    let events = without_interrupts(guest.wait(second, 1));
    assert_eq!(events, [done(first, 0), done(second, 0), done(second, 1)]);
    assert_eq!(guest.read(data), 7);
    assert_eq!(guest.image(&a, lrc::RING_HEAD), tail);
    let engine = host.gpu.counters().engines[0];
    assert_eq!((engine.idles, engine.contexts), (1, 2));
    // Anything else there is run when its turn comes.
    guest.emit(&mut a, &cmd::store_global(address, 8));
    guest.run(&a);
    assert_eq!(guest.read(data), 8);
}

#[test]
fn commands_behind_what_runs_are_run() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (mut a, word) = waiting(&mut guest);
    let (data, address) = guest.global_page();
    let first = guest.submit(&a, None);
    guest.emit(&mut a, &[0, 0]);
    guest.emit(&mut a, &cmd::store_global(address, 7));
    let second = guest.submit(&a, None);
    guest.memory.write_u32(word, 1).unwrap();
    let events = without_interrupts(guest.wait(second, 0));
    assert_eq!(events, [done(first, 0), done(second, 0)]);
    assert_eq!(guest.read(data), 7);
}

/// i915 loads what runs again for each request (Linux
/// `gt/intel_execlists_submission.c:execlists_dequeue`).
#[test]
fn what_runs_may_be_loaded_again_a_thousand_times() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut a = guest.context(Engine::Rcs, 8);
    let (word, at) = guest.global_page();
    let (data, address) = guest.global_page();
    guest.emit(&mut a, &cmd::wait_global(at, 1));
    let first = guest.submit(&a, None);
    let mut last = first;
    for value in 1..=1000 {
        guest.emit(&mut a, &cmd::store_global(address, value));
        last = guest.submit(&a, None);
        assert!(guest.handle.inspect().engines[0].waiting_loads <= 2);
    }
    let (b, other) = storing(&mut guest);
    let then = guest.submit(&a, Some(&b));
    assert!(then > last);
    guest.memory.write_u32(word, 1).unwrap();
    let events = without_interrupts(guest.wait(then, 1));
    assert_eq!(events.first(), Some(&done(first, 0)));
    assert_eq!(events.last(), Some(&done(then, 1)));
    assert_eq!((guest.read(data), guest.read(other)), (1000, 7));
    assert_eq!(guest.image(&a, lrc::RING_HEAD), a.tail);
}

/// Each was kept until what runs was over, however many they were.
#[test]
fn loads_that_add_nothing_cost_the_guest_its_engine() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (a, _word) = waiting(&mut guest);
    guest.submit(&a, None);
    // None takes the place of the one before it.
    let empty = [(); 2].map(|()| guest.context(Engine::Rcs, 1));
    for n in 0..1000 {
        guest.submit(&empty[n % 2], None);
    }
    let event = next(&mut guest);
    let exhausted = FaultReason::Exhausted;
    assert!(
        matches!(event, Event::Fault { reason, .. } if reason == exhausted),
        "{event:?}"
    );
}

#[test]
fn a_refusal_comes_after_what_was_submitted_before() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (a, word) = waiting(&mut guest);
    let mut b = guest.context(Engine::Rcs, 1);
    guest.emit(&mut b, &cmd::load_register(0x2230, 1));
    let seq = guest.submit(&a, Some(&b));
    guest.memory.write_u32(word, 1).unwrap();
    assert_eq!(next(&mut guest), done(seq, 0));
    let event = next(&mut guest);
    assert!(
        matches!(
            event,
            Event::Fault {
                reason: FaultReason::Refused,
                element: 1,
                ..
            }
        ),
        "{event:?}"
    );
    guest.reset(RCS);
}

#[test]
fn the_first_ones_failure_takes_the_second_with_it() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut a = guest.context(Engine::Rcs, 1);
    let code = guest.pages(1);
    let (word, at) = guest.global_page();
    guest.map(&a, 1 << 20, code);
    guest.write_words(code, &[0xe123_4567, 0]);
    guest.emit(&mut a, &cmd::wait_global(at, 1));
    guest.emit(&mut a, &cmd::batch(1 << 20));
    let (b, data) = storing(&mut guest);
    let seq = guest.submit(&a, Some(&b));
    until_two(&host);
    guest.memory.write_u32(word, 1).unwrap();
    let event = next(&mut guest);
    assert!(
        matches!(event, Event::Fault { reason: FaultReason::Instruction, seq: s, element: 0, .. } if s == seq),
        "{event:?}"
    );
    guest.reset(RCS);
    assert_eq!(guest.read(data), 0);
    // Its context is as it was; submitted again, it runs.
    guest.run(&b);
    assert_eq!(guest.read(data), 7);
}

#[test]
fn an_interrupt_while_both_run_is_told_once() {
    let stage = Stage::new();
    let (mut guest, a) = stage.guest(1);
    let mut b = guest.context(Engine::Rcs, 1);
    guest.emit(&mut b, &[0, 0]);
    let seq = guest.submit(&a, Some(&b));
    let one = stage.loaded();
    stage.takes_up();
    let two = stage.list()[1];
    stage.lite_restore(one);
    stage.gpu.raise(irq::USER);
    let interrupt = Event::Interrupt {
        engine: 0,
        bits: irq::USER,
    };
    assert_eq!(guest.event(), interrupt);
    stage.goes_on(one);
    stage.ends(two);
    assert_eq!(guest.wait(seq, 1), [done(seq, 0), done(seq, 1)]);
}
