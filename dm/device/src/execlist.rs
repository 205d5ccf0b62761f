//! One engine's execlist port as the guest sees it. Pure: it takes loads and
//! completions and says which status-buffer entries and requests follow.
//!
//! The accounting i915 keeps (Linux `gt/intel_execlists_submission.c:process_csb`)
//! is exact: one entry that promotes for each load, one that completes for
//! each element which then still is the guest's active one.

use std::collections::VecDeque;

use gen8::csb::{self, Descriptor};
use serde::{Deserialize, Serialize};

use crate::kept::{join, split};

/// Loads an engine holds: the running one and those behind it. i915 keeps at
/// most one pending; a guest that writes more loses the excess, as hardware
/// with its two ports does.
pub const LOADS: usize = 4;

/// One load of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadV1 {
    /// Its number on its engine.
    pub seq: u64,
    /// The descriptors; 0 is an absent element, and the first is present.
    pub desc: [u64; 2],
}

impl LoadV1 {
    fn element(self, index: usize) -> Option<Descriptor> {
        let d = Descriptor(self.desc.get(index).copied()?);
        d.valid().then_some(d)
    }
}

/// The port's saved state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExeclistV1 {
    /// Dwords of an unfinished load, in the order written.
    pub partial: Vec<u32>,
    /// The number the next load gets.
    pub next_seq: u64,
    /// Loads not done, oldest first; the oldest runs.
    pub loads: Vec<LoadV1>,
    /// The element of the oldest that runs.
    pub element: usize,
    /// The oldest failed: nothing moves until a reset.
    pub faulted: bool,
}

impl ExeclistV1 {
    /// What [`Execlist::keep`] put, good or not.
    pub(crate) fn kept(at: usize, get: impl Fn(usize) -> u64) -> Self {
        let (small, a) = split(get(at));
        let (b, c) = split(get(at + 1));
        let [written, element, faulted, loads] = small.to_le_bytes();
        let loads = (0..usize::from(loads).min(LOADS)).map(|n| {
            let at = at + 3 + 3 * n;
            LoadV1 {
                seq: get(at),
                desc: [get(at + 1), get(at + 2)],
            }
        });
        Self {
            partial: [a, b, c].into_iter().take(written.into()).collect(),
            next_seq: get(at + 2),
            loads: loads.collect(),
            element: element.into(),
            faulted: faulted != 0,
        }
    }
}

/// A status-buffer entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened: bits of [`gen8::csb`].
    pub status: u32,
    /// Of which context.
    pub context: u32,
}

/// The port.
#[derive(Debug, Default)]
pub struct Execlist {
    partial: [u32; 3],
    written: usize,
    next_seq: u64,
    loads: VecDeque<LoadV1>,
    element: usize,
    faulted: bool,
}

/// What a write to the port did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// One of the first three dwords.
    Part,
    /// A list to submit.
    Load {
        /// The list.
        load: LoadV1,
        /// The number of the running list whose place it took.
        replaced: Option<u64>,
    },
    /// A list without a valid element, or one too many.
    Refused,
}

impl Execlist {
    /// Whether nothing runs or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.loads.is_empty()
    }

    /// Whether the running element failed and waits for a reset.
    #[must_use]
    pub fn is_faulted(&self) -> bool {
        self.faulted
    }

    /// The running element.
    #[must_use]
    pub fn running(&self) -> Option<Descriptor> {
        self.loads.front()?.element(self.element)
    }

    /// Loads not done, oldest first.
    #[cfg(test)]
    fn loads(&self) -> impl Iterator<Item = LoadV1> + '_ {
        self.loads.iter().copied()
    }

    /// The status register's two dwords: which elements are valid (bits 3
    /// and 4), which runs (bits 15:14), more loads behind (bit 2); and the
    /// running context's id.
    #[must_use]
    pub fn status(&self) -> [u32; 2] {
        let Some(front) = self.loads.front() else {
            return [0; 2];
        };
        let mut low = 0;
        for (index, bit) in [(0, 1 << 4), (1, 1 << 3)] {
            if front.element(index).is_some() {
                low |= bit;
            }
        }
        if self.loads.len() > 1 {
            low |= 1 << 2;
        }
        low |= if self.element == 0 { 1 << 14 } else { 2 << 14 };
        let context = self.running().map_or(0, Descriptor::context_id);
        [low, context]
    }

    /// One dword written to the port; the order is element 1 high, low,
    /// element 0 high, low.
    pub fn write(&mut self, value: u32, entries: &mut Vec<Entry>) -> Wrote {
        if let Some(part) = self.partial.get_mut(self.written) {
            *part = value;
            self.written += 1;
            return Wrote::Part;
        }
        self.written = 0;
        let [high1, low1, high0] = self.partial;
        let join = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        self.load([join(high0, value), join(high1, low1)], entries)
    }

    /// A whole list.
    pub fn load(&mut self, desc: [u64; 2], entries: &mut Vec<Entry>) -> Wrote {
        let present = desc.map(|d| if Descriptor(d).valid() { d } else { 0 });
        // An absent first element leaves the second to run.
        let desc = match present {
            [0, 0] => return Wrote::Refused,
            [0, second] => [second, 0],
            both => both,
        };
        if self.loads.len() >= LOADS || self.faulted {
            return Wrote::Refused;
        }
        let load = LoadV1 {
            seq: self.next_seq,
            desc,
        };
        self.next_seq = self.next_seq.saturating_add(1);
        let first = Descriptor(desc[0]);
        let mut replaced = None;
        match self.running() {
            None => {
                self.loads.push_back(load);
                self.element = 0;
                entries.push(entry(csb::IDLE_TO_ACTIVE, first));
            }
            // The same context with more work: the new list takes the place
            // of the old at once, and the old one's completions with it.
            Some(running) if self.loads.len() == 1 && running.same_context(first) => {
                replaced = self.loads.pop_front().map(|old| old.seq);
                self.loads.push_back(load);
                self.element = 0;
                entries.push(entry(csb::LITE_RESTORE | csb::PREEMPTED, first));
            }
            Some(_) => self.loads.push_back(load),
        }
        Wrote::Load { load, replaced }
    }

    /// Element `element` of load `seq` is done. Reports about loads that a
    /// later one replaced, or that a reset forgot, change nothing.
    ///
    /// vgpud may have replaced a list that was still running here: a report
    /// about a later load completes everything before it.
    pub fn done(&mut self, seq: u64, element: usize, entries: &mut Vec<Entry>) {
        if self.faulted || !self.loads.iter().any(|l| l.seq == seq) {
            return;
        }
        while let Some(front) = self.loads.front().copied() {
            if front.seq > seq || (front.seq == seq && self.element > element) {
                return;
            }
            self.complete_running(front, entries);
        }
    }

    fn complete_running(&mut self, front: LoadV1, entries: &mut Vec<Entry>) {
        let finished = front.element(self.element).unwrap_or_default();
        let next = self.element + 1;
        if front.element(next).is_some() {
            self.element = next;
            entries.push(entry(csb::CONTEXT_COMPLETE | csb::ELEMENT_SWITCH, finished));
            return;
        }
        self.loads.pop_front();
        self.element = 0;
        entries.push(entry(csb::CONTEXT_COMPLETE | csb::ACTIVE_TO_IDLE, finished));
        if let Some(next) = self.running() {
            entries.push(entry(csb::IDLE_TO_ACTIVE, next));
        }
    }

    /// Element `element` of load `seq` failed: what came before it is done,
    /// it stays the running one. Says whether that is so: a report about a
    /// forgotten load is not.
    pub fn fault(&mut self, seq: u64, element: usize, entries: &mut Vec<Entry>) -> bool {
        if self.faulted || !self.loads.iter().any(|l| l.seq == seq) {
            return false;
        }
        while let Some(front) = self.loads.front().copied() {
            if front.seq >= seq && (front.seq > seq || self.element >= element) {
                break;
            }
            // An element the list does not have cannot fail: the last one did.
            if front.seq == seq && front.element(self.element + 1).is_none() {
                break;
            }
            self.complete_running(front, entries);
        }
        self.faulted = true;
        true
    }

    /// Gives the loads new numbers, so that reports about the old ones count
    /// no more, and returns them for submission. An element that is done is
    /// no more part of its load: its context may have got more since, which a
    /// later load wants run behind what that one waits for.
    pub fn renumber(&mut self) -> Vec<LoadV1> {
        if let Some(front) = self.loads.front_mut()
            && std::mem::take(&mut self.element) == 1
        {
            front.desc = [front.desc[1], 0];
        }
        for load in &mut self.loads {
            load.seq = self.next_seq;
            self.next_seq = self.next_seq.saturating_add(1);
        }
        self.faulted = false;
        self.loads.iter().copied().collect()
    }

    /// Forgets everything but the numbering.
    pub fn reset(&mut self) {
        self.written = 0;
        self.loads.clear();
        self.element = 0;
        self.faulted = false;
    }

    /// Puts what a successor needs from word `at` on.
    pub(crate) fn keep(&self, at: usize, put: &mut impl FnMut(usize, u64)) {
        let Self {
            partial,
            written,
            next_seq,
            loads,
            element,
            faulted,
        } = self;
        let byte = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        let small = [
            byte(*written),
            byte(*element),
            u8::from(*faulted),
            byte(loads.len()),
        ];
        let [a, b, c] = *partial;
        put(at, join(u32::from_le_bytes(small), a));
        put(at + 1, join(b, c));
        put(at + 2, *next_seq);
        for (n, load) in loads.iter().enumerate() {
            let at = at + 3 + 3 * n;
            put(at, load.seq);
            put(at + 1, load.desc[0]);
            put(at + 2, load.desc[1]);
        }
    }

    /// The state to save.
    #[must_use]
    pub fn save(&self) -> ExeclistV1 {
        let Self {
            partial,
            written,
            next_seq,
            loads,
            element,
            faulted,
        } = self;
        ExeclistV1 {
            partial: partial.iter().copied().take(*written).collect(),
            next_seq: *next_seq,
            loads: loads.iter().copied().collect(),
            element: *element,
            faulted: *faulted,
        }
    }

    /// A port as saved.
    ///
    /// # Errors
    /// [`BadExeclist`] names what no port can hold.
    pub fn restore(state: &ExeclistV1) -> Result<Self, BadExeclist> {
        let ExeclistV1 {
            partial,
            next_seq,
            loads,
            element,
            faulted,
        } = state;
        let mut port = Self {
            next_seq: *next_seq,
            loads: loads.iter().copied().collect(),
            element: *element,
            faulted: *faulted,
            written: partial.len(),
            ..Self::default()
        };
        if partial.len() > port.partial.len() {
            return Err(BadExeclist::Partial(partial.len()));
        }
        for (to, from) in port.partial.iter_mut().zip(partial) {
            *to = *from;
        }
        if loads.len() > LOADS {
            return Err(BadExeclist::Loads(loads.len()));
        }
        let ordered = loads.is_sorted_by(|a, b| a.seq < b.seq);
        if !ordered || loads.iter().any(|l| l.seq >= *next_seq) {
            return Err(BadExeclist::Numbers);
        }
        let valid = loads.iter().all(|l| l.element(0).is_some());
        if !valid || (port.running().is_none() && !(loads.is_empty() && *element == 0)) {
            return Err(BadExeclist::Element(*element));
        }
        Ok(port)
    }
}

fn entry(status: u32, context: Descriptor) -> Entry {
    Entry {
        status,
        context: context.context_id(),
    }
}

/// A saved port that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExeclist {
    /// Dwords of an unfinished load.
    #[error("saved port has {0} dwords of a load, allowed: 0 to 3")]
    Partial(usize),
    /// Loads.
    #[error("saved port has {0} loads, allowed: 0 to 4")]
    Loads(usize),
    /// Their numbers.
    #[error("numbers of the saved port's loads do not rise to the next")]
    Numbers,
    /// The running element.
    #[error("saved port runs element {0}, which its load lacks")]
    Element(usize),
}

#[cfg(test)]
mod tests;
