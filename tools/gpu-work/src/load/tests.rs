use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const DATA: u64 = 0x1000_0000;
const BODY: u64 = 0x2000_0000;
const PLACES: Places = Places {
    data: DATA,
    body: BODY,
};

/// The commands as the documentation tells them, one dword or pixel at a
/// time, on one buffer.
#[derive(Default)]
struct Gpu {
    memory: HashMap<u64, u32>,
    registers: HashMap<u32, u32>,
}

impl Gpu {
    fn at(&mut self, low: u32, high: u32) -> &mut u32 {
        let address = u64::from(low) | (u64::from(high) << 32);
        assert_eq!(address % 4, 0);
        self.memory.entry(address).or_default()
    }

    fn run(&mut self, engine: Engine, request: &Request) {
        self.commands(engine, &request.batch, &request.body, 1);
    }

    fn commands(&mut self, engine: Engine, words: &[u32], body: &[u32], level: u32) {
        let mut next = 0;
        loop {
            let command = gen8::cmd::decode(engine, words[next]).expect("a command");
            let length = usize::try_from(command.dwords(words[next])).unwrap();
            let c = &words[next..next + length];
            next += length;
            match command.name {
                "MI_BATCH_BUFFER_END" => break,
                "MI_STORE_DATA_IMM" => *self.at(c[1], c[2]) = c[3],
                "MI_ATOMIC" => {
                    let value = if c.len() == 3 { 1 } else { c[3] };
                    let operation = flags::atomic::operation(c[0]);
                    assert_eq!(operation, if c.len() == 3 { 5 } else { 7 });
                    let cell = self.at(c[1], c[2]);
                    *cell = cell.wrapping_add(value);
                }
                "MI_LOAD_REGISTER_IMM" => {
                    self.registers.insert(c[1], c[2]);
                }
                "MI_STORE_REGISTER_MEM" => *self.at(c[2], c[3]) = self.registers[&c[1]],
                "MI_BATCH_BUFFER_START" => {
                    assert_eq!((level, u64::from(c[1]), c[2]), (1, BODY, 0));
                    self.commands(engine, body, &[], 2);
                }
                "MI_FLUSH_DW" if c[0] & flags::flush_dw::POST_SYNC_MASK == 0 => {}
                "MI_FLUSH_DW" => *self.at(c[1], c[2]) = c[3],
                "PIPE_CONTROL" => *self.at(c[2], c[3]) = c[4],
                "XY_COLOR_BLT" => self.blit(c, |_, _, _| c[6]),
                "XY_SRC_COPY_BLT" => {
                    let (sx, sy) = (c[6] & 0xffff, c[6] >> 16);
                    self.blit(c, |gpu, x, y| {
                        let offset = (sy + y) * c[7] + (sx + x) * 4;
                        *gpu.at(c[8] + offset, c[9])
                    });
                }
                other => panic!("{other}"),
            }
        }
        assert!(words.len() - next < 2, "more than padding after the end");
        assert_eq!(words.len() % 2, 0);
    }

    fn blit(&mut self, c: &[u32], source: impl Fn(&mut Self, u32, u32) -> u32) {
        let (x0, y0, x1, y1) = (c[2] & 0xffff, c[2] >> 16, c[3] & 0xffff, c[3] >> 16);
        assert!(x0 < x1 && y0 < y1 && x1 * 4 <= c[1] & 0xffff);
        for y in y0..y1 {
            for x in x0..x1 {
                let value = source(self, x - x0, y - y0);
                let to = self.at(c[4] + y * (c[1] & 0xffff) + x * 4, c[5]);
                match (c[1] >> 16) & 0xff {
                    0x66 => *to ^= value,
                    0xcc | 0xf0 => *to = value,
                    other => panic!("raster operation {other:#x}"),
                }
            }
        }
    }

    fn buffer(&self, dwords: usize) -> Vec<u32> {
        (0..dwords)
            .map(|d| {
                let address = dword_address(DATA, d);
                self.memory.get(&address).copied().unwrap_or(0)
            })
            .collect()
    }
}

fn load(engine: Engine, seed: u32, passes: u32) -> Box<dyn Load> {
    match engine {
        Engine::Bcs => Box::new(Blit::new(seed, Blit::MIN_PIXELS, passes)),
        _ => Box::new(Store::new(engine, seed, 5, passes)),
    }
}

fn turn(number: u32) -> Turn {
    Turn {
        number,
        before: number.checked_sub(1).filter(|n| *n > 0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// After every request memory is what the load says, and only with all
    /// requests run once, in order.
    #[test]
    fn the_image_is_what_the_commands_do(
        engine in prop::sample::select(vec![Engine::Rcs, Engine::Bcs, Engine::Vcs, Engine::Vecs]),
        seed: u32, passes in 1..5_u32, fault in prop::sample::select(vec![0_u32, 1, 2]),
    ) {
        let mut load = load(engine, seed, passes);
        let mut gpu = Gpu::default();
        for number in 1..4 {
            let request = load.request(PLACES, turn(number));
            prop_assert!(request.batch.len() <= load.room().0);
            prop_assert!(request.body.len() <= load.room().1);
            let times = if number == 2 { fault } else { 1 };
            for _ in 0..times {
                gpu.run(engine, &request);
            }
            let right = gpu.buffer(load.image().len()) == load.image();
            prop_assert_eq!(right, fault == 1 || number == 1, "request {}", number);
        }
    }
}

#[test]
fn every_kind_of_copy_occurs() {
    // Longer, shorter and equal rows, by the passes of a few requests.
    let mut load = load(Engine::Bcs, 7, 16);
    let mut gpu = Gpu::default();
    let request = load.request(PLACES, turn(1));
    gpu.run(Engine::Bcs, &request);
    assert_eq!(gpu.buffer(load.image().len()), load.image());
    let copies = |rows_of_b: bool| {
        request
            .batch
            .windows(10)
            .filter(|w| w[0] >> 22 == 0x153 && (w[1] >> 16) & 0xff == 0xcc)
            .filter(|w| (w[7] > w[1] & 0xffff) == rows_of_b && w[7] != w[1] & 0xffff)
            .count()
    };
    assert!(copies(true) > 0 && copies(false) > 0);
}

#[test]
fn a_fault_that_was_taken_in_does_not_count_again() {
    let mut load = load(Engine::Rcs, 1, 2);
    let mut gpu = Gpu::default();
    load.request(PLACES, turn(1));
    assert_ne!(gpu.buffer(load.image().len()), load.image());
    load.adopt(&gpu.buffer(load.image().len()));
    let request = load.request(
        PLACES,
        Turn {
            number: 2,
            before: None,
        },
    );
    gpu.run(Engine::Rcs, &request);
    assert_eq!(gpu.buffer(load.image().len()), load.image());
}
