//! Hashes that do not hold, and pages that they take for one another.

use vgpu_migrate::Page;

use crate::pages;

fn words(page: &Page) -> impl Iterator<Item = u64> {
    page.as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}

/// The published scheme's: exclusive or of the page's 128 lanes of 32 bytes
/// (github.com/mjc0608/gMig-qemu, default branch).
pub fn xor_fold(page: &Page) -> [u8; 32] {
    page.as_chunks::<32>()
        .0
        .iter()
        .fold([0; 32], |mut sum, lane| {
            sum.iter_mut()
                .zip(lane)
                .for_each(|(sum, byte)| *sum ^= byte);
            sum
        })
}

/// FxHash: rotate, exclusive or, multiply (Firefox; crate fxhash).
pub fn fx(page: &Page) -> u64 {
    words(page).fold(0, |hash: u64, word| {
        (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

/// A word's top bit is the one that multiplication by an odd number only
/// copies. Turned by five, it is bit 4 of what meets the next word.
pub fn fx_collision(page: &Page) -> Page {
    pages::flipped(&pages::flipped(page, 800 * 8 + 63), 808 * 8 + 4)
}

fn crc32(page: &Page, polynomial: u32) -> u32 {
    !page.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (polynomial & (crc & 1).wrapping_neg())
        })
    })
}

/// The reflected polynomials of CRC-32 and CRC-32C, without their top term.
const CRC32: u32 = 0xedb8_8320;
const CRC32C: u32 = 0x82f6_3b78;

/// The polynomial itself, laid over the page at `bit`: it leaves no rest.
fn crc_collision(page: &Page, polynomial: u32, bit: usize) -> Page {
    let terms = u64::from(polynomial) << 1 | 1;
    (0..33)
        .filter(|i| terms >> i & 1 == 1)
        .fold(*page, |page, i| pages::flipped(&page, bit + i))
}

const MURMUR: u64 = 0xc6a4_a793_5bd1_e995;

/// MurmurHash64A (Austin Appleby, smhasher, MurmurHash2.cpp).
fn murmur64a(page: &Page, seed: u64) -> u64 {
    let start = seed ^ 4096_u64.wrapping_mul(MURMUR);
    let hash = words(page).fold(start, |hash, word| {
        (hash ^ murmur_mix(word)).wrapping_mul(MURMUR)
    });
    let hash = (hash ^ (hash >> 47)).wrapping_mul(MURMUR);
    hash ^ (hash >> 47)
}

fn murmur_mix(word: u64) -> u64 {
    let word = word.wrapping_mul(MURMUR);
    (word ^ (word >> 47)).wrapping_mul(MURMUR)
}

/// The inverse of [`murmur_mix`].
fn murmur_unmix(word: u64) -> u64 {
    // Newton's iteration doubles the bits that are right; five to begin with.
    let inverse = (0..5).fold(MURMUR, |x: u64, _| {
        x.wrapping_mul(2_u64.wrapping_sub(MURMUR.wrapping_mul(x)))
    });
    let word = word.wrapping_mul(inverse);
    (word ^ (word >> 47)).wrapping_mul(inverse)
}

/// Two neighbours whose mixed words differ in the top bit alone, which every
/// seed carries from one to the other (Aumasson, Bernstein, Boßlet: Hash-
/// flooding DoS reloaded, 2012).
fn murmur_collision(page: &Page, at: usize) -> Page {
    let mut page = *page;
    for word in page[at..at + 16].as_chunks_mut().0 {
        *word = murmur_unmix(murmur_mix(u64::from_le_bytes(*word)) ^ 1 << 63).to_le_bytes();
    }
    page
}

/// The step of wyhash and rapidhash, over each pair of words: multiply one
/// with a word of the secret and one with what came so far, fold the product.
fn wy_fold(page: &Page, seed: u64) -> u64 {
    page.as_chunks::<16>().0.iter().fold(seed, |hash, pair| {
        let pair = u128::from_le_bytes(*pair).to_le_bytes();
        let (low, high) = pair.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let product = u128::from(word(low) ^ WY[1]) * u128::from(word(high) ^ hash);
        let product = product.to_le_bytes();
        word(&product[..8]) ^ word(&product[8..])
    })
}

/// wyhash's default secret (Wang Yi, wyhash.h, final version 4).
const WY: [u64; 4] = [
    0x2d35_8dcc_aa6c_78a5,
    0x8bb8_4b93_962e_acc9,
    0x4b33_a62e_d433_d4a3,
    0x4d5a_2da5_1de1_aa47,
];

/// A first word equal to the secret makes zero of whatever the second is.
fn wy_collision(page: &Page, at: usize) -> (Page, Page) {
    let old = pages::with(page, at, &WY[1].to_le_bytes());
    (old, pages::with(&old, at + 8, &0xdead_u64.to_le_bytes()))
}

/// MD5's first published pair (Wang, Feng, Lai, Yu: Collisions for hash
/// functions, 2004), two blocks.
const MD5: [&str; 2] = [
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89\
     55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b\
     d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0\
     e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70",
    "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f89\
     55ad340609f4b30283e4888325f1415a085125e8f7cdc99fd91dbd7280373c5b\
     d8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0\
     e99f33420f577ee8ce54b67080280d1ec69821bcb6a8839396f965ab6ff72a70",
];

fn md5_collision() -> (Page, Page) {
    let [a, b] = MD5.map(|hex| {
        let byte = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect::<Vec<_>>()
    });
    let page = pages::filled(&[0]);
    (pages::with(&page, 0, &a), pages::with(&page, 0, &b))
}

/// Pairs that collide, by the hash that takes them for one another.
pub fn collisions() -> Vec<(&'static str, Vec<(Page, Page)>)> {
    let olds = || [pages::noise(6), pages::ramp(), [0; 4096], [0xff; 4096]];
    let each = |change: &dyn Fn(&Page) -> Page| olds().map(|old| (old, change(&old))).to_vec();
    vec![
        (
            "xor fold",
            each(&|old| pages::paired_delta(old, 32, 1, 2, 7)),
        ),
        ("fxhash", each(&fx_collision)),
        ("crc-32", each(&|old| crc_collision(old, CRC32, 1003))),
        ("crc-32c", each(&|old| crc_collision(old, CRC32C, 32_000))),
        ("murmurhash64a", each(&|old| murmur_collision(old, 2048))),
        (
            "wyhash's step",
            olds().map(|old| wy_collision(&old, 1600)).to_vec(),
        ),
        ("md5", vec![md5_collision()]),
    ]
}

type Collide = fn(&Page, &Page) -> bool;

/// Whether two pages collide, for the hashes small enough to stand here.
pub fn checks() -> [(&'static str, Collide); 6] {
    [
        ("xor fold", |a, b| xor_fold(a) == xor_fold(b)),
        ("fxhash", |a, b| fx(a) == fx(b)),
        ("crc-32", |a, b| crc32(a, CRC32) == crc32(b, CRC32)),
        ("crc-32c", |a, b| crc32(a, CRC32C) == crc32(b, CRC32C)),
        ("murmurhash64a", |a, b| {
            [0, 1, 0x1234_5678]
                .iter()
                .all(|s| murmur64a(a, *s) == murmur64a(b, *s))
        }),
        ("wyhash's step", |a, b| {
            [0, 1, 0x1234_5678]
                .iter()
                .all(|s| wy_fold(a, *s) == wy_fold(b, *s))
        }),
    ]
}

/// Words of published secrets and multipliers: of wyhash, of XXH3 (Yann
/// Collet, xxhash.h) and of FxHash and MurmurHash.
pub fn secrets() -> Vec<u64> {
    let xxh3 = [
        0xbe4b_a423_396c_feb8,
        0x1cad_2172_1fa8_78ee,
        0x9e37_79b1_85eb_ca87,
        0xc2b2_ae3d_27d4_eb4f,
    ];
    WY.into_iter()
        .chain(xxh3)
        .chain([MURMUR, 0x517c_c1b7_2722_0a95])
        .collect()
}
