//! The columns of the vGPUs' table.

use vgpu_control::State;

use super::rates::{Rates, VgpuRates};

/// A column.
pub struct Column {
    /// What stands above it.
    pub heading: String,
    /// Its width in characters.
    pub width: usize,
    /// To the left, as text is; else to the right.
    pub left: bool,
    /// Columns with a greater rank go first where there is no room.
    rank: u8,
    cell: Box<dyn Fn(&VgpuRates) -> String>,
}

impl Column {
    fn new(
        heading: impl Into<String>,
        width: usize,
        rank: u8,
        cell: impl Fn(&VgpuRates) -> String + 'static,
    ) -> Self {
        Self {
            heading: heading.into(),
            width,
            left: false,
            rank,
            cell: Box::new(cell),
        }
    }

    /// `text` as wide as the column.
    fn fit(&self, text: &str) -> String {
        let text: String = text.chars().take(self.width).collect();
        let width = self.width;
        if self.left {
            format!("{text:<width$}")
        } else {
            format!("{text:>width$}")
        }
    }

    /// The heading as wide as the column.
    pub fn head(&self) -> String {
        self.fit(&self.heading)
    }

    /// A vGPU's cell as wide as the column.
    pub fn cell(&self, vgpu: &VgpuRates) -> String {
        self.fit(&(self.cell)(vgpu))
    }
}

/// The columns that `width` characters have room for.
pub fn fitting(rates: &Rates, width: usize) -> Vec<Column> {
    let mut columns = all(rates);
    while columns.iter().map(|c| c.width + 1).sum::<usize>() > width.saturating_add(1) {
        let least = columns.iter().enumerate().max_by_key(|(_, c)| c.rank);
        let Some((at, _)) = least.filter(|(_, c)| c.rank > 0) else {
            break;
        };
        columns.remove(at);
    }
    columns
}

/// Every column.
fn all(rates: &Rates) -> Vec<Column> {
    let mut columns = vec![Column::new("DOMID", 5, 0, |v| v.domid.to_string())];
    columns.push(Column {
        left: true,
        ..Column::new("NAME", 14, 3, |v| {
            v.name.clone().unwrap_or_else(|| "-".into())
        })
    });
    columns.push(Column::new("WEIGHT", 6, 4, |v| v.share.weight.to_string()));
    columns.push(Column::new("CAP", 4, 9, |v| match v.share.cap {
        0 => "-".into(),
        cap => format!("{cap}%"),
    }));
    columns.push(Column::new("SLICE", 6, 10, |v| {
        format!("{:?}", v.share.slice())
    }));
    columns.push(Column::new("PRIO", 6, 8, |v| v.share.priority.to_string()));
    for (i, engine) in rates.engines.iter().enumerate() {
        let heading = format!("{}%", engine.name.to_uppercase());
        columns.push(Column::new(heading, 6, 2, move |v| {
            percent(v.busy_percent.get(i).copied().unwrap_or(0.0))
        }));
    }
    columns.push(Column::new("TOTAL%", 6, 0, |v| percent(v.total_percent)));
    columns.push(Column::new("WAIT50", 7, 6, |v| micros(v.wait_us_p50)));
    columns.push(Column::new("WAIT99", 7, 1, |v| micros(v.wait_us_p99)));
    columns.push(Column::new("REQ/s", 7, 1, |v| count(v.requests_per_second)));
    columns.push(Column::new("SW/s", 6, 5, |v| count(v.switches_per_second)));
    columns.push(Column::new("SAVED", 6, 7, |v| {
        v.accesses_saved_percent
            .map_or("-".into(), |p| format!("{p:.1}%"))
    }));
    columns.push(Column::new("COPY/s", 7, 7, |v| {
        bytes(v.copied_bytes_per_second)
    }));
    columns.push(Column::new("OVER", 5, 8, |v| v.overruns.to_string()));
    columns.push(Column::new("THROT", 5, 11, |v| v.throttled.to_string()));
    columns.push(Column::new("FAIL", 4, 4, |v| match v.state {
        State::Running => v.failed.to_string(),
        State::Failed => "LOST".into(),
    }));
    columns
}

fn percent(p: f64) -> String {
    format!("{p:.1}")
}

/// Microseconds, or a larger unit when they are many.
fn micros(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 9999.5 => format!("{us:.0}us"),
        Some(us) if us < 9_999_500.0 => format!("{:.0}ms", us / 1e3),
        Some(us) => format!("{:.0}s", us / 1e6),
    }
}

/// In thousands or millions when it is many.
fn count(n: f64) -> String {
    scaled(n, &["", "k", "M", "G"], 1000.0)
}

fn bytes(n: f64) -> String {
    scaled(n, &["B", "K", "M", "G", "T"], 1024.0)
}

fn scaled(mut n: f64, units: &[&str], step: f64) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    let mut places = 0;
    while n >= 9999.5 {
        let Some(next) = units.next() else { break };
        n /= step;
        unit = next;
        places = 1;
    }
    format!("{n:.places$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stay_short() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(9999.4), "9999");
        assert_eq!(count(9999.6), "10.0k");
        assert_eq!(count(123_456_789.0), "123.5M");
        assert_eq!(bytes(512.0), "512B");
        assert_eq!(bytes(20480.0), "20.0K");
        assert_eq!(micros(Some(12.4)), "12us");
        assert_eq!(micros(Some(25_000.0)), "25ms");
        assert_eq!(micros(Some(25e6)), "25s");
        assert_eq!(micros(None), "-");
    }
}
