//! Hostile guests: whatever a guest does, its device model and vgpud stand,
//! it can recover, and its neighbour does not notice.

use fake_xen::{RawIoreq, Stopped};
use gen8::cmd::mi_op;
use gen8::{Engine, lrc, ring};
use guest_driver::{Batch, Random};
use guest_memory::Gfn;
use vgpu_tests::{Arena, BATCH_VA, DATA_VA, Place, Stage, panics, wait_until, write_context};

/// Runs a scene against a host of its own.
fn scene(play: impl FnOnce(&mut Stage<'_>)) {
    panics::count();
    let mut arena = Arena::new();
    arena.host_guest(|_, stage| play(stage));
    arena.neighbour().work();
}

/// Waits until the guest's device says that the engine failed.
fn wait_error(stage: &Stage<'_>, engine: Engine) {
    wait_until("an engine error", || {
        stage.get(engine.mmio_base() + ring::EIR) != 0
    });
}

fn jump(to: u64) -> Vec<u32> {
    Batch::new().start(to).finish()
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap()
}

#[test]
fn sequences_of_anything_do_no_harm() {
    panics::count();
    let mut random = Random::new(0x5eed);
    let mut arena = Arena::new();
    for _ in 0..150 {
        let len = 200 + random.below(1500);
        let data: Vec<u8> = (0..len)
            .map(|_| random.next_u32().to_le_bytes()[0])
            .collect();
        arena.run(&data);
    }
}

#[test]
fn accesses_of_every_size_at_every_alignment_are_answered() {
    scene(|stage| {
        let table = stage.bar0 + (8 << 20);
        let ends = [stage.bar0 + (16 << 20), stage.bar2 + (64 << 20)];
        let starts = [stage.bar0, stage.bar0 + 0x2230, table, stage.bar2, 1 << 30];
        let around = starts.into_iter().chain(ends);
        for at in around.flat_map(|base| (0..16).map(move |n| base - 8 + n)) {
            for size in 1..=8 {
                let _value = stage.read(at, size);
                stage.write(at, size, 0);
            }
        }
        // PVINFO's magic in its eight bytes, whichever way they are read.
        let magic = 0x4776_5447_7654_4776_u64.to_le_bytes();
        for offset in 0..8_u8 {
            let value = stage.read(stage.bar0 + 0x7_8000 + u64::from(offset), 1);
            assert_eq!(value, u64::from(magic[usize::from(offset)]));
        }
    });
}

#[test]
fn a_string_from_a_hole_is_answered_in_full() {
    scene(|stage| {
        let vcpu = stage.guest().vcpu();
        let frame = Place::of(0).batch();
        let hole = Gfn::containing(frame);
        assert_eq!(vcpu.decrease_reservation(&[hole]), Ok(Ok(())));
        let server = stage.guest().server().id();
        for (df, read) in [(false, false), (false, true), (true, false), (true, true)] {
            for addr in [stage.bar0 + (8 << 20) + 8 * 64, stage.bar2 + 64, stage.bar0] {
                // Xen emulates the instruction before it knows that there is
                // no memory; the device model has to know.
                let raw = RawIoreq {
                    kind: 1,
                    addr,
                    data: frame + 256,
                    count: 16,
                    size: 8,
                    read,
                    df,
                    data_is_ptr: true,
                };
                assert!(vcpu.raw_request_to(server, &raw).is_ok());
            }
        }
        assert_eq!(vcpu.populate(&[hole]), Ok(Ok(())));
    });
}

#[test]
fn strings_run_downwards_too() {
    scene(|stage| {
        let vcpu = stage.guest().vcpu();
        let memory = stage.memory();
        let source = Place::of(0).data();
        for n in 0..4 {
            memory.write_u64(source + n * 8, 0x1000 * (n + 1)).unwrap();
        }
        // Entries 403 to 400 of the global table, from the last on.
        let last = stage.bar0 + (8 << 20) + 403 * 8;
        vcpu.rep_movs(source + 24, last, 8, 4, true).unwrap();
        for n in 0..4 {
            let entry = stage.read(last - 24 + n * 8, 8);
            assert_eq!(entry, 0x1000 * (n + 1));
        }
        // And across the start of the window.
        vcpu.rep_stos(stage.bar0 + 16, 8, 100, 0, true).unwrap();
        vcpu.rep_stos(stage.bar2 + 16, 4, 100, u64::MAX, true)
            .unwrap();
    });
}

#[test]
fn bars_move_while_work_runs() {
    scene(|stage| {
        let home = (stage.bar0, stage.bar2);
        stage.submit(0, Engine::Rcs, &jump(BATCH_VA));
        for base in [0_u64, 0xe000_0000, home.1, 0x20_0000_0000, u64::MAX << 24] {
            stage.move_bars(base, 0x30_0000_0000);
            for decode in [0, 6, 2, 0, 6] {
                stage.config_write(4, 2, decode);
                let _value = stage.get(ring::GDRST);
            }
        }
        stage.move_bars(home.0, home.1);
        assert_eq!((stage.bar0, stage.bar2), home);
        stage.good_request(Engine::Bcs);
    });
}

#[test]
fn garbage_descriptors_are_an_engine_error() {
    scene(|stage| {
        let good = write_context(stage.memory(), 0, Engine::Rcs).unwrap().0;
        for descriptor in [
            u64::MAX,
            1,
            // No such addressing mode, no such page.
            good & !(3 << 3),
            good & 0xffff_ffff_0000_0fff | 0xffff_f000,
        ] {
            stage.load(Engine::Rcs, descriptor, 0);
            wait_error(stage, Engine::Rcs);
            stage.reset(2);
            stage.good_request(Engine::Rcs);
        }
    });
}

#[test]
fn rings_outside_the_global_table_are_an_engine_error() {
    scene(|stage| {
        let place = Place::of(0);
        for (start, ctl) in [
            (0xffff_f000, 0x1f_f001),
            (0x8000_0000, 0x3001),
            (low(place.ring()), 0x1f_f001),
            (0xffff_ffff, u32::MAX),
        ] {
            let memory = stage.memory();
            let descriptor = write_context(memory, 0, Engine::Rcs).unwrap().0;
            for (dword, value) in [
                (lrc::RING_START, start),
                (lrc::RING_CTL, ctl),
                (lrc::RING_HEAD, 0x1f_f000),
                (lrc::RING_TAIL, 0xff8),
            ] {
                let at = place.registers() + u64::try_from(dword * 4).unwrap();
                memory.write_u32(at, value).unwrap();
            }
            stage.load(Engine::Rcs, descriptor, 0);
            wait_error(stage, Engine::Rcs);
            stage.reset(2);
            stage.good_request(Engine::Rcs);
        }
    });
}

#[test]
fn tables_that_contain_themselves_do_no_harm() {
    scene(|stage| {
        for level in 0..4 {
            let place = Place::of(1);
            let [root, ..] = place.tables();
            let memory = stage.memory();
            let descriptor = write_context(memory, 1, Engine::Bcs).unwrap().0;
            // Every entry of this level leads back to the root.
            let row: Vec<u8> = (0..512).flat_map(|_| (root | 3).to_le_bytes()).collect();
            memory.write(place.tables()[level], &row).unwrap();
            let mut batch = Batch::new();
            batch.store_u32(DATA_VA, 1).end();
            let batch: Vec<u8> = batch
                .finish()
                .iter()
                .flat_map(|d| d.to_le_bytes())
                .collect();
            memory.write(place.batch(), &batch).unwrap();
            let mut commands = Batch::new();
            // Near and far, so that the walks are many.
            for n in 0..8_u64 {
                commands.start(BATCH_VA + (n << 39) + (n << 21));
            }
            let commands = commands.finish();
            let tail = u32::try_from(commands.len() * 4).unwrap();
            let bytes: Vec<u8> = commands.iter().flat_map(|d| d.to_le_bytes()).collect();
            memory.write(place.ring(), &bytes).unwrap();
            let at = place.registers() + u64::try_from(lrc::RING_TAIL * 4).unwrap();
            memory.write_u32(at, tail).unwrap();
            stage.load(Engine::Bcs, descriptor, 0);
            // What became of it is the guest's affair; a reset ends it.
            stage.reset(8);
            stage.good_request(Engine::Bcs);
        }
    });
}

#[test]
fn a_reset_ends_an_endless_batch() {
    scene(|stage| {
        for engine in Engine::ALL {
            let number = stage.submit(engine.index(), engine, &jump(BATCH_VA));
            stage.reset(engine.reset_domain());
            assert_ne!(stage.finished(engine.index()), number);
            stage.good_request(engine);
        }
    });
}

#[test]
fn an_endless_batch_nobody_resets_is_ended_for_the_neighbour() {
    panics::count();
    let mut arena = Arena::new();
    arena.host_guest(|arena, stage| {
        for engine in Engine::ALL {
            stage.submit(engine.index(), engine, &jump(BATCH_VA));
        }
        arena.neighbour().work();
        for engine in Engine::ALL {
            wait_error(stage, engine);
        }
    });
    arena.neighbour().work();
}

#[test]
fn commands_that_are_not_for_guests_are_an_engine_error() {
    scene(|stage| {
        for dword in [
            mi_op::UPDATE_GTT << 23 | 1,
            mi_op::SEMAPHORE_SIGNAL << 23,
            mi_op::DISPLAY_FLIP << 23 | 1,
            // No command at all.
            0x7fff_ffff,
        ] {
            let memory = stage.memory();
            let descriptor = write_context(memory, 0, Engine::Rcs).unwrap().0;
            let place = Place::of(0);
            memory.write_u32(place.ring(), dword).unwrap();
            let at = place.registers() + u64::try_from(lrc::RING_TAIL * 4).unwrap();
            memory.write_u32(at, 64).unwrap();
            stage.load(Engine::Rcs, descriptor, 0);
            wait_error(stage, Engine::Rcs);
            stage.reset(2);
            stage.good_request(Engine::Rcs);
        }
    });
}

#[test]
fn loads_without_end_cost_the_guest_its_engine_only() {
    scene(|stage| {
        let descriptor = write_context(stage.memory(), 2, Engine::Vcs).unwrap().0;
        stage.submit(2, Engine::Vcs, &jump(BATCH_VA));
        for n in 0..3000 {
            stage.load(Engine::Vcs, descriptor ^ (n % 7) << 37, descriptor);
        }
        stage.good_request(Engine::Rcs);
        stage.reset(4);
        stage.good_request(Engine::Vcs);
    });
}

#[test]
fn frames_that_leave_while_they_are_used_are_missed_by_the_guest_only() {
    scene(|stage| {
        let vcpu = stage.guest().vcpu();
        for gone in [
            Place::of(0).registers(),
            Place::of(0).ring(),
            Place::of(0).tables()[2],
            Place::of(0).batch(),
            // The engine's status page.
            16 << 12,
        ] {
            stage.submit(0, Engine::Rcs, &jump(BATCH_VA));
            let gfn = [Gfn::containing(gone)];
            assert_eq!(vcpu.decrease_reservation(&gfn), Ok(Ok(())));
            let descriptor = Place::of(0).descriptor(1);
            stage.load(Engine::Rcs, descriptor, 0);
            stage.reset(2);
            assert_eq!(vcpu.populate(&gfn), Ok(Ok(())));
            stage.good_request(Engine::Rcs);
        }
    });
}

#[test]
fn a_destroyed_guest_leaves_its_vcpu_with_an_answer() {
    panics::count();
    let mut arena = Arena::new();
    let guest = sim_host::SimGuest::start(arena.host(), &sim_host::SimGuestConfig::default());
    let guest = guest.unwrap();
    let mut stage = Stage::new(&guest);
    stage.submit(0, Engine::Rcs, &jump(BATCH_VA));
    guest.domain().destroy();
    let answer = guest.vcpu().mmio_read(stage.bar0, 4);
    assert_eq!(answer, Err(Stopped::Destroyed));
    drop(guest);
    arena.neighbour().work();
    assert_eq!(panics::seen(), 0);
}
