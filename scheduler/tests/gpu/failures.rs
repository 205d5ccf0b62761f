//! What goes wrong costs the guest that did it one context.

use std::time::Duration;

use gen8::{Engine, lrc};
use vgpu_ring::{Event, FaultReason, Request};
use vgpu_sched::vgpu::VgpuError;

use crate::driver::{Context, Guest, Host, cmd};

const RCS: u8 = 1;

/// A context whose batch jumps to itself for ever.
fn endless(guest: &mut Guest, engine: Engine) -> Context {
    let mut c = guest.context(engine, 1);
    let code = guest.pages(1);
    guest.map(&c, 1 << 20, code);
    guest.write_words(code, &cmd::batch(1 << 20));
    guest.emit(&mut c, &cmd::batch(1 << 20));
    c
}

/// The engine still works for this guest.
fn works(guest: &mut Guest, engine: Engine) {
    let mut c = guest.context(engine, 1);
    let (gpa, address) = guest.global_page();
    guest.emit(&mut c, &cmd::store_global(address, 5));
    guest.run(&c);
    assert_eq!(guest.read(gpa), 5);
}

#[test]
fn a_batch_without_end_is_stopped_and_others_go_on() {
    let host = Host::new();
    let mut bad = host.guest(1, 256);
    let mut good = host.guest(2, 256);
    let c = endless(&mut bad, Engine::Rcs);
    let seq = bad.submit(&c, None);
    // It waits its turn behind the endless one.
    let mut waits = good.context(Engine::Rcs, 1);
    good.emit(&mut waits, &[0, 0]);
    let behind = good.submit(&waits, None);
    host.clock.pass(Duration::from_secs(11));
    let event = bad.event();
    assert!(
        matches!(event, Event::Fault { reason: FaultReason::TimedOut, seq: s, .. } if s == seq),
        "{event:?}"
    );
    good.wait(behind, 0);
    // The other is owed what the endless one took, and the engine would be held
    // for it a moment, by a clock that stands still here.
    drop(good);
    // Stopped until the guest resets it; other engines are not.
    bad.submit(&c, None);
    works(&mut bad, Engine::Vcs);
    bad.reset(RCS);
    // The engine may be kept free for the other one, to whom it owes much.
    host.clock.pass(Duration::from_millis(10));
    works(&mut bad, Engine::Rcs);
    assert_eq!(host.scheduler.inspect().engines[0].resets, 1);
}

#[test]
fn a_reset_ends_running_and_waiting_work() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let c = endless(&mut guest, Engine::Rcs);
    let mut later = guest.context(Engine::Rcs, 1);
    let (gpa, address) = guest.global_page();
    guest.emit(&mut later, &cmd::store_global(address, 1));
    guest.submit(&c, Some(&later));
    guest.submit(&later, None);
    guest.reset(RCS);
    assert_eq!(guest.read(gpa), 0);
    works(&mut guest, Engine::Rcs);
    assert_eq!(guest.read(gpa), 0);
}

#[test]
fn a_guest_waiting_behind_another_can_reset_without_harm_to_it() {
    let host = Host::new();
    let mut first = host.guest(1, 256);
    let mut second = host.guest(2, 256);
    let c = endless(&mut first, Engine::Bcs);
    first.submit(&c, None);
    let mut waits = second.context(Engine::Bcs, 1);
    let (gpa, address) = second.global_page();
    second.emit(&mut waits, &cmd::store_global(address, 1));
    second.submit(&waits, None);
    second.reset(0b10);
    assert_eq!(host.scheduler.inspect().engines[1].running, Some(1));
    assert_eq!(host.scheduler.inspect().engines[1].resets, 0);
    first.reset(0b10);
    works(&mut second, Engine::Bcs);
    assert_eq!(second.read(gpa), 0);
}

#[test]
fn a_forbidden_command_is_refused_and_named() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut c = guest.context(Engine::Rcs, 1);
    let (gpa, address) = guest.global_page();
    guest.emit(&mut c, &cmd::store_global(address, 1));
    guest.emit(&mut c, &cmd::load_register(0x2230, 0));
    let header = cmd::load_register(0, 0)[0];
    assert_eq!(guest.fails(&c), (FaultReason::Refused, header));
    // Nothing of the submission ran.
    assert_eq!(guest.read(gpa), 0);
    let refusal = guest.handle.inspect().refusals[0].to_string();
    let context = format!("rcs0, context {:#010x}: ", c.descriptor & 0xffff_f000);
    let want = "MI_LOAD_REGISTER_IMM (0x11000001) at ring offset 0x10: \
                may not write Some(0) to register 0x2230";
    assert_eq!(refusal, context + want);
    guest.reset(RCS);
    works(&mut guest, Engine::Rcs);
}

#[test]
fn bad_contexts_fail_with_their_reason() {
    type Spoil = fn(&mut Guest, &mut Context);
    let cases: [(&str, FaultReason, Spoil); 12] = [
        ("not valid", FaultReason::Descriptor, |_, c| {
            c.descriptor &= !1;
        }),
        ("without tables", FaultReason::Descriptor, |_, c| {
            c.descriptor &= !(1 << 8);
        }),
        ("32-bit", FaultReason::Descriptor, |_, c| {
            c.descriptor &= !(2 << 3);
        }),
        ("image unmapped", FaultReason::Unmapped, |_, c| {
            c.descriptor = (c.descriptor & !0xffff_f000) | 0x80_0000;
        }),
        ("image past the end", FaultReason::Unmapped, |_, c| {
            c.descriptor |= 0xffff_f000;
        }),
        ("ring off", FaultReason::Descriptor, |g, c| {
            g.set_image(c, lrc::RING_CTL, 0);
        }),
        ("head outside", FaultReason::Descriptor, |g, c| {
            g.set_image(c, lrc::RING_HEAD, 0x1000);
        }),
        ("tail outside", FaultReason::Descriptor, |g, c| {
            g.set_image(c, lrc::RING_TAIL, 0x1f_fff8);
        }),
        ("ring past the end", FaultReason::Descriptor, |g, c| {
            g.set_image(c, lrc::RING_CTL, 0x1_f001);
            g.set_image(c, lrc::RING_START, 0xffff_f000);
        }),
        ("ring unmapped", FaultReason::Unmapped, |g, c| {
            g.set_image(c, lrc::RING_START, 0x80_0000);
        }),
        ("ring in no memory", FaultReason::Unmapped, |g, c| {
            let address = g.bind(0x7f_0000_0000, 1);
            g.set_image(c, lrc::RING_START, address);
        }),
        ("no command", FaultReason::Instruction, |g, c| {
            g.emit(c, &[0xe000_0000, 0]);
        }),
    ];
    let host = Host::new();
    let mut guest = host.guest(1, 1024);
    for (name, want, spoil) in cases {
        let mut c = guest.context(Engine::Rcs, 1);
        guest.emit(&mut c, &[0, 0]);
        spoil(&mut guest, &mut c);
        assert_eq!(guest.fails(&c).0, want, "{name}");
        guest.reset(RCS);
    }
    works(&mut guest, Engine::Rcs);
    assert_eq!(host.scheduler.inspect().engines[0].resets, 0);
}

#[test]
fn the_gpus_own_errors_come_back_with_their_reason() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    for engine in Engine::ALL {
        for (words, want) in [
            (vec![0xe123_4567, 0], FaultReason::Instruction),
            (cmd::store(7 << 30, 1).to_vec(), FaultReason::PageFault),
        ] {
            let mut c = guest.context(engine, 1);
            let code = guest.pages(1);
            guest.map(&c, 1 << 20, code);
            guest.write_words(code, &words);
            guest.emit(&mut c, &cmd::batch(1 << 20));
            let (reason, ipehr) = guest.fails(&c);
            assert_eq!((reason, ipehr), (want, words[0]), "{engine:?}");
            guest.reset(1 << engine.index());
        }
        works(&mut guest, engine);
    }
}

#[test]
fn a_context_with_tables_that_name_no_memory_faults_alone() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut c = guest.context(Engine::Rcs, 1);
    let root = c.root;
    // The root names itself at every level, and memory that is not there.
    for i in 0..512 {
        guest.set_pte(root, i, root | 3);
    }
    guest.set_pte(root, 5, 0x7f_0000_0003);
    guest.emit(&mut c, &cmd::batch(5 << 12));
    assert_eq!(guest.fails(&c).0, FaultReason::PageFault);
    assert_eq!(guest.handle.inspect().tables.tables, 7);
    guest.reset(RCS);
    works(&mut guest, Engine::Rcs);
}

#[test]
fn a_device_model_that_takes_no_events_is_dropped() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let c = guest.context(Engine::Rcs, 1);
    *guest.gate.lock().unwrap() = false;
    let mut error = None;
    for token in 0..10_000 {
        if let Err(e) = guest.handle.handle(Request::Ping { token }) {
            error = Some(e);
            break;
        }
    }
    assert!(
        matches!(error, Some(VgpuError::NotDraining(_))),
        "{error:?}"
    );
    let request = Request::Submit {
        engine: 0,
        seq: 1,
        desc: [c.descriptor, 0],
    };
    assert_eq!(guest.handle.handle(request), Err(error.unwrap()));
}

#[test]
fn events_that_found_no_room_come_later_in_order() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    *guest.gate.lock().unwrap() = false;
    for token in 0..100 {
        guest.handle.handle(Request::Ping { token }).unwrap();
    }
    *guest.gate.lock().unwrap() = true;
    // Without a word to the scheduler: it tries again by itself.
    for token in 0..100 {
        assert_eq!(guest.event(), Event::Pong { token });
    }
}

#[test]
fn numbers_that_go_back_are_an_error() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let c = guest.context(Engine::Rcs, 1);
    guest.run(&c);
    let request = Request::Submit {
        engine: 0,
        seq: 1,
        desc: [c.descriptor, 0],
    };
    assert_eq!(
        guest.handle.handle(request),
        Err(VgpuError::Sequence {
            engine: "rcs0",
            seq: 1,
            last: 1
        })
    );
}
