//! `vgpu=` specifications and QEMU command lines of any content: a
//! specification that parses must print as one that parses to the same.
#![no_main]

use vgpu_config::{Slots, VgpuSpec};

libfuzzer_sys::fuzz_target!(|text: &str| {
    match text.parse::<VgpuSpec>() {
        Ok(spec) => assert_eq!(spec.to_string().parse(), Ok(spec)),
        Err(e) => assert!(e.to_string().len() < 1000),
    }
    let mut slots = Slots::default();
    slots.add_args(text.split(' '));
    for slot in 0..=u8::MAX {
        assert_eq!(slots.check(slot).is_ok(), slots.holder(slot).is_none());
    }
});
