//! Submission, completion, faults and resets, as i915 drives them.

use crate::rig::{Rig, context, status_page};
use gen8::vreg::pvinfo;
use gen8::{Engine, irq, lrc, ring};
use guest_memory::GuestMemory;
use vgpu_device::{Bar, Device};
use vgpu_ring::{Event, FaultReason, Request};

fn started(engine: Engine) -> Rig {
    let rig = Rig::new();
    rig.enumerate();
    rig.start(engine);
    rig.sent();
    rig.msis();
    rig
}

fn done(engine: Engine, seq: u64, element: u8) -> Event {
    Event::ContextDone {
        bits: 0,
        engine: u8::try_from(engine.index()).unwrap(),
        element,
        seq,
    }
}

#[test]
fn a_request_goes_out_and_its_events_come_back_in_order() {
    for engine in Engine::ALL {
        let rig = started(engine);
        let number = u8::try_from(engine.index()).unwrap();
        rig.submit(engine, [context(1), context(2)]);
        assert_eq!(
            rig.sent(),
            [Request::Submit {
                engine: number,
                seq: 0,
                desc: [context(1), context(2)],
            }]
        );
        let base = engine.mmio_base();
        let id = |n: u32| n << 5;
        assert_eq!(rig.write_pointer(engine), 0);
        assert_eq!(rig.read(base + ring::EXECLIST_STATUS_HI), id(1));
        assert_eq!(rig.msis(), 1);
        let (bank, shift) = engine.irq_bank();
        let switch = u32::from(irq::CONTEXT_SWITCH) << shift;
        assert_eq!(
            rig.read(irq::MASTER) & !irq::MASTER_ENABLE,
            engine.master_bit()
        );
        assert_eq!(rig.handle_interrupt(bank), switch);

        rig.device.handle_event(Event::Interrupt {
            engine: number,
            bits: irq::USER,
        });
        rig.device.handle_event(done(engine, 0, 0));
        rig.device.handle_event(done(engine, 0, 1));
        assert_eq!(rig.msis(), 1, "the second event adds to the first");
        let user = u32::from(irq::USER) << shift;
        assert_eq!(rig.handle_interrupt(bank), switch | user);
        assert_eq!(rig.msis(), 0);
        assert_eq!(rig.write_pointer(engine), 2);
        let word = |status: u32, n: u32| u64::from(id(n)) << 32 | u64::from(status);
        let expected = [word(0x1, 1), word(0x14, 1), word(0x18, 2)];
        assert_eq!(rig.status_words(engine, 0, 2), expected);
        assert_eq!(rig.read(base + ring::CSB_MIRROR + 16), 0x18);
        assert_eq!(rig.read(base + ring::CSB_PTR), 0x0502);
        assert_eq!(rig.read(base + ring::EXECLIST_STATUS_HI), 0);
    }
}

#[test]
fn the_buffer_wraps_after_six_entries() {
    let rig = started(Engine::Rcs);
    for seq in 0..4 {
        rig.submit(Engine::Rcs, [context(1), 0]);
        rig.device.handle_event(done(Engine::Rcs, seq, 0));
    }
    assert_eq!(rig.write_pointer(Engine::Rcs), 1);
    let statuses: Vec<u64> = rig.status_words(Engine::Rcs, 0, 5);
    assert!(statuses.iter().all(|s| matches!(s & 0xffff, 0x1 | 0x18)));
}

#[test]
fn an_interrupt_pending_at_the_re_enable_is_sent_then() {
    let rig = started(Engine::Vcs);
    rig.write(irq::MASTER, 0);
    rig.submit(Engine::Vcs, [context(1), 0]);
    assert_eq!(rig.msis(), 0);
    rig.write(irq::MASTER, irq::MASTER_ENABLE);
    assert_eq!(rig.msis(), 1);
}

#[test]
fn ring_imr_keeps_an_event_from_happening() {
    let rig = started(Engine::Bcs);
    let keep = u32::from(irq::CONTEXT_SWITCH) << 16;
    rig.write(Engine::Bcs.mmio_base() + ring::IMR, !keep);
    rig.device.handle_event(Event::Interrupt {
        engine: 1,
        bits: irq::USER,
    });
    assert_eq!(rig.handle_interrupt(0), 0);
}

#[test]
fn ring_registers_show_the_running_context() {
    let rig = started(Engine::Rcs);
    let image = u64::from(32 + 4_u32) << 12;
    let dword = |index: usize, value| {
        let at = image + 4096 + u64::try_from(index * 4).unwrap();
        rig.memory.write_u32(at, value).unwrap();
    };
    dword(lrc::RING_HEAD, 0x40);
    dword(lrc::RING_TAIL, 0x80);
    dword(lrc::RING_START, 0x5000);
    let read = |r| rig.read(0x2000 + r);
    assert_eq!(read(ring::TAIL), 0);
    rig.submit(Engine::Rcs, [context(1), 0]);
    assert_eq!(read(ring::HEAD), 0x40);
    assert_eq!(read(ring::TAIL), 0x80);
    assert_eq!(read(ring::ACTHD), 0x5040);
    assert_eq!(read(ring::MI_MODE) & ring::MI_MODE_IDLE, 0);
    rig.device.handle_event(done(Engine::Rcs, 0, 0));
    assert_ne!(read(ring::MI_MODE) & ring::MI_MODE_IDLE, 0);
    assert_eq!(read(ring::HEAD), read(ring::TAIL));
}

/// i915's engine reset: stop, ask, reset, until the last wait.
fn begin_reset(rig: &Rig, engine: Engine) {
    let base = engine.mmio_base();
    rig.write(base + ring::MI_MODE, 0x0100_0100);
    rig.write(base + ring::RESET_CTL, 0x0001_0001);
    let ready = rig.read(base + ring::RESET_CTL);
    assert_ne!(ready & ring::RESET_CTL_READY, 0);
}

#[test]
fn an_idle_engine_resets_at_once() {
    let rig = started(Engine::Vecs);
    begin_reset(&rig, Engine::Vecs);
    rig.write(ring::GDRST, 1);
    assert_eq!(rig.read(ring::GDRST), 0);
    let base = Engine::Vecs.mmio_base();
    rig.write(base + ring::RESET_CTL, 0x0001_0000);
    assert_eq!(rig.read(base + ring::RESET_CTL), 0);
    assert_eq!(rig.read(base + ring::MODE), 0);
    assert_eq!(rig.read(base + ring::CSB_PTR), 0x0505);
    // Nothing was ever submitted; the value of MI_MODE is carried over.
    let stopped = Request::WriteRegister {
        offset: base + ring::MI_MODE,
        value: ring::MI_MODE_STOP_RING,
    };
    assert_eq!(rig.sent(), [stopped]);
}

#[test]
fn a_busy_engine_is_reset_when_vgpud_has_let_go() {
    let rig = started(Engine::Rcs);
    let base = Engine::Rcs.mmio_base();
    rig.submit(Engine::Rcs, [context(1), 0]);
    rig.sent();
    begin_reset(&rig, Engine::Rcs);
    let reset = Request::Reset {
        engines: 1,
        epoch: 1,
    };
    assert!(
        rig.sent().contains(&reset),
        "asked when the driver stops the ring"
    );
    assert_eq!(rig.read(base + ring::MI_MODE) & ring::MI_MODE_IDLE, 0);
    assert_eq!(rig.read(base + ring::EXECLIST_STATUS_HI), 1 << 5);
    rig.write(ring::GDRST, 2);
    assert_eq!(rig.read(ring::GDRST), 2);
    let asked_again = rig.sent();
    assert!(
        !asked_again
            .iter()
            .any(|r| matches!(r, Request::Reset { .. }))
    );
    rig.device.handle_event(Event::ResetDone {
        engines: 1,
        epoch: 1,
    });
    assert_eq!(rig.read(ring::GDRST), 0);
    let pointer = rig.write_pointer(Engine::Rcs);
    rig.device.handle_event(done(Engine::Rcs, 0, 0));
    assert_eq!(
        rig.write_pointer(Engine::Rcs),
        pointer,
        "older than the reset"
    );
    rig.start(Engine::Rcs);
    rig.write(base + ring::MI_MODE, 0x0100_0000);
    rig.sent();
    rig.submit(Engine::Rcs, [context(1), 0]);
    assert_eq!(
        rig.sent(),
        [Request::Submit {
            engine: 0,
            seq: 1,
            desc: [context(1), 0],
        }]
    );
    assert_eq!(rig.status_words(Engine::Rcs, 0, 0), [1 << 37 | 1]);
}

#[test]
fn a_stopped_engine_that_is_not_reset_runs_its_work_again() {
    let rig = started(Engine::Bcs);
    let mode = Engine::Bcs.mmio_base() + ring::MI_MODE;
    rig.submit(Engine::Bcs, [context(1), 0]);
    rig.write(mode, 0x0100_0100);
    rig.device.handle_event(Event::ResetDone {
        engines: 2,
        epoch: 1,
    });
    assert_ne!(rig.read(mode) & ring::MI_MODE_IDLE, 0);
    rig.sent();
    rig.write(mode, 0x0100_0000);
    let again = Request::Submit {
        engine: 1,
        seq: 1,
        desc: [context(1), 0],
    };
    assert!(rig.sent().contains(&again));
    assert_eq!(rig.read(mode) & ring::MI_MODE_IDLE, 0);
    rig.device.handle_event(done(Engine::Bcs, 1, 0));
    assert_eq!(rig.write_pointer(Engine::Bcs), 1);
}

#[test]
fn a_fault_raises_the_error_interrupt_until_the_reset() {
    let rig = started(Engine::Rcs);
    rig.submit(Engine::Rcs, [context(1), 0]);
    rig.handle_interrupt(0);
    rig.device.handle_event(Event::Fault {
        engine: 0,
        element: 0,
        reason: FaultReason::Instruction,
        ipehr: 0xdead_0000,
        seq: 0,
    });
    assert_eq!(rig.handle_interrupt(0), u32::from(irq::ERROR));
    let read = |r| rig.read(0x2000 + r);
    assert_eq!(read(ring::EIR), 1);
    assert_eq!(read(ring::ESR), 1);
    assert_eq!(read(ring::IPEHR), 0xdead_0000);
    rig.write(0x2000 + ring::EMR, u32::MAX);
    rig.write(0x2000 + ring::EIR, 1);
    assert_eq!(read(ring::EIR), 0);
    begin_reset(&rig, Engine::Rcs);
    let idle = read(ring::MI_MODE) & ring::MI_MODE_IDLE;
    assert_ne!(idle, 0, "vgpud has stopped it already");
    rig.write(ring::GDRST, 2);
    assert_eq!(rig.read(ring::GDRST), 0);
    assert_eq!(read(ring::ESR), 0);
}

#[test]
fn requests_wait_while_the_ring_is_full() {
    let rig = started(Engine::Rcs);
    *rig.world.full.lock().unwrap() = true;
    rig.submit(Engine::Rcs, [context(1), 0]);
    for _ in 0..1000 {
        // Lite restores: each replaces the one before.
        rig.submit(Engine::Rcs, [context(1), 0]);
    }
    assert_eq!(rig.world.alarms.lock().unwrap().len(), 1);
    assert_eq!(rig.device.inspect().backlog, 1);
    let first = rig.device.next_deadline().unwrap();
    rig.world
        .now
        .fetch_add(first, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(rig.device.next_deadline(), Some(first), "due, not put off");
    rig.device.tick();
    assert!(rig.device.next_deadline() > Some(first));
    *rig.world.full.lock().unwrap() = false;
    rig.device.tick();
    assert_eq!(
        rig.sent(),
        [Request::Submit {
            engine: 0,
            seq: 1000,
            desc: [context(1), 0],
        }]
    );
    assert_eq!(rig.device.next_deadline(), None);
}

#[test]
fn a_register_the_gpu_needs_is_sent_with_its_masks_applied() {
    let rig = started(Engine::Rcs);
    rig.write(0x7004, 0x0003_0003);
    rig.write(0x7004, 0x0001_0000);
    rig.write(0x7004, 0x0001_0000);
    let offset = 0x7004;
    let write = |value| Request::WriteRegister { offset, value };
    assert_eq!(rig.sent(), [write(3), write(2)]);
}

#[test]
fn page_tables_are_announced() {
    let rig = Rig::new();
    let magic = rig.device.read(Bar::Registers, pvinfo::BASE.into(), 8);
    assert_eq!(magic, 0x4776_5447_7654_4776);
    assert_eq!(rig.device.read(Bar::Registers, 0x7_8008, 2), 1);
    rig.device
        .write(Bar::Registers, pvinfo::PDP0.into(), 8, 0x1_2345_6000);
    rig.write(pvinfo::BASE + 0x818, pvinfo::L4_CREATE);
    rig.write(pvinfo::BASE + 0x818, pvinfo::L4_DESTROY);
    rig.write(pvinfo::BASE + 0x818, 77);
    let root = 0x1_2345_6000;
    assert_eq!(
        rig.sent(),
        [
            Request::CreatePageTable { root },
            Request::DestroyPageTable { root }
        ]
    );
    assert_eq!(rig.device.inspect().incidents.unknown_notifications, 1);
    rig.write(pvinfo::DISPLAY_READY, 1);
    assert!(rig.device.inspect().driver_up);
}

#[test]
fn a_status_page_that_is_no_memory_is_survived() {
    let rig = started(Engine::Rcs);
    rig.write(0x2000 + ring::HWS_PGA, 0x8000_0000);
    rig.submit(Engine::Rcs, [context(1), 0]);
    assert_eq!(rig.device.inspect().incidents.lost_status_writes, 1);
    assert_eq!(rig.read(0x2000 + ring::CSB_MIRROR), 1);
}

#[test]
fn a_restored_device_answers_alike_and_submits_again() {
    let rig = started(Engine::Rcs);
    rig.write(0x7004, 0x0003_0003);
    rig.submit(Engine::Rcs, [context(1), context(2)]);
    rig.submit(Engine::Rcs, [context(3), 0]);
    rig.device.handle_event(done(Engine::Rcs, 0, 0));
    let saved = rig.device.save();
    let text = serde_json::to_string(&saved).unwrap();
    let loaded = serde_json::from_str(&text).unwrap();
    assert_eq!(saved, loaded);
    rig.world.windows.lock().unwrap().clear();
    rig.msis();
    let again = Device::restore(&loaded, rig.seams.clone()).unwrap();
    assert_eq!(again.save(), saved);
    assert_eq!(rig.world.windows.lock().unwrap().len(), 2);
    assert_eq!(rig.msis(), 1, "the pending interrupt is sent again");
    for offset in (0..gen8::vreg::REGISTER_BYTES).step_by(4) {
        let at = u64::from(offset);
        let [before, after] = [&rig.device, &again].map(|d| d.read(Bar::Registers, at, 4));
        assert_eq!(before, after, "{offset:#x}");
    }
    rig.sent();
    again.replay();
    let submits: Vec<_> = rig
        .sent()
        .into_iter()
        .filter_map(|r| match r {
            Request::Submit { seq, desc, .. } => Some((seq, desc[0])),
            _ => None,
        })
        .collect();
    // Element 0 of the first was done before.
    assert_eq!(submits, [(2, context(2)), (3, context(3))]);
    again.handle_event(done(Engine::Rcs, 0, 1));
    assert_eq!(rig.write_pointer(Engine::Rcs), 1, "an old number");
    again.handle_event(done(Engine::Rcs, 2, 0));
    assert_eq!(rig.write_pointer(Engine::Rcs), 3);
    again.handle_event(done(Engine::Rcs, 3, 0));
    let page = u64::from(status_page(Engine::Rcs));
    assert_eq!(rig.memory.read_u32(page + 0x7c).unwrap(), 4);
}
