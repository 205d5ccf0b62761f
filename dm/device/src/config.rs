//! What a device is made with.

use gen8::Platform;
use serde::{Deserialize, Serialize};

use crate::edid::Mode;

/// The smallest BAR2 offered, in MiB.
pub const APERTURE_MIN_MIB: u32 = 64;
/// The largest BAR2 offered, in MiB.
pub const APERTURE_MAX_MIB: u32 = 512;

/// MiB that the global page table covers.
pub const GGTT_MIB: u32 = 4096;
/// What a part of it that the driver may use is a multiple of, in MiB.
pub const GGTT_STEP_MIB: u32 = 64;

fn whole_table() -> u32 {
    GGTT_MIB
}

fn with_msi() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn has_msi(msi: &bool) -> bool {
    *msi
}

/// A platform as its name.
mod by_name {
    use gen8::Platform;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(gpu: &&'static Platform, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(gpu.name)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<&'static Platform, D::Error> {
        let name = String::deserialize(from)?;
        let known = gen8::platform::PLATFORMS.map(|p| p.name).join(", ");
        Platform::named(&name)
            .ok_or_else(|| D::Error::custom(format!("gpu is {name:?}, allowed: {known}")))
    }
}

/// What a device is made with. Part of the saved state: a guest must find
/// the same device after migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What it is, by name. A saved state without one is Broadwell's.
    #[serde(default, with = "by_name")]
    pub gpu: &'static Platform,
    /// Size of BAR2 in MiB: a power of two from [`APERTURE_MIN_MIB`] to
    /// [`APERTURE_MAX_MIB`].
    pub aperture_mib: u32,
    /// The monitor's preferred mode.
    pub mode: Mode,
    /// Whether it offers MSI; without, its interrupt is INTA. A saved state that
    /// does not say has it, and one that has it does not say.
    #[serde(default = "with_msi", skip_serializing_if = "has_msi")]
    pub msi: bool,
    /// MiB of global address space that the driver is told it may use, a
    /// multiple of [`GGTT_STEP_MIB`] up to [`GGTT_MIB`]; the rest is
    /// ballooned. i915 in a guest writes every entry of it when it starts
    /// (Linux `gt/intel_ggtt.c:init_ggtt`, `intel_scanout_needs_vtd_wa`),
    /// 256 a MiB, so it is to be small where each is a trapped access.
    #[serde(default = "whole_table")]
    pub ggtt_mib: u32,
    /// Whether to count accesses by register, for inspection. Costs some
    /// tens of nanoseconds an access.
    #[serde(default)]
    pub count_registers: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gpu: Default::default(),
            aperture_mib: 256,
            mode: Mode::default(),
            msi: true,
            ggtt_mib: GGTT_MIB,
            count_registers: false,
        }
    }
}

/// A configuration no device can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The aperture's size.
    #[error("aperture is {0} MiB, allowed: 64, 128, 256, 512")]
    Aperture(u32),
    /// The usable part of the global page table.
    #[error("usable global address space is {0} MiB, allowed: multiples of 64 up to 4096")]
    Ggtt(u32),
    /// The preferred mode.
    #[error("mode is {given}, allowed: {allowed}")]
    Mode {
        /// What was given.
        given: String,
        /// The names of the modes there are.
        allowed: String,
    },
}

impl Config {
    /// Checks every field.
    ///
    /// # Errors
    /// [`ConfigError`] names the field, its value and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mib = self.aperture_mib;
        if !mib.is_power_of_two() || !(APERTURE_MIN_MIB..=APERTURE_MAX_MIB).contains(&mib) {
            return Err(ConfigError::Aperture(mib));
        }
        let mib = self.ggtt_mib;
        if mib == 0 || mib > GGTT_MIB || !mib.is_multiple_of(GGTT_STEP_MIB) {
            return Err(ConfigError::Ggtt(mib));
        }
        Ok(())
    }

    /// The parts of the global address space that the driver may use: bytes
    /// from 0 that BAR2 shows, then first address and bytes beyond BAR2. The
    /// latter are never 0, which i915 would refuse. Needs a checked
    /// configuration.
    pub(crate) fn usable(&self) -> (u32, (u32, u32)) {
        let aperture = self.aperture_bytes();
        // Half of it where the CPU reaches, as far as BAR2 reaches.
        let mappable = (self.ggtt_mib / 2).min(self.aperture_mib) << 20;
        if self.ggtt_mib == GGTT_MIB {
            return (aperture, (aperture, aperture.wrapping_neg()));
        }
        let rest = (self.ggtt_mib << 20) - mappable;
        // At most 4 GiB less a step, so it ends within the table when it
        // starts behind BAR2; cut off what would not.
        (mappable, (aperture, rest.min(aperture.wrapping_neg())))
    }

    /// Bytes of BAR2. Needs a checked configuration.
    pub(crate) fn aperture_bytes(&self) -> u32 {
        self.aperture_mib << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_apertures_are_refused_with_the_value() {
        for mib in [0, 32, 96, 1024, u32::MAX] {
            let config = Config {
                aperture_mib: mib,
                ..Config::default()
            };
            assert_eq!(config.check(), Err(ConfigError::Aperture(mib)));
        }
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn a_configuration_names_its_gpu() {
        for gpu in gen8::platform::PLATFORMS {
            let config = Config {
                gpu,
                ..Config::default()
            };
            let saved = serde_json::to_value(&config).unwrap();
            assert_eq!(saved["gpu"], gpu.name);
            let again: Config = serde_json::from_value(saved.clone()).unwrap();
            assert_eq!(again, config);
            let mut other = saved.clone();
            other["gpu"] = "skl".into();
            let refused = serde_json::from_value::<Config>(other).unwrap_err();
            assert!(
                refused.to_string().contains("allowed: bdw, kbl"),
                "{refused}"
            );
        }
    }

    #[test]
    fn only_a_device_without_msi_says_so() {
        let with = serde_json::to_value(Config::default()).unwrap();
        assert_eq!(with.get("msi"), None);
        assert!(serde_json::from_value::<Config>(with).unwrap().msi);
        let without = Config {
            msi: false,
            ..Config::default()
        };
        let saved = serde_json::to_value(&without).unwrap();
        assert_eq!(saved["msi"], false);
        assert_eq!(serde_json::from_value::<Config>(saved).unwrap(), without);
    }

    #[test]
    fn what_the_driver_may_use_lies_in_the_table() {
        for aperture_mib in [64, 128, 256, 512] {
            for ggtt_mib in (64..=GGTT_MIB).step_by(64) {
                let config = Config {
                    aperture_mib,
                    ggtt_mib,
                    ..Config::default()
                };
                assert_eq!(config.check(), Ok(()));
                let (mappable, (base, size)) = config.usable();
                assert!(mappable > 0 && mappable <= config.aperture_bytes());
                assert!(base >= config.aperture_bytes() && size > 0);
                assert!(u64::from(base) + u64::from(size) <= 1 << 32);
            }
        }
        let whole = Config::default().usable();
        assert_eq!(whole, (256 << 20, (256 << 20, 0xf000_0000)));
        for ggtt_mib in [0, 63, 4160] {
            let config = Config {
                ggtt_mib,
                ..Config::default()
            };
            assert_eq!(config.check(), Err(ConfigError::Ggtt(ggtt_mib)));
        }
    }
}
