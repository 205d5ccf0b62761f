//! Values of options, checked alike wherever they come from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use vgpu_config::Gpu;

/// A number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within<const MIN: u64, const MAX: u64>(u64);

/// A number outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value} is not allowed: {min} to {max}")]
pub struct Outside {
    value: u64,
    min: u64,
    max: u64,
}

impl<const MIN: u64, const MAX: u64> Within<MIN, MAX> {
    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number, or `default` without one.
    #[must_use]
    pub fn or(this: Option<Self>, default: u64) -> u64 {
        this.map_or(default, Self::get)
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<u64> for Within<MIN, MAX> {
    type Error = Outside;

    fn try_from(value: u64) -> Result<Self, Outside> {
        if (MIN..=MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(Outside {
                value,
                min: MIN,
                max: MAX,
            })
        }
    }
}

impl<const MIN: u64, const MAX: u64> FromStr for Within<MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value: u64 = text
            .parse()
            .map_err(|_| format!("{text:?} is no number, allowed: {MIN} to {MAX}"))?;
        value.try_into().map_err(|e: Outside| e.to_string())
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Within<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer)?
            .try_into()
            .map_err(de::Error::custom)
    }
}

/// A value by its name, as on a command line.
pub fn named<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    let name = String::deserialize(deserializer)?;
    name.parse().map(Some).map_err(de::Error::custom)
}

/// A GPU by its name.
pub fn gpu(name: &str) -> Result<Gpu, String> {
    match name {
        "bdw" => Ok(Gpu::Bdw),
        "kbl" => Ok(Gpu::Kbl),
        _ => Err(format!("{name:?} is not allowed: bdw, kbl")),
    }
}
