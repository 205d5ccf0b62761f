//! Guest memory that knows who looks at it, and changes under their eyes.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu_bus::{Dma, DmaFault};
use guest_memory::{Gfn, GuestMemory, MemoryError, PAGE_SIZE, VecMemory};
use vgpu_sched::dma::DmaSpace;

thread_local! {
    /// The guest whose memory this thread reached last.
    static REACHED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whose memory this thread's last access through [`Bus`] reached; `None`:
/// vgpud's own.
pub(crate) fn reached() -> Option<u64> {
    REACHED.get()
}

/// The GPU's bus, which notes whose memory each access reaches.
pub(crate) struct Bus(pub Arc<DmaSpace>);

impl Dma for Bus {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        REACHED.set(None);
        self.0.read(address, buf)
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        REACHED.set(None);
        self.0.write(address, data)
    }
}

/// What is written when somebody has read a frame.
#[derive(Clone, Debug)]
pub(crate) struct Trap {
    /// The frame.
    pub gfn: u64,
    /// Reads of it that go by before.
    pub after: u8,
    /// Where the dwords go.
    pub at: u64,
    /// The dwords.
    pub words: Vec<u32>,
}

/// Traps that are set at a time.
const TRAPS: usize = 16;

/// A guest's memory as vgpud and the GPU reach it.
pub(crate) struct Memory {
    id: u64,
    frames: VecMemory,
    touched: AtomicU64,
    armed: AtomicBool,
    traps: Mutex<Vec<Trap>>,
    sprung: AtomicU64,
    holed: AtomicBool,
    holes: Mutex<HashSet<u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Zeroed memory of the guest `id`.
    pub fn new(id: u64, pages: usize) -> Self {
        Self {
            id,
            frames: VecMemory::new(pages),
            touched: AtomicU64::new(0),
            armed: AtomicBool::new(false),
            traps: Mutex::default(),
            sprung: AtomicU64::new(0),
            holed: AtomicBool::new(false),
            holes: Mutex::default(),
        }
    }

    /// As the guest's own processor reaches it.
    pub const fn guest(&self) -> &VecMemory {
        &self.frames
    }

    /// Accesses of anybody but the guest so far.
    pub fn touched(&self) -> u64 {
        self.touched.load(SeqCst)
    }

    /// Sets a trap; the oldest goes for it when there are many.
    pub fn set(&self, trap: Trap) {
        let mut traps = lock(&self.traps);
        if traps.len() >= TRAPS {
            traps.remove(0);
        }
        traps.push(trap);
        self.armed.store(true, SeqCst);
    }

    /// Traps that went off so far.
    pub fn sprung(&self) -> u64 {
        self.sprung.load(SeqCst)
    }

    /// Takes a frame away.
    pub fn punch(&self, gfn: u64) {
        lock(&self.holes).insert(gfn);
        self.holed.store(true, SeqCst);
    }

    /// Gives all frames back.
    pub fn mend(&self) {
        lock(&self.holes).clear();
        self.holed.store(false, SeqCst);
    }

    fn enter(&self, gpa: u64, len: usize) -> Result<(), MemoryError> {
        self.touched.fetch_add(1, SeqCst);
        if !self.holed.load(SeqCst) {
            return Ok(());
        }
        let holes = lock(&self.holes);
        let last = gpa.saturating_add(u64::try_from(len).unwrap_or(0).saturating_sub(1));
        let hole = (gpa >> 12..=last >> 12).find(|gfn| holes.contains(gfn));
        hole.map_or(Ok(()), |gfn| Err(MemoryError::Unmapped(Gfn(gfn))))
    }

    fn spring(&self, gpa: u64) {
        if !self.armed.load(SeqCst) {
            return;
        }
        let mut traps = lock(&self.traps);
        let mut due = Vec::new();
        traps.retain_mut(|trap| {
            if trap.gfn != gpa >> 12 {
                return true;
            }
            if trap.after > 0 {
                trap.after -= 1;
                return true;
            }
            due.push(trap.clone());
            false
        });
        if traps.is_empty() {
            self.armed.store(false, SeqCst);
        }
        drop(traps);
        for trap in due {
            // Where there is no memory nothing changes.
            let _ = super::put(&self.frames, trap.at, &trap.words);
            self.sprung.fetch_add(1, SeqCst);
        }
    }

    /// Qwords of the frames `from..to`, in order.
    pub fn qwords(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        (from..to).flat_map(|gfn| {
            let mut page = [0; PAGE_SIZE];
            let read = self.frames.read(gfn << 12, &mut page);
            let words: Vec<u64> = page
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| u64::from_le_bytes(*b))
                .collect();
            read.map_or(Vec::new(), |()| words)
        })
    }
}

impl GuestMemory for Memory {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.enter(gpa, buf.len())?;
        self.frames.read(gpa, buf)?;
        REACHED.set(Some(self.id));
        self.spring(gpa);
        Ok(())
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.enter(gpa, data.len())?;
        self.frames.write(gpa, data)?;
        REACHED.set(Some(self.id));
        Ok(())
    }
}
