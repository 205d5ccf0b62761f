//! Other ways to share a global table, to compare with. Each is taken at its
//! best: it writes no more entries than a guest maps, and no time passes
//! while it does.

use std::collections::HashMap;

/// What a way of sharing did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Times the engine went to another vGPU.
    pub switches: u64,
    /// Entries written.
    pub ptes: u64,
    /// Of these, entries the engine waited for.
    pub late: u64,
    /// Switches for which the engine waited for no entry.
    pub ready: u64,
}

impl Sum {
    /// Counts entries before an engine's turn, some of them late; on a
    /// switch or not.
    pub const fn add(&mut self, switched: bool, ptes: u64, late: u64) {
        self.ptes += ptes;
        self.late += late;
        if switched {
            self.switches += 1;
            if late == 0 {
                self.ready += 1;
            }
        }
    }
}

/// Slots, as gScale had.
const SLOTS: usize = 4;

/// The table cut in four. Each vGPU has its slot, shared with others: the
/// entries of whoever ran last stand there. Behind a switch from A to B, B's
/// own last successor is loaded, if its slot is another one than B's.
pub struct Slots {
    /// Pages each vGPU maps.
    mapped: Vec<u64>,
    owner: [Option<usize>; SLOTS],
    next: HashMap<usize, usize>,
    pub sum: Sum,
}

impl Slots {
    pub fn new(mapped: Vec<u64>) -> Self {
        Self {
            mapped,
            owner: [None; SLOTS],
            next: HashMap::new(),
            sum: Sum::default(),
        }
    }

    const fn slot(guest: usize) -> usize {
        guest % SLOTS
    }

    /// Loads a vGPU's entries into its slot, and over what else its owner
    /// had there; how many were written.
    fn load(&mut self, guest: usize) -> u64 {
        let pages = |guest: Option<usize>| guest.and_then(|g| self.mapped.get(g)).copied();
        let before = self.owner[Self::slot(guest)];
        if before == Some(guest) {
            return 0;
        }
        let wrote = pages(Some(guest)).max(pages(before)).unwrap_or(0);
        self.owner[Self::slot(guest)] = Some(guest);
        wrote
    }

    /// The engine goes from one vGPU to another, or stays.
    pub fn turn(&mut self, before: Option<usize>, guest: usize) {
        let late = self.load(guest);
        self.sum.add(before != Some(guest), late, late);
        let Some(before) = before.filter(|b| *b != guest) else {
            return;
        };
        self.next.insert(before, guest);
        if let Some(&candidate) = self.next.get(&guest)
            && Self::slot(candidate) != Self::slot(guest)
        {
            self.sum.ptes += self.load(candidate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_loaded_when_another_had_it() {
        let mut slots = Slots::new(vec![10, 10, 10, 10, 30]);
        slots.turn(None, 0);
        slots.turn(Some(0), 1);
        slots.turn(Some(1), 0);
        assert_eq!(
            (slots.sum.ptes, slots.sum.switches, slots.sum.ready),
            (20, 3, 1)
        );
        // Guest 4 shares a slot with guest 0.
        slots.turn(Some(0), 4);
        slots.turn(Some(4), 0);
        assert_eq!(slots.sum.late, 20 + 30 + 30);
    }

    #[test]
    fn who_follows_as_before_is_there_already() {
        // Guests that share a slot are four turns apart.
        let mut slots = Slots::new(vec![10; 8]);
        let mut before = None;
        let mut late = Vec::new();
        for _ in 0..3 {
            let sum = slots.sum.late;
            for guest in 0..8 {
                slots.turn(before, guest);
                before = Some(guest);
            }
            late.push(slots.sum.late - sum);
        }
        // That 7 is followed by 0 is news in the second round.
        assert_eq!(late, [80, 10, 0]);
    }
}
