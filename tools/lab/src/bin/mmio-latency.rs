//! Runs inside a guest: how long one register read takes, for several PCI
//! devices in turns.
//!
//! `mmio-latency ROUNDS NAME=VENDOR:DEVICE:OFFSET...` (hexadecimal but for
//! ROUNDS) maps BAR0 of each device and prints, for each,
//! `LAB mmio/NAME MEDIAN P10 P90 READS`, times in microseconds. The devices
//! take turns in short bursts, so that whatever else the machine does hits
//! all of them alike.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context as _, bail};
use xen_glue::{Access, Mapping};

/// Reads of one device before the next one's turn.
const BURST: usize = 20;
const PAGE: u64 = 4096;

struct Target {
    name: String,
    mapping: Mapping,
    offset: usize,
    nanoseconds: Vec<u128>,
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mmio-latency: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments
        .next()
        .and_then(|r| r.parse().ok())
        .context("usage: mmio-latency ROUNDS NAME=VENDOR:DEVICE:OFFSET...")?;
    let mut targets = arguments
        .map(|a| Target::open(&a))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for _ in 0..rounds {
        for target in &mut targets {
            target.burst()?;
        }
    }
    for target in &mut targets {
        target.report()?;
    }
    Ok(())
}

impl Target {
    fn open(argument: &str) -> anyhow::Result<Self> {
        let (name, vendor, device, offset) = parse(argument)
            .with_context(|| format!("{argument:?} is not NAME=VENDOR:DEVICE:OFFSET"))?;
        let folder = find(vendor, device)?;
        // A device without a driver does not decode its BARs yet. One with a
        // driver does, and the kernel refuses to enable it again.
        if !folder.join("driver").exists() {
            let enable = folder.join("enable");
            fs::write(&enable, "1")
                .with_context(|| format!("cannot write {}", enable.display()))?;
        }
        let path = folder.join("resource0");
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let page = i64::try_from(offset & !(PAGE - 1)).context("the offset is out of range")?;
        let mapping = Mapping::shared(&file, page, 1, Access::ReadWrite)
            .with_context(|| format!("cannot map {}", path.display()))?;
        Ok(Self {
            name,
            mapping,
            offset: usize::try_from(offset & (PAGE - 1))?,
            nanoseconds: Vec::new(),
        })
    }

    fn burst(&mut self) -> anyhow::Result<()> {
        let register: &AtomicU32 = self
            .mapping
            .atomic_u32(self.offset)
            .with_context(|| format!("offset {:#x} is not aligned to 4", self.offset))?;
        for _ in 0..BURST {
            let start = Instant::now();
            black_box(register.load(Ordering::Relaxed));
            self.nanoseconds.push(start.elapsed().as_nanos());
        }
        Ok(())
    }

    fn report(&mut self) -> anyhow::Result<()> {
        self.nanoseconds.sort_unstable();
        let at = |percent| quantile(&self.nanoseconds, percent).map(microseconds);
        let (Some(median), Some(low), Some(high)) = (at(50), at(10), at(90)) else {
            bail!("no read of {} was timed", self.name);
        };
        let reads = self.nanoseconds.len();
        println!("LAB mmio/{} {median} {low} {high} {reads}", self.name);
        Ok(())
    }
}

fn parse(argument: &str) -> Option<(String, u16, u16, u64)> {
    let (name, rest) = argument.split_once('=')?;
    let mut numbers = rest.split(':');
    let vendor = u16::from_str_radix(numbers.next()?, 16).ok()?;
    let device = u16::from_str_radix(numbers.next()?, 16).ok()?;
    let offset = u64::from_str_radix(numbers.next()?, 16).ok()?;
    numbers
        .next()
        .is_none()
        .then(|| (name.to_owned(), vendor, device, offset))
}

/// The first PCI device with these identifiers, as a folder in sysfs.
fn find(vendor: u16, device: u16) -> anyhow::Result<PathBuf> {
    let wanted = (format!("{vendor:#06x}"), format!("{device:#06x}"));
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let folder = entry?.path();
        let read = |name: &str| -> anyhow::Result<String> {
            Ok(fs::read_to_string(folder.join(name))?.trim().to_owned())
        };
        if (read("vendor")?, read("device")?) == wanted {
            return Ok(folder);
        }
    }
    bail!("no PCI device {vendor:04x}:{device:04x}")
}

fn quantile(sorted: &[u128], percent: usize) -> Option<u128> {
    sorted
        .get(sorted.len().saturating_sub(1) * percent / 100)
        .copied()
}

fn microseconds(nanoseconds: u128) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_by_identifiers_and_offset() {
        assert_eq!(
            parse("vgpu=8086:1616:42300"),
            Some(("vgpu".to_owned(), 0x8086, 0x1616, 0x42300))
        );
        assert_eq!(parse("vgpu=8086:1616"), None);
        assert_eq!(parse("vgpu=8086:1616:0:0"), None);
        assert_eq!(parse("8086:1616:0"), None);
    }

    #[test]
    fn the_median_is_of_sorted_times() {
        let sorted: Vec<u128> = (0..=100).map(|n| n * 1000).collect();
        assert_eq!(
            quantile(&sorted, 50).map(microseconds).as_deref(),
            Some("50.000")
        );
        assert_eq!(
            quantile(&sorted, 90).map(microseconds).as_deref(),
            Some("90.000")
        );
        assert_eq!(quantile(&[], 50), None);
    }
}
