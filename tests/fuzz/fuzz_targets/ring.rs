//! A hostile device model: anything in the shared area. vgpud drops the vGPU
//! with a reason, and an honest guest goes on.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use vgpu_tests::{Arena, HostileRing};

thread_local! {
    static ARENA: RefCell<Option<Arena>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    ARENA.with_borrow_mut(|slot| {
        let arena = slot.get_or_insert_with(Arena::new);
        HostileRing::start(arena.host(), u64::MAX).run(data);
        arena.neighbour().work();
    });
});
