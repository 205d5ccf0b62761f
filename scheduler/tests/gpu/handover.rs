//! From one guest's work to another's on the software GPU, and what a reset
//! of one leaves of the other.

use gen8::Engine;
use guest_memory::GuestMemory;
use vgpu_ring::Request;

use crate::driver::{Context, Guest, Host, cmd};

const RCS: usize = 0;

/// A guest with a context that ran once, so that its state is restored from
/// then on, and a page of its global table.
struct Ran {
    guest: Guest,
    context: Context,
    data: u64,
    address: u32,
}

impl Ran {
    fn new(host: &Host, id: u64) -> Self {
        let mut guest = host.guest(id, 256);
        let mut context = guest.context(Engine::Rcs, 1);
        let (data, address) = guest.global_page();
        guest.emit(&mut context, &cmd::store_global(address, 1));
        guest.run(&context);
        Self {
            guest,
            context,
            data,
            address,
        }
    }

    /// Runs until [`Self::release`], then stores 2.
    fn hold(&mut self) -> u64 {
        let Self { guest, context, .. } = self;
        guest.emit(context, &cmd::wait_global(self.address + 8, 1));
        guest.emit(context, &cmd::store_global(self.address, 2));
        guest.submit(context, None)
    }

    fn release(&self) {
        self.guest.memory.write_u32(self.data + 8, 1).unwrap();
    }

    fn stored(&self) -> u32 {
        self.guest.read(self.data)
    }
}

/// Waits until the render engine has work of `first` and, behind it, of
/// `second`.
fn until(host: &Host, first: u64, second: Option<u64>) {
    loop {
        let view = &host.scheduler.inspect().engines[RCS];
        if view.running == Some(first) && view.second == second {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn the_engine_goes_from_guest_to_guest_by_itself() {
    let host = Host::new();
    let mut guests = [1, 2].map(|id| Ran::new(&host, id));
    // Something that must change in between.
    for (ran, value) in guests.iter_mut().zip([0x7300, 0x7010]) {
        let offset = 0x24d0;
        let request = Request::WriteRegister { offset, value };
        ran.guest.handle.handle(request).unwrap();
    }
    let before = host.gpu.counters().engines[RCS];
    let seqs: Vec<u64> = guests.iter_mut().map(Ran::hold).collect();
    until(&host, 1, Some(2));
    guests[0].release();
    guests[0].guest.wait(seqs[0], 0);
    let gpu: &dyn gpu_bus::Gpu = host.gpu.as_ref();
    until(&host, 2, None);
    // Its commands, not we, brought it.
    while gpu.read32(0x24d0) != 0x7010 {
        std::thread::yield_now();
    }
    guests[1].release();
    guests[1].guest.wait(seqs[1], 0);
    assert_eq!(guests.each_ref().map(Ran::stored), [2, 2]);
    let after = host.gpu.counters().engines[RCS];
    assert_eq!(after.idles - before.idles, 1);
    assert_eq!(after.lite_restores - before.lite_restores, 1);
    let counters = guests[1].guest.handle.inspect().engines[RCS].counters;
    assert_eq!(counters.handovers, 1);
}

#[test]
fn a_reset_behind_another_guest_takes_nothing_from_it() {
    let host = Host::new();
    let mut guests = [1, 2].map(|id| Ran::new(&host, id));
    for _ in 0..20 {
        let seqs: Vec<u64> = guests.iter_mut().map(Ran::hold).collect();
        until(&host, 1, Some(2));
        let [first, second] = &mut guests;
        second.guest.reset(1);
        until(&host, 1, None);
        second.guest.rewind(&mut second.context);
        assert_eq!(second.stored(), 1);
        first.release();
        first.guest.wait(seqs[0], 0);
        assert_eq!(first.stored(), 2);
        first.guest.memory.write_u32(first.data + 8, 0).unwrap();
    }
    let view = host.scheduler.inspect();
    assert_eq!(view.engines[RCS].resets, 0);
    assert_eq!(view.vgpus[0].engines[RCS].counters.completed, 21);
}

#[test]
fn a_reset_in_front_of_another_guest_takes_nothing_from_it() {
    let host = Host::new();
    let mut guests = [1, 2].map(|id| Ran::new(&host, id));
    for round in 1..=20 {
        let seqs: Vec<u64> = guests.iter_mut().map(Ran::hold).collect();
        until(&host, 1, Some(2));
        let [first, second] = &mut guests;
        first.guest.reset(1);
        first.guest.rewind(&mut first.context);
        assert_eq!(first.stored(), 1);
        second.release();
        second.guest.wait(seqs[1], 0);
        assert_eq!(second.stored(), 2);
        second.guest.memory.write_u32(second.data + 8, 0).unwrap();
        assert_eq!(host.scheduler.inspect().engines[RCS].resets, round);
    }
}

#[test]
fn a_batch_without_end_stops_its_own_engine_only() {
    let host = Host::new();
    let mut spins = host.guest(1, 256);
    let mut c = spins.context(Engine::Rcs, 1);
    let code = spins.pages(1);
    spins.map(&c, 1 << 20, code);
    spins.write_words(code, &cmd::batch(1 << 20));
    spins.emit(&mut c, &cmd::batch(1 << 20));
    spins.submit(&c, None);
    let mut works = host.guest(2, 256);
    for engine in [Engine::Bcs, Engine::Vcs, Engine::Vecs] {
        let mut c = works.context(engine, 1);
        let (data, address) = works.global_page();
        for value in 1..=50 {
            works.emit(&mut c, &cmd::store_global(address, value));
            works.run(&c);
            assert_eq!(works.read(data), value);
        }
    }
    assert_eq!(host.scheduler.inspect().engines[RCS].running, Some(1));
}

/// A small generator, so that a failure can be repeated.
fn next(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

/// One guest of the storm: two contexts in each load, each with a batch of
/// its own.
fn storm(host: &Host, id: u64, rounds: u32) -> u64 {
    let mut random = u32::try_from(id).unwrap().wrapping_mul(0x9e37_79b9);
    let mut guest = host.guest(id, 256);
    let mut contexts: Vec<_> = (0..2)
        .map(|_| {
            let c = guest.context(Engine::Rcs, 1);
            let (code, data) = (guest.pages(1), guest.pages(1));
            guest.map(&c, 1 << 20, code);
            guest.map(&c, 2 << 20, data);
            let (global, address) = guest.global_page();
            (c, code, data, global, address)
        })
        .collect();
    let mut survived = 0;
    // A context that was never saved starts with what its guest's last one left.
    let mut before: [Option<u32>; 2] = [None; 2];
    for round in 1..=rounds {
        let value = u32::try_from(id).unwrap() << 24 | round;
        let fate = next(&mut random) % 6;
        for (c, code, _, _, address) in &mut contexts {
            let mut batch = cmd::store(2 << 20, value).to_vec();
            if fate == 0 {
                batch.extend(cmd::batch(1 << 20));
            }
            batch.push(cmd::BATCH_END);
            guest.write_words(*code, &batch);
            guest.emit(c, &cmd::store_global(*address, value));
            // General register 0 must be what this context left in it.
            guest.emit(c, &cmd::store_register_global(0x2600, *address + 8));
            guest.emit(c, &cmd::load_register(0x2600, value));
            guest.emit(c, &cmd::batch(1 << 20));
        }
        let seq = guest.submit(&contexts[0].0, Some(&contexts[1].0));
        if fate > 1 {
            guest.wait(seq, 1);
            for ((_, _, data, global, _), left) in contexts.iter().zip(&mut before) {
                let read = [*data, *global, *global + 8].map(|at| guest.read(at));
                let first = if read[2] == value { value } else { 0 };
                let left = left.replace(value).unwrap_or(first);
                assert_eq!(read, [value, value, left], "guest {id} round {round}");
            }
            survived += 2;
            continue;
        }
        // Endless, or cut off at some point: nothing but the values of old or
        // new is ever seen, and nothing changes afterwards.
        guest.reset(1);
        for (c, code, data, global, _) in &mut contexts {
            for at in [*data, *global] {
                let seen = guest.read(at);
                let old = seen == 0 || seen >> 24 == u32::try_from(id).unwrap();
                assert!(old && seen & 0xff_ffff <= round, "guest {id}: {seen:#x}");
            }
            guest.write_words(*code, &[cmd::BATCH_END]);
            guest.rewind(c);
        }
        // What the register holds now depends on where it was cut off.
        for (at, (c, _, _, global, address)) in contexts.iter_mut().enumerate() {
            guest.emit(c, &cmd::store_register_global(0x2600, *address + 12));
            guest.run(c);
            before[at] = Some(guest.read(*global + 12));
        }
    }
    survived
}

#[test]
fn nobody_loses_a_result_to_anybodys_reset() {
    const ROUNDS: u32 = 150;
    let host = Host::new();
    let survived: u64 = std::thread::scope(|scope| {
        let host = &host;
        let guests = (1..=4).map(|id| scope.spawn(move || storm(host, id, ROUNDS)));
        let guests: Vec<_> = guests.collect();
        guests.into_iter().map(|g| g.join().unwrap()).sum()
    });
    assert!(survived > 4 * u64::from(ROUNDS));
    let view = host.scheduler.inspect();
    let engine = &view.engines[RCS];
    assert_eq!((engine.running, engine.dead.as_ref()), (None, None));
    assert!(engine.handovers > 0 && engine.resets > 0, "{engine:?}");
    assert_eq!(host.gpu.counters().engines[RCS].lost_loads, 0);
}
