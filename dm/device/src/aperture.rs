//! The aperture: the guest's CPU reaches graphics memory through its global
//! page table, and through fences what is tiled.
//!
//! No translation outlives an access. The guest's table is RAM that it
//! changes without an exit, so an entry read earlier says nothing; reading
//! it again is one load. What is cached is behind [`GuestMemory`]: mappings
//! of guest frames, which Xen tells us to drop.
//!
//! [`GuestMemory`]: guest_memory::GuestMemory

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gen8::fence::{Fence, Tiling, Unusable};
use serde::Serialize;

use crate::core::Seams;
use crate::fences::Fences;
use crate::table_memory::{Part, Walk};

const PAGE: usize = 4096;

/// What went through the aperture since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ApertureCounts {
    /// Reads; a string instruction's share of a page is one.
    pub reads: u64,
    /// Writes, likewise.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Accesses of which a part lay in a fence's range.
    pub fenced: u64,
    /// Accesses of which a part found no memory: no aperture, no entry, or no
    /// frame.
    pub failed: u64,
}

/// A fence as `inspect` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FenceView {
    /// Its number.
    pub number: u32,
    /// First byte and last page of its range in global address space, bytes
    /// of a row and kind of tile; or why its range is linear all the same.
    #[serde(flatten)]
    pub meaning: FenceMeaning,
}

/// What a valid fence register means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FenceMeaning {
    /// A range.
    Range {
        /// First byte, hexadecimal.
        start: String,
        /// Last page, hexadecimal.
        last_page: String,
        /// Bytes of a row.
        pitch: u32,
        /// X or Y.
        tiling: &'static str,
    },
    /// Nothing.
    Unusable {
        /// Why.
        unusable: &'static str,
    },
}

/// The aperture as a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApertureView {
    /// What went through it.
    #[serde(flatten)]
    pub counts: ApertureCounts,
    /// Fences that are valid.
    pub fences: Vec<FenceView>,
}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    fenced: AtomicU64,
    failed: AtomicU64,
}

/// How an access went.
#[derive(Default)]
struct Outcome {
    fenced: bool,
    failed: bool,
}

/// BAR2.
pub(crate) struct Aperture {
    bytes: u64,
    fences: Arc<Fences>,
    counters: Counters,
}

impl Aperture {
    pub(crate) fn new(bytes: u64, fences: Arc<Fences>) -> Self {
        Self {
            bytes,
            fences,
            counters: Counters::default(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads a run of bytes. What is no memory reads all ones.
    pub(crate) fn read(&self, seams: &Seams, offset: u64, buf: &mut [u8]) {
        self.counters.reads.fetch_add(1, Relaxed);
        add(&self.counters.bytes_read, buf.len());
        let outcome = match self.global(offset, buf.len()) {
            Some(address) => {
                let mut walk = Walk::new(seams);
                self.visit(address, buf.len(), |part, range| {
                    walk.read(part, &mut buf[range])
                })
            }
            None => {
                buf.fill(0xff);
                Outcome::FAILED
            }
        };
        self.note(&outcome);
    }

    /// Writes a run of bytes. What is no memory is dropped.
    pub(crate) fn write(&self, seams: &Seams, offset: u64, data: &[u8]) {
        self.counters.writes.fetch_add(1, Relaxed);
        add(&self.counters.bytes_written, data.len());
        let outcome = match self.global(offset, data.len()) {
            Some(address) => {
                let mut walk = Walk::new(seams);
                self.visit(address, data.len(), |at, range| {
                    walk.write(at, &data[range])
                })
            }
            None => Outcome::FAILED,
        };
        self.note(&outcome);
    }

    /// The global address of an access that lies within the aperture.
    fn global(&self, offset: u64, len: usize) -> Option<u32> {
        let end = offset.checked_add(u64::try_from(len).ok()?)?;
        (end <= self.bytes)
            .then(|| u32::try_from(offset).ok())
            .flatten()
    }

    /// Splits an access, of which all addresses are in the aperture, at
    /// pages, and where a fence counts at tiles. Calls `f` with where each
    /// part is and its range in the caller's buffer; `f` says whether it was
    /// there.
    fn visit(
        &self,
        address: u32,
        len: usize,
        mut f: impl FnMut(Part, Range<usize>) -> bool,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut done = 0;
        let mut address = address;
        while done < len {
            let in_page = usize::try_from(address & 0xfff).unwrap_or(0);
            let page_end = done + (PAGE - in_page).min(len - done);
            let fence = self.fences.at(address);
            outcome.fenced |= fence.is_some();
            while done < page_end {
                let (part, most) = fence.map_or((Part::whole(address), PAGE), |fence| {
                    Part::of_tile(fence, address)
                });
                let n = most.min(page_end - done);
                outcome.failed |= !f(part, done..done + n);
                done += n;
                // At most a page.
                address = address.wrapping_add(u32::try_from(n).unwrap_or(0));
            }
        }
        outcome
    }

    fn note(&self, outcome: &Outcome) {
        if outcome.fenced {
            self.counters.fenced.fetch_add(1, Relaxed);
        }
        if outcome.failed {
            self.counters.failed.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> ApertureCounts {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let c = &self.counters;
        ApertureCounts {
            reads: get(&c.reads),
            writes: get(&c.writes),
            bytes_read: get(&c.bytes_read),
            bytes_written: get(&c.bytes_written),
            fenced: get(&c.fenced),
            failed: get(&c.failed),
        }
    }

    pub(crate) fn view(&self) -> ApertureView {
        let fences = self.fences.decoded().map(|(number, decoded)| FenceView {
            number,
            meaning: match decoded {
                Ok(f) => FenceMeaning::Range {
                    start: format!("{:#x}", f.start()),
                    last_page: format!("{:#x}", f.last_page()),
                    pitch: f.pitch(),
                    tiling: match f.tiling() {
                        Tiling::X => "X",
                        Tiling::Y => "Y",
                    },
                },
                Err(unusable) => FenceMeaning::Unusable {
                    unusable: match unusable {
                        Unusable::Empty => "ends before it starts",
                        Unusable::Pitch => "rows are no whole number of tiles",
                    },
                },
            },
        });
        ApertureView {
            counts: self.counts(),
            fences: fences.collect(),
        }
    }
}

impl Outcome {
    const FAILED: Self = Self {
        fenced: false,
        failed: true,
    };
}

fn add(counter: &AtomicU64, len: usize) {
    counter.fetch_add(u64::try_from(len).unwrap_or(0), Relaxed);
}

impl Part {
    /// The part that begins where a fence has an address, and the most bytes
    /// it can have: the rest of a tile's row, or of its first run when the
    /// address is inside one.
    fn of_tile(fence: Fence, address: u32) -> (Self, usize) {
        let bytes = |n: u32| usize::try_from(n).unwrap_or(PAGE);
        let (place, tiling) = (fence.locate(address), fence.tiling());
        if place.run < tiling.run() {
            return (Self::whole(place.address), bytes(place.run));
        }
        let part = Self {
            address: place.address,
            piece: bytes(tiling.run()),
            stride: bytes(tiling.stride()),
        };
        (part, bytes(place.row))
    }
}
