//! The aperture through fences, against a model that knows nothing but where
//! one byte is.

use gen8::fence::{self, Tiling};
use guest_memory::GuestMemory;
use proptest::prelude::*;
use vgpu_device::{Bar, Device, FenceMeaning, GgttTable};

use crate::rig::{PAGES, Rig};

/// Pages of global address space in play, from 0.
const SPAN: u32 = 96;

/// A fence register in a test: what Linux writes for a surface.
#[derive(Clone, Copy, Debug)]
struct Surface {
    number: u32,
    first_page: u32,
    pages: u32,
    pitch_units: u32,
    tiling: Tiling,
}

impl Surface {
    fn register(self) -> u64 {
        let start = u64::from(self.first_page) << 12;
        let last = u64::from(self.first_page + self.pages - 1) << 12;
        let pitch = u64::from(self.pitch_units - 1);
        let y = u64::from(self.tiling == Tiling::Y);
        last << 32 | pitch << 32 | start | y << 1 | 1
    }

    fn set(self, rig: &Rig) {
        let register = self.register().to_le_bytes();
        let half = |at: usize| u32::from_le_bytes(register[at..at + 4].try_into().unwrap());
        // Linux `gt/intel_ggtt_fencing.c:i965_write_fence_reg`'s order.
        let low = fence::offsets(self.number).start;
        rig.write(low, 0);
        rig.write(low + 4, half(4));
        rig.write(low, half(0));
    }

    /// Where byte `x` of row `y` is, by counting tiles.
    fn place(self, x: u64, y: u64) -> u64 {
        let pitch = u64::from(self.pitch_units) * 128;
        let start = u64::from(self.first_page) << 12;
        let (tile, inside) = match self.tiling {
            Tiling::X => (y / 8 * (pitch / 512) + x / 512, (y % 8) * 512 + x % 512),
            Tiling::Y => (
                y / 32 * (pitch / 128) + x / 128,
                (x % 128 / 16) * 512 + (y % 32) * 16 + x % 16,
            ),
        };
        start + tile * 4096 + inside
    }
}

/// Global address of the byte that an aperture offset means.
fn behind(surfaces: &[Surface], offset: u64) -> u64 {
    let page = u32::try_from(offset >> 12).unwrap();
    let hit = surfaces
        .iter()
        .filter(|s| (s.first_page..s.first_page + s.pages).contains(&page))
        .filter(|s| s.tiling == Tiling::Y || s.pitch_units.is_multiple_of(4))
        .min_by_key(|s| s.number);
    let Some(s) = hit else { return offset };
    let (pitch, start) = (
        u64::from(s.pitch_units) * 128,
        u64::from(s.first_page) << 12,
    );
    s.place((offset - start) % pitch, (offset - start) / pitch)
}

/// Guest-physical address behind a global one, if there is memory.
fn physical(rig: &Rig, global: u64) -> Option<u64> {
    let entry = rig.table.load(u32::try_from(global >> 12).unwrap());
    let gpa = entry & 0x7f_ffff_f000 | global & 0xfff;
    let memory = u64::try_from(PAGES * 4096).unwrap();
    (entry & 1 != 0 && gpa < memory).then_some(gpa)
}

fn byte_at(rig: &Rig, surfaces: &[Surface], offset: u64) -> u8 {
    let mut byte = [0xff];
    if let Some(gpa) = physical(rig, behind(surfaces, offset)) {
        rig.memory.read(gpa, &mut byte).unwrap();
    }
    byte[0]
}

fn surface(number: u32) -> impl Strategy<Value = Surface> {
    let tiling = prop::sample::select(vec![Tiling::X, Tiling::Y]);
    (0..SPAN - 1, 1..64_u32, 1..20_u32, tiling).prop_map(
        move |(first_page, pages, pitch_units, tiling)| Surface {
            number,
            first_page,
            pages: pages.min(SPAN - first_page),
            // X tiles mostly as they should be.
            pitch_units: if tiling == Tiling::X && number != 9 {
                pitch_units.next_multiple_of(4)
            } else {
                pitch_units
            },
            tiling,
        },
    )
}

fn surfaces() -> impl Strategy<Value = Vec<Surface>> {
    let numbers = prop::sample::subsequence(vec![0_u32, 3, 9, 31], 0..=4);
    numbers.prop_flat_map(|numbers| numbers.into_iter().map(surface).collect::<Vec<_>>())
}

/// Entries: most map a frame of their own, some the same, some nothing, some
/// what is no memory.
fn entries() -> impl Strategy<Value = Vec<u64>> {
    let frames: Vec<u64> = (0..256).collect();
    (
        Just(frames).prop_shuffle(),
        prop::collection::vec(0..40_u8, 256),
    )
        .prop_map(|(frames, kinds)| {
            let entry = |(frame, kind): (u64, u8)| match kind {
                0 => frame << 12,
                1 => (1 << 30) | 1,
                _ => frame << 12 | 1,
            };
            frames.into_iter().zip(kinds).map(entry).collect()
        })
}

fn lay_out(rig: &Rig, entries: &[u64]) {
    for (page, entry) in (0..).zip(entries) {
        rig.table.store(page, *entry);
    }
    let bytes: Vec<u8> = (0..PAGES * 4096)
        .map(|i| (i * 167 / 13).to_le_bytes()[0])
        .collect();
    rig.memory.write(0, &bytes).unwrap();
}

fn contents(rig: &Rig) -> Vec<u8> {
    let mut all = vec![0; PAGES * 4096];
    rig.memory.read(0, &mut all).unwrap();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A read and a write of any length do what byte after byte does.
    #[test]
    fn a_run_is_its_bytes(
        surfaces in surfaces(),
        entries in entries(),
        at in 0..u64::from(SPAN) << 12,
        data in prop::collection::vec(any::<u8>(), 1..5000),
    ) {
        let rig = Rig::new();
        lay_out(&rig, &entries);
        surfaces.iter().for_each(|s| s.set(&rig));
        let mut read = vec![0; data.len()];
        rig.device.read_block(Bar::Aperture, at, &mut read);
        let expected: Vec<u8> = (at..).take(data.len())
            .map(|at| byte_at(&rig, &surfaces, at))
            .collect();
        prop_assert_eq!(read, expected);

        let mut expected = contents(&rig);
        for (at, byte) in (at..).zip(&data) {
            if let Some(gpa) = physical(&rig, behind(&surfaces, at)) {
                expected[usize::try_from(gpa).unwrap()] = *byte;
            }
        }
        rig.device.write_block(Bar::Aperture, at, &data);
        prop_assert!(contents(&rig) == expected);
        prop_assert_eq!(rig.device.inspect().aperture.counts.bytes_written, u64::try_from(data.len()).unwrap());
    }

    /// Fences of any value and accesses anywhere harm nothing, and survive a
    /// save as they are.
    #[test]
    fn any_fence_is_survived(
        registers in prop::collection::vec((0..34_u32, any::<u64>()), 0..40),
        accesses in prop::collection::vec((any::<u64>(), 0..9000_usize), 1..20),
    ) {
        let rig = Rig::new();
        for (number, value) in registers {
            let at = u64::from(fence::FIRST) + u64::from(number) * 8;
            rig.device.write(Bar::Registers, at, 8, value | 1);
        }
        let again = Device::restore(&rig.device.save(), rig.seams.clone()).unwrap();
        for (at, len) in accesses {
            for at in [at, at % (256 << 20)] {
                let (mut one, mut other) = (vec![0; len], vec![1; len]);
                rig.device.read_block(Bar::Aperture, at, &mut one);
                again.read_block(Bar::Aperture, at, &mut other);
                prop_assert!(one == other);
                rig.device.write_block(Bar::Aperture, at, &one);
            }
        }
        prop_assert_eq!(rig.device.inspect().aperture.fences, again.inspect().aperture.fences);
    }
}

#[test]
fn a_picture_in_tiles_is_read_row_by_row() {
    for (tiling, rows) in [(Tiling::X, 24), (Tiling::Y, 64)] {
        let rig = Rig::new();
        let s = Surface {
            number: 5,
            first_page: 8,
            pages: rows * 1024 / 4096,
            pitch_units: 8,
            tiling,
        };
        let colour = |x: u64, y: u64| (x * 7 + y * 31).to_le_bytes()[0];
        let rows = u64::from(rows);
        for (x, y) in (0..rows).flat_map(|y| (0..1024).map(move |x| (x, y))) {
            rig.memory.write(s.place(x, y), &[colour(x, y)]).unwrap();
        }
        s.set(&rig);
        let mut seen = vec![0; usize::try_from(rows * 1024).unwrap()];
        rig.device.read_block(Bar::Aperture, 8 << 12, &mut seen);
        let picture: Vec<u8> = (0..rows)
            .flat_map(|y| (0..1024).map(move |x| colour(x, y)))
            .collect();
        assert!(seen == picture, "{tiling:?}");
        // The same a dword at a time, and after a save.
        let again = Device::restore(&rig.device.save(), rig.seams.clone()).unwrap();
        for (i, dword) in (0..).step_by(4).zip(picture.chunks(4)) {
            let value = again.read(Bar::Aperture, (8 << 12) + i, 4).to_le_bytes();
            assert_eq!(value[..4], *dword, "{tiling:?} {i}");
        }
    }
}

#[test]
fn what_passes_is_counted_and_shown() {
    let rig = Rig::new();
    rig.device.write(Bar::Aperture, 0x1000, 8, 5);
    rig.device.read_block(Bar::Aperture, 0x1ffc, &mut [0; 12]);
    // No entry there, no aperture there.
    rig.device.read(Bar::Aperture, 200 << 12, 4);
    rig.device.write(Bar::Aperture, (256 << 20) - 4, 8, 0);
    let y = Surface {
        number: 31,
        first_page: 2,
        pages: 2,
        pitch_units: 1,
        tiling: Tiling::Y,
    };
    y.set(&rig);
    // X rows of 128 bytes are no fence.
    Surface {
        number: 0,
        first_page: 64,
        tiling: Tiling::X,
        ..y
    }
    .set(&rig);
    rig.device.read(Bar::Aperture, 0x2000, 4);
    rig.device.read(Bar::Aperture, 64 << 12, 4);
    let tree = rig.device.inspect();
    let counts = tree.aperture.counts;
    assert_eq!((counts.reads, counts.writes), (4, 2));
    assert_eq!((counts.bytes_read, counts.bytes_written), (24, 16));
    assert_eq!((counts.fenced, counts.failed), (1, 2));
    assert_eq!(tree.exits_by_bar["BAR2"], 6);
    assert_eq!(tree.exits_by_bar["BAR0"], tree.exits.mmio_writes);
    let [unusable, range] = &tree.aperture.fences[..] else {
        panic!("{:?}", tree.aperture.fences);
    };
    assert!(matches!(unusable.meaning, FenceMeaning::Unusable { .. }));
    let expected = FenceMeaning::Range {
        start: "0x2000".into(),
        last_page: "0x3000".into(),
        pitch: 128,
        tiling: "Y",
    };
    assert_eq!((range.number, &range.meaning), (31, &expected));
}

#[test]
fn a_fence_written_in_one_go_counts_whole() {
    let rig = Rig::new();
    rig.memory.write(0x8010, b"row 1").unwrap();
    let s = Surface {
        number: 1,
        first_page: 8,
        pages: 4,
        pitch_units: 4,
        tiling: Tiling::Y,
    };
    let at = u64::from(fence::offsets(1).start);
    rig.device.write(Bar::Registers, at, 8, s.register());
    assert_eq!(rig.device.read(Bar::Registers, at, 8), s.register());
    let mut row = [0; 5];
    rig.device.read_block(Bar::Aperture, 0x8200, &mut row);
    assert_eq!(&row, b"row 1");
    rig.device.write(Bar::Registers, at, 1, 0);
    rig.device.read_block(Bar::Aperture, 0x8010, &mut row);
    assert_eq!(&row, b"row 1");
}
