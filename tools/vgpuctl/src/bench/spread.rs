//! Figures with their spread.

use std::time::{Duration, Instant};

use serde::Serialize;

/// The middle of some measurements, and the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of `values`; zeros when there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
        let last = values.len().saturating_sub(1);
        let median = f64::midpoint(at(last / 2), at(last - last / 2));
        Self {
            median: round(median),
            min: round(at(0)),
            max: round(at(last)),
        }
    }

    /// The same as parts of `whole`.
    pub fn by(self, whole: f64) -> Self {
        Self {
            median: round(self.median / whole),
            min: round(self.min / whole),
            max: round(self.max / whole),
        }
    }

    /// A row of a table.
    pub fn row(&self, name: &str) -> [String; 4] {
        [
            name.into(),
            self.median.to_string(),
            self.min.to_string(),
            self.max.to_string(),
        ]
    }
}

/// The heading above [`Spread::row`]s.
pub const HEADING: [&str; 4] = ["", "median", "min", "max"];

/// Three places are more than a measurement means.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Nanoseconds for each of `count` times, which `f` does all of.
pub fn time(count: u32, f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    nanoseconds(start.elapsed()) / f64::from(count.max(1))
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = Spread::of(vec![3.0, 1.0, 10.0]);
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 3.0, 10.0));
        assert_eq!(Spread::of(vec![1.0, 2.0, 4.0, 9.0]).median, 3.0);
        assert_eq!(Spread::of(Vec::new()).median, 0.0);
    }
}
