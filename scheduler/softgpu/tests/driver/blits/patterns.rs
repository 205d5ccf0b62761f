//! Patterns, bitmaps and text against a reference that knows every pixel's
//! pattern and source before anything is drawn.

use gen8::cmd::blt_op as op;
use gen8::ring;
use proptest::prelude::*;

use super::{BYTES, Bench, CANVAS, CODE, Surface, Tiling, bench, corner, surface};
use crate::rig::{batch, halves, low, mi};

/// Pages of the canvas with patterns, bitmaps, and what is copied.
const PATTERN_PAGE: u64 = 20;
const BITMAP_PAGE: u64 = 24;

/// The pattern of a blit.
#[derive(Clone, Debug)]
enum Pattern {
    Solid(u32),
    /// In memory, or in the command: 64 pixels.
    Memory,
    Inline(Vec<u32>),
    /// Rows of bits, background, foreground, whether background is drawn.
    Mono([u8; 8], u32, u32, bool),
}

/// What it is drawn from.
#[derive(Clone, Debug)]
enum Source {
    None,
    Surface(Surface, (usize, usize)),
    /// Words, background, foreground, whether background is drawn, first bit.
    Memory(u32, u32, bool, u32),
    Inline(Vec<u32>, u32, u32, bool, u32),
}

#[derive(Clone, Debug)]
struct Drawing {
    dst: Surface,
    to: (usize, usize),
    size: (usize, usize),
    depth: u32,
    mask: u32,
    rop: u8,
    seed: (u32, u32),
    pattern: Pattern,
    source: Source,
    clip: Option<(usize, usize, usize, usize)>,
    /// By XY_SETUP_BLT and text; then rows of a bitmap are byte-packed or not.
    text: Option<bool>,
}

fn header(opcode: u32, flags: u32, dwords: usize) -> u32 {
    2 << 29 | opcode << 22 | flags | u32::try_from(dwords - 2).unwrap()
}

impl Drawing {
    fn bytes(&self) -> usize {
        [1, 2, 2, 4][self.depth as usize]
    }

    fn flags(&self) -> u32 {
        let tiled = |s: &Surface, bit: u32| u32::from(s.tiling != Tiling::Linear) << bit;
        let source = match &self.source {
            Source::None => 0,
            Source::Surface(s, _) => tiled(s, 15),
            Source::Memory(_, _, _, first) | Source::Inline(_, _, _, _, first) => first << 17,
        };
        // A source's flag bits are a pattern's too, except for tiling.
        let seed = self.seed.0 << 12 | self.seed.1 << 8;
        self.mask << 20 | source | tiled(&self.dst, 11) | seed
    }

    fn br13(&self) -> u32 {
        let clear = |drawn: bool, bit: u32| u32::from(!drawn) << bit;
        let source = match self.source {
            Source::Memory(_, _, drawn, _) | Source::Inline(_, _, _, drawn, _) => clear(drawn, 29),
            Source::None | Source::Surface(..) => 0,
        };
        let pattern = match self.pattern {
            Pattern::Mono(_, _, _, drawn) => clear(drawn, 28),
            _ => 0,
        };
        let clip = u32::from(self.clip.is_some()) << 30;
        clip | source
            | pattern
            | self.depth << 24
            | u32::from(self.rop) << 16
            | self.dst.pitch_field()
    }

    fn packets(&self) -> Vec<u32> {
        let y = |s: &Surface| u32::from(s.tiling == Tiling::Y);
        let from = match &self.source {
            Source::Surface(s, _) => y(s),
            _ => 0,
        };
        let mut c = vec![
            mi(0x22, 1),
            ring::BCS_SWCTRL,
            0x0003_0000 | from | y(&self.dst) << 1,
        ];
        let dst = halves(CANVAS + self.dst.page * 4096);
        let pattern = halves(CANVAS + PATTERN_PAGE * 4096);
        let bitmap = halves(CANVAS + BITMAP_PAGE * 4096);
        let corners = [
            corner(self.to.0, self.to.1),
            corner(self.to.0 + self.size.0, self.to.1 + self.size.1),
        ];
        if let Some((x0, y0, x1, y1)) = self.clip
            && self.text.is_none()
        {
            c.extend([
                header(op::XY_SETUP_CLIP_BLT, 0, 3),
                corner(x0, y0),
                corner(x1, y1),
            ]);
        }
        if let Some(packed) = self.text {
            let (x0, y0, x1, y1) = self.clip.unwrap_or_default();
            let (bg, fg) = match self.source {
                Source::Memory(bg, fg, ..) | Source::Inline(_, bg, fg, ..) => (bg, fg),
                _ => (0, 0),
            };
            c.extend([header(op::XY_SETUP_BLT, self.mask << 20, 10), self.br13()]);
            c.extend([corner(x0, y0), corner(x1, y1)]);
            c.extend(dst);
            c.extend([bg, fg]);
            c.extend(pattern);
            let flags = self.flags() & 0x000e_0800 | u32::from(packed) << 16;
            match &self.source {
                Source::Memory(..) => {
                    c.push(header(op::XY_TEXT_BLT, flags, 5));
                    c.extend(corners);
                    c.extend(bitmap);
                }
                Source::Inline(words, ..) => {
                    c.push(header(op::XY_TEXT_IMMEDIATE_BLT, flags, 3 + words.len()));
                    c.extend(corners);
                    c.extend(words);
                }
                other => panic!("no text: {other:?}"),
            }
            return c;
        }
        let mut source = Vec::new();
        match &self.source {
            Source::None => {}
            Source::Surface(s, at) => {
                source.extend([corner(at.0, at.1), s.pitch_field()]);
                source.extend(halves(CANVAS + s.page * 4096));
            }
            Source::Memory(bg, fg, ..) => {
                source.extend(bitmap);
                source.extend([*bg, *fg]);
            }
            Source::Inline(words, bg, fg, ..) => {
                source.extend([*bg, *fg]);
                source.extend(words);
            }
        }
        let mut of = Vec::new();
        match &self.pattern {
            Pattern::Solid(colour) => of.push(*colour),
            Pattern::Memory => of.extend(pattern),
            Pattern::Inline(words) => of.extend(words),
            Pattern::Mono(rows, bg, fg, _) => {
                let bits = u64::from_le_bytes(*rows);
                of.extend([*bg, *fg]);
                of.extend(halves(bits));
            }
        }
        let opcode = match (&self.pattern, &self.source) {
            (Pattern::Solid(_), Source::None) => op::XY_COLOR_BLT,
            (Pattern::Memory, Source::None) => op::XY_PAT_BLT,
            (Pattern::Inline(_), Source::None) => op::XY_PAT_BLT_IMMEDIATE,
            (Pattern::Mono(..), Source::None) => op::XY_MONO_PAT_BLT,
            (Pattern::Solid(_), Source::Surface(..)) => op::XY_SRC_COPY_BLT,
            (Pattern::Memory, Source::Surface(..)) => op::XY_FULL_BLT,
            (Pattern::Inline(_), Source::Surface(..)) => op::XY_FULL_IMMEDIATE_PATTERN_BLT,
            (Pattern::Mono(..), Source::Surface(..)) => op::XY_FULL_MONO_PATTERN_BLT,
            (Pattern::Solid(_), Source::Memory(..)) => op::XY_MONO_SRC_COPY_BLT,
            (Pattern::Memory, Source::Memory(..)) => op::XY_FULL_MONO_SRC_BLT,
            (Pattern::Inline(_), Source::Memory(..)) => op::XY_FULL_MONO_SRC_IMMEDIATE_PATTERN_BLT,
            (Pattern::Mono(..), Source::Memory(..)) => op::XY_FULL_MONO_PATTERN_MONO_SRC_BLT,
            (_, Source::Inline(..)) => op::XY_MONO_SRC_COPY_IMMEDIATE_BLT,
        };
        if !matches!(self.source, Source::None) && matches!(self.pattern, Pattern::Solid(_)) {
            of.clear();
        }
        c.push(header(opcode, self.flags(), 6 + source.len() + of.len()));
        c.push(self.br13());
        c.extend(corners);
        c.extend(dst);
        c.extend(source);
        c.extend(of);
        c
    }

    /// The source's pixel, or that there is none.
    fn source_at(&self, old: &[u8], dx: usize, dy: usize) -> Option<u32> {
        let n = self.bytes();
        let (words, bg, fg, drawn, first): (Vec<u8>, _, _, _, _) = match &self.source {
            Source::None => return Some(0),
            Source::Surface(s, at) => {
                let mut pixel = [0; 4];
                for (b, to) in pixel.iter_mut().enumerate().take(n) {
                    *to = old[s.at((at.0 + dx) * n + b, at.1 + dy)];
                }
                return Some(u32::from_le_bytes(pixel));
            }
            Source::Memory(bg, fg, drawn, first) => {
                let start = usize::try_from(BITMAP_PAGE).unwrap() * 4096;
                (old[start..start + 4096].to_vec(), *bg, *fg, *drawn, *first)
            }
            Source::Inline(words, bg, fg, drawn, first) => {
                let bytes = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                (bytes, *bg, *fg, *drawn, *first)
            }
        };
        // The whole bitmap, bit by bit from each byte's highest.
        let bits: Vec<bool> = words
            .iter()
            .flat_map(|b| (0..8).rev().map(move |i| b >> i & 1 != 0))
            .collect();
        let first = first as usize;
        let row = match self.text {
            None => (first + self.size.0).div_ceil(16) * 16,
            Some(true) => (first + self.size.0).div_ceil(8) * 8,
            Some(false) => self.size.0,
        };
        let bit = bits.get(first + dy * row + dx).copied().unwrap_or(false);
        match (bit, drawn) {
            (true, _) => Some(fg),
            (false, true) => Some(bg),
            (false, false) => None,
        }
    }

    fn pattern_at(&self, old: &[u8], x: usize, y: usize) -> Option<u32> {
        let n = self.bytes();
        let cell = (
            (x + self.seed.0 as usize) % 8,
            (y + self.seed.1 as usize) % 8,
        );
        let of = |bytes: &[u8]| {
            let at = (cell.1 * 8 + cell.0) * n;
            let mut pixel = [0; 4];
            for (b, to) in pixel.iter_mut().enumerate().take(n) {
                *to = bytes.get(at + b).copied().unwrap_or(0);
            }
            Some(u32::from_le_bytes(pixel))
        };
        match &self.pattern {
            Pattern::Solid(_) if !matches!(self.source, Source::None) => Some(0),
            Pattern::Solid(colour) => Some(*colour),
            Pattern::Memory => of(&old[usize::try_from(PATTERN_PAGE).unwrap() * 4096..]),
            Pattern::Inline(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                of(&bytes)
            }
            Pattern::Mono(rows, bg, fg, drawn) => {
                let bit = rows[cell.1] >> (7 - cell.0) & 1 != 0;
                (bit || *drawn).then_some(if bit { *fg } else { *bg })
            }
        }
    }

    fn reference(&self, canvas: &mut [u8]) {
        let n = self.bytes();
        let old = canvas.to_vec();
        for dy in 0..self.size.1 {
            for dx in 0..self.size.0 {
                let (x, y) = (self.to.0 + dx, self.to.1 + dy);
                let outside = |(x0, y0, x1, y1)| x < x0 || y < y0 || x >= x1 || y >= y1;
                if self.clip.is_some_and(outside) {
                    continue;
                }
                let pattern = match self.text {
                    // Text has the foreground for a pattern.
                    Some(_) => match self.source {
                        Source::Memory(_, fg, ..) | Source::Inline(_, _, fg, ..) => Some(fg),
                        _ => None,
                    },
                    None => self.pattern_at(&old, x, y),
                };
                let (Some(p), Some(s)) = (pattern, self.source_at(&old, dx, dy)) else {
                    continue;
                };
                for b in 0..n {
                    if n == 4 && self.mask & if b == 3 { 2 } else { 1 } == 0 {
                        continue;
                    }
                    let d = &mut canvas[self.dst.at(x * n + b, y)];
                    let [p, s] = [p, s].map(|v| v.to_le_bytes()[b]);
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

fn check(b: &mut Bench, drawing: &Drawing, seed: u32) {
    let mut want = b.fill(seed);
    b.run(&drawing.packets());
    drawing.reference(&mut want);
    let got = b.canvas();
    if let Some(at) = (0..BYTES).find(|i| got[*i] != want[*i]) {
        panic!(
            "{drawing:?}: byte {at:#x} is {:#x}, not {:#x}",
            got[at], want[at]
        );
    }
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        any::<u32>().prop_map(Pattern::Solid),
        Just(Pattern::Memory),
        prop::collection::vec(any::<u32>(), 64).prop_map(Pattern::Inline),
        (any::<[u8; 8]>(), any::<u32>(), any::<u32>(), any::<bool>())
            .prop_map(|(rows, bg, fg, drawn)| Pattern::Mono(rows, bg, fg, drawn)),
    ]
}

fn source() -> impl Strategy<Value = Source> {
    let bits = (any::<u32>(), any::<u32>(), any::<bool>(), 0u32..8);
    prop_oneof![
        Just(Source::None),
        (surface(32..48), (0usize..200, 0usize..40)).prop_map(|(s, at)| Source::Surface(s, at)),
        bits.clone()
            .prop_map(|(bg, fg, drawn, first)| Source::Memory(bg, fg, drawn, first)),
        (prop::collection::vec(any::<u32>(), 1..100), bits).prop_map(
            |(words, (bg, fg, drawn, first))| Source::Inline(words, bg, fg, drawn, first)
        ),
    ]
}

fn drawing() -> impl Strategy<Value = Drawing> {
    let area = (
        (0usize..200, 0usize..40),
        (0usize..56, 0usize..24),
        (0u32..8, 0u32..8),
    );
    let rop = prop_oneof![Just(0xccu8), Just(0xf0), Just(0xb8), any::<u8>()];
    let clip = (0usize..150, 0usize..30, 50usize..256, 10usize..64);
    (
        surface(0..4),
        area,
        (0u32..4, 0u32..4),
        rop,
        (pattern(), source()),
        prop::option::of(clip),
        prop::option::of(any::<bool>()),
    )
        .prop_map(
            |(dst, (to, size, seed), (depth, mask), rop, (pattern, source), clip, text)| {
                let bitmap = matches!(source, Source::Memory(..) | Source::Inline(..));
                let text = text.filter(|_| bitmap);
                // One form has a bitmap in the command, and no pattern.
                let plain = text.is_some() || matches!(source, Source::Inline(..));
                Drawing {
                    dst,
                    to,
                    size,
                    depth,
                    mask,
                    rop,
                    seed,
                    pattern: if plain { Pattern::Solid(0) } else { pattern },
                    source,
                    clip,
                    text,
                }
            },
        )
}

#[test]
fn random_drawings_agree_with_the_reference() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 384,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let b = std::cell::RefCell::new(bench());
    runner
        .run(&(drawing(), any::<u32>()), |(drawing, seed)| {
            check(&mut b.borrow_mut(), &drawing, seed);
            Ok(())
        })
        .unwrap();
}

#[test]
fn pixels_and_scan_lines_go_by_what_was_set_up() {
    let mut b = bench();
    let mut want = b.fill(5);
    let rows = [0x81, 0x42, 0x24, 0x18, 0x18, 0x24, 0x42, 0x81_u8];
    let bits = halves(u64::from_le_bytes(rows));
    let br13 = 1 << 30 | 3 << 24 | 0xf0 << 16 | 1024;
    let mut c = vec![header(op::XY_SETUP_MONO_PATTERN_SL_BLT, 3 << 20, 10), br13];
    c.extend([
        corner(0, 0),
        corner(100, 20),
        low(CANVAS),
        0,
        0x1111,
        0x2222,
    ]);
    c.extend(bits);
    c.extend([header(op::XY_PIXEL_BLT, 0, 2), corner(7, 3)]);
    c.extend([header(op::XY_PIXEL_BLT, 0, 2), corner(100, 3)]);
    c.extend([
        header(op::XY_SCANLINES_BLT, 0, 3),
        corner(90, 8),
        corner(120, 16),
    ]);
    b.run(&c);
    let mut put = |x: usize, y: usize, v: u32| {
        want[y * 1024 + x * 4..][..4].copy_from_slice(&v.to_le_bytes());
    };
    put(7, 3, 0x2222);
    for y in 8..16 {
        for x in 90..100 {
            let bit = rows[y % 8] >> (7 - x % 8) & 1 != 0;
            put(x, y, if bit { 0x2222 } else { 0x1111 });
        }
    }
    assert!(b.canvas() == want);
}

#[test]
fn what_was_set_up_ends_with_the_context() {
    let mut b = bench();
    let mut c = vec![
        header(op::XY_SETUP_BLT, 3 << 20, 10),
        3 << 24 | 0xf0 << 16 | 64,
    ];
    c.extend([0, corner(64, 64), low(CANVAS), 0, 1, 2, 0, 0]);
    b.run(&c);
    let before = b.fill(3);
    // Another context finds nothing set up, so it draws at address 0.
    b.c = b.r.context(super::E, 1);
    let words = [header(op::XY_PIXEL_BLT, 0, 2), corner(1, 1)];
    b.r.put_batch(b.code, &words);
    b.r.emit(&mut b.c, &batch(CODE));
    b.r.submit(super::E, &b.c);
    assert_eq!(b.r.wait_error(super::E), ring::ERROR_PAGE_TABLE);
    assert_eq!(b.canvas(), before);
}
