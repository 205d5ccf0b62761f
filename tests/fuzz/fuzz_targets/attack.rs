//! The attack on vgpud without a device model (`vgpu_tests::attack`): a round
//! of whatever the bytes say, on a Broadwell or, as the first of them says, on
//! a Kaby Lake.
#![no_main]

use std::cell::RefCell;

use gen8::platform::{BDW, KBL};
use libfuzzer_sys::fuzz_target;
use vgpu_tests::{Attack, Bytes};

thread_local! {
    static BROADWELL: RefCell<Attack> = RefCell::new(Attack::new(&BDW));
    static KABY_LAKE: RefCell<Attack> = RefCell::new(Attack::new(&KBL));
}

fuzz_target!(|data: &[u8]| {
    let Some((first, data)) = data.split_first() else {
        return;
    };
    let attack = if first % 2 == 0 { &BROADWELL } else { &KABY_LAKE };
    attack.with_borrow_mut(|attack| {
        attack.round(&mut Bytes::new(data));
        attack.end_life();
    });
});
