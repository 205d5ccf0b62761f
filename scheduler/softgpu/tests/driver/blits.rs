//! Blits against a reference that works pixel by pixel.

mod fences;
mod patterns;

use crate::rig::{Context, END, Rig, batch, halves, low, mi};
use gen8::cmd::blt_op as op;
use gen8::{Engine, ring};
use gpu_bus::Gpu;
use proptest::prelude::*;
use softgpu::Config;

const E: Engine = Engine::Bcs;
const CODE: u64 = 0x10_0000;
/// One canvas for sources and destinations, so that they can overlap.
const CANVAS: u64 = 0x80_0000;
const PAGES: u64 = 64;
const BYTES: usize = 64 * 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tiling {
    Linear,
    X,
    Y,
}

/// A surface in the canvas.
#[derive(Clone, Copy, Debug)]
struct Surface {
    page: u64,
    pitch: usize,
    tiling: Tiling,
}

impl Surface {
    /// Offset in the canvas, by the tilings' address bits.
    fn at(&self, x: usize, y: usize) -> usize {
        let base = usize::try_from(self.page).unwrap() * 4096;
        base + match self.tiling {
            Tiling::Linear => y * self.pitch + x,
            Tiling::X => {
                let tile = (y >> 3) * (self.pitch >> 9) + (x >> 9);
                tile << 12 | (y & 7) << 9 | x & 511
            }
            Tiling::Y => {
                let tile = (y >> 5) * (self.pitch >> 7) + (x >> 7);
                tile << 12 | (x >> 4 & 7) << 9 | (y & 31) << 4 | x & 15
            }
        }
    }

    fn pitch_field(&self) -> u32 {
        let p = match self.tiling {
            Tiling::Linear => self.pitch,
            _ => self.pitch / 4,
        };
        u32::try_from(p).unwrap()
    }
}

#[derive(Clone, Debug)]
struct Blit {
    dst: Surface,
    src: Option<Surface>,
    to: (usize, usize),
    from: (usize, usize),
    size: (usize, usize),
    /// 0: 8 bits, 1 and 2: 16, 3: 32.
    depth: u32,
    mask: u32,
    rop: u8,
    colour: u32,
    clip: Option<(usize, usize, usize, usize)>,
}

fn corner(x: usize, y: usize) -> u32 {
    u32::try_from(y << 16 | x).unwrap()
}

impl Blit {
    fn packets(&self) -> Vec<u32> {
        let y_tiled = |s: &Surface| u32::from(s.tiling == Tiling::Y);
        let tiled = |s: &Surface, bit: u32| u32::from(s.tiling != Tiling::Linear) << bit;
        let swctrl = self.src.as_ref().map_or(0, y_tiled) | y_tiled(&self.dst) << 1;
        let mut c = vec![mi(0x22, 1), ring::BCS_SWCTRL, 0x0003_0000 | swctrl];
        if let Some((x0, y0, x1, y1)) = self.clip {
            c.extend([
                2 << 29 | op::XY_SETUP_CLIP_BLT << 22 | 1,
                corner(x0, y0),
                corner(x1, y1),
            ]);
        }
        let (opcode, length) = match self.src {
            Some(_) => (op::XY_SRC_COPY_BLT, 8),
            None => (op::XY_COLOR_BLT, 5),
        };
        let src_tiled = self.src.as_ref().map_or(0, |s| tiled(s, 15));
        c.push(
            2 << 29 | opcode << 22 | self.mask << 20 | src_tiled | tiled(&self.dst, 11) | length,
        );
        let clip = u32::from(self.clip.is_some()) << 30;
        c.push(clip | self.depth << 24 | u32::from(self.rop) << 16 | self.dst.pitch_field());
        c.push(corner(self.to.0, self.to.1));
        c.push(corner(self.to.0 + self.size.0, self.to.1 + self.size.1));
        c.extend(halves(CANVAS + self.dst.page * 4096));
        match &self.src {
            Some(s) => {
                c.push(corner(self.from.0, self.from.1));
                c.push(s.pitch_field());
                c.extend(halves(CANVAS + s.page * 4096));
            }
            None => c.push(self.colour),
        }
        c
    }

    fn reference(&self, canvas: &mut [u8]) {
        let n = [1, 2, 2, 4][self.depth as usize];
        let old = canvas.to_vec();
        for dy in 0..self.size.1 {
            for dx in 0..self.size.0 {
                let (x, y) = (self.to.0 + dx, self.to.1 + dy);
                if self
                    .clip
                    .is_some_and(|(x0, y0, x1, y1)| x < x0 || y < y0 || x >= x1 || y >= y1)
                {
                    continue;
                }
                for b in 0..n {
                    let written = n < 4 || self.mask & if b == 3 { 2 } else { 1 } != 0;
                    if !written {
                        continue;
                    }
                    let s = self.src.as_ref().map_or(0, |s| {
                        old[s.at((self.from.0 + dx) * n + b, self.from.1 + dy)]
                    });
                    let p = if self.src.is_some() {
                        0
                    } else {
                        self.colour.to_le_bytes()[b]
                    };
                    let d = &mut canvas[self.dst.at(x * n + b, y)];
                    let mut v = 0;
                    for bit in 0..8 {
                        let i = (p >> bit & 1) << 2 | (s >> bit & 1) << 1 | *d >> bit & 1;
                        v |= (self.rop >> i & 1) << bit;
                    }
                    *d = v;
                }
            }
        }
    }
}

struct Bench {
    r: Rig,
    c: Context,
    code: u64,
    canvas: u64,
}

fn bench() -> Bench {
    bench_on(Rig::new())
}

fn bench_on(mut r: Rig) -> Bench {
    let c = r.context(E, 1);
    let code = r.map_fresh(CODE, 2)[0];
    // Physically backwards, so that nothing works by adjacency.
    let first = r.bus_page();
    for _ in 1..PAGES {
        r.bus_page();
    }
    for p in 0..PAGES {
        r.map(CANVAS + p * 4096, first + (PAGES - 1 - p) * 4096, true);
    }
    Bench {
        r,
        c,
        code,
        canvas: first,
    }
}

impl Bench {
    fn frame(&self, p: usize) -> u64 {
        self.canvas + (PAGES - 1 - u64::try_from(p).unwrap()) * 4096
    }

    fn fill(&self, seed: u32) -> Vec<u8> {
        let mut v = seed | 1;
        let bytes: Vec<u8> = (0..BYTES)
            .map(|_| {
                v ^= v << 13;
                v ^= v >> 17;
                v ^= v << 5;
                v.to_le_bytes()[1]
            })
            .collect();
        for (p, page) in bytes.chunks(4096).enumerate() {
            self.r.ram_write(self.frame(p), page);
        }
        bytes
    }

    fn canvas(&self) -> Vec<u8> {
        (0..BYTES / 4096)
            .flat_map(|p| self.r.ram_read(self.frame(p), 4096))
            .collect()
    }

    fn run(&mut self, packets: &[u32]) {
        let mut all = packets.to_vec();
        all.push(END);
        self.r.put_batch(self.code, &all);
        self.r.run(E, &mut self.c, &batch(CODE));
        assert_eq!(self.r.gpu.counters().engines[1].errors, 0);
    }

    fn check(&mut self, blit: &Blit, seed: u32) {
        let mut want = self.fill(seed);
        self.run(&blit.packets());
        blit.reference(&mut want);
        let got = self.canvas();
        if let Some(at) = (0..BYTES).find(|i| got[*i] != want[*i]) {
            panic!(
                "{blit:?}: byte {at:#x} is {:#x}, not {:#x}",
                got[at], want[at]
            );
        }
    }
}

/// XY_FAST_COPY_BLT, which Kaby Lake has and Broadwell has not.
#[test]
fn fast_copies_keep_every_pixel() {
    let mut b = bench_on(Rig::with(Config {
        platform: &gen8::platform::KBL,
        ..Config::default()
    }));
    let kinds = [Tiling::Linear, Tiling::X, Tiling::Y];
    let all = kinds.into_iter().flat_map(|s| kinds.map(|d| (s, d)));
    for (seed, (from, to)) in (1..).zip(all) {
        for (depth, bytes) in [(0, 1), (1, 2), (3, 4), (4, 8), (5, 16)] {
            let at = |page, tiling| Surface {
                page,
                pitch: 1024,
                tiling,
            };
            let (src, dst) = (at(32, from), at(0, to));
            let code = |t: Tiling| match t {
                Tiling::Linear => 0,
                Tiling::X => 1,
                Tiling::Y => 2,
            };
            let mut packet = vec![
                2 << 29 | op::XY_FAST_COPY_BLT << 22 | code(from) << 20 | code(to) << 13 | 8,
                depth << 24 | dst.pitch_field(),
                corner(3, 5),
                corner(3 + 40, 5 + 33),
            ];
            packet.extend(halves(CANVAS));
            packet.extend([corner(7, 2), src.pitch_field()]);
            packet.extend(halves(CANVAS + 32 * 4096));
            let old = b.fill(seed);
            b.run(&packet);
            let mut want = old.clone();
            for y in 0..33 {
                for x in 0..40 * bytes {
                    want[dst.at(3 * bytes + x, 5 + y)] = old[src.at(7 * bytes + x, 2 + y)];
                }
            }
            assert!(b.canvas() == want, "{from:?} to {to:?}, {bytes} bytes");
        }
    }
}

fn tiling() -> impl Strategy<Value = Tiling> {
    prop::sample::select(vec![Tiling::Linear, Tiling::X, Tiling::Y])
}

/// Surfaces of 1024 by 64 bytes: 16 pages.
fn surface(pages: std::ops::Range<u64>) -> impl Strategy<Value = Surface> {
    (tiling(), pages).prop_map(|(tiling, page)| Surface {
        page,
        pitch: 1024,
        tiling,
    })
}

fn blit() -> impl Strategy<Value = Blit> {
    let area = (
        (0usize..200, 0usize..40),
        (0usize..200, 0usize..40),
        (0usize..56, 0usize..24),
    );
    (
        (surface(0..16), prop::option::of(surface(32..48))),
        area,
        (0u32..4, 0u32..4),
        prop_oneof![
            Just(0xccu8),
            Just(0xf0),
            Just(0x66),
            Just(0x55),
            Just(0x00),
            any::<u8>()
        ],
        any::<u32>(),
        prop::option::of((0usize..150, 0usize..30, 50usize..256, 10usize..64)),
    )
        .prop_map(
            |((dst, src), (to, from, size), (depth, mask), rop, colour, clip)| Blit {
                dst,
                src,
                to,
                from,
                size,
                depth,
                mask,
                rop,
                colour,
                clip,
            },
        )
}

#[test]
fn random_blits_agree_with_the_reference() {
    let mut b = bench();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 192,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let b = std::cell::RefCell::new(&mut b);
    runner
        .run(&(blit(), any::<u32>()), |(blit, seed)| {
            b.borrow_mut().check(&blit, seed);
            Ok(())
        })
        .unwrap();
}

#[test]
fn overlapping_copies_move_as_a_whole() {
    let mut b = bench();
    for tiling in [Tiling::Linear, Tiling::X, Tiling::Y] {
        let s = Surface {
            page: 0,
            pitch: 1024,
            tiling,
        };
        for (from, to) in [
            ((8, 8), (10, 12)),
            ((10, 12), (8, 8)),
            ((5, 9), (9, 9)),
            ((9, 9), (5, 9)),
        ] {
            let blit = Blit {
                dst: s,
                src: Some(s),
                to,
                from,
                size: (100, 30),
                depth: 3,
                mask: 3,
                rop: 0xcc,
                colour: 0,
                clip: None,
            };
            b.check(&blit, 77);
        }
    }
}

#[test]
fn empty_and_inside_out_areas_draw_nothing() {
    let mut b = bench();
    let before = b.fill(3);
    for (first, second) in [(corner(5, 5), corner(5, 9)), (corner(9, 9), corner(3, 3))] {
        b.run(&[
            2 << 29 | op::XY_COLOR_BLT << 22 | 3 << 20 | 5,
            3 << 24 | 0xf0 << 16 | 1024,
            first,
            second,
            low(CANVAS),
            0,
            0xffff_ffff,
        ]);
    }
    assert_eq!(b.canvas(), before);
}

#[test]
fn linear_forms() {
    let mut b = bench();
    let mut want = b.fill(9);
    let dst = low(CANVAS);
    b.run(&[
        // 16-bit fill, 3 rows of 10 bytes.
        2 << 29 | op::COLOR_BLT << 22 | 4,
        1 << 24 | 0xf0 << 16 | 64,
        3 << 16 | 10,
        dst,
        0,
        0xaaaa_1234,
        // 8-bit copy, 2 rows of 7 bytes, from pitch 32 to pitch 64.
        2 << 29 | op::SRC_COPY_BLT << 22 | 6,
        0xcc << 16 | 64,
        2 << 16 | 7,
        dst + 0x1000,
        0,
        32,
        dst + 0x2001,
        0,
    ]);
    for y in 0..3 {
        for x in 0..10 {
            want[y * 64 + x] = if x % 2 == 0 { 0x34 } else { 0x12 };
        }
    }
    for y in 0..2 {
        for x in 0..7 {
            want[0x1000 + y * 64 + x] = want[0x2001 + y * 32 + x];
        }
    }
    assert!(b.canvas() == want);
}

#[test]
fn other_forms_are_parsed() {
    let mut b = bench();
    let before = b.fill(1);
    let mut all = Vec::new();
    for (o, dwords) in [
        (op::XY_MONO_PAT_FIXED_BLT, 8),
        (op::XY_SRC_COPY_CHROMA_BLT, 12),
        (op::XY_PAT_CHROMA_BLT, 10),
        (op::XY_PAT_CHROMA_BLT_IMMEDIATE, 10),
    ] {
        all.push(2 << 29 | o << 22 | (dwords - 2));
        all.extend(std::iter::repeat_n(0x55, (dwords - 1) as usize));
    }
    b.run(&all);
    assert_eq!(b.canvas(), before);
    // A short packet is an error, not a panic.
    b.r.put_batch(b.code, &[2 << 29 | op::XY_COLOR_BLT << 22, 0, END]);
    b.r.emit(&mut b.c, &batch(CODE));
    b.r.submit(E, &b.c);
    assert_eq!(b.r.wait_error(E), ring::ERROR_INSTRUCTION);
}

#[test]
fn a_huge_blit_can_be_reset() {
    let mut b = bench();
    // Pitch 0: 64 Ki rows of 128 KiB, each over the same 32 pages.
    b.r.put_batch(
        b.code,
        &[
            2 << 29 | op::XY_COLOR_BLT << 22 | 3 << 20 | 5,
            3 << 24 | 0xf0 << 16,
            0x8000_0000,
            0x7fff_7fff,
            low(CANVAS),
            0,
            0x1111_2222,
            END,
        ],
    );
    b.r.emit(&mut b.c, &batch(CODE));
    b.r.submit(E, &b.c);
    let probe = b.frame(3);
    b.r.wait("drawing", |r| r.peek_bus(probe) == 0x1111_2222);
    b.r.gpu.write32(ring::GDRST, E.reset_domain());
    assert_eq!(b.r.gpu.read32(ring::GDRST), 0);
    assert_eq!(b.r.get(E, ring::EXECLIST_STATUS_HI), 0);
}
