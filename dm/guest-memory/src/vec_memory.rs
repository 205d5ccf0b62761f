//! Guest memory in this process, for tests and simulated guests.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{GuestMemory, MemoryError, PAGE_SIZE, for_each_page};

const QWORDS_PER_PAGE: usize = PAGE_SIZE / 8;

/// Contiguous memory from frame 0, shared between threads.
pub struct VecMemory {
    qwords: Vec<AtomicU64>,
}

impl VecMemory {
    /// Zeroed memory of `pages` pages.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self {
            qwords: (0..pages * QWORDS_PER_PAGE)
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// The number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.qwords.len() / QWORDS_PER_PAGE
    }

    /// Visits the qwords behind a range with the byte range of each and the
    /// matching range of the caller's buffer.
    fn visit(
        &self,
        gpa: u64,
        len: usize,
        mut f: impl FnMut(&AtomicU64, std::ops::Range<usize>, std::ops::Range<usize>),
    ) -> Result<(), MemoryError> {
        for_each_page(gpa, len, |gfn, offset, range| {
            let page = usize::try_from(gfn.0)
                .ok()
                .filter(|&g| g < self.pages())
                .ok_or(MemoryError::Unmapped(gfn))?;
            let mut at = page * PAGE_SIZE + offset;
            let mut done = range.start;
            while done < range.end {
                let in_word = at % 8;
                let n = (8 - in_word).min(range.end - done);
                f(&self.qwords[at / 8], in_word..in_word + n, done..done + n);
                at += n;
                done += n;
            }
            Ok(())
        })
    }
}

impl GuestMemory for VecMemory {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.visit(gpa, buf.len(), |word, bytes, range| {
            let value = word.load(Ordering::Acquire).to_le_bytes();
            buf[range].copy_from_slice(&value[bytes]);
        })
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.visit(gpa, data.len(), |word, bytes, range| {
            if bytes.len() == 8 {
                let mut value = [0; 8];
                value.copy_from_slice(&data[range]);
                word.store(u64::from_le_bytes(value), Ordering::Release);
                return;
            }
            // Part of a qword: another thread may write the other part.
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
                let mut value = old.to_le_bytes();
                value[bytes.clone()].copy_from_slice(&data[range.clone()]);
                Some(u64::from_le_bytes(value))
            });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_writes_across_pages_read_back() {
        let memory = VecMemory::new(2);
        let data: Vec<u8> = (1..=21).collect();
        memory.write(0xff5, &data).unwrap();
        let mut back = vec![0; 23];
        memory.read(0xff4, &mut back).unwrap();
        assert_eq!(back[0], 0);
        assert_eq!(back[1..22], data[..]);
        assert_eq!(back[22], 0);
    }

    #[test]
    fn past_the_end_is_an_error_naming_the_frame() {
        let memory = VecMemory::new(1);
        assert_eq!(
            memory.read_u32(0xffe),
            Err(MemoryError::Unmapped(crate::Gfn(1)))
        );
    }
}
