//! One guest's work.

use gen8::{Engine, lrc};
use guest_memory::GuestMemory;
use vgpu_ring::Event;

use crate::driver::{Context, Guest, Host, OWN_WINDOWS, cmd};

#[test]
fn a_store_in_the_ring_reaches_the_guest_and_is_reported_in_order() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    for engine in Engine::ALL {
        let mut c = guest.context(engine, 1);
        let (gpa, address) = guest.global_page();
        guest.emit(&mut c, &cmd::store_global(address + 0x10, 0xcafe));
        guest.emit(&mut c, &[cmd::USER_INTERRUPT, 0]);
        let events = guest.run(&c);
        let e: u8 = engine.index().try_into().unwrap();
        // The interrupt comes with the end, or before it when it was looked
        // at before the end was there.
        let mut interrupts = 0;
        for event in &events {
            match *event {
                Event::Interrupt { engine, bits } => {
                    assert_eq!(engine, e);
                    interrupts |= bits;
                }
                Event::ContextDone { bits, .. } => interrupts |= bits,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(interrupts, 1);
        assert!(matches!(
            events.last(),
            Some(Event::ContextDone { engine, element: 0, seq, .. })
                if *engine == e && *seq == u64::from(e) + 1
        ));
        assert_eq!(guest.read(gpa + 0x10), 0xcafe);
        assert_eq!(guest.image(&c, lrc::RING_HEAD), c.tail);
        assert_eq!(guest.image(&c, lrc::CONTEXT_CONTROL) & 1, 0);
    }
}

/// A context with a batch page at 1 MiB and a data page at 2 MiB of its own
/// address space; their guest-physical addresses.
fn with_batch(guest: &mut Guest, engine: Engine) -> (Context, u64, u64) {
    let c = guest.context(engine, 1);
    let (code, data) = (guest.pages(1), guest.pages(1));
    guest.map(&c, 1 << 20, code);
    guest.map(&c, 2 << 20, data);
    (c, code, data)
}

#[test]
fn a_batch_runs_in_the_guests_own_tables_and_sees_their_changes() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (mut c, code, data) = with_batch(&mut guest, Engine::Vcs);
    let [a, b, e] = [cmd::store(2 << 20, 1), [0; 4], [cmd::BATCH_END, 0, 0, 0]];
    guest.write_words(code, &[a, b, e].concat());
    guest.emit(&mut c, &cmd::batch(1 << 20));
    guest.run(&c);
    assert_eq!(guest.read(data), 1);

    // The same address, another page.
    let other = guest.pages(1);
    guest.map(&c, 2 << 20, other);
    guest.emit(&mut c, &cmd::batch(1 << 20));
    guest.run(&c);
    assert_eq!((guest.read(data), guest.read(other)), (1, 1));
    let tables = guest.handle.inspect().tables;
    // A root, two levels, and a page table for each 2 MiB.
    assert_eq!((tables.tables, tables.roots), (5, 1));
}

#[test]
fn blits_give_what_a_cpu_would() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (mut c, code, data) = with_batch(&mut guest, Engine::Bcs);
    let copy = guest.pages(1);
    guest.map(&c, 3 << 20, copy);
    // 16 by 8 pixels in rows of 256 bytes.
    let mut batch = cmd::color_blt(2 << 20, 256, 16, 8, 0x1234_5678).to_vec();
    batch.extend(cmd::copy_blt(3 << 20, 2 << 20, 256, 16, 8));
    batch.push(cmd::BATCH_END);
    guest.write_words(code, &batch);
    guest.emit(&mut c, &cmd::batch(1 << 20));
    guest.run(&c);
    for page in [data, copy] {
        for at in (0..4096).step_by(4) {
            let inside = at / 256 < 8 && at % 256 < 64;
            let want = if inside { 0x1234_5678 } else { 0 };
            assert_eq!(guest.read(page + at), want, "{at:#x}");
        }
    }
}

#[test]
fn a_ring_wraps_and_the_second_element_follows_the_first() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut a = guest.context(Engine::Rcs, 1);
    let mut b = guest.context(Engine::Rcs, 1);
    let (gpa, address) = guest.global_page();
    for i in 0..600 {
        guest.emit(&mut a, &cmd::store_global(address, i));
        guest.emit(&mut b, &cmd::store_global(address + 4, i));
        if i % 100 == 0 {
            let seq = guest.submit(&a, Some(&b));
            let events = guest.wait(seq, 1);
            assert_eq!(events.len(), 2);
            assert_eq!((guest.read(gpa), guest.read(gpa + 4)), (i, i));
        }
    }
}

#[test]
fn an_empty_ring_is_done_at_once() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let c = guest.context(Engine::Rcs, 1);
    let before = host.scheduler.inspect().accesses;
    assert_eq!(guest.run(&c).len(), 1);
    assert_eq!(host.scheduler.inspect().accesses, before);
}

#[test]
fn register_state_travels_in_the_guests_image() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (gpa, address) = guest.global_page();
    let mut a = guest.context(Engine::Rcs, 1);
    let mut b = guest.context(Engine::Rcs, 1);
    guest.emit(&mut a, &cmd::load_register(0x2600, 0xa));
    guest.emit(&mut b, &cmd::load_register(0x2600, 0xb));
    guest.run(&a);
    guest.run(&b);
    guest.emit(&mut a, &cmd::store_register_global(0x2600, address));
    guest.emit(&mut b, &cmd::store_register_global(0x2600, address + 4));
    guest.run(&a);
    guest.run(&b);
    assert_eq!((guest.read(gpa), guest.read(gpa + 4)), (0xa, 0xb));
}

#[test]
fn a_privileged_batch_runs_as_a_checked_copy() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut c = guest.context(Engine::Rcs, 1);
    let (data, address) = guest.global_page();
    let (inner, inner_at) = guest.global_page();
    let (outer, outer_at) = guest.global_page();
    let end = [cmd::BATCH_END, 0];
    let mut words = cmd::store_global(address, 1).to_vec();
    words.extend(end);
    guest.write_words(inner, &words);
    // A chain: the first batch ends in the second.
    let mut words = cmd::load_register(0x7300, 0x10_0010).to_vec();
    words.extend(cmd::global_batch(inner_at));
    guest.write_words(outer, &words);
    guest.emit(&mut c, &cmd::global_batch(outer_at));
    guest.emit(&mut c, &cmd::store_global(address + 4, 2));
    guest.run(&c);
    assert_eq!((guest.read(data), guest.read(data + 4)), (1, 2));
    // Nothing of the copies is left.
    let pinned = host.scheduler.inspect().windows.pinned;
    assert_eq!(pinned, OWN_WINDOWS);
}

#[test]
fn the_batch_around_a_switch_runs_checked() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut c = guest.context(Engine::Rcs, 1);
    let (data, address) = guest.global_page();
    let (batch, batch_at) = guest.global_page();
    // One cache line, as i915's workaround: save, load, restore a register.
    let mut words = cmd::store_register_global(0xb118, address).to_vec();
    words.extend(cmd::load_register(0xb118, 0x4040_0000));
    words.extend(cmd::store_register_global(0xb118, address + 4));
    words.resize(16, 0);
    guest.write_words(batch + 64, &words);
    guest.set_image(&c, lrc::INDIRECT_CTX, (batch_at + 64) | 1);
    guest.emit(&mut c, &[0, 0]);
    guest.run(&c);
    assert_eq!(guest.read(data + 4), 0x4040_0000);
    assert_eq!(guest.image(&c, lrc::INDIRECT_CTX), (batch_at + 64) | 1);
}

#[test]
fn a_status_page_index_is_the_contexts_own() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut c = guest.context(Engine::Bcs, 1);
    // MI_STORE_DATA_INDEX without the per-process bit, and MI_FLUSH_DW.
    guest.emit(&mut c, &[0x21 << 23 | 1, 0xd0, 77]);
    guest.emit(&mut c, &[0x26 << 23 | 1 << 21 | 1 << 14 | 2, 0xd8, 0, 78]);
    guest.run(&c);
    let status = c.registers - 4096;
    assert_eq!(
        (guest.read(status + 0xd0), guest.read(status + 0xd8)),
        (77, 78)
    );
}

#[test]
fn a_context_submitted_again_while_it_runs_takes_its_new_tail() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let mut c = guest.context(Engine::Vecs, 1);
    let (gpa, address) = guest.global_page();
    guest.emit(&mut c, &cmd::wait_global(address, 1));
    let first = guest.submit(&c, None);
    guest.emit(&mut c, &cmd::store_global(address + 4, 2));
    let second = guest.submit(&c, None);
    // The same tail once more: nothing is left to do.
    let third = guest.submit(&c, None);
    guest.memory.write_u32(gpa, 1).unwrap();
    for seq in [first, second, third] {
        guest.wait(seq, 0);
    }
    assert_eq!(guest.read(gpa + 4), 2);
    assert_eq!(guest.image(&c, lrc::RING_HEAD), c.tail);
}

#[test]
fn engines_run_at_once_and_can_wait_for_each_other() {
    let host = Host::new();
    let mut guest = host.guest(1, 256);
    let (gpa, address) = guest.global_page();
    let mut seqs = Vec::new();
    // Each engine waits for the one submitted after it.
    for (i, engine) in (0u32..).zip(Engine::ALL) {
        let mut c = guest.context(engine, 1);
        guest.emit(&mut c, &cmd::wait_global(address + 4 * (i + 1), 1));
        guest.emit(&mut c, &cmd::store_global(address + 4 * i, 1));
        seqs.push(guest.submit(&c, None));
    }
    guest.memory.write_u32(gpa + 16, 1).unwrap();
    guest.wait_all(&seqs);
    assert_eq!(guest.read(gpa), 1);
}
