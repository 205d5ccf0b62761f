//! Estimates that forget, and decisions that do not waver.

/// A part of something, as seen lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    sum: f64,
    weight: f64,
}

/// What is left of a round's weight a round later.
const MEMORY: f64 = 0.6;

impl Default for Estimate {
    /// Half, on little evidence.
    fn default() -> Self {
        Self {
            sum: 0.125,
            weight: 0.25,
        }
    }
}

impl Estimate {
    /// Takes note of `part` of `whole`; of nothing, there is nothing to note.
    pub(super) fn see(&mut self, part: u32, whole: u32) {
        if whole > 0 {
            self.sum = self.sum * MEMORY + f64::from(part.min(whole)) / f64::from(whole);
            self.weight = self.weight * MEMORY + 1.0;
        }
    }

    /// From 0 to 1.
    pub(super) fn value(&self) -> f64 {
        self.sum / self.weight
    }
}

/// A decision that changes only when the other way has been clearly better
/// for some rounds: each change costs work that was done for the former way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaning {
    yes: bool,
    against: u8,
}

/// How much better is clearly better.
const MARGIN: f64 = 0.1;

/// For how many rounds.
const ROUNDS: u8 = 2;

impl Leaning {
    pub(super) const fn towards(yes: bool) -> Self {
        Self { yes, against: 0 }
    }

    /// The decision, given what either way is expected to cost.
    pub(super) fn lean(&mut self, cost_of_yes: f64, cost_of_no: f64) -> bool {
        let (now, other) = if self.yes {
            (cost_of_yes, cost_of_no)
        } else {
            (cost_of_no, cost_of_yes)
        };
        if other < now * (1.0 - MARGIN) {
            self.against += 1;
        } else {
            self.against = 0;
        }
        if self.against >= ROUNDS {
            *self = Self::towards(!self.yes);
        }
        self.yes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.value(), 0.5);
        for _ in 0..10 {
            estimate.see(0, 10);
        }
        assert!(estimate.value() < 0.01);
        estimate.see(0, 0);
        estimate.see(20, 10);
        estimate.see(10, 10);
        assert!(estimate.value() > 0.6 && estimate.value() <= 1.0);
    }

    #[test]
    fn decisions_do_not_waver() {
        let mut leaning = Leaning::towards(false);
        // Better, but once; or for long, but hardly.
        for _ in 0..10 {
            assert!(!leaning.lean(1.0, 2.0));
            assert!(!leaning.lean(1.0, 1.05));
        }
        assert!(!leaning.lean(1.0, 2.0));
        assert!(leaning.lean(1.0, 2.0));
        assert!(leaning.lean(1.05, 1.0));
    }
}
