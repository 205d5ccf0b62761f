//! Guests that share the GPU do not meet.

use std::sync::Arc;

use gen8::Engine;
use guest_memory::{GuestMemory, VecMemory};
use vgpu_ring::Request;
use vgpu_sched::switch::SwitchMode;

use crate::driver::{Context, Guest, Host, cmd};

const ROUNDS: u32 = 40;

fn contents(memory: &VecMemory) -> Vec<u8> {
    let mut all = vec![0; memory.pages() * 4096];
    memory.read(0, &mut all).unwrap();
    all
}

/// A guest with a context on each engine, a ring store and a batch store.
struct Busy {
    guest: Guest,
    contexts: Vec<(Context, u64, u32, u64, u64)>,
    tag: u32,
}

impl Busy {
    fn new(host: &Host, id: u64) -> Self {
        let mut guest = host.guest(id, 256);
        let contexts = Engine::ALL
            .into_iter()
            .map(|engine| {
                let c = guest.context(engine, 1);
                let (global, address) = guest.global_page();
                let (code, data) = (guest.pages(1), guest.pages(1));
                guest.map(&c, 1 << 20, code);
                guest.map(&c, 2 << 20, data);
                (c, global, address, code, data)
            })
            .collect();
        let tag = u32::try_from(id).unwrap() << 24;
        Self {
            guest,
            contexts,
            tag,
        }
    }

    /// Submits work of a round to every engine.
    fn submit(&mut self, round: u32) -> Vec<u64> {
        let value = self.tag | round;
        let Self {
            guest, contexts, ..
        } = self;
        contexts
            .iter_mut()
            .map(|(c, _, address, code, _)| {
                let mut batch = cmd::store(2 << 20, value).to_vec();
                batch.push(cmd::BATCH_END);
                guest.write_words(*code, &batch);
                guest.emit(c, &cmd::store_global(*address, value));
                // General register 0 must be what this guest left in it.
                let gpr = c.engine.mmio_base() + 0x600;
                guest.emit(c, &cmd::store_register_global(gpr, *address + 8));
                guest.emit(c, &cmd::load_register(gpr, value));
                guest.emit(c, &cmd::batch(1 << 20));
                guest.submit(c, None)
            })
            .collect()
    }

    fn check(&mut self, round: u32, seqs: &[u64]) {
        self.guest.wait_all(seqs);
        let value = self.tag | round;
        let before = if round == 0 { 0 } else { value - 1 };
        for (c, global, _, _, data) in &self.contexts {
            assert_eq!(self.guest.read(*global), value, "{:?}", c.engine);
            assert_eq!(self.guest.read(*global + 8), before, "{:?}", c.engine);
            assert_eq!(self.guest.read(*data), value, "{:?}", c.engine);
        }
    }
}

#[test]
fn guests_with_the_same_addresses_do_not_mix() {
    let host = Host::new();
    let mut guests = [Busy::new(&host, 1), Busy::new(&host, 2)];
    assert_eq!(guests[0].contexts[0].2, guests[1].contexts[0].2);
    for round in 0..ROUNDS {
        let seqs: Vec<Vec<u64>> = guests.iter_mut().map(|g| g.submit(round)).collect();
        for (g, s) in guests.iter_mut().zip(&seqs) {
            g.check(round, s);
        }
    }
    let view = host.scheduler.inspect();
    for vgpu in &view.vgpus {
        for lane in &vgpu.engines {
            assert_eq!(lane.counters.completed, u64::from(ROUNDS));
        }
    }
    let rcs = &view.vgpus[1].engines[0].counters;
    assert!(rcs.switches + rcs.handovers > 0);
    // Nothing these guests do makes a register unknown. What their batches
    // may have left outside the context is put back, three registers a
    // switch; the first one writes all, and clears a context each.
    assert_eq!(rcs.switch_reads, 0);
    assert!(rcs.switch_writes <= 3 * rcs.switches + 200, "{rcs:?}");
}

#[test]
fn a_guest_at_work_changes_no_byte_of_another() {
    let host = Host::new();
    let mut busy = Busy::new(&host, 1);
    let quiet = Busy::new(&host, 2);
    let before = contents(&quiet.guest.memory);
    for round in 0..ROUNDS {
        let seqs = busy.submit(round);
        busy.check(round, &seqs);
    }
    assert_eq!(contents(&quiet.guest.memory), before);
    // Its memory was not even on the bus.
    assert_eq!(quiet.guest.handle.inspect().chunks, 0);
    assert_eq!(busy.guest.handle.inspect().chunks, 1);
    // The GPU wrote the one chunk of the guest and pages of vgpud's own.
    let view = host.scheduler.inspect();
    let chunks: std::collections::BTreeSet<u64> =
        host.log.pages().into_iter().map(|p| p >> 21).collect();
    assert!(!chunks.is_empty() && chunks.len() <= view.chunks);
    assert_eq!(view.chunks, 2);
}

#[test]
fn a_guest_that_goes_leaves_nothing_and_its_place_is_free() {
    let host = Host::new();
    let idle = host.scheduler.inspect();
    let mut stays = Busy::new(&host, 2);
    for _ in 0..3 {
        let mut goes = Busy::new(&host, 1);
        let seqs = goes.submit(0);
        goes.check(0, &seqs);
        // Removed with work in flight.
        goes.submit(1);
        let Guest {
            memory,
            table,
            handle,
            ..
        } = goes.guest;
        let (memory, table) = {
            let weak = (Arc::downgrade(&memory), Arc::downgrade(&table));
            drop((memory, table));
            weak
        };
        assert!(memory.upgrade().is_some());
        drop(handle);
        assert!(memory.upgrade().is_none());
        assert!(table.upgrade().is_none());
        let seqs = stays.submit(0);
        stays.check_again(&seqs);
    }
    drop(stays);
    let after = host.scheduler.inspect();
    assert_eq!(after.own_pages, idle.own_pages);
    assert_eq!(after.chunks, idle.chunks);
    assert_eq!(after.windows.windows, idle.windows.windows);
    assert_eq!(after.windows.free_pages, idle.windows.free_pages);
    assert!(after.vgpus.is_empty());
    assert_eq!(after.engines[0].owner, None);
}

impl Busy {
    /// Waits for loads only.
    fn check_again(&mut self, seqs: &[u64]) {
        self.guest.wait_all(seqs);
        for (_, global, ..) in &self.contexts {
            assert_eq!(self.guest.read(*global), self.tag);
        }
    }
}

#[test]
fn registers_outside_the_context_are_each_guests_own() {
    let host = Host::new();
    let mut guests = [Busy::new(&host, 1), Busy::new(&host, 2)];
    for (value, g) in (1..).zip(&mut guests) {
        let offset = 0x24d0;
        let allowed = if value == 1 { 0x7300 } else { 0x7010 };
        g.guest
            .handle
            .handle(Request::WriteRegister {
                offset,
                value: allowed,
            })
            .unwrap();
    }
    for round in 0..4 {
        for (value, g) in (1..).zip(&mut guests) {
            let seqs = g.submit(round);
            g.check(round, &seqs);
            let want = if value == 1 { 0x7300 } else { 0x7010 };
            let gpu: &dyn gpu_bus::Gpu = host.gpu.as_ref();
            assert_eq!(gpu.read32(0x24d0), want);
        }
    }
}

#[test]
fn guests_are_apart_in_every_mode_of_switching() {
    for mode in SwitchMode::ALL {
        let host = Host::with(mode);
        let mut guests = [1, 2, 3].map(|id| Busy::new(&host, id));
        for (g, value) in guests.iter().zip([0x7300, 0x7010, 0x7304]) {
            let offset = 0x24d0;
            let request = Request::WriteRegister { offset, value };
            g.guest.handle.handle(request).unwrap();
        }
        for round in 0..ROUNDS / 2 {
            let seqs: Vec<Vec<u64>> = guests.iter_mut().map(|g| g.submit(round)).collect();
            for (g, s) in guests.iter_mut().zip(&seqs) {
                g.check(round, s);
            }
        }
        let engine = &host.scheduler.inspect().engines[0];
        assert!(engine.switches > 0, "{mode}");
        let follows = mode == SwitchMode::DeltaImage;
        assert!(follows || engine.handovers == 0, "{mode}");
    }
}
