//! A guest that does anything to its virtual GPU.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::run_guest(data));
