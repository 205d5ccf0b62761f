//! The device alone, used, saved, its saved state changed, and restored:
//! what restores must save to what restores to the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vgpu_tests::restore_device(&mut vgpu_tests::Bytes::new(data));
});
