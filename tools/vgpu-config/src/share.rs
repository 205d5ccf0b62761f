//! What a vGPU gets of the GPU's time.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A vGPU's claim to each engine it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Its part of an engine's time among vGPUs that want the engine, relative to
    /// their weights; in [`Share::WEIGHT`].
    pub weight: u16,
    /// The most of an engine's time it gets, in percent, even when nobody
    /// else wants it; in [`Share::CAP`], 0 for no such bound.
    pub cap: u8,
    /// How long it may keep an engine that others wait for, in microseconds;
    /// in [`Share::SLICE_US`]. Work that runs is not interrupted.
    pub slice_us: u32,
    /// Who goes first.
    pub priority: Priority,
}

impl Share {
    /// Weights there are.
    pub const WEIGHT: RangeInclusive<u16> = 1..=10_000;
    /// Caps there are, in percent.
    pub const CAP: RangeInclusive<u8> = 0..=100;
    /// Slices there are, in microseconds.
    pub const SLICE_US: RangeInclusive<u32> = 100..=16_000;

    /// The slice.
    #[must_use]
    pub fn slice(&self) -> Duration {
        Duration::from_micros(self.slice_us.into())
    }
}

impl Default for Share {
    fn default() -> Self {
        Self {
            weight: 100,
            cap: 0,
            slice_us: 1000,
            priority: Priority::Normal,
        }
    }
}

impl fmt::Display for Share {
    /// As in a specification.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "weight={},cap={},slice={},priority={}",
            self.weight,
            self.cap,
            show_slice(self.slice_us),
            self.priority,
        )
    }
}

/// Who goes first when several vGPUs want an engine. Within a class weights
/// decide.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Only when no one else wants the engine.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        })
    }
}

/// Not the name of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchPriority;

impl FromStr for Priority {
    type Err = NoSuchPriority;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "low" => Ok(Self::Low),
            "normal" => Ok(Self::Normal),
            "high" => Ok(Self::High),
            _ => Err(NoSuchPriority),
        }
    }
}

/// A slice as it is written: milliseconds, three decimals at most.
pub(crate) fn parse_slice(value: &str) -> Option<u32> {
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || part.len() > 3 || !all_digits(whole) || !all_digits(part) {
        return None;
    }
    let thousandths: u32 = format!("{part:0<3}").parse().ok()?;
    let us = whole
        .parse::<u32>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(thousandths)?;
    Share::SLICE_US.contains(&us).then_some(us)
}

/// A slice as [`parse_slice`] reads it.
fn show_slice(us: u32) -> String {
    let text = format!("{}.{:03}", us / 1000, us % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_read_as_they_are_shown() {
        for us in [100, 101, 1000, 1500, 12_345, 16_000] {
            assert_eq!(parse_slice(&show_slice(us)), Some(us));
        }
        assert_eq!(show_slice(1000), "1");
        assert_eq!(show_slice(10_000), "10");
        assert_eq!(show_slice(100), "0.1");
        for bad in [
            "", ".5", "0.05", "16.001", "1.0000", "+1", "1e3", "-1", "4294968",
        ] {
            assert_eq!(parse_slice(bad), None, "{bad}");
        }
    }
}
