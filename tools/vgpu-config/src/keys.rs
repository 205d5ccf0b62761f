//! The keys of a specification, as a table.

use std::path::PathBuf;

use crate::{Kind, Mode, VgpuSpec};

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
        name: "type",
        default: "bdw",
        allowed: "bdw",
        meaning: "The device emulated. bdw is a Broadwell GT2 ULT, 8086:1616.",
        set: |spec, value| {
            spec.kind = match value {
                "bdw" => Kind::Bdw,
                _ => return None,
            };
            Some(())
        },
    },
    Key {
        name: "slot",
        default: "16",
        allowed: "2 to 31, decimal or 0x hexadecimal",
        meaning: "PCI slot on bus 0, not used by a device of QEMU.",
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
        set: |spec, value| {
            spec.mode = MODES.into_iter().find(|m| m.to_string() == value)?;
            Some(())
        },
    },
    Key {
        name: "qemu",
        default: "/usr/libexec/xen-qemu-system-i386",
        allowed: "an absolute path without commas",
        meaning: "The QEMU that becomes the device model. Without the key, the \
                  environment variable VGPU_QEMU names it, else the default holds.",
        set: |spec, value| {
            spec.qemu = Some(PathBuf::from(value)).filter(|p| p.is_absolute());
            spec.qemu.is_some().then_some(())
        },
    },
];

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
