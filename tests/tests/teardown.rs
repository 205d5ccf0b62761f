//! What a guest leaves behind: nothing.

use std::fs;
use std::sync::Arc;

use gen8::Engine;
use guest_driver::Batch;
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use vgpu_tests::{Arena, BATCH_VA, Stage, panics};

fn endless() -> Vec<u32> {
    Batch::new().start(BATCH_VA).finish()
}

#[test]
fn nothing_of_a_guest_stays_on_the_gpu() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    let empty = host.scheduler().inspect();
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    let mut stage = Stage::new(&guest);
    stage.good_requests();
    let busy = host.scheduler().inspect();
    assert!(busy.vgpus[0].chunks > 0);
    assert!(busy.windows.windows > empty.windows.windows);
    assert!(busy.own_pages > empty.own_pages);
    // Gone with work on every engine and more behind it.
    for engine in Engine::ALL {
        stage.submit(engine.index(), engine, &endless());
        stage.submit(engine.index() + 4, engine, &endless());
    }
    drop(guest);
    let after = host.scheduler().inspect();
    assert!(after.vgpus.is_empty());
    assert_eq!(after.chunks, empty.chunks);
    assert_eq!(after.own_pages, empty.own_pages);
    assert_eq!(after.windows.windows, empty.windows.windows);
    assert_eq!(after.windows.pinned, empty.windows.pinned);
    assert_eq!(after.windows.free_pages, empty.windows.free_pages);
    for engine in after.engines {
        assert_eq!((engine.running, engine.owner), (None, None));
    }
}

/// Descriptors, mappings and threads of this process.
fn held() -> (usize, usize, usize) {
    let entries = |path| fs::read_dir(path).unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|l| l.contains("memfd:")).count();
    (entries("/proc/self/fd"), shared, entries("/proc/self/task"))
}

/// The only test of this file that looks at the whole process runs its
/// guests in a process of its own: other tests of the file come and go.
#[test]
fn fifty_guests_leave_no_descriptor_mapping_or_thread() {
    const ALONE: &str = "VGPU_TESTS_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "fifty_guests_leave_no_descriptor_mapping_or_thread",
            ])
            .env(ALONE, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    panics::count();
    let mut arena = Arena::new();
    let life = |arena: &mut Arena| {
        arena.host_guest(|_, stage| {
            stage.good_requests();
            stage.submit(0, Engine::Rcs, &endless());
        });
    };
    life(&mut arena);
    let before = held();
    let chunks = arena.host().scheduler().inspect().chunks;
    for _ in 0..50 {
        life(&mut arena);
    }
    assert_eq!(held(), before, "descriptors, shared mappings, threads");
    assert_eq!(arena.host().scheduler().inspect().chunks, chunks);
    arena.neighbour().work();
}

#[test]
fn the_guests_memory_is_let_go_of() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    let witness = Arc::new(sim_host::Witness::default());
    let config = SimGuestConfig {
        witness: Some(Arc::clone(&witness)),
        ..SimGuestConfig::default()
    };
    let guest = SimGuest::start(&host, &config).unwrap();
    let mut stage = Stage::new(&guest);
    stage.good_requests();
    stage.submit(0, Engine::Rcs, &endless());
    let (reads, writes) = witness.seen();
    assert!(reads > 0 && writes > 0);
    drop(guest);
    drop(config);
    // vgpud's view of the memory held the only other handle.
    assert_eq!(Arc::strong_count(&witness), 1);
}
