//! Which pages were written, for who has to tell a hypervisor that cannot see
//! it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Gfn, GuestMemory, MemoryError, PAGE_SHIFT, for_each_piece};

/// Pages in a word of the map.
const WORD: u64 = 64;

/// The pages written since they were last taken, while that is recorded.
#[derive(Debug, Default)]
pub struct WrittenPages {
    on: AtomicBool,
    /// A bit a page, by gfn / 64. Only guest memory gets in, so it has a
    /// 32768th of that at most, and what goes with it.
    words: Mutex<BTreeMap<u64, u64>>,
}

impl WrittenPages {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // A bit is set or not, whatever became of who set it.
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts with nothing written.
    pub fn start(&self) {
        self.lock().clear();
        self.on.store(true, Ordering::SeqCst);
    }

    /// Stops and forgets.
    pub fn stop(&self) {
        self.on.store(false, Ordering::SeqCst);
        self.lock().clear();
    }

    /// Whether it records.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Notes a write of `len` bytes at `gpa` that was made.
    pub fn note(&self, gpa: u64, len: usize) {
        if len == 0 || !self.is_on() {
            return;
        }
        let bytes = u64::try_from(len).unwrap_or(u64::MAX);
        let last = gpa.saturating_add(bytes - 1) >> PAGE_SHIFT;
        let mut words = self.lock();
        for gfn in gpa >> PAGE_SHIFT..=last {
            *words.entry(gfn / WORD).or_default() |= 1 << (gfn % WORD);
        }
    }

    /// Takes the lowest runs of pages, `most` of them at most, as first frame
    /// and number of frames. They count as not written from now on.
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<(Gfn, u64)> {
        let mut runs: Vec<(Gfn, u64)> = Vec::new();
        let mut words = self.lock();
        while let Some(mut entry) = words.first_entry() {
            let base = entry.key() * WORD;
            let word = entry.get_mut();
            while *word != 0 {
                let gfn = base + u64::from(word.trailing_zeros());
                let full = runs.len() >= most;
                match runs.last_mut() {
                    Some((first, frames)) if first.0 + *frames == gfn => *frames += 1,
                    _ if full => return runs,
                    _ => runs.push((Gfn(gfn), 1)),
                }
                *word &= *word - 1;
            }
            entry.remove();
        }
        runs
    }
}

/// Guest memory whose writes are noted. While they are not recorded that costs
/// a look at a flag.
pub struct Recorder {
    memory: Arc<dyn GuestMemory>,
    written: Arc<WrittenPages>,
}

impl Recorder {
    /// `memory`, with what is written through this noted in `written`.
    #[must_use]
    pub fn new(memory: Arc<dyn GuestMemory>, written: Arc<WrittenPages>) -> Self {
        Self { memory, written }
    }
}

impl GuestMemory for Recorder {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        let result = self.memory.write(gpa, data);
        // One that failed may have written the pages before.
        if result.is_ok() {
            self.written.note(gpa, data.len());
        } else if self.written.is_on() {
            note_what_is_there(&*self.memory, &self.written, gpa, data.len());
        }
        result
    }

    fn read_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        buf: &mut [u8],
    ) -> Result<(), MemoryError> {
        self.memory.read_pieces(gpa, piece, stride, buf)
    }

    fn write_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        let result = self.memory.write_pieces(gpa, piece, stride, data);
        if self.written.is_on() {
            for_each_piece(gpa, piece, stride, data.len(), |at, range| {
                if result.is_ok() {
                    self.written.note(at, range.len());
                } else {
                    note_what_is_there(&*self.memory, &self.written, at, range.len());
                }
                Ok(())
            })?;
        }
        result
    }

    fn mapped_bytes(&self) -> u64 {
        self.memory.mapped_bytes()
    }

    fn invalidate(&self) {
        self.memory.invalidate();
    }
}

/// Notes those pages of a write that are guest memory.
fn note_what_is_there(memory: &dyn GuestMemory, written: &WrittenPages, gpa: u64, len: usize) {
    // It wraps only when nothing was written.
    let _ = crate::for_each_page(gpa, len, |gfn, _, range| {
        if let Some(at) = gfn.address()
            && memory.read(at, &mut [0]).is_ok()
        {
            written.note(at, range.len().min(1));
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VecMemory;

    fn recorder() -> (Recorder, Arc<WrittenPages>) {
        let written = Arc::new(WrittenPages::default());
        let memory = Arc::new(VecMemory::new(200));
        (Recorder::new(memory, Arc::clone(&written)), written)
    }

    fn taken(written: &WrittenPages, most: usize) -> Vec<(u64, u64)> {
        let runs = written.take(most).into_iter();
        runs.map(|(gfn, n)| (gfn.0, n)).collect()
    }

    #[test]
    fn what_is_written_while_it_records_is_taken_once() {
        let (memory, written) = recorder();
        memory.write(0x1000, &[1]).unwrap();
        written.start();
        memory.write(0x3ffe, &[1; 4]).unwrap();
        memory.write(0x3f_fff, &[1; 2]).unwrap();
        memory.write_pieces(0x5_0ff0, 8, 0x10, &[1; 24]).unwrap();
        let mut read = [0; 4];
        memory.read(0x9000, &mut read).unwrap();
        assert_eq!(taken(&written, 2), [(3, 2), (0x3f, 2)]);
        assert_eq!(taken(&written, 9), [(0x50, 2)]);
        assert_eq!(taken(&written, 9), []);
        memory.write(0, &[1]).unwrap();
        written.stop();
        memory.write(0, &[1]).unwrap();
        assert_eq!(taken(&written, 9), []);
    }

    #[test]
    fn a_write_that_fails_part_way_names_what_there_is() {
        let (memory, written) = recorder();
        written.start();
        assert!(memory.write(199 * 4096, &[1; 8192]).is_err());
        assert!(memory.write(u64::MAX - 1, &[1; 8]).is_err());
        assert_eq!(taken(&written, 9), [(199, 1)]);
    }
}
