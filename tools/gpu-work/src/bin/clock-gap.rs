//! Runs in a guest: how long it stood still, by its own clocks.
//!
//! Sleeps a little, again and again, and prints a line whenever that took
//! long: milliseconds of the clock that counts while the machine is suspended,
//! of the wall clock, and of the one that need not.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Between two looks.
const EVERY: Duration = Duration::from_millis(2);

/// What counts as long, milliseconds. The other programs of a guest take their
/// turns on its one CPU.
const LONG_MS: f64 = 40.0;

/// The three clocks, milliseconds.
fn now() -> anyhow::Result<[f64; 3]> {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let ms = |time: Timespec| -> anyhow::Result<f64> {
        let time = Duration::try_from(time).context("a clock before its beginning")?;
        Ok(time.as_secs_f64() * 1e3)
    };
    Ok([
        ms(clock_gettime(ClockId::Boottime))?,
        wall.as_secs_f64() * 1e3,
        ms(clock_gettime(ClockId::Monotonic))?,
    ])
}

fn main() -> anyhow::Result<()> {
    let mut before = now()?;
    loop {
        std::thread::sleep(EVERY);
        let after = now()?;
        let gaps: Vec<f64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        before = after;
        if gaps.iter().any(|gap| *gap >= LONG_MS) {
            let gaps: Vec<String> = gaps.iter().map(|gap| format!("{gap:.1}")).collect();
            println!("{}", gaps.join(" "));
            std::io::stdout().flush()?;
        }
    }
}
