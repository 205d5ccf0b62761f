use std::collections::HashMap;

use gpu_bus::{GGTT_BASE, Gpu};
use proptest::prelude::*;

use super::*;

mod trace;
use crate::dma::{DmaSpace, HostPages};

/// A GPU that is nothing but its table.
struct Table(Vec<AtomicU64>);

impl Gpu for Table {
    fn read32(&self, _offset: u32) -> u32 {
        0
    }
    fn write32(&self, _offset: u32, _value: u32) {}
    fn read64(&self, _offset: u32) -> u64 {
        0
    }
    fn write64(&self, offset: u32, value: u64) {
        let index = usize::try_from((offset - GGTT_BASE) / 8).unwrap();
        self.0[index].store(value, Ordering::Relaxed);
    }
}

fn windows(pages: u32) -> (Arc<Table>, Arc<Windows>) {
    let table = Arc::new(Table((0..=pages).map(|_| AtomicU64::new(0)).collect()));
    let gpu: Arc<dyn Gpu> = Arc::clone(&table) as _;
    let own = HostPages::new(Arc::new(DmaSpace::new()), 8);
    let windows = Windows::with_pages(
        Arc::new(Registers::new(gpu)),
        own.allocate().unwrap(),
        1,
        pages,
    );
    (table, windows)
}

fn guest(vgpu: u64, page: u32, pages: u32) -> Key {
    Key {
        vgpu,
        what: What::Guest { page, pages },
    }
}

#[test]
fn an_entry_is_written_once_while_it_stays_the_same() {
    let (table, windows) = windows(8);
    let pin = windows.pin(guest(1, 5, 2), &[0x1001, 0x2001]).unwrap();
    assert_eq!(pin.wrote, 2);
    let at = usize::try_from(pin.address() >> 12).unwrap();
    drop(pin);
    let pin = windows.pin(guest(1, 5, 2), &[0x1001, 0x3001]).unwrap();
    assert_eq!(pin.wrote, 1);
    assert_eq!(table.0[at].load(Ordering::Relaxed), 0x1001);
    assert_eq!(table.0[at + 1].load(Ordering::Relaxed), 0x3001);
}

#[test]
fn a_full_table_evicts_what_is_longest_unused_but_nothing_pinned() {
    let (_table, windows) = windows(4);
    let a = windows.pin(guest(1, 1, 2), &[1, 1]).unwrap();
    drop(windows.pin(guest(1, 3, 1), &[1]).unwrap());
    drop(windows.pin(guest(1, 4, 1), &[1]).unwrap());
    drop(windows.pin(guest(1, 3, 1), &[1]).unwrap());
    drop(windows.pin(guest(2, 9, 1), &[1]).unwrap());
    assert_eq!(windows.counts().evicted, 1);
    // Page 3 was used after page 4 and is still there.
    assert_eq!(windows.pin(guest(1, 3, 1), &[1]).unwrap().wrote, 0);
    assert_eq!(
        windows.pin(guest(2, 1, 3), &[1, 1, 1]).err(),
        Some(NoRoom::Table { pages: 3, free: 0 })
    );
    drop(a);
    assert!(windows.pin(guest(2, 1, 3), &[1, 1, 1]).is_ok());
}

#[test]
fn a_vgpu_that_goes_leaves_no_entry_behind() {
    let (table, windows) = windows(8);
    drop(windows.pin(guest(1, 5, 2), &[0x1001, 0x2001]).unwrap());
    let other = windows.pin(guest(2, 5, 1), &[0x7001]).unwrap();
    windows.forget_vgpu(1);
    let left: Vec<u64> = table.0.iter().map(|e| e.load(Ordering::Relaxed)).collect();
    assert!(!left.contains(&0x1001) && !left.contains(&0x2001));
    assert!(left.contains(&0x7001));
    assert_eq!(windows.counts().windows, 1);
    drop(other);
}

#[test]
fn what_is_evicted_is_named_by_the_table_no_more() {
    let (table, windows) = windows(8);
    drop(windows.pin(guest(1, 1, 4), &[0x1001; 4]).unwrap());
    drop(windows.pin(guest(1, 5, 4), &[0x2001; 4]).unwrap());
    // Room for three: one window of four goes, and one page is left over.
    let pin = windows.pin(guest(2, 1, 3), &[0x7001; 3]).unwrap();
    assert_eq!(pin.wrote, 4);
    let held: Vec<u64> = table.0.iter().map(|e| e.load(Ordering::Relaxed)).collect();
    assert!(!held.contains(&0x1001));
    assert!(held.contains(&windows.scratch_entry()));
    // Another length under the same name is another window.
    drop(pin);
    let key = Key {
        vgpu: 2,
        what: What::Ring { page: 9 },
    };
    drop(windows.pin(key, &[0x8001; 3]).unwrap());
    drop(windows.pin(key, &[0x8001]).unwrap());
    let held = table.0.iter().map(|e| e.load(Ordering::Relaxed));
    assert_eq!(held.filter(|e| *e == 0x8001).count(), 1);
}

#[test]
fn room_is_made_in_one_place() {
    let (_table, windows) = windows(8);
    // A page each; those at odd places were used first.
    let pages = [1, 3, 5, 7, 2, 4, 6, 8];
    let pins: Vec<Pin> = (1..=8)
        .map(|page| windows.pin(guest(1, page, 1), &[1]).unwrap())
        .collect();
    let mut pins: HashMap<u32, Pin> = (1..).zip(pins).collect();
    for page in pages {
        drop(pins.remove(&page));
    }
    // The oldest four would leave holes of one page.
    drop(windows.pin(guest(2, 1, 2), &[1, 1]).unwrap());
    assert_eq!(windows.counts().evicted, 2);
    // What is pinned is gone around.
    let _held = windows.pin(guest(1, 4, 1), &[1]).unwrap();
    assert!(windows.pin(guest(3, 1, 4), &[1; 4]).is_ok());
    assert!(windows.pin(guest(4, 1, 5), &[1; 5]).is_err());
}

#[test]
fn nobody_takes_more_than_its_share() {
    let (_table, windows) = windows(64);
    windows.set_limits(
        1,
        WindowLimits {
            windows: 4,
            pages: 8,
            pinned: 6,
        },
    );
    drop(windows.pin(guest(2, 1, 1), &[1]).unwrap());
    // It goes through its own windows.
    for page in 1..40 {
        drop(windows.pin(guest(1, page, 3), &[1; 3]).unwrap());
    }
    let share = windows.share(1);
    assert_eq!((share.windows, share.pages, share.evicted), (2, 6, 37));
    assert_eq!(windows.share(2).evicted, 0);
    // In use at a time.
    let held = [1, 4].map(|page| windows.pin(guest(1, page, 3), &[1; 3]).unwrap());
    let refused = windows.pin(guest(1, 9, 1), &[1]).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "a window of 1 pages beside 2 windows in use, which are 6 pages; \
         a vGPU may use 4 windows at a time, 6 pages"
    );
    assert_eq!(windows.share(1).refused, 1);
    assert!(windows.pin(guest(2, 9, 1), &[1]).is_ok());
    drop(held);
    let windows_of_one: Vec<Pin> = (1..=4)
        .map(|page| windows.pin(guest(1, page, 1), &[1]).unwrap())
        .collect();
    assert!(windows.pin(guest(1, 9, 1), &[1]).is_err());
    drop(windows_of_one);
    windows.forget_vgpu(1);
    assert_eq!(windows.share(1), ShareCounts::default());
}

proptest! {
    /// Pinned windows never overlap, and the table always shows through a
    /// pin what was asked for.
    #[test]
    fn pinned_windows_are_apart_and_show_what_they_should(
        ops in prop::collection::vec((0u8..3, 1u64..3, 1u32..6, 1u32..5, any::<prop::sample::Index>()), 1..120)
    ) {
        const PAGES: u32 = 16;
        let (table, windows) = windows(PAGES);
        let mut held: Vec<(Pin, Key, Vec<u64>)> = Vec::new();
        for (op, vgpu, page, pages, which) in ops {
            if op == 0 && !held.is_empty() {
                held.swap_remove(which.index(held.len()));
            } else {
                let key = guest(vgpu, page, pages);
                let entries: Vec<u64> = (0..pages)
                    .map(|i| (vgpu << 32) | (u64::from(page + i) << 12) | 1)
                    .collect();
                match windows.pin(key, &entries) {
                    Ok(pin) => held.push((pin, key, entries)),
                    Err(_) => {
                        // Only when the pinned ones leave no gap that fits.
                        let mut used = vec![false; usize::try_from(PAGES).unwrap() + 1];
                        for (pin, _, e) in &held {
                            let at = usize::try_from(pin.address() >> 12).unwrap();
                            used[at..at + e.len()].fill(true);
                        }
                        let gap = used[1..].split(|u| *u).map(<[bool]>::len).max().unwrap();
                        prop_assert!(gap < usize::try_from(pages).unwrap());
                    }
                }
            }
            // Where no window stands, nothing is named.
            let stands: Vec<u32> = lock(&windows.inner).cache.covered().flatten().collect();
            for index in (1..=PAGES).filter(|index| !stands.contains(index)) {
                let have = table.0[usize::try_from(index).unwrap()].load(Ordering::Relaxed);
                prop_assert!(have == 0 || have == windows.scratch_entry(), "{}: {:#x}", index, have);
            }
            let mut owner: HashMap<u32, Key> = HashMap::new();
            for (pin, key, entries) in &held {
                for (i, want) in (0u32..).zip(entries) {
                    let index = (pin.address() >> 12) + i;
                    prop_assert!((1..=PAGES).contains(&index));
                    prop_assert_eq!(*owner.entry(index).or_insert(*key), *key);
                    let have = table.0[usize::try_from(index).unwrap()].load(Ordering::Relaxed);
                    prop_assert_eq!(have, *want);
                }
            }
        }
    }
}
