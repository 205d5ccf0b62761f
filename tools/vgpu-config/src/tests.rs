use std::path::Path;

use proptest::prelude::*;

use super::*;

fn error(spec: &str) -> String {
    spec.parse::<VgpuSpec>().unwrap_err().to_string()
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!("".parse(), Ok(VgpuSpec::default()));
    let defaults: Vec<String> = KEYS
        .iter()
        .map(|k| format!("{}={}", k.name, k.default))
        .collect();
    let mut spec: VgpuSpec = defaults.join(",").parse().unwrap();
    assert_eq!(
        spec.qemu.take().as_deref(),
        Some(Path::new("/usr/libexec/xen-qemu-system-i386"))
    );
    assert_eq!(spec, VgpuSpec::default());
}

#[test]
fn every_key_can_be_set() {
    let spec: VgpuSpec = " slot = 0x1f, gpu=kbl ,aperture=512,mode=1920x1080,qemu=/opt/q,"
        .parse()
        .unwrap();
    assert_eq!(spec.slot, 31);
    assert_eq!(spec.gpu, Some(Gpu::Kbl));
    assert_eq!(spec.aperture_mib, 512);
    assert_eq!((spec.mode.width, spec.mode.height), (1920, 1080));
    assert_eq!(spec.qemu.as_deref(), Some(Path::new("/opt/q")));
}

#[test]
fn a_guest_gets_the_hosts_gpu_and_no_other() {
    let on = |spec: &str, host| {
        let spec: VgpuSpec = spec.parse().unwrap();
        spec.gpu_on(host).map_err(|e| e.to_string())
    };
    for host in [Gpu::Bdw, Gpu::Kbl] {
        for spec in [
            "",
            "gpu=host",
            &format!("gpu={host}"),
            &format!("type={host}"),
        ] {
            assert_eq!(on(spec, host), Ok(host));
        }
    }
    assert_eq!(
        on("gpu=kbl", Gpu::Bdw).unwrap_err(),
        r#"vgpu: gpu is "kbl", allowed: bdw, which this host's GPU is"#
    );
}

#[test]
fn what_is_wrong_is_named_with_what_is_allowed() {
    assert_eq!(
        error("typ=bdw"),
        r#"vgpu: key is "typ", allowed: gpu, type, slot, aperture, mode, msi, weight, cap, slice, priority, stub, qemu"#
    );
    assert_eq!(
        error("gpu=skl"),
        r#"vgpu: gpu is "skl", allowed: host, bdw, kbl"#
    );
    assert_eq!(
        error("gpu=kbl,type=bdw"),
        r#"vgpu: type is "bdw", allowed: host, bdw, kbl"#
    );
    for slot in [
        "1", "32", "0x20", "-3", "+5", "0x+5", "", "two", "3.0", "256",
    ] {
        assert_eq!(
            error(&format!("slot={slot}")),
            format!("vgpu: slot is {slot:?}, allowed: 2 to 31, decimal or 0x hexadecimal")
        );
    }
    assert_eq!(
        error("aperture=100"),
        r#"vgpu: aperture is "100", allowed: 64, 128, 256, 512"#
    );
    assert!(error("mode=1x1").starts_with(r#"vgpu: mode is "1x1", allowed: 800x600, 1024x768"#));
    assert_eq!(
        error("qemu=qemu"),
        r#"vgpu: qemu is "qemu", allowed: an absolute path without commas"#
    );
    assert_eq!(
        error("slot"),
        r#"vgpu: specification is "slot", allowed: KEY=VALUE"#
    );
    assert_eq!(
        error("slot=3,slot=4"),
        r#"vgpu: slot is "4", allowed: one value; it is set twice"#
    );
}

#[test]
fn a_share_changes_while_the_guest_runs_and_nothing_else_does() {
    let mut spec: VgpuSpec = "slot=5,weight=7".parse().unwrap();
    spec.change("weight=300, slice=0.25,priority=high").unwrap();
    let share = Share {
        weight: 300,
        cap: 0,
        slice_us: 250,
        priority: Priority::High,
    };
    assert_eq!((spec.slot, spec.share), (5, share));
    let before = spec.clone();
    for (changes, error) in [
        (
            "cap=20,slot=6",
            r#"vgpu: key is "slot", allowed: weight, cap, slice, priority"#,
        ),
        (
            "cap=20,weight=0",
            r#"vgpu: weight is "0", allowed: 1 to 10000"#,
        ),
        ("cap=101", r#"vgpu: cap is "101", allowed: 0 to 100"#),
        ("slice=17", r#"vgpu: slice is "17", allowed: 0.1 to 16"#),
        (
            "priority=top",
            r#"vgpu: priority is "top", allowed: low, normal, high"#,
        ),
        (" ,", r#"vgpu: specification is " ,", allowed: KEY=VALUE"#),
    ] {
        assert_eq!(spec.change(changes).unwrap_err().to_string(), error);
        assert_eq!(spec, before);
    }
}

#[test]
fn later_changes_are_joined_over_earlier_ones() {
    assert_eq!(join_changes("", " cap = 5,").unwrap(), "cap=5");
    let joined = join_changes("weight=1,cap=5", "slice=2,weight=7").unwrap();
    assert_eq!(joined, "cap=5,slice=2,weight=7");
    for (older, newer) in [("slot=3", "cap=5"), ("cap=5", "cap=101"), ("cap=5", "")] {
        assert!(join_changes(older, newer).is_err());
    }
}

#[test]
fn an_error_is_one_line_however_the_input_looks() {
    assert!(error("slot=3\n4").contains(r"3\n4"));
    assert!(error(&format!("type={}", "é".repeat(1000))).len() < 300);
    assert!(error(&"x".repeat(MAX_SPEC_LEN + 1)).len() < 300);
}

#[test]
fn devices_take_slots_as_qemu_gives_them() {
    let mut slots = Slots::default();
    slots.add_args(
        "-device first-word-is-not-pci -machine xenfv,suppress-vmdesc=on -device VGA,vgamem_mb=16 \
         -device rtl8139,id=nic0 -device usb-tablet -device edu,addr=0x10 \
         -device pci-testdev,addr=6.1 -device rtl8139,bus=other -device virtio-net-pci"
            .split_whitespace(),
    );
    for (slot, device) in [
        (0, "host bridge"),
        (1, "PIIX3"),
        (2, "xen-platform"),
        (3, "VGA"),
        (4, "rtl8139"),
        (5, "virtio-net-pci"),
        (6, "pci-testdev"),
        (16, "edu"),
    ] {
        assert_eq!(slots.holder(slot), Some(device));
    }
    assert_eq!(slots.holder(7), None);
    assert_eq!(slots.check(7), Ok(()));
    let error = slots.check(16).unwrap_err().to_string();
    assert!(error.starts_with(r#"vgpu: slot is "16, taken by edu", allowed: 7, 8, 9"#));
}

#[test]
fn a_full_bus_and_cut_arguments_are_no_panic() {
    let mut slots = Slots::default();
    slots.add_args(std::iter::repeat_n(["-device", "VGA"], 40).flatten());
    slots.add_args(["-device"]);
    slots.add_args(["-machine"]);
    assert!(slots.check(31).is_err());
}

proptest! {
    #[test]
    fn any_text_parses_or_is_refused_in_one_line(text in ".{0,200}") {
        if let Err(e) = text.parse::<VgpuSpec>() {
            prop_assert_eq!(e.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn what_is_shown_parses_back(
        gpu in prop::sample::select(vec![None, Some(Gpu::Bdw), Some(Gpu::Kbl)]),
        slot in 2_u8..=31,
        aperture_mib in prop::sample::select(vec![64_u32, 128, 256, 512]),
        mode in prop::sample::select(MODES.to_vec()),
        msi in any::<bool>(),
        stub in any::<Option<bool>>(),
        qemu in prop::option::of("/[a-z/=.-]{0,20}".prop_map(PathBuf::from)),
        (weight, cap, slice_us) in (Share::WEIGHT, Share::CAP, Share::SLICE_US),
        priority in prop::sample::select(vec![Priority::Low, Priority::Normal, Priority::High]),
    ) {
        let share = Share { weight, cap, slice_us, priority };
        let spec = VgpuSpec { gpu, slot, aperture_mib, mode, msi, stub, share, qemu };
        prop_assert_eq!(spec.to_string().parse(), Ok(spec));
    }
}

/// The table of keys in docs/xl-config.md, row by row.
fn documented() -> Vec<[&'static str; 4]> {
    include_str!("../../../docs/xl-config.md")
        .lines()
        .skip_while(|l| *l != "| Key | Default | Allowed | Meaning |")
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            <[&str; 4]>::try_from(cells).unwrap()
        })
        .collect()
}

#[test]
fn the_documentation_names_every_key() {
    let rows = documented();
    assert_eq!(rows.len(), KEYS.len());
    for ([name, default, allowed, meaning], key) in rows.into_iter().zip(KEYS) {
        assert_eq!(name, format!("`{}`", key.name));
        assert_eq!(default, format!("`{}`", key.default));
        assert_eq!(allowed, key.allowed());
        assert_eq!(meaning, key.meaning);
    }
}
