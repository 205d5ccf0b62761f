//! A set of address ranges, as Xen's rangeset (common/rangeset.c) with the
//! limit ioreq servers put on it.

use nix::errno::Errno;

/// `MAX_NR_IO_RANGES` of Xen's ioreq.h.
const MOST: usize = 256;

/// Disjoint ranges in ascending order, ends included; neighbours are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    list: Vec<(u64, u64)>,
}

impl Ranges {
    pub(crate) fn contains(&self, start: u64, end: u64) -> bool {
        self.list.iter().any(|&(s, e)| s <= start && end <= e)
    }

    pub(crate) fn add(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        if self.list.iter().any(|&(s, e)| s <= end && start <= e) {
            return Err(Errno::EEXIST);
        }
        let at = self.list.partition_point(|&(s, _)| s < start);
        let joins_left = at > 0 && self.list[at - 1].1.checked_add(1) == Some(start);
        let joins_right = at < self.list.len() && end.checked_add(1) == Some(self.list[at].0);
        match (joins_left, joins_right) {
            (true, true) => {
                self.list[at - 1].1 = self.list[at].1;
                self.list.remove(at);
            }
            (true, false) => self.list[at - 1].1 = end,
            (false, true) => self.list[at].0 = start,
            (false, false) if self.list.len() >= MOST => return Err(Errno::ENOMEM),
            (false, false) => self.list.insert(at, (start, end)),
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let at = self
            .list
            .iter()
            .position(|&(s, e)| s <= start && end <= e)
            .ok_or(Errno::ENOENT)?;
        let (s, e) = self.list[at];
        match (s == start, e == end) {
            (true, true) => {
                self.list.remove(at);
            }
            (true, false) => self.list[at].0 = end + 1,
            (false, true) => self.list[at].1 = start - 1,
            (false, false) if self.list.len() >= MOST => return Err(Errno::ENOMEM),
            (false, false) => {
                self.list[at].1 = start - 1;
                self.list.insert(at + 1, (end + 1, e));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_must_lie_wholly_in_one_range() {
        let mut r = Ranges::default();
        r.add(0x1000, 0x1fff).unwrap();
        assert!(r.contains(0x1ffc, 0x1fff));
        assert!(!r.contains(0x1ffd, 0x2000));
        // Neighbours merge, so an access may then cross.
        r.add(0x2000, 0x2fff).unwrap();
        assert!(r.contains(0x1ffd, 0x2000));
    }

    #[test]
    fn overlap_and_strangers_are_refused() {
        let mut r = Ranges::default();
        r.add(10, 20).unwrap();
        assert_eq!(r.add(20, 30), Err(Errno::EEXIST));
        assert_eq!(r.remove(9, 12), Err(Errno::ENOENT));
        r.remove(12, 14).unwrap();
        assert!(r.contains(10, 11) && r.contains(15, 20) && !r.contains(12, 12));
    }

    #[test]
    fn there_are_256_and_no_more() {
        let mut r = Ranges::default();
        for i in 0..256 {
            r.add(i * 4, i * 4 + 1).unwrap();
        }
        assert_eq!(r.add(5000, 5001), Err(Errno::ENOMEM));
        r.add(2, 3).unwrap();
        r.add(5000, 5001).unwrap();
        assert_eq!(r.remove(5000, 5001), Ok(()));
    }

    #[test]
    fn the_ends_of_the_address_space_do_not_wrap() {
        let mut r = Ranges::default();
        r.add(0, u64::MAX).unwrap();
        r.remove(0, u64::MAX).unwrap();
        r.add(u64::MAX, u64::MAX).unwrap();
        r.add(0, 0).unwrap();
        assert!(r.contains(u64::MAX, u64::MAX));
    }
}
