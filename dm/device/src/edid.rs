//! The monitor's identification (EDID 1.3, one block, no extension: a DVI
//! monitor, so no audio and no info frames).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

/// Bytes of the block.
pub const EDID_BYTES: usize = 128;

/// A monitor's preferred mode, all at 60 Hz. Named by its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Mode {
    /// 800×600.
    M800x600,
    /// 1024×768.
    #[default]
    M1024x768,
    /// 1280×720.
    M1280x720,
    /// 1280×1024.
    M1280x1024,
    /// 1600×900, reduced blanking.
    M1600x900,
    /// 1920×1080.
    M1920x1080,
    /// 1920×1200, reduced blanking.
    M1920x1200,
}

/// A detailed timing. Source of the numbers: VESA DMT 1.0 and CEA-861 modes
/// (Linux `drivers/gpu/drm/drm_edid.c:drm_dmt_modes`, `edid_cea_modes_1`).
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// Pixel clock in units of 10 kHz.
    clock: u16,
    /// Active, front porch, sync, total, in pixels.
    horizontal: [u16; 4],
    /// Active, front porch, sync, total, in lines.
    vertical: [u16; 4],
    /// Sync polarities: horizontal and vertical positive.
    positive: [bool; 2],
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 7] = [
        Self::M800x600,
        Self::M1024x768,
        Self::M1280x720,
        Self::M1280x1024,
        Self::M1600x900,
        Self::M1920x1080,
        Self::M1920x1200,
    ];

    const fn timing(self) -> Timing {
        let (clock, horizontal, vertical, positive) = match self {
            Self::M800x600 => (4000, [800, 40, 128, 1056], [600, 1, 4, 628], [true, true]),
            Self::M1024x768 => (
                6500,
                [1024, 24, 136, 1344],
                [768, 3, 6, 806],
                [false, false],
            ),
            Self::M1280x720 => (7425, [1280, 110, 40, 1650], [720, 5, 5, 750], [true, true]),
            Self::M1280x1024 => (
                10800,
                [1280, 48, 112, 1688],
                [1024, 1, 3, 1066],
                [true, true],
            ),
            Self::M1600x900 => (10800, [1600, 24, 80, 1800], [900, 1, 3, 1000], [true, true]),
            Self::M1920x1080 => (
                14850,
                [1920, 88, 44, 2200],
                [1080, 4, 5, 1125],
                [true, true],
            ),
            Self::M1920x1200 => (
                15400,
                [1920, 48, 32, 2080],
                [1200, 3, 6, 1235],
                [true, false],
            ),
        };
        Timing {
            clock,
            horizontal,
            vertical,
            positive,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = self.timing();
        write!(f, "{}x{}", t.horizontal[0], t.vertical[0])
    }
}

impl FromStr for Mode {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::ALL
            .into_iter()
            .find(|m| m.to_string() == name)
            .ok_or_else(|| ConfigError::Mode {
                given: name.to_owned(),
                allowed: Self::ALL.map(|m| m.to_string()).join(", "),
            })
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.to_string()
    }
}

impl TryFrom<String> for Mode {
    type Error = ConfigError;

    fn try_from(name: String) -> Result<Self, ConfigError> {
        name.parse()
    }
}

/// The low byte, and the bits above it.
const fn split(value: u16) -> (u8, u8) {
    let [low, high] = value.to_le_bytes();
    (low, high)
}

/// An 18-byte detailed timing descriptor (EDID 1.3, section 3.10.2).
fn detailed(t: Timing) -> [u8; 18] {
    let [h, h_front, h_sync, h_total] = t.horizontal;
    let [v, v_front, v_sync, v_total] = t.vertical;
    let (h_low, h_high) = split(h);
    let (hb_low, hb_high) = split(h_total - h);
    let (v_low, v_high) = split(v);
    let (vb_low, vb_high) = split(v_total - v);
    let (hf_low, hf_high) = split(h_front);
    let (hs_low, hs_high) = split(h_sync);
    // Vertical porch and sync are below 16 lines in every mode.
    let (vf, _) = split(v_front);
    let (vs, _) = split(v_sync);
    let (clock_low, clock_high) = split(t.clock);
    let mut features = 0b0001_1000; // digital, separate sync
    if t.positive[1] {
        features |= 1 << 2;
    }
    if t.positive[0] {
        features |= 1 << 1;
    }
    [
        clock_low,
        clock_high,
        h_low,
        hb_low,
        h_high << 4 | hb_high,
        v_low,
        vb_low,
        v_high << 4 | vb_high,
        hf_low,
        hs_low,
        vf << 4 | vs,
        hf_high << 6 | hs_high << 4,
        // Image size: 320 mm by 200 mm, like the basic parameters.
        0x40,
        0xc8,
        0x10,
        0,
        0,
        features,
    ]
}

/// A text or range descriptor.
fn descriptor(tag: u8, body: &[u8]) -> [u8; 18] {
    let mut d = [0; 18];
    d[3] = tag;
    for (to, from) in d[5..].iter_mut().zip(body) {
        *to = *from;
    }
    d
}

/// The block for a monitor that prefers `mode`.
#[must_use]
pub fn edid(mode: Mode) -> [u8; EDID_BYTES] {
    let mut e = [0; EDID_BYTES];
    let mut put = |at: usize, bytes: &[u8]| e[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]);
    // Manufacturer "VGX": five bits a letter, A is 1; product 1, serial 1.
    put(8, &[0x58, 0xf8, 1, 0, 1, 0, 0, 0]);
    // Week 1 of 2025, EDID 1.3.
    put(16, &[1, 35, 1, 3]);
    // Digital, 32 by 20 cm, gamma 2.2, RGB, first timing preferred.
    put(20, &[0x80, 32, 20, 120, 0x0a]);
    // The chromaticity of sRGB.
    put(
        25,
        &[0xee, 0x91, 0xa3, 0x54, 0x4c, 0x99, 0x26, 0x0f, 0x50, 0x54],
    );
    // Established: 640x480, 800x600, 1024x768, all at 60 Hz.
    put(35, &[0x21, 0x08, 0]);
    // Standard timings: width / 8 - 31, aspect and rate - 60; the rest unused.
    put(
        38,
        &[
            0x81, 0xc0, // 1280x720
            0x81, 0x80, // 1280x1024
            0xa9, 0xc0, // 1600x900
            0xd1, 0xc0, // 1920x1080
            1, 1, 1, 1, 1, 1, 1, 1,
        ],
    );
    put(54, &detailed(mode.timing()));
    // Ranges: 50-75 Hz, 30-90 kHz, up to 170 MHz.
    put(
        72,
        &descriptor(
            0xfd,
            &[
                50, 75, 30, 90, 17, 0, b'\n', b' ', b' ', b' ', b' ', b' ', b' ',
            ],
        ),
    );
    put(90, &descriptor(0xfc, b"xen-vgpu\n    "));
    put(108, &descriptor(0xff, b"1\n           "));
    let sum = e.iter().fold(0_u8, |sum, b| sum.wrapping_add(*b));
    e[EDID_BYTES - 1] = sum.wrapping_neg();
    e
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_sums_to_zero_and_prefers_its_mode() {
        for mode in Mode::ALL {
            let e = edid(mode);
            assert_eq!(e.iter().fold(0_u8, |s, b| s.wrapping_add(*b)), 0);
            let h = u16::from(e[56]) | u16::from(e[58] >> 4) << 8;
            let v = u16::from(e[59]) | u16::from(e[61] >> 4) << 8;
            assert_eq!(format!("{h}x{v}"), mode.to_string());
            // Within 1 Hz of 60.
            let t = mode.timing();
            let pixels = u32::from(t.horizontal[3]) * u32::from(t.vertical[3]);
            let centihertz = u64::from(t.clock) * 1_000_000 / u64::from(pixels);
            assert!((5900..6100).contains(&centihertz), "{mode}: {centihertz}");
        }
    }

    #[test]
    fn a_mode_is_named_by_its_size() {
        assert_eq!("1920x1080".parse(), Ok(Mode::M1920x1080));
        let e = "3x4".parse::<Mode>().unwrap_err().to_string();
        assert!(
            e.starts_with("mode is 3x4, allowed: 800x600, 1024x768"),
            "{e}"
        );
    }
}
