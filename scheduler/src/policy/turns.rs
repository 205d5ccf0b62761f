//! Turns in the order of asking.

use std::collections::VecDeque;

/// Round robin: who became ready first goes first, and goes to the back of
/// the queue with its next workload.
#[derive(Debug, Default)]
pub struct Turns {
    queue: VecDeque<u64>,
}

impl Turns {
    /// `vgpu` has a workload ready. A vGPU waits in the queue once.
    pub fn ready(&mut self, vgpu: u64) {
        if !self.queue.contains(&vgpu) {
            self.queue.push_back(vgpu);
        }
    }

    /// `vgpu` no longer waits.
    pub fn remove(&mut self, vgpu: u64) {
        self.queue.retain(|v| *v != vgpu);
    }

    /// Takes the next vGPU to run.
    pub fn take(&mut self) -> Option<u64> {
        self.queue.pop_front()
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_its_turn_before_anyone_gets_another() {
        let mut turns = Turns::default();
        let mut ran = Vec::new();
        for v in [1, 2, 3] {
            turns.ready(v);
        }
        for _ in 0..7 {
            let v = turns.take().unwrap();
            ran.push(v);
            turns.ready(v);
        }
        assert_eq!(ran, [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn ready_twice_is_one_turn_and_a_removed_one_has_none() {
        let mut turns = Turns::default();
        turns.ready(1);
        turns.ready(1);
        turns.ready(2);
        assert_eq!(turns.waiting(), 2);
        turns.remove(1);
        assert_eq!(turns.take(), Some(2));
        assert_eq!(turns.take(), None);
    }
}
