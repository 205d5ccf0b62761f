//! One vGPU's way to one engine: its execlist loads in order.

use std::collections::VecDeque;

use gen8::csb::Descriptor;

use crate::workload::Shadow;

/// Loads that may wait. A driver has one at the GPU and one behind it.
const MAX_LOADS: usize = 64;

/// An element of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// The load's number.
    pub seq: u64,
    /// Which of its elements.
    pub element: u8,
}

struct Load {
    seq: u64,
    descriptors: [Descriptor; 2],
    next: usize,
}

/// Why a load is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// Its number is not greater than the last.
    Sequence {
        /// The last.
        last: u64,
    },
    /// Too many wait.
    Full,
    /// The engine is stopped for this vGPU.
    Stopped,
}

/// Loads, and the element that is being run.
#[derive(Default)]
pub struct Lane {
    loads: VecDeque<Load>,
    last: Option<u64>,
    /// The element at the engine or in its queue.
    pub active: Option<Active>,
    /// Something failed; nothing runs until the guest resets the engine.
    pub stopped: bool,
    /// What elements run from.
    pub shadow: Shadow,
}

impl Lane {
    /// Takes a load.
    pub fn load(&mut self, seq: u64, descriptors: [Descriptor; 2]) -> Result<(), LoadError> {
        if let Some(last) = self.last
            && seq <= last
        {
            return Err(LoadError::Sequence { last });
        }
        self.last = Some(seq);
        if self.stopped {
            return Err(LoadError::Stopped);
        }
        if self.loads.len() >= MAX_LOADS {
            return Err(LoadError::Full);
        }
        self.loads.push_back(Load {
            seq,
            descriptors,
            next: 0,
        });
        Ok(())
    }

    /// The next element to run: none while one is active or the lane is
    /// stopped. An absent second element is skipped; an absent first one is
    /// the guest's error and comes out as it is.
    pub fn next(&mut self) -> Option<(Active, Descriptor)> {
        if self.active.is_some() || self.stopped {
            return None;
        }
        loop {
            let load = self.loads.front_mut()?;
            let element = load.next;
            let seq = load.seq;
            let descriptor = load.descriptors.get(element).copied();
            load.next += 1;
            match descriptor {
                Some(d) if element == 0 || d.valid() => {
                    let element = u8::from(element == 1);
                    return Some((Active { seq, element }, d));
                }
                _ => {
                    self.loads.pop_front();
                }
            }
        }
    }

    /// Loads that wait; one whose first element runs is among them.
    pub fn waiting(&self) -> usize {
        self.loads.len()
    }

    /// Drops what waits.
    pub fn clear(&mut self) {
        self.loads.clear();
    }

    /// Drops what waits and takes no more.
    pub fn stop(&mut self) {
        self.clear();
        self.stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Descriptor = Descriptor(0x1019);
    const B: Descriptor = Descriptor(0x3019);
    const NONE: Descriptor = Descriptor(0);

    #[test]
    fn elements_come_in_order_one_at_a_time() {
        let mut lane = Lane::default();
        lane.load(1, [A, B]).unwrap();
        lane.load(2, [A, NONE]).unwrap();
        let mut seen = Vec::new();
        while let Some((active, d)) = lane.next() {
            lane.active = Some(active);
            assert_eq!(lane.next(), None);
            lane.active = None;
            seen.push((active.seq, active.element, d));
        }
        assert_eq!(seen, [(1, 0, A), (1, 1, B), (2, 0, A)]);
        assert_eq!(lane.waiting(), 0);
    }

    #[test]
    fn numbers_grow_and_the_queue_is_bounded() {
        let mut lane = Lane::default();
        lane.load(5, [A, NONE]).unwrap();
        assert_eq!(
            lane.load(5, [A, NONE]),
            Err(LoadError::Sequence { last: 5 })
        );
        for seq in 6..100 {
            let _ = lane.load(seq, [A, NONE]);
        }
        assert_eq!(lane.waiting(), MAX_LOADS);
        assert_eq!(lane.load(100, [A, NONE]), Err(LoadError::Full));
        lane.stop();
        assert_eq!(lane.load(101, [A, NONE]), Err(LoadError::Stopped));
        assert_eq!(lane.next(), None);
    }
}
