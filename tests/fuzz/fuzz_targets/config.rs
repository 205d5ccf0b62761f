//! `vgpu=` specifications, QEMU command lines and xl configurations of any
//! content: what parses must print as what parses to the same.
#![no_main]

use std::path::Path;

use vgpu_config::{Slots, VgpuSpec};
use xl_vgpu::config::Config;
use xl_vgpu::vgpu::Vgpu;

fn spec(text: &str) {
    match text.parse::<VgpuSpec>() {
        Ok(spec) => assert_eq!(spec.to_string().parse(), Ok(spec)),
        Err(e) => {
            let line = e.to_string();
            assert!(line.len() < 1000 && !line.contains('\n'), "{line}");
        }
    }
    let mut slots = Slots::default();
    slots.add_args(text.split(' '));
    for slot in 0..=u8::MAX {
        assert_eq!(slots.check(slot).is_ok(), slots.holder(slot).is_none());
    }
}

fn xl(text: &str) {
    let config = Config::parse(text);
    if let Ok(Some(vgpu)) = Vgpu::from_config(&config)
        && let Ok(settings) = vgpu.settings(Path::new("/usr/lib/vgpu-launcher"))
    {
        let added = Config::parse(&settings.join("\n"));
        assert_eq!(added.bad_line, None, "{settings:?}");
        let launcher = added.text("device_model_override");
        assert_eq!(launcher, Some("/usr/lib/vgpu-launcher"));
    }
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    spec(text);
    xl(text);
    // Most of what is mutated would not be a setting of ours.
    xl(&format!("type=\"hvm\"\nvgpu=[\"{text}\"]"));
});
