//! Pages that are told to have been written, against a guest's memory.

use std::collections::BTreeSet;

use gen8::Engine;
use guest_memory::GuestMemory;

use crate::driver::{Context, Guest, Host, cmd};

/// The guest's memory, page by page.
fn pages(guest: &Guest) -> Vec<[u8; 4096]> {
    let mut page = [0; 4096];
    let addresses = (0..guest.memory.pages()).map(|n| u64::try_from(n * 4096).unwrap());
    let read = addresses.map(|gpa| {
        guest.memory.read(gpa, &mut page).unwrap();
        page
    });
    read.collect()
}

/// Frames in which two states of it differ.
fn changed(before: &[[u8; 4096]], after: &[[u8; 4096]]) -> BTreeSet<u64> {
    let both = (0..).zip(before.iter().zip(after));
    both.filter_map(|(gfn, (b, a))| (b != a).then_some(gfn))
        .collect()
}

/// Frames told to have been written since the last time.
fn told(guest: &Guest) -> BTreeSet<u64> {
    let mut frames: BTreeSet<u64> = guest.handle.reached().iter().map(|gfn| gfn.0).collect();
    loop {
        let runs = guest.handle.written().take(8);
        if runs.is_empty() {
            return frames;
        }
        for (first, count) in runs {
            frames.extend(first.0..first.0 + count);
        }
    }
}

/// A context with a batch at 1 MiB that stores to its page at 2 MiB, which is
/// at this guest-physical address.
fn storing(guest: &mut Guest, engine: Engine, value: u32) -> (Context, u64) {
    let c = guest.context(engine, 1);
    let (code, data) = (guest.pages(1), guest.pages(1));
    guest.map(&c, 1 << 20, code);
    guest.map(&c, 2 << 20, data);
    let batch = [cmd::store(2 << 20, value), [cmd::BATCH_END, 0, 0, 0]];
    guest.write_words(code, &batch.concat());
    (c, data)
}

#[test]
fn whatever_changes_was_told_and_only_of_what_ran() {
    let host = Host::new();
    let mut guest = host.guest(1, 400);
    let (mut idle, untouched) = storing(&mut guest, Engine::Rcs, 9);
    guest.emit(&mut idle, &cmd::batch(1 << 20));
    guest.run(&idle);
    guest.handle.track(true);
    guest.handle.written().start();
    assert_eq!(told(&guest), BTreeSet::new());
    for engine in Engine::ALL {
        let (mut c, data) = storing(&mut guest, engine, 0xda7a);
        let (page, address) = guest.global_page();
        for round in 1..4 {
            guest.emit(&mut c, &cmd::batch(1 << 20));
            guest.emit(&mut c, &cmd::store_global(address, round));
            // What its processors write, a guest's log knows.
            let before = pages(&guest);
            guest.run(&c);
            let changed = changed(&before, &pages(&guest));
            let told = told(&guest);
            assert!(changed.is_subset(&told), "{changed:?} {told:?}");
            assert!(changed.contains(&(page >> 12)));
            assert_eq!(changed.contains(&(data >> 12)), round == 1);
            assert!(told.contains(&(data >> 12)));
            assert!(!told.contains(&(untouched >> 12)));
            // Few of the guest's 400 pages.
            assert!(told.len() < 40, "{told:?}");
        }
        assert_eq!(told(&guest), BTreeSet::new());
    }
    guest.handle.track(false);
    guest.emit(&mut idle, &cmd::batch(1 << 20));
    guest.run(&idle);
    assert!(guest.handle.reached().is_empty());
}
