//! `vgpuctl bench aperture`: graphics memory through BAR2, from the request
//! on: the exit is not in it. Guest memory and page table are mapped as they
//! are on Xen, by the same code, from a simulated hypervisor.

use std::hint::black_box;
use std::sync::Arc;

use fake_xen::{DomainConfig, FakeXen};
use gen8::fence::{self, Tiling};
use guest_memory::GuestMemory;
use serde::Serialize;
use vgpu_device::{Bar, Config, Device, GgttTable};
use xen_glue::{ForeignMemory, ForeignMemoryConfig, Hypervisor, PARKING_GFN, Privcmd, TableFrames};

use super::nowhere::seams;
use super::spread::{self, HEADING, Spread};
use crate::table;

/// Graphics memory through BAR2, without the exit.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Rounds. Each goes through a part of the surface once a figure.
    #[arg(long, default_value_t = 501, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
}

/// A screen of 1920 by 1088 dots of 4 bytes, in whole rows of tiles.
const PITCH: u32 = 1920 * 4;
const ROWS: u32 = 1088;
const PAGES: u32 = PITCH * ROWS / 4096;
const PAGE: usize = 4096;
/// Where the guest has it. The first MiBs are the guest's own affair.
const FIRST_GFN: u64 = 1024;
/// Accesses of a round, spread over the surface.
const ACCESSES: u32 = 1024;
/// Pages of a round, a row of Y tiles: so few that a round is shorter than
/// the time other processes leave this one.
const BAND: u32 = PITCH * 32 / 4096;

/// The JSON.
#[derive(Serialize)]
struct Figures {
    rounds: u32,
    /// What an access is made of.
    parts: Parts,
    linear: Kind,
    x: Kind,
    y: Kind,
}

/// What an access is made of, in nanoseconds.
#[derive(Serialize)]
struct Parts {
    /// Reading an entry of the guest's page table: what caching translations
    /// would save.
    entry_ns: Spread,
    /// Reading 4 bytes of a frame that is mapped.
    mapped_ns: Spread,
    /// The same for one that is not: what caching mappings saves. The fake
    /// hypervisor's, so without hypercalls.
    unmapped_ns: Spread,
}

/// One arrangement of memory.
#[derive(Serialize)]
struct Kind {
    /// A load of 4 bytes.
    read_ns: Spread,
    /// A store of 4 bytes.
    write_ns: Spread,
    /// A page's share of a string instruction, read.
    read_mb_s: Spread,
    /// The same, written.
    write_mb_s: Spread,
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
    let mut rows = vec![
        figures.parts.entry_ns.row("page-table entry, ns"),
        figures.parts.mapped_ns.row("4 bytes of a mapped frame, ns"),
        figures.parts.unmapped_ns.row("  of one not mapped, ns"),
    ];
    for (name, kind) in [
        ("linear", &figures.linear),
        ("X tiles", &figures.x),
        ("Y tiles", &figures.y),
    ] {
        rows.push(kind.read_ns.row(&format!("{name}: read, ns")));
        rows.push(kind.write_ns.row(&format!("{name}: write, ns")));
        rows.push(kind.read_mb_s.row(&format!("{name}: string read, MB/s")));
        rows.push(kind.write_mb_s.row(&format!("{name}: string write, MB/s")));
    }
    print!("{}", table::render(HEADING, rows));
    println!("{} rounds, a surface of {PAGES} pages", figures.rounds);
    Ok(())
}

/// The guest's page table, mapped.
struct Table(TableFrames);

impl GgttTable for Table {
    fn load(&self, index: u32) -> u64 {
        self.0.load(index)
    }
    fn store(&self, index: u32, entry: u64) {
        self.0.store(index, entry);
    }
}

fn measure(rounds: u32) -> anyhow::Result<Figures> {
    let xen = FakeXen::new();
    let domain = xen.create_domain(DomainConfig::default())?;
    let privcmd: Arc<dyn Privcmd> = xen.open_privcmd()?;
    let frames = TableFrames::create(&*xen.open_domain_memory()?, &*privcmd, domain.id())?;
    drop(frames);
    let table = Arc::new(Table(TableFrames::open(
        &*privcmd,
        domain.id(),
        PARKING_GFN,
    )?));
    let config = ForeignMemoryConfig::default();
    let memory = Arc::new(ForeignMemory::new(privcmd, domain.id(), config));
    // Neighbours in the table are not neighbours in memory.
    let frame = |page: u32| FIRST_GFN + u64::from(page * 7 % PAGES);
    for page in 0..PAGES {
        table.store(page, frame(page) << 12 | 1);
    }
    let device = Device::new(&Config::default(), seams(memory.clone(), table.clone()))?;
    let parts = parts(rounds, &*table, &*memory);
    Ok(Figures {
        rounds,
        parts,
        linear: kind(rounds, &device, None),
        x: kind(rounds, &device, Some(Tiling::X)),
        y: kind(rounds, &device, Some(Tiling::Y)),
    })
}

/// Offsets in the surface that jump from page to page.
fn offsets() -> impl Iterator<Item = u32> {
    (0..ACCESSES).map(|i| i.wrapping_mul(0x9e37_79b1) % (PAGES * 1024) * 4)
}

/// What `f` measures, after a round that does not count.
fn repeat(rounds: u32, mut f: impl FnMut() -> f64) -> Spread {
    f();
    Spread::of((0..rounds).map(|_| f()).collect())
}

fn parts(rounds: u32, table: &dyn GgttTable, memory: &dyn GuestMemory) -> Parts {
    let entry_ns = repeat(rounds, || {
        spread::time(ACCESSES, || {
            for offset in offsets() {
                black_box(table.load(black_box(offset >> 12)));
            }
        })
    });
    let first = FIRST_GFN << 12;
    let mapped_ns = repeat(rounds, || {
        spread::time(ACCESSES, || {
            for offset in offsets() {
                let _ = black_box(memory.read_u32(first + u64::from(black_box(offset))));
            }
        })
    });
    let unmapped_ns = repeat(rounds, || {
        memory.invalidate();
        spread::time(1, || {
            let _ = black_box(memory.read_u32(black_box(first)));
        })
    });
    Parts {
        entry_ns,
        mapped_ns,
        unmapped_ns,
    }
}

fn kind(rounds: u32, device: &Device, tiling: Option<Tiling>) -> Kind {
    let y = if tiling == Some(Tiling::Y) {
        fence::TILE_Y
    } else {
        0
    };
    let last = u64::from(PAGES - 1) << 12;
    let pitch = u64::from(PITCH / fence::PITCH_UNIT - 1);
    let register = tiling.map_or(0, |_| (last | pitch) << 32 | y | fence::VALID);
    device.write(Bar::Registers, fence::FIRST.into(), 8, register);
    let mut page = [0; PAGE];
    // A round's bytes in megabytes, by the nanoseconds of a page.
    let mb_s = |ns: f64| 4096.0 * 1000.0 / ns.max(1.0);
    let mut band = 0;
    let mut pages = move || {
        band = (band + BAND) % PAGES;
        (band..band + BAND).map(|page| u64::from(page) << 12)
    };
    Kind {
        read_ns: repeat(rounds, || {
            spread::time(ACCESSES, || {
                for offset in offsets() {
                    black_box(device.read(Bar::Aperture, black_box(offset).into(), 4));
                }
            })
        }),
        write_ns: repeat(rounds, || {
            spread::time(ACCESSES, || {
                for offset in offsets() {
                    device.write(Bar::Aperture, black_box(offset).into(), 4, 0x5a);
                }
            })
        }),
        read_mb_s: repeat(rounds, || {
            mb_s(spread::time(BAND, || {
                for at in pages() {
                    device.read_block(Bar::Aperture, black_box(at), &mut page);
                }
            }))
        }),
        write_mb_s: repeat(rounds, || {
            mb_s(spread::time(BAND, || {
                for at in pages() {
                    device.write_block(Bar::Aperture, black_box(at), black_box(&[0xa5; PAGE]));
                }
            }))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there() {
        let json = serde_json::to_value(measure(1).unwrap()).unwrap();
        for part in ["entry_ns", "mapped_ns", "unmapped_ns"] {
            assert!(json["parts"][part]["median"].as_f64().unwrap() > 0.0);
        }
        for kind in ["linear", "x", "y"] {
            for figure in ["read_ns", "write_ns", "read_mb_s", "write_mb_s"] {
                let median = json[kind][figure]["median"].as_f64().unwrap();
                assert!(median > 0.0, "{kind}.{figure}");
            }
        }
    }

    #[test]
    fn the_surface_is_whole_rows_of_tiles() {
        for tiling in [Tiling::X, Tiling::Y] {
            assert!(PITCH.is_multiple_of(tiling.width()));
            assert!(ROWS.is_multiple_of(tiling.height()));
        }
        assert_eq!(PAGES * 4096, PITCH * ROWS);
        assert!(PAGES.is_multiple_of(BAND));
    }
}
