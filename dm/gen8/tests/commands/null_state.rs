//! The batch that gives each render context of i915 its first state: every
//! piece of 3D state there is, whatever its value.
//!
//! Source: Linux 6.1 `gt/gen8_renderstate.c:gen8_null_state_batch`.

use gen8::Engine;
use gen8::cmd::walk;

use crate::names;

/// Dwords of it, the state that its commands point to included.
const DWORDS: usize = 944;

/// Dwords that get an address, from `gen8_null_state_relocs`.
const RELOCATED: [usize; 4] = [486, 489, 491, 495];

/// Those that are not 0.
#[rustfmt::skip]
const NOT_ZERO: &[(usize, u32)] = &[
    (0, 0x7a00_0004), (1, 0x100_0000), (6, 0x6904_0000), (7, 0x7814_0000), (8, 0x400_0000),
    (9, 0x7820_000a), (12, 0x8000_0000), (21, 0x7813_0002), (24, 0x200_1808), (25, 0x781f_0002),
    (29, 0x7851_0009), (40, 0x7810_0007), (43, 0x1_0000), (49, 0x781b_0007), (56, 0x800),
    (58, 0x7811_0008), (68, 0x781e_0003), (73, 0x781d_0007), (82, 0x7812_0002), (86, 0x7850_0003),
    (91, 0x781c_0002), (95, 0x780c_0000), (97, 0x7852_0003), (102, 0x7830_0000),
    (103, 0x801_0040), (104, 0x7831_0000), (105, 0x1e00_0000), (106, 0x7832_0000),
    (107, 0x1e00_0000), (108, 0x7833_0000), (109, 0x1e00_0000), (110, 0x7919_0002),
    (114, 0x791a_0002), (118, 0x791b_0002), (122, 0x7912_0000), (124, 0x7913_0000),
    (126, 0x7914_0000), (128, 0x7915_0000), (130, 0x7916_0000), (132, 0x7815_0009),
    (143, 0x7819_0009), (154, 0x781a_0009), (165, 0x7816_0009), (176, 0x7817_0009),
    (187, 0x7849_0001), (190, 0x784a_0000), (192, 0x784b_0000), (193, 0x4), (194, 0x7917_0101),
    (196, 0x80), (453, 0x7918_0006), (461, 0x7918_0006), (462, 0x2000_0000), (469, 0x7918_0006),
    (470, 0x4000_0000), (477, 0x7918_0006), (478, 0x6000_0000), (485, 0x6101_000e), (486, 0x1),
    (489, 0x1), (491, 0x1), (493, 0x1), (495, 0x1), (497, 0x1001), (498, 0x1001), (499, 0x1),
    (500, 0x1001), (501, 0x6102_0001), (504, 0x7900_0002), (508, 0x7805_0006), (516, 0x7904_0002),
    (520, 0x7904_0002), (521, 0x4000_0000), (524, 0x7904_0002), (525, 0x8000_0000),
    (528, 0x7904_0002), (529, 0xc000_0000), (532, 0x7908_0001), (535, 0x790a_0001),
    (538, 0x7806_0003), (543, 0x7807_0003), (548, 0x7804_0001), (551, 0x7911_0000),
    (553, 0x780d_0000), (555, 0x7906_0000), (557, 0x7907_001f), (590, 0x7902_000f),
    (607, 0x790c_000f), (624, 0x780a_0003), (629, 0x7808_0083), (630, 0x4000), (634, 0x400_4000),
    (638, 0x800_4000), (642, 0xc00_4000), (646, 0x1000_4000), (650, 0x1400_4000),
    (654, 0x1800_4000), (658, 0x1c00_4000), (662, 0x2000_4000), (666, 0x2400_4000),
    (670, 0x2800_4000), (674, 0x2c00_4000), (678, 0x3000_4000), (682, 0x3400_4000),
    (686, 0x3800_4000), (690, 0x3c00_4000), (694, 0x4000_4000), (698, 0x4400_4000),
    (702, 0x4800_4000), (706, 0x4c00_4000), (710, 0x5000_4000), (714, 0x5400_4000),
    (718, 0x5800_4000), (722, 0x5c00_4000), (726, 0x6000_4000), (730, 0x6400_4000),
    (734, 0x6800_4000), (738, 0x6c00_4000), (742, 0x7000_4000), (746, 0x7400_4000),
    (750, 0x7800_4000), (754, 0x7c00_4000), (758, 0x8000_4000), (762, 0x7809_0043),
    (763, 0x200_0000), (764, 0x2222_0000), (831, 0x680b_0001), (832, 0x7826_0000),
    (834, 0x7827_0000), (836, 0x7828_0000), (838, 0x7829_0000), (840, 0x782a_0000),
    (842, 0x780e_0000), (843, 0xdc1), (844, 0x7824_0000), (845, 0xe01), (846, 0x784f_0000),
    (847, 0x8000_0100), (848, 0x784d_0000), (849, 0x4000_0000), (850, 0x782b_0000),
    (852, 0x782c_0000), (854, 0x782d_0000), (856, 0x782e_0000), (858, 0x782f_0000),
    (860, 0x780f_0000), (862, 0x7823_0000), (863, 0xe60), (864, 0x7821_0000), (865, 0xe80),
    (866, 0x7b00_0005), (867, 0x4), (868, 0x1), (870, 0x1), (873, 0x500_0000), (882, 0x3f80_0000),
    (883, 0x3f80_0000), (884, 0x3f80_0000), (885, 0x3f80_0000),
];

fn batch() -> Vec<u32> {
    let mut words = vec![0; DWORDS];
    for &(at, dword) in NOT_ZERO {
        words[at] = dword;
    }
    words
}

#[test]
fn it_decodes_whole() {
    let words = batch();
    let end = words.iter().position(|w| *w == 0x0500_0000).unwrap();
    let found = names(Engine::Rcs, &words[..=end]);
    assert_eq!(found.len(), 84);
    assert_eq!(found.last(), Some(&"MI_BATCH_BUFFER_END"));
    assert_eq!(found[found.len() - 2], "3DPRIMITIVE");
    // Nothing of it is known by its group only.
    for item in walk(Engine::Rcs, &words[..=end]).flatten() {
        assert!(!item.command.is_group(), "{}", item.command.name);
    }
    // The long ones, by which a scanner would lose step.
    let longest: Vec<_> = walk(Engine::Rcs, &words[..=end])
        .flatten()
        .filter(|i| i.words.len() > 16)
        .map(|i| (i.command.name, i.words.len()))
        .collect();
    assert_eq!(
        longest,
        [
            ("3DSTATE_SO_DECL_LIST", 259),
            ("3DSTATE_POLY_STIPPLE_PATTERN", 33),
            ("3DSTATE_SAMPLER_PALETTE_LOAD0", 17),
            ("3DSTATE_SAMPLER_PALETTE_LOAD1", 17),
            ("3DSTATE_VERTEX_BUFFERS", 133),
            ("3DSTATE_VERTEX_ELEMENTS", 69),
        ]
    );
}

#[test]
fn its_relocations_are_address_fields() {
    let words = batch();
    let mut fields = Vec::new();
    for item in walk(Engine::Rcs, &words).map_while(Result::ok) {
        let addresses = item.command.addresses_in(item.words);
        fields.extend(addresses.map(|a| item.offset + a.dword));
        if item.ends() {
            break;
        }
    }
    for at in RELOCATED {
        assert!(fields.contains(&at), "dword {at} not in {fields:?}");
    }
}
