use proptest::prelude::*;

use super::*;

/// NH with words of `width` bits, `SUMS` times over, each with the key moved
/// on by `step` words: by the formula.
fn model(width: u32, step: usize, words: &[u32], key: &[u32]) -> [u64; SUMS] {
    let word = u64::MAX >> (64 - width);
    let sum = u64::MAX >> (64 - 2 * width);
    std::array::from_fn(|n| {
        let pairs = words.chunks(2).zip(key[n * step..].chunks(2));
        let terms = pairs.map(|(m, k)| {
            let with_key = |i: usize| (u64::from(m[i]) + u64::from(k[i])) & word;
            with_key(0).wrapping_mul(with_key(1))
        });
        terms.fold(0_u64, u64::wrapping_add) & sum
    })
}

fn key(seed: u64) -> Key {
    let mut bytes = [0; Key::LEN];
    let mut x = seed;
    for word in bytes.as_chunks_mut().0 {
        // splitmix64.
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        *word = (z ^ (z >> 27)).to_le_bytes();
    }
    Key::from_bytes(&bytes)
}

fn page(words: &[u32]) -> Page {
    let mut page = [0; 4096];
    for (to, word) in page.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    page
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_is_the_formula(seed: u64, words in proptest::collection::vec(any::<u32>(), 1024)) {
        let key = key(seed);
        let page = page(&words);
        let digest = key.digest(&page);
        prop_assert_eq!(digest.0, model(32, LINE / 4, &words, key.lines.as_flattened()));
        prop_assert_eq!(digest.0, kernel::plain(&key.lines, &page));
        let other = [7; 4096];
        let together = key.digests([&page, &other, &page, &page, &page, &page, &page, &other]);
        prop_assert!(together[0] == digest && together[6] == digest);
        prop_assert!(together[7] == key.digest(&other));
    }
}

/// Every processor's way gives the same: the key may be made on one thread
/// and used on another, but a digest never outlives its process, so this is
/// only so that a test on one machine speaks for others.
#[test]
fn words_at_their_ends_add_up_the_same() {
    let words = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for seed in 0..4 {
        let key = key(seed);
        for offset in 0..words.len() {
            let words: Vec<_> = words
                .iter()
                .cycle()
                .skip(offset)
                .take(1024)
                .copied()
                .collect();
            let page = page(&words);
            assert_eq!(key.digest(&page).0, kernel::plain(&key.lines, &page));
        }
    }
}

/// The theorem, for words of one bit, two pairs, four sums, each pair of
/// messages: at most one key in (2^1)^4 gives both the same four sums.
#[test]
fn the_bound_holds_where_all_cases_can_be_tried() {
    let bits = |n: u32, len: u32| (0..len).map(|bit| n >> bit & 1).collect::<Vec<_>>();
    // Two words for each pair, and for each further sum.
    let key_bits = 4 + 2 * (u32::try_from(SUMS).unwrap() - 1);
    let keys = 1_u32 << key_bits;
    let mut collisions = [[0_u32; 16]; 16];
    for key in 0..keys {
        let key = bits(key, key_bits);
        let sums = [(); 16].map({
            let mut message = 0;
            move |()| {
                let sums = model(1, 2, &bits(message, 4), &key);
                message += 1;
                sums
            }
        });
        for a in 0..16 {
            for b in 0..16 {
                collisions[a][b] += u32::from(sums[a] == sums[b]);
            }
        }
    }
    for (a, row) in collisions.iter().enumerate() {
        for (b, &count) in row.iter().enumerate().filter(|(b, _)| a != *b) {
            assert!(count <= keys / 16, "{a:b} and {b:b}");
        }
    }
}

#[test]
fn keys_are_fresh_and_secret() {
    let (a, b) = (Key::fresh().unwrap(), Key::fresh().unwrap());
    assert!(a.lines != b.lines);
    // Filled to the end.
    assert!(
        a.lines
            .iter()
            .all(|line| line.iter().any(|&word| word != 0))
    );
    assert!(a.digest(&[0; 4096]) != b.digest(&[0; 4096]));
    assert_eq!(
        format!("{a:?} {:?}", a.digest(&[0; 4096])),
        "Key(secret) Digest(secret)"
    );
}
