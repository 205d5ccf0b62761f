//! The attack on vgpud without a device model (`vgpu_tests::attack`): a round
//! of whatever the bytes say.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use vgpu_tests::{Attack, Bytes};

thread_local! {
    static ATTACK: RefCell<Attack> = RefCell::new(Attack::new());
}

fuzz_target!(|data: &[u8]| {
    ATTACK.with_borrow_mut(|attack| {
        attack.round(&mut Bytes::new(data));
        attack.end_life();
    });
});
