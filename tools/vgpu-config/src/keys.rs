//! The keys of a specification, as a table.

use std::path::PathBuf;

use crate::share::parse_slice;
use crate::{Gpu, Mode, Share, VgpuSpec};

/// A key of a specification.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it means when it is not given, as it would be written.
    pub default: &'static str,
    /// What it may be set to, unless [`Key::allowed`] knows better.
    allowed: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Whether it can change while the guest runs.
    pub live: bool,
    /// Sets it; `None` when the value is not allowed.
    pub(crate) set: fn(&mut VgpuSpec, &str) -> Option<()>,
}

impl Key {
    /// What it may be set to.
    #[must_use]
    pub fn allowed(&self) -> String {
        if self.name == "mode" {
            return MODES.map(|m| m.to_string()).join(", ");
        }
        self.allowed.to_owned()
    }
}

/// Every key.
pub const KEYS: &[Key] = &[
    Key {
        name: "gpu",
        default: "host",
        allowed: "host, bdw, kbl",
        meaning: "The device emulated, which must be what the host's GPU is. bdw is a \
                  Broadwell GT2 ULT, 8086:1616; kbl a Kaby Lake GT2 ULT, 8086:5916.",
        live: false,
        set: set_gpu,
    },
    Key {
        name: "type",
        default: "host",
        allowed: "host, bdw, kbl",
        meaning: "What `gpu` was called before; not beside one that says otherwise.",
        live: false,
        set: set_gpu,
    },
    Key {
        name: "slot",
        default: "16",
        allowed: "2 to 31, decimal or 0x hexadecimal",
        meaning: "PCI slot on bus 0, not used by a device of QEMU.",
        live: false,
        set: |spec, value| {
            let slot = match value.strip_prefix("0x") {
                Some(hex) => u8::from_str_radix(digits(hex)?, 16),
                None => digits(value)?.parse(),
            };
            spec.slot = slot.ok().filter(|s| (2..=crate::MAX_SLOT).contains(s))?;
            Some(())
        },
    },
    Key {
        name: "aperture",
        default: "256",
        allowed: "64, 128, 256, 512",
        meaning: "Size of BAR2 in MiB. It takes address space, not memory.",
        live: false,
        set: |spec, value| {
            spec.aperture_mib = match value {
                "64" => 64,
                "128" => 128,
                "256" => 256,
                "512" => 512,
                _ => return None,
            };
            Some(())
        },
    },
    Key {
        name: "mode",
        default: "1024x768",
        // Key::allowed lists MODES.
        allowed: "",
        meaning: "The mode the virtual monitor prefers, in pixels.",
        live: false,
        set: |spec, value| {
            spec.mode = MODES.into_iter().find(|m| m.to_string() == value)?;
            Some(())
        },
    },
    Key {
        name: "msi",
        default: "on",
        allowed: "on, off",
        meaning: "Whether the device offers MSI. Without, its interrupt is INTA of its \
                  slot: for a Linux guest that is to be migrated on a host whose CPU \
                  does not virtualise the interrupt controller.",
        live: false,
        set: |spec, value| {
            spec.msi = match value {
                "on" => true,
                "off" => false,
                _ => return None,
            };
            Some(())
        },
    },
    Key {
        name: "weight",
        default: "100",
        allowed: "1 to 10000",
        meaning: "Part of an engine's time among the vGPUs that want it: one of \
                  weight 300 gets three times what one of weight 100 gets.",
        live: true,
        set: |spec, value| {
            let weight = digits(value)?.parse().ok();
            spec.share.weight = weight.filter(|w| Share::WEIGHT.contains(w))?;
            Some(())
        },
    },
    Key {
        name: "cap",
        default: "0",
        allowed: "0 to 100",
        meaning: "The most of each engine's time in percent, even when nobody else \
                  wants it; 0 is no such bound.",
        live: true,
        set: |spec, value| {
            let cap = digits(value)?.parse().ok();
            spec.share.cap = cap.filter(|c| Share::CAP.contains(c))?;
            Some(())
        },
    },
    Key {
        name: "slice",
        default: "1",
        allowed: "0.1 to 16",
        meaning: "How long it may keep an engine that others wait for, in \
                  milliseconds. Work that runs is not interrupted; what it runs \
                  over it pays for.",
        live: true,
        set: |spec, value| {
            spec.share.slice_us = parse_slice(value)?;
            Some(())
        },
    },
    Key {
        name: "priority",
        default: "normal",
        allowed: "low, normal, high",
        meaning: "Who goes first: low gets an engine only when no other wants it, \
                  high before all others.",
        live: true,
        set: |spec, value| {
            spec.share.priority = value.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "stub",
        default: "host",
        allowed: "host, 0, 1",
        meaning: "Whether the device model gets a domain of its own: 1 yes, 0 no, \
                  host as vgpud's configuration says.",
        live: false,
        set: |spec, value| {
            spec.stub = match value {
                "host" => None,
                "0" => Some(false),
                "1" => Some(true),
                _ => return None,
            };
            Some(())
        },
    },
    Key {
        name: "qemu",
        default: "/usr/libexec/xen-qemu-system-i386",
        allowed: "an absolute path without commas",
        meaning: "The QEMU that becomes the device model. Without the key, the \
                  environment variable VGPU_QEMU names it, else the default holds.",
        live: false,
        set: |spec, value| {
            spec.qemu = Some(PathBuf::from(value)).filter(|p| p.is_absolute());
            spec.qemu.is_some().then_some(())
        },
    },
];

fn set_gpu(spec: &mut VgpuSpec, value: &str) -> Option<()> {
    let gpu = match value {
        "host" => return Some(()),
        "bdw" => Gpu::Bdw,
        "kbl" => Gpu::Kbl,
        _ => return None,
    };
    let same = *spec.gpu.get_or_insert(gpu) == gpu;
    same.then_some(())
}

/// `s` if it starts with a digit: parsers of numbers also take a sign.
fn digits(s: &str) -> Option<&str> {
    s.starts_with(|c: char| c.is_ascii_hexdigit()).then_some(s)
}

const fn mode(width: u16, height: u16) -> Mode {
    Mode { width, height }
}

/// The modes a virtual monitor may prefer.
pub const MODES: [Mode; 7] = [
    mode(800, 600),
    mode(1024, 768),
    mode(1280, 720),
    mode(1280, 1024),
    mode(1600, 900),
    mode(1920, 1080),
    mode(1920, 1200),
];
