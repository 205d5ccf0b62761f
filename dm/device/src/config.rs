//! What a device is made with.

use serde::{Deserialize, Serialize};

use crate::edid::Mode;

/// The smallest BAR2 offered, in MiB.
pub const APERTURE_MIN_MIB: u32 = 64;
/// The largest BAR2 offered, in MiB.
pub const APERTURE_MAX_MIB: u32 = 512;

/// What a device is made with. Part of the saved state: a guest must find
/// the same device after migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Size of BAR2 in MiB: a power of two from [`APERTURE_MIN_MIB`] to
    /// [`APERTURE_MAX_MIB`].
    pub aperture_mib: u32,
    /// The monitor's preferred mode.
    pub mode: Mode,
    /// Whether to count accesses by register, for inspection. Costs some
    /// tens of nanoseconds an access.
    #[serde(default)]
    pub count_registers: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            aperture_mib: 256,
            mode: Mode::default(),
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
        Ok(())
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
}
