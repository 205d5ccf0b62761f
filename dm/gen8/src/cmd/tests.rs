use std::collections::HashSet;
use std::vec::Vec;

use super::*;

extern crate std;

#[test]
fn lengths_are_those_i915_uses() {
    let cases = [
        (Engine::Rcs, 0x0000_0000, "MI_NOOP", 1),
        (Engine::Rcs, 0x1140_0000 | 9, "MI_LOAD_REGISTER_IMM", 11),
        (Engine::Bcs, 0x1300_0001 | 1 << 14, "MI_FLUSH_DW", 3),
        (Engine::Bcs, 0x1300_0002, "MI_FLUSH_DW", 4),
        // Bit 7 invalidates the video pipeline's cache.
        (Engine::Vcs, 0x1324_4082, "MI_FLUSH_DW", 4),
        (
            Engine::Vcs,
            0x1880_0001 | 1 << 8,
            "MI_BATCH_BUFFER_START",
            3,
        ),
        (Engine::Rcs, 0x1000_0002 | 1 << 22, "MI_STORE_DATA_IMM", 4),
        (Engine::Rcs, 0x7a00_0004, "PIPE_CONTROL", 6),
        (Engine::Rcs, 0x6904_0000, "PIPELINE_SELECT", 1),
        (Engine::Rcs, 0x680b_0001, "3DSTATE_VF_STATISTICS", 1),
        // Bit 10 takes the parameters from registers, bit 8 predicates.
        (Engine::Rcs, 0x7105_050d, "GPGPU_WALKER", 15),
        (Engine::Vcs, 0x6800_013f, "MFX_WAIT", 1),
        (Engine::Bcs, 0x5430_0004 | 1, "XY_COLOR_BLT", 7),
        (Engine::Bcs, 0x54f0_0008, "XY_SRC_COPY_BLT", 10),
    ];
    for (engine, dw0, name, len) in cases {
        let c = decode(engine, dw0).unwrap_or_else(|| panic!("{name} not found"));
        assert_eq!((c.name, c.dwords(dw0)), (name, len), "{dw0:#x}");
    }
}

#[test]
fn what_an_engine_lacks_does_not_decode() {
    assert!(decode(Engine::Rcs, 0x54f0_0008).is_none());
    assert!(decode(Engine::Bcs, 0x7a00_0004).is_none());
    assert!(decode(Engine::Rcs, 0x2000_0000).is_none());
    assert!(decode(Engine::Vcs, 0xffff_ffff).is_none());
    // The same opcode, two engines.
    let name = |engine| decode(engine, 0x7400_0000).map(|c| c.name);
    assert_eq!(name(Engine::Vcs), Some("MFX_VP8_PIC_STATE"));
    assert_eq!(name(Engine::Vecs), Some("VEBOX_SURFACE_STATE"));
}

#[test]
fn each_row_is_found_by_its_own_opcode() {
    for table in [&GEN8, &GEN9] {
        for c in table.rows().filter(|c| !c.is_group()) {
            for engine in c.engines.iter() {
                // Whatever stands below the opcode.
                for flags in [0, !c.mask] {
                    let found = table.decode(engine, c.value | flags).expect("a row");
                    assert_eq!(found.name, c.name, "{engine:?}");
                    assert_eq!(found.lengths, c.lengths, "{} of {}", c.name, table.name);
                }
            }
        }
    }
}

#[test]
fn the_index_agrees_with_a_search() {
    for table in [&GEN8, &GEN9] {
        for engine in Engine::ALL {
            let rows: Vec<_> = table
                .rows()
                .filter(|c| c.engines.contains(engine))
                .collect();
            for top in 0..=0xffff_u32 {
                let dw0 = top << 16;
                let slow = rows
                    .iter()
                    .filter(|c| dw0 & c.mask == c.value)
                    .max_by_key(|c| c.mask.count_ones());
                let fast = table.decode(engine, dw0);
                assert_eq!(fast.map(|c| c.name), slow.map(|c| c.name), "{dw0:#x}");
            }
        }
    }
}

#[test]
fn rows_make_sense() {
    let mut names = HashSet::new();
    for (table, c) in [&GEN8, &GEN9]
        .into_iter()
        .flat_map(|t| t.rows().map(move |c| (t.name, c)))
    {
        let name = c.name;
        assert!(names.insert((table, name)), "{name} twice");
        assert_eq!(c.value & !c.mask, 0, "{name}");
        match c.length {
            Length::Fixed(n) => assert_eq!(c.lengths, Dwords::Exactly(n), "{name}"),
            Length::Field { mask, bias } => {
                assert!(bias >= 1 && mask & c.mask == 0, "{name}");
                assert!(mask + bias <= MAX_DWORDS, "{name}");
                assert!((mask + 1).is_power_of_two(), "{name}");
                let most = c.lengths.most().unwrap_or(c.lengths.least());
                let possible = bias..=mask + bias;
                assert!(possible.contains(&c.lengths.least()), "{name}");
                assert!(possible.contains(&most), "{name}");
                assert!(c.lengths.least() <= most, "{name}");
            }
        }
        let bits = c.predicate.map_or(0, |bit| 1 << bit);
        assert_eq!(c.mask & bits, 0, "{name}");
    }
}

#[test]
fn every_address_lies_within_the_longest_form() {
    for c in GEN8.rows().chain(GEN9_ONLY) {
        let most = c.lengths.most().unwrap_or(c.lengths.least());
        for a in c.addresses {
            let last = usize::from(a.dword)
                + usize::from(a.each.stride) * usize::from(a.each.count.max(1) - 1)
                + a.dwords();
            assert!(a.dword >= 1 && a.each.stride >= 1, "{}", c.name);
            assert!(
                c.lengths == Dwords::Unsure || last <= usize::try_from(most).unwrap(),
                "{}",
                c.name
            );
        }
        for r in c.registers {
            assert!(r.dword >= 1 && r.each.stride >= 1, "{}", c.name);
        }
        for e in c.sets {
            let end = e.offset + e.dwords * 4;
            assert!(e.offset % 4 == 0 && end <= 0x1000, "{}", c.name);
        }
    }
}

#[test]
fn addresses_are_found_where_they_stand() {
    let found = |engine, words: &[u32]| -> Vec<Address> {
        let item = walk(engine, words).next().unwrap().unwrap();
        item.command.addresses_in(item.words).collect()
    };
    // A post-sync write to the global table.
    let words = [0x7a00_0004, 1 << 24 | 1 << 14, 0x1234_5004, 0, 7, 0];
    let a = found(Engine::Rcs, &words);
    assert_eq!(a.len(), 1);
    assert_eq!((a[0].dword, a[0].address), (2, 0x1234_5004));
    assert!(a[0].global);
    assert_eq!((a[0].touch, a[0].bytes), (Touch::Write, Some(8)));
    // By index, to a register, none at all: no address.
    for flags in [1 << 14 | 1 << 21, 1 << 14 | 1 << 23, 1 << 20] {
        assert_eq!(found(Engine::Rcs, &[0x7a00_0004, flags, 8, 0, 0, 0]), []);
    }
    // Two vertex buffers.
    let words = [0x7808_0007, 0, 0x1000, 1, 0, 0, 0x2000, 2, 0];
    let a: Vec<_> = found(Engine::Rcs, &words)
        .iter()
        .map(|a| (a.dword, a.address, a.global))
        .collect();
    assert_eq!(a, [(2, 0x1_0000_1000, false), (6, 0x2_0000_2000, false)]);
    // A qword to the context's own tables; flags below the address.
    let a = found(Engine::Bcs, &[0x1020_0003, 0x1003, 5, 1, 2]);
    assert_eq!((a[0].address, a[0].bytes), (0x5_0000_1000, Some(8)));
    assert!(!a[0].global);
}

#[test]
fn an_atomic_is_as_wide_as_it_says() {
    let bound = |dw0| {
        let words = [dw0, 0xffc, 0];
        let item = walk(Engine::Rcs, &words).next().unwrap().unwrap();
        let bytes = item.command.addresses_in(item.words).next().unwrap().bytes;
        bytes.unwrap()
    };
    // Add one: 32, 64, 128 bits by the operation; by the field; neither.
    assert_eq!(
        [0x0500, 0x2500, 0x4500, 0x8_0500, 0x10_0500, 0].map(|f| bound(0x1780_0001 | f)),
        [4, 8, 16, 8, 16, 4]
    );
}

#[test]
fn registers_are_found_where_they_stand() {
    let words = [0x1100_0003, 0x2600, 7, 0xff80_2604, 8];
    let item = walk(Engine::Rcs, &words).next().unwrap().unwrap();
    let found: Vec<_> = item
        .command
        .registers_in(item.words)
        .map(|(offset, f, value)| (offset, f.write, value))
        .collect();
    assert_eq!(found, [(0x2600, true, Some(7)), (0x2604, true, Some(8))]);
    let words = [0x7a00_0004, 1 << 23 | 1 << 14, 0x2358, 0, 9, 0];
    let item = walk(Engine::Rcs, &words).next().unwrap().unwrap();
    let found: Vec<_> = item.command.registers_in(item.words).collect();
    assert_eq!((found.len(), found[0].0, found[0].2), (1, 0x2358, Some(9)));
}

#[test]
fn errors_say_what_and_where() {
    let words = [0, 0x7a00_0004, 0];
    let mut w = walk(Engine::Rcs, &words);
    assert!(w.next().unwrap().is_ok());
    let e = w.next().unwrap().unwrap_err();
    assert_eq!(
        std::format!("{e}"),
        "dword 1: PIPE_CONTROL has 6 dwords, but 2 are left"
    );
    assert!(w.next().is_none());
    let e = walk(Engine::Rcs, &[0x1200_0000])
        .next()
        .unwrap()
        .unwrap_err();
    assert_eq!(
        std::format!("{e}"),
        "dword 0: MI_STORE_REGISTER_MEM has 2 dwords, allowed: 4"
    );
    let e = walk(Engine::Bcs, &[0x7a00_0004])
        .next()
        .unwrap()
        .unwrap_err();
    assert_eq!(
        std::format!("{e}"),
        "dword 0: 0x7a000004 is no command of this engine"
    );
}
