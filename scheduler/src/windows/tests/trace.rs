//! How well the table is used, over a generated trace.

use std::collections::{BTreeMap, HashMap};

use super::{Key, guest};
use crate::windows::cache::{Cache, Vacated};
use crate::windows::runs::FreeRuns;

const TABLE: u32 = 4096;

/// Knuth's MMIX generator; its upper half is random enough.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap() % n
    }
}

/// Windows in the order they are used, of lengths as workloads have them:
/// named pages, small contexts and rings, contexts of the render engine, now
/// and then a long ring. Some are used often.
fn trace() -> impl Iterator<Item = Key> {
    let mut random = Random(1);
    let length = |random: &mut Random| match random.below(100) {
        0..40 => 1,
        40..70 => 2 + random.below(4),
        70..95 => 22,
        _ => 33 + random.below(96),
    };
    let keys: Vec<Key> = (0..1024)
        .map(|page| guest(u64::from(page % 40), page, length(&mut random)))
        .collect();
    (0..40_000).map(move |_| {
        let upper = 1 + random.below(1024);
        keys[usize::try_from(random.below(upper)).unwrap()]
    })
}

fn pages(key: Key) -> u32 {
    match key.what {
        super::What::Guest { pages, .. } => pages,
        _ => 0,
    }
}

/// What a way of placing and evicting came to.
#[derive(Debug, Default)]
struct Figures {
    /// Windows that had to be made.
    misses: u64,
    /// Pages of them.
    written: u64,
    /// Pages free when a window found no place, summed, and how often.
    lost: (u64, u64),
}

impl Figures {
    fn holes(&self) -> u64 {
        self.lost.0 / self.lost.1
    }
}

fn ours() -> Figures {
    let mut cache = Cache::new(0, TABLE);
    let mut figures = Figures::default();
    for key in trace() {
        let before = cache.counts();
        let mut vacated = Vacated::default();
        let len = usize::try_from(pages(key)).unwrap();
        let place = cache.acquire(key, len, &mut vacated).unwrap();
        cache.count(place, 0);
        cache.unpin(key);
        if cache.counts().misses > before.misses {
            figures.misses += 1;
            figures.written += u64::from(pages(key));
        }
        if cache.counts().evicted > before.evicted {
            figures.lost.0 += u64::from(before.free_pages);
            figures.lost.1 += 1;
        }
    }
    figures
}

/// The window longest unused goes, wherever it stands, until there is a place.
fn oldest_first(mut allocate: impl FnMut(&mut FreeRuns, u32) -> Option<u32>) -> Figures {
    let mut runs = FreeRuns::new(0, TABLE);
    let mut stands: HashMap<Key, (u32, u64)> = HashMap::new();
    let mut queue: BTreeMap<u64, Key> = BTreeMap::new();
    let mut figures = Figures::default();
    for (now, key) in (0..).zip(trace()) {
        let start = match stands.get(&key) {
            Some(&(start, stamp)) => {
                queue.remove(&stamp);
                start
            }
            None => {
                figures.misses += 1;
                figures.written += u64::from(pages(key));
                loop {
                    if let Some(start) = allocate(&mut runs, pages(key)) {
                        break start;
                    }
                    figures.lost.0 += u64::from(runs.total());
                    figures.lost.1 += 1;
                    let (_, oldest) = queue.pop_first().unwrap();
                    let (start, _) = stands.remove(&oldest).unwrap();
                    runs.free(start, pages(oldest));
                }
            }
        };
        stands.insert(key, (start, now));
        queue.insert(now, key);
    }
    figures
}

/// Pages that are free in holes are pages that others were evicted for.
#[test]
fn making_room_in_one_place_leaves_fewer_holes_and_writes_less() {
    let ours = ours();
    let first = oldest_first(FreeRuns::allocate_lowest);
    let best = oldest_first(FreeRuns::allocate);
    for theirs in [&first, &best] {
        assert!(ours.holes() * 4 < theirs.holes(), "{ours:?} {theirs:?}");
        assert!(ours.written < theirs.written, "{ours:?} {theirs:?}");
    }
}
