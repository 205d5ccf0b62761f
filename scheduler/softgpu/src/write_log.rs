//! Which pages the GPU wrote: the oracle that tests of dirty tracking use.

use std::sync::{Mutex, PoisonError};

use fxhash::FxHashSet;

/// An exact record of the pages a GPU wrote. Nothing but tests and benches may
/// read it.
#[derive(Debug, Default)]
pub struct WriteLog {
    pages: Mutex<FxHashSet<u64>>,
}

impl WriteLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bus addresses of the pages written since the log was made or last
    /// taken, ascending, each a multiple of 4096.
    #[must_use]
    pub fn pages(&self) -> Vec<u64> {
        let mut v: Vec<u64> = self.lock().iter().copied().collect();
        v.sort_unstable();
        v
    }

    /// Like [`WriteLog::pages`], and empties the log.
    #[must_use]
    pub fn take(&self) -> Vec<u64> {
        let mut v: Vec<u64> = self.lock().drain().collect();
        v.sort_unstable();
        v
    }

    /// Notes a write of `len` bytes at `address`: by the GPU, or by what
    /// stands for one.
    pub fn record(&self, address: u64, len: usize) {
        let Some(last) = u64::try_from(len)
            .ok()
            .and_then(|l| l.checked_sub(1))
            .and_then(|l| address.checked_add(l))
        else {
            return;
        };
        let mut pages = self.lock();
        for page in (address >> 12)..=(last >> 12) {
            pages.insert(page << 12);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FxHashSet<u64>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_names_every_page_it_touches() {
        let log = WriteLog::new();
        log.record(0x1ffc, 8);
        log.record(0x5000, 0);
        assert_eq!(log.pages(), [0x1000, 0x2000]);
        assert_eq!(log.take(), [0x1000, 0x2000]);
        assert!(log.pages().is_empty());
    }
}
