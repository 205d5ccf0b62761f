//! A guest that does anything, through its device model, the rings and vgpud
//! to the GPU, with an honest guest beside it that must not notice.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use vgpu_tests::Arena;

/// Guests a host sees before a new one takes its place.
const LIVES: u32 = 1000;

thread_local! {
    static ARENA: RefCell<Option<(Arena, u32)>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    ARENA.with_borrow_mut(|slot| {
        if slot.as_ref().is_some_and(|(_, lives)| *lives == 0) {
            *slot = None;
        }
        let (arena, lives) = slot.get_or_insert_with(|| (Arena::new(), LIVES));
        *lives -= 1;
        arena.run(data);
    });
});
