//! The ways to switch, for comparison.

use std::fmt;
use std::str::FromStr;

/// How registers get from one vGPU to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SwitchMode {
    /// By way of the host's values: save all, write all and read each back,
    /// twice. What GVT-g published first; the baseline.
    FullReadBack,
    /// The same, with one read after each series of writes.
    NoReadBack,
    /// From vGPU to vGPU without the host's values between.
    Merged,
    /// Write what differs from the vGPU before; read what only the hardware
    /// knows.
    DeltaPrevious,
    /// Write what differs from what the hardware holds, whoever put it there.
    #[default]
    DeltaImage,
}

impl SwitchMode {
    /// Every mode, the plainest first.
    pub const ALL: [Self; 5] = [
        Self::FullReadBack,
        Self::NoReadBack,
        Self::Merged,
        Self::DeltaPrevious,
        Self::DeltaImage,
    ];

    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FullReadBack => "full",
            Self::NoReadBack => "no-readback",
            Self::Merged => "merged",
            Self::DeltaPrevious => "delta-previous",
            Self::DeltaImage => "delta-image",
        }
    }
}

impl fmt::Display for SwitchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("switch mode {0:?}, allowed: full, no-readback, merged, delta-previous, delta-image")]
pub struct UnknownMode(String);

impl FromStr for SwitchMode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let found = Self::ALL.into_iter().find(|m| m.name() == name);
        found.ok_or_else(|| UnknownMode(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for mode in SwitchMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "fast".parse::<SwitchMode>().unwrap_err().to_string();
        for mode in SwitchMode::ALL {
            assert!(error.contains(mode.name()), "{error}");
        }
    }
}
