//! A guest's memory through foreign mappings.
//!
//! Frames are mapped in pieces of 512 (2 MiB) that stay cached up to a
//! limit. A hit takes a shared lock, a table look-up and a bit test; the
//! lock is held while bytes are copied, so a piece cannot be unmapped under
//! an access. Mapping is done without the lock.
//!
//! Foreign writes are not seen by Xen's log-dirty; whoever writes tells it
//! with `DeviceModel::modified_memory`.

mod piece;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use fxhash::FxHashMap;
use guest_memory::{Gfn, GuestMemory, MemoryError, PAGE_SIZE, for_each_page, for_each_piece};
use nix::errno::Errno;

use self::piece::{PIECE_FRAMES, Piece, Slot};
use crate::{Access, DomId, ForeignMap, Privcmd};

/// How [`ForeignMemory`] caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignMemoryConfig {
    /// Most bytes of address space to keep mapped, at least 2 MiB. A mapped
    /// frame cannot leave the guest, so ballooning wants this small.
    pub cache_bytes: u64,
    /// How often a frame that is paged out is asked for again, a millisecond
    /// apart, before the access fails.
    pub paged_out_retries: u32,
}

impl Default for ForeignMemoryConfig {
    /// 64 MiB, 100 retries.
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            paged_out_retries: 100,
        }
    }
}

/// What the cache did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignMemoryStats {
    /// Pieces mapped.
    pub mapped: u64,
    /// Pieces given up for others.
    pub evicted: u64,
    /// Accesses to frames the guest does not have.
    pub missing: u64,
    /// Times everything was dropped.
    pub invalidated: u64,
    /// Pieces cached now.
    pub cached: u64,
}

#[derive(Default)]
struct Cache {
    pieces: FxHashMap<u64, Piece>,
    /// Counts invalidations: a mapping begun before one must not be kept.
    epoch: u64,
}

#[derive(Default)]
struct Counters {
    mapped: AtomicU64,
    evicted: AtomicU64,
    missing: AtomicU64,
    invalidated: AtomicU64,
}

/// The memory of one domain.
pub struct ForeignMemory {
    privcmd: Arc<dyn Privcmd>,
    domid: DomId,
    config: ForeignMemoryConfig,
    cache: RwLock<Cache>,
    /// Advances with each miss; stamps of use are taken from it.
    clock: AtomicU64,
    counters: Counters,
}

/// Why a piece could not be had.
enum Missing {
    /// The guest has no such frame.
    NotThere,
    /// Mapping failed as a whole.
    Failed(String),
}

impl ForeignMemory {
    /// The memory of `domid`; nothing is mapped yet.
    #[must_use]
    pub fn new(privcmd: Arc<dyn Privcmd>, domid: DomId, config: ForeignMemoryConfig) -> Self {
        Self {
            privcmd,
            domid,
            config,
            cache: RwLock::default(),
            clock: AtomicU64::new(1),
            counters: Counters::default(),
        }
    }

    /// The domain.
    #[must_use]
    pub fn domid(&self) -> DomId {
        self.domid
    }

    /// What the cache did so far.
    #[must_use]
    pub fn stats(&self) -> ForeignMemoryStats {
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        ForeignMemoryStats {
            mapped: count(&self.counters.mapped),
            evicted: count(&self.counters.evicted),
            missing: count(&self.counters.missing),
            invalidated: count(&self.counters.invalidated),
            cached: u64::try_from(self.lock().pieces.len()).unwrap_or(u64::MAX),
        }
    }

    fn lock(&self) -> RwLockReadGuard<'_, Cache> {
        // Nothing that holds the lock can leave the table half changed.
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_mut(&self) -> RwLockWriteGuard<'_, Cache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on the page of `gfn`, mapping it first if need be.
    fn with_page(&self, gfn: Gfn, f: impl FnOnce(Slot<'_>)) -> Result<(), MemoryError> {
        let number = gfn.0 / PIECE_FRAMES;
        let cache = self.lock();
        let known = cache.pieces.get(&number);
        if let Some(piece) = known
            && let Some(slot) = piece.slot(gfn)
        {
            piece.stamp(self.clock.load(Ordering::Relaxed));
            f(slot);
            return Ok(());
        }
        let (known, epoch) = (known.is_some(), cache.epoch);
        drop(cache);
        let piece = self.fetch(gfn, known).map_err(|missing| match missing {
            Missing::NotThere => {
                self.counters.missing.fetch_add(1, Ordering::Relaxed);
                MemoryError::Unmapped(gfn)
            }
            Missing::Failed(reason) => MemoryError::Host { gfn, reason },
        })?;
        let slot = piece.slot(gfn).ok_or(MemoryError::Unmapped(gfn))?;
        // The frame was the guest's after this access began, so the access
        // stands even when an invalidation overtakes it.
        f(slot);
        self.keep(number, piece, epoch);
        Ok(())
    }

    /// Maps the piece of `gfn`.
    fn fetch(&self, gfn: Gfn, known: bool) -> Result<Piece, Missing> {
        // Beyond the 52 address bits of x86 there is nothing.
        if gfn.0 >> 40 != 0 {
            return Err(Missing::NotThere);
        }
        if known {
            // The piece is there without this frame. Ask for the frame alone
            // first: a guest may touch its hole as often as it likes.
            self.map(&[gfn.0], gfn)?;
        }
        let first = gfn.0 / PIECE_FRAMES * PIECE_FRAMES;
        let gfns: Vec<u64> = (first..first + PIECE_FRAMES).collect();
        let map = self.map(&gfns, gfn)?;
        self.counters.mapped.fetch_add(1, Ordering::Relaxed);
        Ok(Piece::new(map, self.clock.fetch_add(1, Ordering::Relaxed)))
    }

    /// Caches a piece, unless mappings were invalidated since `epoch`.
    fn keep(&self, number: u64, piece: Piece, epoch: u64) {
        // Dropped, and with it unmapped, after the lock.
        let mut given_up = Vec::new();
        let mut cache = self.lock_mut();
        if cache.epoch == epoch {
            given_up.extend(cache.pieces.insert(number, piece));
            let limit = self.limit();
            while cache.pieces.len() > limit {
                let oldest = cache
                    .pieces
                    .iter()
                    .filter(|(n, _)| **n != number)
                    .min_by_key(|(_, piece)| piece.stamped())
                    .map(|(n, _)| *n);
                let Some(oldest) = oldest else { break };
                given_up.extend(cache.pieces.remove(&oldest));
                self.counters.evicted.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            given_up.push(piece);
        }
        drop(cache);
        drop(given_up);
    }

    /// Pieces that may be cached.
    fn limit(&self) -> usize {
        let pieces = self.config.cache_bytes / Piece::BYTES;
        usize::try_from(pieces.max(1)).unwrap_or(usize::MAX)
    }

    /// Maps frames of which `wanted` must come out mapped.
    fn map(&self, gfns: &[u64], wanted: Gfn) -> Result<ForeignMap, Missing> {
        let at = gfns.iter().position(|g| *g == wanted.0);
        let mut tries = 0;
        loop {
            let map = self
                .privcmd
                .map_foreign(self.domid, gfns, Access::ReadWrite)
                .map_err(|e| Missing::Failed(e.to_string()))?;
            let error = at.and_then(|at| map.errors.get(at).copied().flatten());
            match error {
                None => return Ok(map),
                Some(Errno::ENOENT) if tries < self.config.paged_out_retries => {
                    tries += 1;
                    drop(map);
                    // The pager works in another process.
                    std::thread::sleep(Duration::from_millis(1));
                }
                Some(Errno::ENOENT) => {
                    return Err(Missing::Failed("paged out, and stays so".into()));
                }
                Some(errno) => {
                    log::trace!("{}: {wanted}: {errno}", self.domid);
                    return Err(Missing::NotThere);
                }
            }
        }
    }
}

impl GuestMemory for ForeignMemory {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        for_each_page(gpa, buf.len(), |gfn, offset, range| {
            self.with_page(gfn, |slot| slot.read(offset, &mut buf[range.clone()]))
        })
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        for_each_page(gpa, data.len(), |gfn, offset, range| {
            self.with_page(gfn, |slot| slot.write(offset, &data[range.clone()]))
        })
    }

    fn read_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        buf: &mut [u8],
    ) -> Result<(), MemoryError> {
        if !one_page(gpa, piece, stride, buf.len()) {
            return for_each_piece(gpa, piece, stride, buf.len(), |at, range| {
                self.read(at, &mut buf[range])
            });
        }
        self.with_page(Gfn::containing(gpa), |slot| {
            // All in the page of the first, so within its slot.
            let _ = for_each_piece(gpa & 0xfff, piece, stride, buf.len(), |at, range| {
                slot.read(usize::try_from(at).unwrap_or(0), &mut buf[range]);
                Ok(())
            });
        })
    }

    fn write_pieces(
        &self,
        gpa: u64,
        piece: usize,
        stride: usize,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        if !one_page(gpa, piece, stride, data.len()) {
            return for_each_piece(gpa, piece, stride, data.len(), |at, range| {
                self.write(at, &data[range])
            });
        }
        self.with_page(Gfn::containing(gpa), |slot| {
            let _ = for_each_piece(gpa & 0xfff, piece, stride, data.len(), |at, range| {
                slot.write(usize::try_from(at).unwrap_or(0), &data[range]);
                Ok(())
            });
        })
    }

    fn mapped_bytes(&self) -> u64 {
        let pieces = self.lock().pieces.len();
        u64::try_from(pieces).map_or(0, |n| n * Piece::BYTES)
    }

    fn invalidate(&self) {
        let mut cache = self.lock_mut();
        cache.epoch += 1;
        let pieces = std::mem::take(&mut cache.pieces);
        drop(cache);
        drop(pieces);
        self.counters.invalidated.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether pieces lie in one page, and there is one.
fn one_page(gpa: u64, piece: usize, stride: usize, len: usize) -> bool {
    let piece = piece.max(1);
    let last = len.div_ceil(piece).saturating_sub(1);
    let end = usize::try_from(gpa & 0xfff)
        .unwrap_or(PAGE_SIZE)
        .saturating_add(last.saturating_mul(stride))
        .saturating_add(piece.min(len));
    len > 0 && end <= PAGE_SIZE
}
