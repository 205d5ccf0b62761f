//! What is done about what a scan finds.

use std::fmt;
use std::str::FromStr;

/// What is done about batches without privilege.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanMode {
    /// They are not looked at.
    Off,
    /// They are looked at and run; what has no place in them is noted.
    #[default]
    Note,
    /// A context with something that has no place in one is refused.
    Refuse,
}

impl ScanMode {
    /// Every mode, the most lenient first.
    pub const ALL: [Self; 3] = [Self::Off, Self::Note, Self::Refuse];

    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Note => "note",
            Self::Refuse => "refuse",
        }
    }
}

impl fmt::Display for ScanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scan mode {0:?}, allowed: off, note, refuse")]
pub struct UnknownScanMode(String);

impl FromStr for ScanMode {
    type Err = UnknownScanMode;

    fn from_str(name: &str) -> Result<Self, UnknownScanMode> {
        let found = Self::ALL.into_iter().find(|m| m.name() == name);
        found.ok_or_else(|| UnknownScanMode(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for mode in ScanMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "maybe".parse::<ScanMode>().unwrap_err().to_string();
        for mode in ScanMode::ALL {
            assert!(error.contains(mode.name()), "{error}");
        }
    }
}
