//! `vgpuctl bench mmio`: register accesses in the device model alone.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gen8::vreg::{self, Access};
use guest_memory::VecMemory;
use serde::Serialize;
use vgpu_device::{
    Bar, BarSink, Clock, Config, Device, Full, GgttTable, GpuPort, InterruptSink, Seams,
};
use vgpu_ring::Request;

use super::spread::{self, HEADING, Spread};
use crate::table;

/// Register accesses in the device model alone.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Rounds. Each reads and writes every register.
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
}

/// The JSON.
#[derive(Serialize)]
struct Figures {
    rounds: u32,
    /// Registers read in a round: all that the table has.
    registers_read: u32,
    /// Registers written in a round: those that hold what is written.
    registers_written: u32,
    read_ns: Spread,
    write_ns: Spread,
}

/// Runs it.
///
/// # Errors
/// When there is no such device.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let figures = measure(args.rounds)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    let rows = [
        figures.read_ns.row("read, ns"),
        figures.write_ns.row("write, ns"),
    ];
    print!("{}", table::render(HEADING, rows));
    println!(
        "{} rounds of {} reads and {} writes",
        figures.rounds, figures.registers_read, figures.registers_written
    );
    Ok(())
}

fn measure(rounds: u32) -> anyhow::Result<Figures> {
    let device = Device::new(&Config::default(), seams())?;
    let reads: Vec<u64> = vreg::all()
        .flat_map(vreg::Register::offsets)
        .map(u64::from)
        .collect();
    let holds = |a: Access| {
        matches!(
            a,
            Access::Storage | Access::Masked | Access::WriteOneToClear
        )
    };
    let writes: Vec<u64> = vreg::all()
        .filter(|r| holds(r.access))
        .flat_map(vreg::Register::offsets)
        .map(u64::from)
        .collect();
    let registers_read = u32::try_from(reads.len())?;
    let registers_written = u32::try_from(writes.len())?;
    let mut read_ns = Vec::new();
    let mut write_ns = Vec::new();
    // The first round warms up and does not count.
    for round in 0..=rounds {
        let read = spread::time(registers_read, || {
            for &offset in &reads {
                black_box(device.read(Bar::Registers, black_box(offset), 4));
            }
        });
        let write = spread::time(registers_written, || {
            for &offset in &writes {
                device.write(Bar::Registers, black_box(offset), 4, u64::from(round));
            }
        });
        if round > 0 {
            read_ns.push(read);
            write_ns.push(write);
        }
    }
    Ok(Figures {
        rounds,
        registers_read,
        registers_written,
        read_ns: Spread::of(read_ns),
        write_ns: Spread::of(write_ns),
    })
}

fn seams() -> Seams {
    let nowhere = Arc::new(Nowhere(AtomicU64::new(0)));
    Seams {
        memory: Arc::new(VecMemory::new(16)),
        ggtt: nowhere.clone(),
        port: nowhere.clone(),
        interrupts: nowhere.clone(),
        clock: nowhere.clone(),
        bars: nowhere,
    }
}

/// Surroundings that cost nothing. Time passes a microsecond a look.
struct Nowhere(AtomicU64);

impl GgttTable for Nowhere {
    fn load(&self, _index: u32) -> u64 {
        0
    }
    fn store(&self, _index: u32, _entry: u64) {}
}

impl GpuPort for Nowhere {
    fn send(&self, _request: Request) -> Result<(), Full> {
        Ok(())
    }
}

impl InterruptSink for Nowhere {
    fn msi(&self, _address: u64, _data: u32) {}
    fn intx(&self, _level: bool) {}
}

impl Clock for Nowhere {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
    fn alarm(&self, _at_ns: u64) {}
}

impl BarSink for Nowhere {
    fn map(&self, _bar: Bar, _base: u64, _len: u64) {}
    fn unmap(&self, _bar: Bar, _base: u64, _len: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there() {
        let json = serde_json::to_value(measure(3).unwrap()).unwrap();
        for key in ["read_ns", "write_ns"] {
            for part in ["median", "min", "max"] {
                assert!(json[key][part].as_f64().unwrap() > 0.0, "{key}.{part}");
            }
        }
    }
}
