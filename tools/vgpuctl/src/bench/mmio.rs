//! `vgpuctl bench mmio`: register accesses in the device model alone.

use std::hint::black_box;
use std::sync::Arc;

use gen8::vreg::{self, Access};
use guest_memory::VecMemory;
use serde::Serialize;
use vgpu_device::{Bar, Config, Device};

use super::nowhere::{Nowhere, seams};
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
    let memory = Arc::new(VecMemory::new(16));
    let device = Device::new(
        &Config::default(),
        seams(memory, Arc::new(Nowhere::default())),
    )?;
    let reads: Vec<u64> = gen8::platform::BDW
        .registers
        .rows()
        .flat_map(vreg::Register::offsets)
        .map(u64::from)
        .collect();
    let holds = |a: Access| {
        matches!(
            a,
            Access::Storage | Access::Masked | Access::WriteOneToClear
        )
    };
    let writes: Vec<u64> = gen8::platform::BDW
        .registers
        .rows()
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
