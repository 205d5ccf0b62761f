//! Detection by exact compare with a retained copy.

use guest_memory::{Gfn, PAGE_SIZE};

use super::table::{Budget, LEAF_FRAMES, Table};
use super::{Detector, Footprint, Frame, Method, Verdict, same};
use crate::page::{Page, is_zero};

/// Retains a copy of each page that is not zero.
pub struct Compare {
    table: Table<Leaf>,
}

/// Copies of the pages of 2 MiB.
struct Leaf {
    places: [Place; LEAF_FRAMES],
    copies: Vec<Page>,
    /// Places in `copies` that hold no page's copy.
    free: Vec<u16>,
}

/// Where the copy of a page is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Zero,
    At(u16),
}

/// Copies a leaf makes room for at once.
const STEP: usize = 32;

impl Compare {
    /// For frames below `frames`, in about `limit` bytes.
    #[must_use]
    pub fn new(frames: u64, limit: usize) -> Self {
        Self {
            table: Table::new(frames, limit),
        }
    }
}

impl Default for Leaf {
    fn default() -> Self {
        Self {
            places: [Place::Nowhere; LEAF_FRAMES],
            copies: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl Leaf {
    /// Whether there was room.
    fn keep(&mut self, at: usize, page: &Page, budget: &Budget) -> bool {
        let was = self.places[at];
        if is_zero(page) {
            self.release(at);
            self.places[at] = Place::Zero;
        } else if let Some(place) = self.room(was, budget) {
            self.copies[usize::from(place)] = *page;
            self.places[at] = Place::At(place);
        } else {
            self.release(at);
        }
        let is = self.places[at];
        budget.count(was != Place::Nowhere, is != Place::Nowhere);
        is != Place::Nowhere
    }

    /// Where a copy can go: to the former one's place, or a free one.
    fn room(&mut self, was: Place, budget: &Budget) -> Option<u16> {
        if let Place::At(place) = was {
            return Some(place);
        }
        if let Some(place) = self.free.pop() {
            return Some(place);
        }
        if self.copies.len() == self.copies.capacity() {
            if !budget.take(STEP * PAGE_SIZE) {
                return None;
            }
            self.copies.reserve_exact(STEP);
        }
        let place = u16::try_from(self.copies.len()).ok()?;
        self.copies.push([0; PAGE_SIZE]);
        Some(place)
    }

    fn release(&mut self, at: usize) {
        if let Place::At(place) = self.places[at] {
            self.free.push(place);
        }
        self.places[at] = Place::Nowhere;
    }
}

impl Detector for Compare {
    fn method(&self) -> Method {
        Method::Compare
    }

    fn retain(&self, frames: &[Frame<'_>]) -> Vec<bool> {
        let keep = |frame: &Frame<'_>| {
            let kept = (self.table).make(frame.gfn, |leaf, at, budget| {
                leaf.keep(at, frame.page, budget)
            });
            kept.unwrap_or(false)
        };
        frames.iter().map(keep).collect()
    }

    fn forget(&self, gfn: Gfn) {
        self.table.look(gfn, |leaf, at, budget| {
            budget.count(leaf.places[at] != Place::Nowhere, false);
            leaf.release(at);
        });
    }

    fn verify(&self, frames: &[Frame<'_>]) -> Vec<Verdict> {
        let verdict = |frame: &Frame<'_>| {
            let verdict = self
                .table
                .look(frame.gfn, |leaf, at, _| match leaf.places[at] {
                    Place::Nowhere => Verdict::Unknown,
                    Place::Zero => same(is_zero(frame.page)),
                    Place::At(place) => same(leaf.copies[usize::from(place)] == *frame.page),
                });
            verdict.unwrap_or(Verdict::Unknown)
        };
        frames.iter().map(verdict).collect()
    }

    fn footprint(&self) -> Footprint {
        self.table.footprint()
    }
}
