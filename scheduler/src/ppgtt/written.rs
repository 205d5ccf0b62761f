//! Which pages of a guest its work at the GPU may have written.
//!
//! A GPU leaves no dirty bits. What is known is what work could reach: pages
//! that its tables map writable, and those that are shown to it in the global
//! table. Only of work that ran since the last time it was asked for; and a
//! page counts that was within reach then and no longer is.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gen8::pte::{Level, WRITABLE};
use guest_memory::Gfn;

use super::entry::Entry;
use super::tables::{Id, Table, Tables};

/// Frames that a table entry of 2 MiB maps.
const LARGE_FRAMES: u64 = 512;

/// Frames of a word.
const WORD: u64 = 64;

/// A set of frames; of a guest's own memory it takes a bit a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames(BTreeMap<u64, u64>);

impl Frames {
    /// Adds a frame.
    pub fn insert(&mut self, gfn: Gfn) {
        *self.0.entry(gfn.0 / WORD).or_default() |= 1 << (gfn.0 % WORD);
    }

    /// Adds `frames` frames from `first` on.
    pub fn insert_run(&mut self, first: Gfn, frames: u64) {
        for gfn in first.0..first.0.saturating_add(frames) {
            self.insert(Gfn(gfn));
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let ones = self.0.values().map(|word| word.count_ones());
        ones.map(|n| usize::try_from(n).unwrap_or(0)).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each, from the lowest on.
    pub fn iter(&self) -> impl Iterator<Item = Gfn> {
        self.0.iter().flat_map(|(&at, &word)| {
            let bits = (0..WORD).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| Gfn(at * WORD + bit))
        })
    }
}

impl Extend<Gfn> for Frames {
    fn extend<T: IntoIterator<Item = Gfn>>(&mut self, gfns: T) {
        for gfn in gfns {
            self.insert(gfn);
        }
    }
}

/// What is kept to answer.
#[derive(Default)]
pub struct Reach {
    /// Whether it will be asked for.
    on: bool,
    /// Roots of work that was at the GPU since the last time.
    ran: BTreeSet<Gfn>,
    /// Pages that came out of reach, with the number of the last pin then.
    /// Work that was at the GPU at that time may know the way to them still.
    gone: Vec<(u64, Frames)>,
    /// What work was shown that is over since the last time.
    was_shown: Frames,
    /// Pins there are.
    live: BTreeSet<u64>,
    /// What work at the GPU is shown in the global table, by its pin.
    shown: HashMap<u64, Vec<Gfn>>,
    /// The last pin's number.
    pins: u64,
}

impl Reach {
    /// Work with these tables goes to the GPU; the number of its pin.
    pub fn depart(&mut self, root: Gfn) -> u64 {
        if self.on {
            self.ran.insert(root);
        }
        self.pins += 1;
        self.live.insert(self.pins);
        self.pins
    }

    /// The work of a pin is shown these pages as well.
    pub fn show(&mut self, pin: u64, frames: Vec<Gfn>) {
        self.shown.insert(pin, frames);
    }

    /// The work of a pin is over.
    pub fn arrive(&mut self, pin: u64) {
        self.live.remove(&pin);
        let shown = self.shown.remove(&pin);
        if self.on {
            self.was_shown.extend(shown.into_iter().flatten());
        }
    }

    /// Where pages belong that come out of reach now.
    fn gone_now(&mut self) -> &mut Frames {
        if self.gone.last().is_none_or(|(pin, _)| *pin != self.pins) {
            self.gone.push((self.pins, Frames::default()));
        }
        let at = self.gone.len() - 1;
        &mut self.gone[at].1
    }

    /// Nothing of the vGPU is at the GPU any more, nor will be.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Tables {
    /// From now on it will be asked what was written, or no longer.
    pub fn track(&mut self, on: bool) {
        let pinned = self.pinned();
        let reach = &mut self.reach;
        reach.on = on;
        reach.gone.clear();
        reach.was_shown = Frames::default();
        reach.ran = if on { pinned } else { BTreeSet::new() };
    }

    fn pinned(&self) -> BTreeSet<Gfn> {
        let pinned = self.roots.iter().filter(|(_, root)| root.pins > 0);
        pinned.map(|(gfn, _)| *gfn).collect()
    }

    /// What may have been written since the last time.
    pub fn written(&mut self) -> Frames {
        let pinned = self.pinned();
        let ran = std::mem::replace(&mut self.reach.ran, pinned);
        let reach = &mut self.reach;
        let mut frames = std::mem::take(&mut reach.was_shown);
        for (_, gone) in &reach.gone {
            frames.extend(gone.iter());
        }
        let oldest = reach.live.first().copied().unwrap_or(u64::MAX);
        reach.gone.retain(|(pin, _)| *pin >= oldest);
        frames.extend(reach.shown.values().flatten().copied());
        let roots = ran.iter().filter_map(|gfn| Some(self.roots.get(gfn)?.id));
        self.reachable(roots.collect(), &mut frames);
        frames
    }

    /// What the tables from `open` down map writable. Levels above a page's
    /// own entry may forbid writing as well; that is not looked at.
    fn reachable(&self, mut open: Vec<Id>, frames: &mut Frames) {
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            if let Some(table) = self.table(id) {
                table.writable(frames);
                open.extend(table.children.iter().flatten());
            }
        }
    }

    /// Entry `i` of a table is about to be replaced.
    pub fn leaves(&mut self, id: Id, i: usize) {
        if !self.reach.on {
            return;
        }
        let Some(table) = self.table(id) else { return };
        let mut frames = Frames::default();
        match table.children.get(i).copied().flatten() {
            Some(child) => self.reachable(vec![child], &mut frames),
            None => table.writable_entry(i, &mut frames),
        }
        if !frames.is_empty() {
            self.reach.gone_now().extend(frames.iter());
        }
    }

    /// A root is about to be forgotten, and what only it reaches with it.
    pub fn root_leaves(&mut self, root: Gfn) {
        if !self.reach.on || !self.reach.ran.remove(&root) {
            return;
        }
        if let Some(id) = self.roots.get(&root).map(|r| r.id) {
            let mut frames = Frames::default();
            self.reachable(vec![id], &mut frames);
            self.reach.gone_now().extend(frames.iter());
        }
    }
}

impl Table {
    /// Pages that its entries map writable.
    fn writable(&self, frames: &mut Frames) {
        if matches!(self.key.1, Level::Pt | Level::Pd) {
            for i in 0..self.copy.len() {
                self.writable_entry(i, frames);
            }
        }
    }

    fn writable_entry(&self, i: usize, frames: &mut Frames) {
        let raw = self.copy.get(i).copied().unwrap_or_default();
        match Entry::read(raw, self.key.1) {
            Entry::Page { gfn, flags } if flags & WRITABLE != 0 => frames.insert(gfn),
            Entry::Large { gfn, flags } if flags & WRITABLE != 0 => {
                frames.insert_run(gfn, LARGE_FRAMES);
            }
            _ => {}
        }
    }
}
