use gpu_bus::{GGTT_BASE, Gpu};
use proptest::prelude::*;

use super::*;
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
        Some(NoRoom { pages: 3, free: 2 })
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
