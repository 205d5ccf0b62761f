//! What guests do: batches that take a known time on a simulated engine.

use std::time::Duration;

use gen8::Engine;
use guest_driver::{Batch, Given, Kind, Rect, Slot, Surface, Tiling};
use vgpu_config::Share;

/// Nanoseconds a command takes an engine.
pub const COMMAND_NS: u32 = 2000;
/// Nanoseconds the blitter needs to draw 1 KiB. Slow, so that few CPUs can
/// keep up with it: playing the GPU takes a tenth of one.
pub const BLIT_NS_PER_KIB: u32 = 4000;

/// Bytes in a row of what is filled.
const PITCH: u32 = 1024;
/// Rows of it, which fit in a buffer.
const ROWS: u32 = 64;

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Fills so many KiB (blitter only).
    Fill(u32),
    /// Stores so many dwords.
    Stores(u32),
}

impl Piece {
    /// The work in it: nanoseconds of engine time, of which the commands
    /// around it are no part.
    pub fn work_ns(self) -> u64 {
        u64::from(match self {
            Self::Fill(kib) => kib * BLIT_NS_PER_KIB,
            Self::Stores(count) => count * COMMAND_NS,
        })
    }

    /// Its commands, for a buffer. `number` shows in what they leave there.
    pub fn given(self, slot: &Slot, number: u32) -> Given {
        let mut batch = Batch::new();
        let (kind, changed) = match self {
            Self::Fill(kib) => {
                let to = Surface {
                    address: slot.data_va,
                    pitch: PITCH,
                    tiling: Tiling::Linear,
                };
                let mut left = kib;
                while left > 0 {
                    let rect = Rect {
                        x: 0,
                        y: 0,
                        w: PITCH / 4,
                        h: left.min(ROWS),
                    };
                    batch.fill(&to, rect, number);
                    left -= rect.h;
                }
                (Kind::Blits, PITCH / 4)
            }
            Self::Stores(count) => {
                for i in 0..count {
                    batch.store_u32(slot.data_va + u64::from(i) * 4, number);
                }
                (Kind::Stores, count.min(PITCH / 4))
            }
        };
        batch.end();
        Given {
            kind,
            batch: batch.finish(),
            after: number
                .to_le_bytes()
                .repeat(usize::try_from(changed).unwrap_or(0)),
        }
    }
}

/// Batches for one engine, in turn, over and over.
#[derive(Clone, Debug)]
pub struct Stream {
    pub engine: Engine,
    pub pieces: Vec<Piece>,
}

/// What one guest does.
#[derive(Clone, Debug)]
pub struct Load {
    pub share: Share,
    pub streams: Vec<Stream>,
    /// It sleeps at times.
    pub bursts: Option<Bursts>,
}

/// Batches and sleep in turn.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    pub batches: u32,
    /// How long it sleeps on average.
    sleep: Duration,
    /// Which guest.
    number: u32,
}

impl Bursts {
    /// How long it sleeps before burst `burst`: no time at all to twice the
    /// average, unlike others and unlike before. Who shares an engine fairly ends
    /// at the same time, and guests that slept alike would all sleep at once, with
    /// nothing for the engine to do.
    pub fn sleep(&self, burst: u32) -> Duration {
        // The golden ratio's multiples lie evenly.
        let mixed = burst
            .wrapping_mul(0x9e37_79b9)
            .wrapping_add(self.number.wrapping_mul(0x85eb_ca6b));
        let part = f64::from(mixed) / f64::from(u32::MAX);
        self.sleep.mul_f64(2.0 * part)
    }
}

impl Load {
    fn new(weight: u16, streams: Vec<Stream>) -> Self {
        let share = Share {
            weight,
            ..Share::default()
        };
        Self {
            share,
            streams,
            bursts: None,
        }
    }

    /// Always something to do for the blitter, half a millisecond each.
    pub fn steady() -> Self {
        Self::new(100, vec![fills(&[128])])
    }
}

fn fills(kib: &[u32]) -> Stream {
    Stream {
        engine: Engine::Bcs,
        pieces: kib.iter().copied().map(Piece::Fill).collect(),
    }
}

/// What a crowd does, and a guest that is alone, to compare with.
pub struct Plan {
    pub name: &'static str,
    pub one: Load,
    pub all: Vec<Load>,
    /// One more vGPU, whose batches never end.
    pub spinner: bool,
}

impl Plan {
    /// All the same.
    pub fn equal(count: u32) -> Self {
        Self {
            name: "equal",
            one: Load::steady(),
            all: (0..count).map(|_| Load::steady()).collect(),
            spinner: false,
        }
    }

    /// Long and short batches, unlike weights, a quarter on the render
    /// engine. The one to compare with does all of it.
    pub fn mixed(count: u32) -> Self {
        let stores = || Stream {
            engine: Engine::Rcs,
            pieces: vec![Piece::Stores(240)],
        };
        let one = Load::new(100, vec![fills(&[64, 384, 160]), stores()]);
        let kinds = [
            Load::new(100, vec![fills(&[64])]),
            Load::new(200, vec![fills(&[384])]),
            Load::new(100, vec![stores()]),
            Load::new(400, vec![fills(&[160])]),
        ];
        let all = if count == 1 {
            vec![one.clone()]
        } else {
            let some = kinds.iter().cycle().cloned();
            some.zip(0..count).map(|(load, _)| load).collect()
        };
        Self {
            name: "mixed",
            one,
            all,
            spinner: false,
        }
    }

    /// Two milliseconds of work, then sleep, so that all together want the
    /// engine four times; who is alone, and the one to compare with, does not sleep.
    pub fn bursty(count: u32) -> Self {
        const BATCHES: u32 = 4;
        let one = Load::steady();
        let work = Duration::from_nanos(Piece::Fill(128).work_ns()) * BATCHES;
        let sleep = match count {
            1 => Duration::ZERO,
            _ => (work * count / 4).saturating_sub(work).max(work / 4),
        };
        let load = |number| Load {
            bursts: (!sleep.is_zero()).then_some(Bursts {
                batches: BATCHES,
                sleep,
                number,
            }),
            ..one.clone()
        };
        Self {
            name: "bursty",
            all: (0..count).map(load).collect(),
            one,
            spinner: false,
        }
    }

    /// One of them never ends its batches.
    pub fn spinner(count: u32) -> Self {
        Self {
            name: "spinner",
            spinner: true,
            ..Self::equal(count.saturating_sub(1))
        }
    }
}
