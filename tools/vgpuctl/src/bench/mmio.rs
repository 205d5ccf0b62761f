//! `vgpuctl bench mmio`: register accesses in the device model alone.

use std::hint::black_box;
use std::sync::Arc;

use gen8::vreg::{self, Access};
use guest_memory::VecMemory;
use serde::Serialize;
use vgpu_device::kept::{self, Answer, Doer};
use vgpu_device::{Bar, Config, Device, Kept, Seams, Transaction, Unkept};
use vgpu_ring::{AreaConfig, Bells, SharedArea};

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
    /// As a vCPU's requests, which are kept for a successor.
    read_ns: Spread,
    write_ns: Spread,
    /// With a device that is lost when its process ends.
    unkept_read_ns: Spread,
    unkept_write_ns: Spread,
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
        figures.unkept_read_ns.row("read, not kept, ns"),
        figures.unkept_write_ns.row("write, not kept, ns"),
    ];
    print!("{}", table::render(HEADING, rows));
    println!(
        "{} rounds of {} reads and {} writes",
        figures.rounds, figures.registers_read, figures.registers_written
    );
    Ok(())
}

/// A request of a vCPU, from when it is taken to its answer.
fn request<T>(device: &Device, kept: &dyn Kept, act: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
    const VCPU: u32 = 0;
    kept::take_in_hand(kept, VCPU);
    let mut transaction = device.begin(Doer::Vcpu(VCPU));
    let done = act(&mut transaction);
    transaction.finish(Some(Answer { data: None }));
    done
}

fn measure(rounds: u32) -> anyhow::Result<Figures> {
    let holds = |a: Access| {
        matches!(
            a,
            Access::Storage | Access::Masked | Access::WriteOneToClear
        )
    };
    let rows = || gen8::platform::BDW.registers.rows();
    let reads: Vec<u64> = rows()
        .flat_map(vreg::Register::offsets)
        .map(u64::from)
        .collect();
    let writes: Vec<u64> = rows()
        .filter(|r| holds(r.access))
        .flat_map(vreg::Register::offsets)
        .map(u64::from)
        .collect();
    let area = SharedArea::create(AreaConfig::default())?;
    let kept: Arc<dyn Kept> = Arc::new(area.device_end(Bells::new()?).kept);
    let (read_ns, write_ns) = spreads(rounds, &kept, &reads, &writes)?;
    let kept: Arc<dyn Kept> = Arc::new(Unkept);
    let (unkept_read_ns, unkept_write_ns) = spreads(rounds, &kept, &reads, &writes)?;
    Ok(Figures {
        rounds,
        registers_read: u32::try_from(reads.len())?,
        registers_written: u32::try_from(writes.len())?,
        read_ns,
        write_ns,
        unkept_read_ns,
        unkept_write_ns,
    })
}

fn spreads(
    rounds: u32,
    kept: &Arc<dyn Kept>,
    reads: &[u64],
    writes: &[u64],
) -> anyhow::Result<(Spread, Spread)> {
    let memory = Arc::new(VecMemory::new(16));
    let device = Device::new(
        &Config::default(),
        Seams {
            kept: Arc::clone(kept),
            ..seams(memory, Arc::new(Nowhere::default()))
        },
    )?;
    let (count_read, count_written) = (u32::try_from(reads.len())?, u32::try_from(writes.len())?);
    let mut read_ns = Vec::new();
    let mut write_ns = Vec::new();
    // The first round warms up and does not count.
    for round in 0..=rounds {
        let read = spread::time(count_read, || {
            for &offset in reads {
                let offset = black_box(offset);
                black_box(request(&device, &**kept, |t| {
                    t.read(Bar::Registers, offset, 4)
                }));
            }
        });
        let write = spread::time(count_written, || {
            for &offset in writes {
                let offset = black_box(offset);
                request(&device, &**kept, |t| {
                    t.write(Bar::Registers, offset, 4, u64::from(round));
                });
            }
        });
        if round > 0 {
            read_ns.push(read);
            write_ns.push(write);
        }
    }
    Ok((Spread::of(read_ns), Spread::of(write_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there() {
        let json = serde_json::to_value(measure(3).unwrap()).unwrap();
        for key in ["read_ns", "write_ns", "unkept_read_ns", "unkept_write_ns"] {
            for part in ["median", "min", "max"] {
                assert!(json[key][part].as_f64().unwrap() > 0.0, "{key}.{part}");
            }
        }
    }
}
